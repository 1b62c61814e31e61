"""One model for many callers: threads with budgets of their own, filters on every path, constant memory."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import polars as pl
import pytest

from fullrank.core.device import resolve_device
from fullrank.inference.list_options import ListOptions
from fullrank.inference.predictor import Predictor
from fullrank.inference.search import Decoding
from fullrank.models import Budget
from fullrank.models.sequential.baselines.item_to_item import ItemToItem
from fullrank.models.sequential.baselines.popularity import Popularity
from fullrank.models.sequential.model import Recommender
from predictors import predictor_of
from refusals import refused
from tiny import ITEMS, catalog, shaken

IDS = [f"i{n}" for n in range(ITEMS)]
DRAW = np.random.default_rng(5)
HISTORIES = {f"u{n}": [IDS[i] for i in DRAW.choice(ITEMS, 1 + n % 6, replace=False)] for n in range(12)}
SMALL = Recommender().override("dim=8", "encoder.layers=1")
REASONING = SMALL.override("reasoner={kind: plr, steps: 2, streams: 2}", "task=last_item")
CODES = Recommender(dim=8).override("items=semantic", "task=semantic_tokens", "scoring.similarity=cosine")
SPECS: dict[str, Any] = {
    "vectors": SMALL,
    "cosine": SMALL.override("scoring={similarity: cosine, temperature: 0.2}"),
    "codes": CODES,
    "sums of codes": Recommender(dim=8).override("items={kind: semantic, parts: sum}"),
    "reasoning": REASONING,
    "item_to_item": ItemToItem(),
    "popularity": Popularity(),
}
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("vectors", {}),
    "exact codes": ("codes", {}),
    "pruned": ("codes", {"decoding": {"kind": "pruned", "codes": 2}}),
    "pruned sums": ("sums of codes", {"decoding": {"kind": "pruned", "codes": 2}}),
    "graph": ("codes", {"decoding": {"kind": "graph", "beams": 6, "edges": 2, "steps": 1}}),
    "beam": ("codes", {"decoding": {"kind": "beam", "beams": 3}}),
    "adaptive": ("reasoning", {"budget": {"adaptive": 4}}),
    "item_to_item": ("item_to_item", {}),
    "popularity": ("popularity", {}),
}
"""Every way to a list: the model, and how it is asked."""


def predictor(kind: str) -> Predictor:
    return predictor_of(SPECS[kind], [[IDS.index(item) for item in own] for own in HISTORIES.values() if len(own) > 2])


def lists(found: pl.DataFrame) -> dict[Any, list[Any]]:
    return {user: part["item"].to_list() for (user,), part in found.group_by("user", maintain_order=True)}


def test_a_graph_that_reaches_too_little_gives_the_exact_list() -> None:
    made, how = predictor("codes"), PATHS["graph"][1]
    found = made.recommend(HISTORIES, k=10, allow=IDS[3:18], **how)
    assert found.equals(made.recommend(HISTORIES, k=10, allow=IDS[3:18]))
    (search,) = made._searches.values()
    assert search is not None
    for _, part in found.group_by("user"):
        assert part["score"].is_sorted(descending=True)
    assert made.recommend(HISTORIES, k=ITEMS, **how).height == made.recommend(HISTORIES, k=ITEMS).height


def of(rule: Any, user: str, place: int) -> set[str]:
    """What a rule says for a user: the same for all, by their names, or by their order."""
    if isinstance(rule, dict):
        return set(rule[user])
    return set(rule[place] if rule and isinstance(rule[0], list) else rule)


@pytest.mark.parametrize("seen", ["exclude", "keep"])
@pytest.mark.parametrize("path", PATHS)
def test_filters_hold_on_every_path_and_lists_stay_full(path: str, seen: str) -> None:
    kind, how = PATHS[path]
    made = predictor(kind)
    histories = {**HISTORIES, "nobody": []}  # answered by popularity, under the same filters
    own = {user: [IDS[(n * 3 + j) % ITEMS] for j in range(9)] for n, user in enumerate(histories)}
    given: dict[str, Any]
    for given in (
        {"exclude": IDS[:9]},
        {"allow": IDS[4:]},
        {"exclude": own},
        {"allow": own},
        {"exclude": list(own.values()), "allow": IDS[2:20]},
        {"exclude": IDS[3:6], "allow": own},
    ):
        found = lists(made.recommend(histories, k=10, seen=seen, **given, **how))
        for place, (user, items) in enumerate(histories.items()):
            left = of(given.get("allow", IDS), user, place) - of(given.get("exclude", []), user, place)
            left -= set(items) if seen == "exclude" else set()
            got = found.get(user, [])
            assert set(got) <= left, f"{given.keys()} do not hold for {user}"
            assert len(got) == len(set(got)) == min(10, len(left)), f"the list of {user} is not full"


@pytest.mark.parametrize("path", [p for p in PATHS if p not in ("graph", "beam", "adaptive")])
def test_a_filtered_list_is_the_whole_list_without_what_is_refused(path: str) -> None:
    kind, how = PATHS[path]
    made = predictor(kind)
    whole = lists(made.recommend(HISTORIES, k=ITEMS, **how))
    refused = set(IDS[1::3])
    for given in ({"exclude": sorted(refused)}, {"allow": sorted(set(IDS) - refused)}):
        found = lists(made.recommend(HISTORIES, k=7, **given, **how))
        assert found == {user: [i for i in items if i not in refused][:7] for user, items in whole.items()}


def test_lists_that_are_no_lists_are_refused() -> None:
    made = predictor("vectors")
    two = {"a": ["i1"], "b": ["i2"]}
    for given, said in (
        ({"exclude": "i1"}, ("not-item-lists", "exclude='i1'")),
        ({"exclude": [["i1"]]}, ("list-count-differs", "exclude", "1 for 2 histories")),
        ({"exclude": {"c": ["i1"]}}, ("unknown-user", "exclude", "'c'")),
        ({"allow": {"a": ["i1"]}}, ("missing-lists", "allow", "'b'")),
        ({"allow": ["nothing"]}, ("nothing-allowed", "'i0'")),
        ({"allow": {"a": ["nothing"], "b": []}}, ("nothing-allowed", "'i0'")),
        ({"allow": ["i5"], "exclude": ["i5"]}, ("nothing-allowed", "'i0'")),
        ({"exclude": {"a": "i1"}}, ("not-item-lists", "exclude of 'a'", "['i1']")),
        ({"exclude": {"a": 5}}, ("not-item-lists", "exclude of 'a'", "[5]")),
        ({"exclude": [["i3"], "i4"]}, ("not-item-lists", "exclude of 1", "['i4']")),
        ({"exclude": [["i3"], None]}, ("not-item-lists", "exclude of 1", "[None]")),
        ({"exclude": {"i1"}}, ("not-item-lists", "exclude={'i1'}")),
        ({"decoding": "grap"}, ("invalid-setting", "'grap'", "'graph'")),
        ({"exclude": [3]}, ("wrong-id-type", "'i0'", "Int64 (3)")),
        ({"decoding": {"kind": "graph"}}, ("decoding-needs-codes", "decoding.kind=graph")),
    ):
        with refused(*said):
            made.recommend(two, **given)
    with refused("unknown-argument", "'reasoning'", "it is budget= now"):
        made.recommend(two, reasoning={"steps": 1})
    for k in ("3", 2.5, True, None, 0):
        with refused("invalid-list-length", repr(k)):
            ListOptions.of({"k": k})
    for histories, code in (([5, 7], "flat-list"), ({"a": 5}, "not-item-lists"), ({"a": None}, "not-item-lists")):
        with refused(code):
            made.recommend(histories)
    with refused("wrong-id-type", "'i0'", "(['i1'])"):
        made.recommend([[["i1"], ["i2", "i3"]]])
    assert made.recommend({2**70: ["i1"]}, k=1)["item"].to_list() == made.recommend([["i1"]], k=1)["item"].to_list()
    frame = pl.DataFrame({"user_id": ["b", "a"], "item_id": ["i1", "i2"]})
    with refused("table-has-no-order", "exclude"):
        made.recommend(frame, exclude=[["i1"], ["i2"]])
    assert "i1" not in lists(made.recommend(frame, exclude={"a": ["i1"]}, k=ITEMS))["a"]


@pytest.mark.parametrize("kind", [k for k in SPECS if k != "item_to_item"])
def test_score_agrees_with_the_lists(kind: str) -> None:
    made = predictor(kind)
    ranked = made.recommend(HISTORIES, k=ITEMS, seen="keep").sort("user", "item")
    scored = made.score(HISTORIES, IDS).sort("user", "item")
    assert scored.select("user", "item").rows() == ranked.select("user", "item").rows()
    assert np.allclose(scored["score"].to_numpy(), ranked["score"].to_numpy(), atol=1e-5)


def test_score_takes_candidates_for_each_and_does_not_know_all() -> None:
    made = predictor("vectors")
    found = made.score({"a": ["i1"], "b": ["i2", "i3"]}, {"a": ["i9", "new"], "b": ["i4"]})
    assert found.select("user", "item").rows() == [("a", "i9"), ("a", "new"), ("b", "i4")]
    assert found["score"].is_null().to_list() == [False, True, False]
    with refused("no-known-items", "1", "2"):
        made.score({"a": ["i1"], "b": []}, ["i9"])
    with refused("no-candidates"):
        made.score({"a": ["i1"]}, None)


def test_similar_items_are_those_with_like_vectors() -> None:
    made = predictor("vectors")
    vectors = made.item_vectors()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = made.similar(["i3", "i7"], k=4, exclude=["i5"], titles=True)
    for item in (3, 7):
        order = [n for n in np.argsort(-unit @ unit[item], kind="stable") if n not in (item, 5)][:4]
        part = found.filter(pl.col("item") == f"i{item}")
        assert part["similar"].to_list() == [f"i{n}" for n in order] and part["rank"].to_list() == [1, 2, 3, 4]
        assert np.allclose(part["score"].to_numpy(), (unit @ unit[item])[order], atol=1e-5)
    assert made.similar("i3", k=1)["similar"].to_list() == made.similar(["i3"], k=1)["similar"].to_list()
    together = predictor("item_to_item").similar(HISTORIES["u5"][0], k=3)
    assert set(together["similar"]) & set(HISTORIES["u5"][1:]) and (together["score"] > 0).all()
    with refused("unknown-item", "i99"):
        made.similar("i99")
    with refused("no-item-similarity"):
        predictor("popularity").similar("i3")


@pytest.mark.parametrize("kind", ["vectors", "cosine", "reasoning", "popularity"])
def test_scores_are_inner_products_of_the_vectors(kind: str) -> None:
    made = predictor(kind)
    users, vectors = made.user_vectors(HISTORIES)
    scores = vectors @ made.item_vectors().T
    found = made.score(HISTORIES, IDS)
    assert users.to_list() == list(HISTORIES)
    assert np.allclose(scores.ravel(), found["score"].to_numpy(), atol=1e-4)
    with refused("no-vectors"):
        predictor("codes").item_vectors()


def test_vectors_are_the_callers_own() -> None:
    """Normalising them in place, as an index for search does, leaves the model as it was."""
    made = predictor("vectors")
    before = made.recommend(HISTORIES).rows()
    vectors = made.item_vectors()
    vectors *= np.arange(len(vectors))[:, None]
    made.user_vectors(HISTORIES)[1][:] = 0
    assert made.recommend(HISTORIES).rows() == before


def test_a_predictor_makes_its_index_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = predictor("vectors")
    calls, make = [], made.model.index_items
    monkeypatch.setattr(made.model, "index_items", lambda: (calls.append(1), make())[1])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda items: made.recommend([items], k=2), HISTORIES.values()))
    assert len(calls) == 1


def test_what_a_call_does_not_say_is_as_the_predictor_was_made() -> None:
    model = shaken(REASONING.build(catalog()))
    none = Predictor(model, catalog(), device="cpu", budget=Budget(steps=0))
    whole = Predictor(model, catalog(), device="cpu")
    assert none.recommend(HISTORIES).rows() == whole.recommend(HISTORIES, budget={"steps": 0}).rows()
    assert none.recommend(HISTORIES, budget={"steps": 2}).rows() == whole.recommend(HISTORIES).rows()
    adaptive = Predictor(model, catalog(), device="cpu", budget=Budget(adaptive=5))
    assert adaptive.score(HISTORIES, IDS).equals(whole.score(HISTORIES, IDS)), "which ranks no lists to stop by"
    assert np.array_equal(adaptive.user_vectors(HISTORIES)[1], whole.user_vectors(HISTORIES)[1])
    with refused("adaptive-needs-full-lists"):
        whole.score(HISTORIES, IDS, budget={"adaptive": 3})


def test_another_decoding_starts_from_its_own_defaults() -> None:
    known = catalog()
    beam = Predictor(shaken(CODES.build(known)), known, device="cpu", decoding=Decoding(kind="beam", beams=9))
    exact = beam.recommend(HISTORIES, decoding="exact").rows()
    assert exact == beam.recommend(HISTORIES, decoding={"kind": "pruned"}).rows()
    for beams in range(2, 12):
        beam.recommend(HISTORIES, k=2, decoding={"beams": beams})
    assert len(beam._searches) <= 4, "what searches keep does not grow with the settings asked for"


def test_devices() -> None:
    for name, code in (("gpu", "unknown-device"), ("cuda:99", "device-unavailable"), ("meta", "device-unavailable")):
        with refused(code, name):
            resolve_device(name)
