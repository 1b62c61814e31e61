"""Items made of text: vectors by hand, tokens, what a run keeps, growth, and refusals."""

import sys

import numpy as np
import polars as pl
import pytest
import torch

from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items.text import Text, TextField, text_of
from fullrank.models.sequential.items.tokeniser import TOKENISER_SIZE, TextTokeniser
from fullrank.run.experiment import Experiment, Training
from fullrank.run.grow import grow_catalog
from fullrank.training.fit import fit as fit
from fullrank.training.warm_start import copy_weights
from parts import Recommender
from refusals import refused
from tiny import ITEMS, catalog, close, histories, shaken, store

COLOURS = ("red", "green", "blue")
FIELDS = ({"column": "title", "tokens": 6}, {"column": "tags", "first": True, "tokens": 2, "empty": "unknown"})

FIELDS_READ = [TextField.parse(field) for field in FIELDS]


def worded(size=ITEMS, first=0) -> Catalog:
    """Titles in three colours; a list of tags whose first is the brand; the last item has neither."""
    ids = range(first, first + size)
    title = [f"{COLOURS[i % 3].upper()} nail-polish, no. {i % 7}!" for i in ids]
    tags = [[f"Brand{i % 4}", "Beauty"] if i % 5 else [] for i in ids]
    counts = [size - i for i in range(size)]
    columns = {"item": np.arange(size), "item_id": [f"i{i}" for i in ids], "train_count": counts}
    return Catalog(pl.DataFrame(columns | {"title": [*title[:-1], None], "tags": [*tags[:-1], None]}))


def spec(**settings) -> Text:
    words = {} if "tokeniser" in settings else {"vocabulary": 40}
    return Text.parse({"kind": "text", "fields": FIELDS, **words, **settings})


def known(items=None, frame=None) -> Catalog:
    return (items or spec()).add_columns(frame or worded())


def trained(tmp_path, items=None) -> tuple:
    rows = histories([6, 7, 8, 5, 6, 9, 7, 6])
    data = store(rows)
    data.catalog = Catalog(data.catalog.frame.select("item", "item_id", "train_count").join(
        worded().frame.select("item", "title", "tags"), on="item", maintain_order="left"
    ))  # fmt: skip
    model = Recommender(dim=8, max_length=8, items=items or spec())
    run = fit(Experiment(model=model, training=Training(max_epochs=1)), data, tmp_path / "run", progress=False)
    return run, data


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_vectors_by_hand(pooling) -> None:
    items = shaken(Text(pooling=pooling).build(6, catalog()))
    frame = catalog().frame
    for i in range(ITEMS):
        parts = []
        for table, name in zip(items.tables, ("title_tokens", "brand_tokens"), strict=True):
            own = frame[name][i].to_list()
            total = table.weight[own].sum(0)
            parts.append(total / max(1, len(own)) if pooling == "mean" else total)
        wanted = items.adapter.weight @ torch.cat(parts) + items.adapter.bias
        assert close(items.embed(torch.tensor(i)), wanted)
    assert close(items.embed(torch.tensor(0)), items.adapter.bias), "item 0 has no tokens"


def test_parameters_do_not_grow_with_the_catalogue() -> None:
    few, many = (spec().build(6, known(frame=worded(size))) for size in (21, 84))
    shapes = [{n: p.shape for n, p in items.named_parameters()} for items in (few, many)]
    assert shapes[0] == shapes[1] and set(few.state_dict()) == {*shapes[0], "popularity"}


def test_a_small_catalogue_has_a_smaller_vocabulary() -> None:
    assert known(spec(vocabulary=30_000)).frame[TOKENISER_SIZE][0] < 200


def test_fields() -> None:
    frame = worded().frame
    assert text_of(TextField(column="title"), worded())[1] == "green nail polish no 1"
    assert text_of(TextField(column="tags"), worded())[1] == "brand1 beauty"
    brand = text_of(TextField(column="tags", first=True, empty="Un-known"), worded())
    assert brand[1] == "brand1" and brand[0] == brand[ITEMS - 1] == "un known"
    fixed = pl.Series([["A b", "C"]] * ITEMS, dtype=pl.Array(pl.String, 2))
    assert text_of(TextField(column="tags"), Catalog(frame.with_columns(tags=fixed)))[0] == "a b c"
    sort = Catalog(frame.with_columns(title=pl.col("title").cast(pl.Categorical)))
    assert text_of(TextField(column="title"), sort)[1] == "green nail polish no 1"


def test_a_run_keeps_what_it_read(tmp_path) -> None:
    items = spec()
    found = known()
    assert items.add_columns(found) is found, "a run's own table is read as it is"
    assert found.frame["title_tokens"].list.len().to_list()[-1] == 0
    assert found.frame["tags_first_tokens"].list.len().min() > 0, "unknown stands for an empty brand"
    found.write(tmp_path / "items.parquet")
    again = Catalog.open(tmp_path / "items.parquet")
    assert torch.equal(*(shaken(items.build(6, one)).all() for one in (found, again)))
    assert TextTokeniser.of(again).pieces == TextTokeniser.open(tmp_path).pieces


def test_train_and_grow(tmp_path) -> None:
    """New items have vectors from their text, old ones keep theirs, and nothing is trained."""
    run, data = trained(tmp_path)
    model = run.model()
    assert model.items.computed
    title = worded().frame["title"][4]
    new = pl.DataFrame({
        "item_id": ["n0", "n1", "n2"], "title": [title, "日本", None], "tags": [["Brand0"], ["日本"], None]
    })  # fmt: skip
    grown = grow_catalog(run, new, tmp_path / "grown").model()
    before, after = model.items.all(), grown.items.all()
    assert torch.equal(before, after[:ITEMS]) and len(after) == ITEMS + 3
    assert close(after[ITEMS], before[4]), "the same text as item 4"
    assert close(after[ITEMS + 2], before[ITEMS - 1]), "no text, as the last"
    with refused("setting-without-effect", "start='mean'"):
        grow_catalog(run, new, tmp_path / "mean", start="mean")
    with refused("no-text", "'title', 'tags'"):
        grow_catalog(run, new.select("item_id"), tmp_path / "bare_ids")
    kept = run.catalog.frame["tags_first_tokens"]
    assert grow_catalog(run, new, tmp_path / "more").catalog.frame["tags_first_tokens"][:ITEMS].equals(kept)
    bare = trained(tmp_path / "bare", spec(fields=FIELDS[:1]))[0]
    alone = grow_catalog(bare, new, tmp_path / "alone").model()
    assert close(alone.items.all()[ITEMS + 2], alone.items.adapter.bias), "no text, no brand"
    pieces, rows = TextTokeniser.of(bare.catalog).pieces, grow_catalog(bare, new, tmp_path / "again").catalog.frame
    assert [pieces[t] for t in rows["title_tokens"][ITEMS + 1]] == ["▁"], "of unknown text a word's beginning is left"


def test_a_token_that_no_old_item_has_in_a_field_is_left_out() -> None:
    """Its vector was never trained: `beauty` stands in titles' tokeniser, but in no title."""
    items = spec()
    found = known(items)
    more = pl.DataFrame({"item_id": ["n"], "title": ["Brand2 red"], "tags": [["red"]]})
    grown = items.add_new_columns(found.extended(more), ITEMS).frame
    seen = set(found.frame["title_tokens"].explode().drop_nulls())
    everything = TextTokeniser.of(found).tokens(pl.Series(["brand2 red"]), 6)[0].to_list()
    assert grown["title_tokens"][ITEMS].to_list() == [t for t in everything if t in seen] != everything


def test_another_runs_tokeniser(tmp_path) -> None:
    known().write(tmp_path / "items.parquet")
    other = worded(30, first=100)
    taken = known(spec(tokeniser=str(tmp_path)), other)
    assert TextTokeniser.of(taken).model == TextTokeniser.of(known()).model
    (tmp_path / "bpe.model").write_bytes(TextTokeniser.of(known()).model)
    again = known(spec(tokeniser=str(tmp_path / "bpe.model")), other)
    assert again.frame.equals(taken.frame)


def test_a_tokeniser_that_knows_no_token_of_any_item_is_refused(tmp_path) -> None:
    known().write(tmp_path / "items.parquet")
    foreign = worded().frame.with_columns(
        title=pl.lit("赤いマニキュア").cast(pl.String), tags=pl.lit(["日本"], dtype=pl.List(pl.String))
    )
    own = foreign.with_columns(title=pl.when(pl.col("item") == 7).then(pl.lit("red")).otherwise("title"))
    for frame in (foreign, foreign.with_columns(tags=pl.when(pl.col("item") > 3).then("tags"))):
        with refused("tokeniser-knows-nothing", 23, "title, tags"):
            known(spec(tokeniser=str(tmp_path)), Catalog(frame))
    found = known(spec(tokeniser=str(tmp_path)), Catalog(own)).frame["title_tokens"]
    assert (found.list.len() > 1).arg_true().to_list() == [7], "one item that is known is enough"


def renamed(size=30) -> Catalog:
    """Another catalogue: no id of `worded`, or all of them for other items; some of its words, and two of its own."""
    frame = worded(size).frame
    return Catalog(frame.with_columns(
        title=pl.Series([f"{COLOURS[i % 2]} soap, no. {i % 7}" for i in range(size)]),
        item_id=frame["item_id"].reverse(),
    ))  # fmt: skip


def test_another_catalogue_is_read_by_the_runs_tokeniser(tmp_path) -> None:
    """`soap` is put together from letters that the run's titles have; what none of them has is left out."""
    items, before = spec(), known()
    found = items.add_columns_of_run(renamed(), before)
    own = TextTokeniser.of(before)
    assert TextTokeniser.of(found).model == own.model and items.add_columns_of_run(found, before) is found
    seen = set(before.frame["title_tokens"].explode().drop_nulls())
    whole = own.tokens(text_of(FIELDS_READ[0], renamed()), FIELDS_READ[0].tokens)
    assert found.frame["title_tokens"].to_list() == [[t for t in row if t in seen] for row in whole.to_list()]
    assert found.frame["title_tokens"].to_list() != whole.to_list()
    assert items.add_columns_of_run(renamed(), worded()).frame.equals(items.add_columns(renamed()).frame), "no such run"
    before.write(tmp_path / "items.parquet")
    same = spec(tokeniser=str(tmp_path))
    assert same.add_columns_of_run(renamed(), before).frame.equals(found.frame), "the run's own, named"
    assert same.add_columns(renamed()).frame["title_tokens"].to_list() == whole.to_list()
    known(spec(vocabulary=30)).write(tmp_path / "items.parquet")
    assert TextTokeniser.of(same.add_columns_of_run(renamed(), before)).model != own.model, "another one is taken"
    with refused("setting-without-effect", "vocabulary=30"):
        spec(vocabulary=30).add_columns_of_run(renamed(), before)
    foreign = renamed().frame.with_columns(title=pl.lit("赤い"), tags=pl.lit(["日本"], dtype=pl.List(pl.String)))
    with refused("tokeniser-knows-nothing", 30, "title, tags"):
        items.add_columns_of_run(Catalog(foreign), before)


def test_a_tokeniser_of_ones_own_keeps_every_token_and_what_the_run_learned_of_those_it_has(tmp_path) -> None:
    run, _ = trained(tmp_path)
    own = spec(tokeniser="own", vocabulary=60)
    found = own.add_columns_of_run(renamed(), run.catalog)
    assert found.frame.equals(spec(vocabulary=60).add_columns(renamed()).frame), "as without a run"
    items = own.build(8, found)
    tables = items.transferred({n.removeprefix("items."): t for n, t in run.tensors().items()}, run.catalog, found)
    before, after = (TextTokeniser.of(catalog).pieces for catalog in (run.catalog, found))
    both = sorted(set(before) & set(after))
    assert both and set(after) - set(before), "some tokens are the run's, some are not"
    learned = run.tensors()["items.tables.0.weight"]
    for piece in both:
        assert torch.equal(tables["tables.0.weight"][after.index(piece)], learned[before.index(piece)])


def test_a_run_starts_from_another_catalogue(tmp_path) -> None:
    """No id is asked for and none is matched: equal text has an equal vector, and counts are those of the new store."""
    run, data = trained(tmp_path)
    new = store(histories([5, 6, 7, 6, 5, 6], seed=3))
    new.catalog = Catalog(
        new.catalog.frame.select("item", "item_id", "train_count").with_columns(
            renamed(ITEMS).frame["title"], worded().frame["tags"], item_id=pl.Series([f"n{i}" for i in range(ITEMS)])
        )
    )
    assert not set(new.catalog.ids) & set(data.catalog.ids)
    spec_of = run.spec.override("training.lr=1e-30")
    on = fit(spec_of, new, tmp_path / "on", init_from=run, progress=False)
    old, now = run.tensors(), on.tensors()
    learned = [name for name in old if name != "items.popularity"]
    assert set(old) == set(now) and all(close(now[name], old[name]) for name in learned)
    assert now["items.popularity"].tolist() == new.catalog.popularity.tolist()
    found = run.spec.model.items.add_columns_of_run(new.catalog, run.catalog)  # type: ignore[attr-defined]
    assert on.catalog.frame.equals(found.frame)
    numbered = Catalog(new.catalog.frame.with_columns(item_id=data.catalog.ids))  # every id is known, of another item
    new.catalog = numbered
    again = fit(spec_of, new, tmp_path / "numbered", init_from=run, progress=False).model()
    assert close(again.items.all(), on.model().items.all())


def test_a_run_from_another_catalogue_is_resumed(tmp_path) -> None:
    """It reads its items as its folder has them, whatever has become of the run that it was started from."""
    run, data = trained(tmp_path)
    data.catalog = Catalog(data.catalog.frame.with_columns(renamed(ITEMS).frame["title"]))
    longer = run.spec.override("training.max_epochs=3", "training.checkpoint_minutes=0")

    class Cut:
        """Cuts training off at the end of its second epoch, behind a checkpoint."""

        epochs = 0

        def on_epoch(self, state):
            self.epochs += 1
            if self.epochs == 2:
                raise KeyboardInterrupt
            return {}

    whole = fit(longer, data, tmp_path / "whole", init_from=run, progress=False)
    with pytest.raises(BaseException):  # noqa: B017 (Lightning makes an exit of an interrupt)
        fit(longer, data, tmp_path / "cut", init_from=run, callbacks=(Cut(),), progress=False)
    fit(run.spec.override("model.items.vocabulary=30"), data, run.path, overwrite=True, progress=False)
    resumed = fit(longer, data, tmp_path / "cut", resume=True, progress=False)
    assert all(torch.equal(value, resumed.tensors()[name]) for name, value in whole.tensors().items())
    assert resumed.catalog.frame.equals(whole.catalog.frame)


def test_a_run_goes_on_by_the_text_of_its_tokens(tmp_path) -> None:
    """Two catalogues, two tokenisers: a token's vector goes with its text."""
    run, data = trained(tmp_path)
    frame = known(
        spec(vocabulary=30), Catalog(data.catalog.frame.with_columns(pl.col("title").str.replace("no", "kite")))
    )
    model = run.spec.model.build(frame)  # type: ignore[attr-defined]
    first = model.items.tables[0].weight.clone()
    copy_weights(model, frame, run)
    old = run.model()
    before, after = TextTokeniser.of(run.catalog).pieces, TextTokeniser.of(frame).pieces
    assert before != after and model.items.size == ITEMS
    for place, piece in enumerate(after):
        wanted = old.items.tables[0].weight[before.index(piece)] if piece in before else first[place]
        assert torch.equal(model.items.tables[0].weight[place], wanted)
    assert torch.equal(model.items.adapter.weight, old.items.adapter.weight)


def test_refusals(monkeypatch) -> None:
    frame = worded().frame
    with refused("unknown-column", "'titel'", "did you mean 'title'", "title, tags"):
        known(spec(fields=[{"column": "titel"}]))
    with refused("column-not-text", "'price'", "Int32", "title, tags"):
        known(spec(fields=[{"column": "price"}]), Catalog(frame.with_columns(price=1)))
    for empty in (pl.lit(None), pl.lit(" -- "), pl.lit(None, dtype=pl.String)):
        with refused("no-text", "'title'", 23):
            known(frame=Catalog(frame.with_columns(title=empty)))
    with refused("column-not-lists", "'title'", "first=true"):
        known(spec(fields=[{"column": "title", "first": True}]))
    with refused("repeated-field", "title"):
        spec(fields=[{"column": "title"}, {"column": "title", "tokens": 3}])
    with refused("setting-without-effect", "vocabulary"):
        spec(tokeniser="runs/a", vocabulary=50)
    with refused("vocabulary-too-small", 3, "model.items.vocabulary"):
        known(spec(vocabulary=3))
    with refused("column-name-taken", "title_tokens"):
        known(frame=Catalog(frame.with_columns(title_tokens=1)))
    with refused("items-without-tokens", "tokeniser_size"):
        spec().build(6, worded())
    with refused("file-unreadable", "nowhere.model"):
        known(spec(tokeniser="nowhere.model"))
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with refused("missing-package", "[text]"):
        known()


def test_damaged_tokens_are_one_sentence() -> None:
    found = known()
    for cells in ([[0]] * ITEMS, [[-1]] * ITEMS, [[40]] * ITEMS, [[None]] * ITEMS, [None] * ITEMS):
        frame = found.frame.with_columns(pl.Series("title_tokens", cells, dtype=pl.List(pl.Int32)))
        with refused("tokens-damaged", "title_tokens"):
            spec().build(6, Catalog(frame))
    for size in (None, 0, 2**30):
        frame = found.frame.with_columns(pl.lit(size, dtype=pl.Int64).alias(TOKENISER_SIZE))
        with refused("tokens-damaged", "tokeniser_size"):
            spec().build(6, Catalog(frame))
    with refused("tokeniser-damaged", 41):
        TextTokeniser.of(Catalog(found.frame.with_columns(tokeniser_size=pl.lit(41, dtype=pl.Int32))))
