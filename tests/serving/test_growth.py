"""New items in a model that serves: where their vectors come from, and that nothing of the others changes."""

import numpy as np
import polars as pl
import pytest
import torch

from fullrank.core.registry import kinds
from fullrank.data.events.catalog import Catalog
from fullrank.run.experiment import find_experiment
from fullrank.run.grow import outline
from fullrank.serving.catalogue import LiveItems
from fullrank.serving.growth import ItemGrowth
from fullrank.testing.inputs import ITEMS
from refusals import refused
from tests.serving.live import NOW, TINY, bodies, opened, small, titled

SLOW = {"sprint": pytest.mark.slow}  # it has torch compute singular values of a table that is not there yet
RETRIEVERS = [
    pytest.param(name, marks=SLOW.get(name, ())) for name in kinds("recipes") if find_experiment(name).clicks is None
]
HISTORIES = [["i1", "i2"], ["i5"], ["i3", "i9", "i4", "i1"]]
NEW = {
    "n0": {"title": "rose soap", "like": ["i4", "i7"], "features": {"brand": "brand-1", "price": 2.5}},
    "n1": {"title": "lavender oil"},
}


def settings(recipe: str) -> list:
    """A small model of a recipe."""
    return {
        "srt": ["model.items={kind: text, fields: [{column: title}], vocabulary: 60}"],
        "fdsa": ["model.items.categorical=[brand]"],
        "s3rec_pretrain": ["model.penalties=[{kind: s3rec, attributes: [brand]}]"],
    }.get(recipe, [])


def known(recipe: str) -> Catalog:
    catalog = titled()
    if recipe != "srt":
        return catalog
    items = find_experiment(recipe).override(*settings(recipe)).model.items
    own = [name for name in catalog.columns if name.endswith("_tokens") or name.startswith("tokeniser")]
    return items.add_columns(Catalog(catalog.frame.drop(own)))


def grown(recipe: str, *more: str, **documents) -> tuple:
    """A predictor before and after, and the items after."""
    run, predictor = opened(known(recipe), recipe, *settings(recipe), *more)
    return predictor, *LiveItems.of(run, predictor, bodies(documents or NEW), NOW)


@pytest.mark.parametrize("recipe", RETRIEVERS)
def test_items_of_the_run_keep_everything(recipe: str) -> None:
    before, after, live = grown(recipe)
    assert live.refused == {} and live.size == ITEMS + 2 and live.ids[ITEMS:] == ["n0", "n1"]
    times = {"untimed": "even"}
    lists = [one.recommend(HISTORIES, k=ITEMS + 2, seen="keep", **times) for one in (before, after)]
    old = lists[1].filter(pl.col("item").is_in(before.catalog.ids.implode()))
    assert old["item"].equals(lists[0]["item"]), "the same order"
    # vectors are the same bit for bit; a product's last digit depends on where in the table BLAS cuts it
    torch.testing.assert_close(old["score"].to_torch(), lists[0]["score"].to_torch(), rtol=0, atol=4e-6)
    assert set(lists[1]["item"]) >= {"n0", "n1"}, "new items are ranked"
    if isinstance(getattr(before.index, "_made", {}).get("all"), torch.Tensor):
        assert torch.equal(after.index.all()[:ITEMS], before.index.all())
        torch.testing.assert_close(after.index.all(), after.model.index_items().all())
    asked = after.recommend([["n0", "n1"]], k=3, unknown="error", **times)
    assert asked.height == 3, "new items can be in a history"
    if getattr(getattr(before.model, "task", None), "generates", True) is False:
        vectors = [one.user_vectors(HISTORIES, **times)[1] for one in (before, after)]
        assert np.array_equal(*vectors)
    named = {name for name, one in after.model.named_parameters() if one.is_meta}
    assert not named and not any(buffer.is_meta for buffer in after.model.buffers())


@pytest.mark.parametrize("recipe", ["sasrec", "gru4rec", "rpg", "srt"])
def test_the_model_in_memory_is_the_one_that_the_spec_builds(recipe: str) -> None:
    """Growing must leave out nothing that `build` makes: the same names, shapes, types and buffers."""
    _, after, _ = grown(recipe)
    spec = find_experiment(recipe).override(*settings(recipe)).model
    built = spec.build(after.catalog)
    pairs = zip(built.named_buffers(), after.model.named_buffers(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)
    shapes = [{name: one.shape for name, one in model.named_parameters()} for model in (built, after.model)]
    assert shapes[0] == shapes[1]
    assert all(one.is_meta for one in outline(spec, after.catalog).parameters() if len(one) == ITEMS + 2)


def test_weights_are_shared_and_like_is_the_mean() -> None:
    before, after, live = grown("sasrec")
    assert after.model.encoder is before.model.encoder
    table, new = before.model.items.all(), after.model.items.all()
    assert torch.equal(new[:ITEMS], table)
    torch.testing.assert_close(new[ITEMS], (table[4] + table[7]) / 2)
    assert live.origin("n0") == {"from": "like", "neighbours": ["i4", "i7"]}
    assert live.origin("i3") == {"from": "trained", "neighbours": []}


@pytest.mark.parametrize("transductive", ["false", "true"])
def test_items_of_text_vectors_copy_the_nearest(transductive: str) -> None:
    """No sentence encoder is loaded: x is that of an item which it is like, a vector of its own the mean of those."""
    before, after, live = grown("unisrec", f"model.items.transductive={transductive}")
    (new,) = (one for one in live._content.origins if one.item == "n0")
    items = after.model.items
    assert new.copied in (4, 7) and torch.equal(items.x[ITEMS], before.model.items.x[new.copied])
    if transductive == "true":
        own = items.embedding.weight
        torch.testing.assert_close(own[ITEMS], (own[4] + own[7]) / 2)


def test_an_added_item_stands_for_its_neighbours() -> None:
    documents = {"b": {"like": ["a", "i0"]}, "a": {"like": ["i1", "i1", "i2"]}}
    before, after, live = grown("sasrec", **documents)
    table, new = before.model.items.all(), after.model.items.all()
    torch.testing.assert_close(new[ITEMS], table[0] / 2 + (2 * table[1] + table[2]) / 6)
    assert live.ids[ITEMS:] == ["b", "a"]


def test_titles_are_neighbours_by_likeness() -> None:
    before, after, live = grown("sasrec", n={"title": "Rose SOAP"})
    found = live.origin("n")
    assert found["from"] == "title" and found["neighbours"][0] == "i10", "rose soap itself"
    near = live._content.origins[0]
    assert sum(near.weights) == pytest.approx(1) and list(near.weights) == sorted(near.weights, reverse=True)
    mean = torch.tensor(near.weights) @ before.model.items.all()[list(near.neighbours)]
    torch.testing.assert_close(after.model.items.all()[ITEMS], mean)


def test_lists_of_features_are_read() -> None:
    items = "model.items={kind: features, categorical: [tags], ids: false}"
    _, after, live = grown("sasrec", items, n={"features": {"tags": ["b", "a", "of no item"]}})
    assert live.origin("n")["from"] == "features"
    vectors = after.model.items.all()
    torch.testing.assert_close(vectors[ITEMS], vectors[3])  # whose tags are a and b


def test_features_are_read() -> None:
    items = "model.items={kind: features, categorical: [brand], numeric: [price], ids: false}"
    features = {"brand": "brand-1", "price": 1.5}
    before, after, live = grown("sasrec", items, n={"features": features}, m={"title": "x"})
    assert live.origin("n")["from"] == "features"
    torch.testing.assert_close(after.model.items.all()[ITEMS], before.model.items.all()[1], msg="as item 1")
    assert "'brand', 'price'" in live.refused["m"]
    own = items.replace("ids: false", "ids: true")
    before, after, live = grown("sasrec", own, n={"features": features, "like": ["i1"]})
    torch.testing.assert_close(after.model.items.all()[ITEMS], before.model.items.all()[1])
    before, after, _ = grown("sasrec", own, n={"features": features})
    table = before.model.items.embedding.weight
    torch.testing.assert_close(after.model.items.embedding.weight[ITEMS], table.mean(0))


def test_text_is_read_and_codes_are_copied() -> None:
    before, after, live = grown("srt", n={"title": "rose", "text": "soap"}, like={"like": ["i3"]})
    vectors = after.model.items.all()
    torch.testing.assert_close(vectors[ITEMS], vectors[10], msg="the same words as item 10")
    torch.testing.assert_close(vectors[ITEMS + 1], vectors[3])
    assert live.titles is not None and live.titles[ITEMS] == "rose", "the title is the title alone"
    assert live.origin("n")["from"] == "features" and live.origin("like")["same_as"] == "i3"
    _, after, live = grown("rpg", n={"like": ["i3"]})
    assert torch.equal(after.model.items.codes[ITEMS], after.model.items.codes[3]) and "i3" in live.origin("n")["note"]


def test_models_that_count_rank_new_items_last() -> None:
    _, after, live = grown("popularity", n={})
    assert after.recommend([["i1"]], k=ITEMS + 1, seen="keep")["item"][-1] == "n"
    assert live.origin("n")["from"] == "none" and "counts" in live.origin("n")["note"]


@pytest.mark.parametrize(
    ("code", "documents"),
    [
        ("nothing-to-start-from", {"n": {}}),
        ("no-similar-title", {"n": {"title": "xyzzy"}}),
        ("unknown-item", {"n": {"like": ["nobody"]}}),
        ("like-cycle", {"n": {"like": ["m"]}, "m": {"like": ["o"]}, "o": {"like": ["n"]}}),
        ("like-cycle", {"n": {"like": ["n"]}}),
        ("unknown-item", {"n": {"like": ["m"]}, "m": {"title": "xyzzy"}}),
        ("wrong-column-type", {"n": {"like": ["i1"], "features": {"price": "cheap"}}}),
        ("reserved-column", {"n": {"like": ["i1"], "features": {"train_count": 5}}}),
        ("reserved-column", {"n": {"like": ["i1"], "features": {"codes": [1, 2]}}}),
        ("too-many-columns", {"n": {"like": ["i1"], "features": {f"column-{n}": 1 for n in range(257)}}}),
    ],
)
def test_mistakes(code: str, documents: dict) -> None:
    predictor, live = small()
    with refused(code):
        live.with_documents(predictor, bodies(documents), NOW, strict=["n"])
    same, left = live.with_documents(predictor, bodies(documents), NOW)
    assert "n" in left.refused and left.size == ITEMS and same is predictor, "what another process stored is left out"


def test_a_catalogue_without_titles() -> None:
    titles = Catalog(titled().frame.drop("title"))
    run, predictor = opened(titles, *TINY)
    _, live = LiveItems.of(run, predictor, bodies({"n": {"title": "rose soap"}}), NOW)
    assert "no titles" in live.refused["n"] and "like" in live.refused["n"]
    assert live.search("rose", 5).tolist() == []


def test_whole_numbers_and_their_texts_are_one_id() -> None:
    frame = titled().frame.with_columns(item_id=pl.Series(np.arange(ITEMS) + 100, dtype=pl.Int16))
    run, predictor = opened(Catalog(frame), *TINY)
    documents = {"70000": {"id": "70000", "like": ["101", 102]}, "x": {"id": "x", "like": [101]}}
    after, live = LiveItems.of(run, predictor, documents, NOW)
    assert live.origin(70000)["neighbours"] == [101, 102] == live.origin("70000")["neighbours"]
    assert list(live.refused) == ["x"] and live.ids[-1] == 70000
    assert after.catalog.lookup([70000]).tolist() == [ITEMS]


def test_origins_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand items that were added before, one more finds its own origin alone."""
    predictor, live = small(a={"like": ["i1"]}, b={"like": ["a"]})
    asked, origin = set(), ItemGrowth._origin

    def noted(self: ItemGrowth, one, found):
        asked.add(one.id)
        return origin(self, one, found)

    monkeypatch.setattr(ItemGrowth, "_origin", noted)
    live.with_documents(predictor, bodies({"a": {"like": ["i1"]}, "b": {"like": ["a"]}, "c": {"like": ["i2"]}}), NOW)
    assert asked == {"b", "c"}, "what is like an item that was added is found anew, should that have changed"


def test_tables_grow_in_place_and_older_snapshots_stay() -> None:
    """Three snapshots share one memory; one with another second item gets its own."""
    predictor, first = small(a={"like": ["i1"]})
    one = predictor.model.items.all().clone()
    second, live = first.with_documents(predictor, bodies({"a": {"like": ["i1"]}, "b": {"like": ["i2"]}}), NOW)
    two = second.model.items.all().clone()
    other, _ = first.with_documents(predictor, bodies({"a": {"like": ["i1"]}, "c": {"like": ["i3"]}}), NOW)
    address = [it.model.items.all().data_ptr() for it in (predictor, second, other)]
    assert address[0] == address[1] != address[2]
    assert torch.equal(predictor.model.items.all(), one) and torch.equal(second.model.items.all(), two)
    assert torch.equal(two[: ITEMS + 1], one) and torch.equal(other.model.items.all()[ITEMS + 1], one[3])
    assert torch.equal(second.index.all(), second.model.index_items().all())
    documents = {"a": {"like": ["i1"]}, "b": {"like": ["i2"]}, **{f"n{i}": {"like": ["i4"]} for i in range(1500)}}
    many, live = live.with_documents(second, bodies(documents), NOW)
    assert live.size == ITEMS + 1502 and torch.equal(many.model.items.all()[: ITEMS + 2], two)
