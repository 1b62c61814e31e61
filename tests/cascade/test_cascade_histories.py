"""Behaviour sequences of the ranker are the history of the request, with what is known of its items."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.cascade import Cascade, RankingStage
from fullrank.inference.predict import predict
from fullrank.inference.predictor import Predictor
from fullrank.models.ranking.model import RankingModel
from fullrank.run import Run
from fullrank.serving.ranking import ServedRanker
from refusals import refused
from tests.cascade.conftest import HISTORIES, ITEMS, USERS, Both, goods, log, retriever
from tiny import shaken

FIELDS: list[Any] = [
    "user", {"kind": "sequence", "name": "history", "shares": "item", "max_length": 3}, "item", "kind",
    {"kind": "sequence", "name": "kinds", "shares": "kind", "max_length": 3},
]  # fmt: skip
TOGETHER = {"kind": "target_attention", "together": [["history", "kinds"]]}
ODD = ([1, 2, 3, 7, 5], [3, 7, 5], [4, 7, 5])


def kinds(gaps: bool = False) -> pl.DataFrame:
    """The items, each of one of six kinds; of some it is missing."""
    return goods().select("item", kind=pl.when((pl.col("item") % 7 > 0) | (not gaps)).then(pl.col("item") % 6))


def joined(pairs: pl.DataFrame, table: pl.DataFrame, histories: dict[str, list[int]]) -> pl.DataFrame:
    """Pairs of a user and an item with everything that the ranker reads."""
    known = dict(table.iter_rows())
    frame = pl.DataFrame({
        "user": list(histories), "history": list(histories.values()),
        "kinds": [[known[item] for item in items] for items in histories.values()],
    })  # fmt: skip
    return pairs.join(frame, on="user", how="left", maintain_order="left").join(
        table, on="item", how="left", maintain_order="left"
    )


@pytest.fixture
def events(both: Both) -> fr.Store:
    return both[0]


def ranker(folder: Path, sequences: Any) -> RankingStage:
    pairs = log().select("user", "item", "label")
    store = fr.prepare_impressions(joined(pairs, kinds(), HISTORIES), folder / "seen", schema={"fields": FIELDS})
    torch.manual_seed(0)
    spec = RankingModel.parse({"embedding": {"dim": 4}, "ranker": {"kind": "fm"}, "sequences": sequences})
    return RankingStage(shaken(spec.build(store.fields), 0.5).eval(), store.encoder)


@pytest.mark.parametrize(
    ("sequences", "gaps"),
    [("pooled", False), ("pooled", True), ("target_attention", False), ("target_attention", True), (TOGETHER, False)],
)
def test_it_equals_the_joined_table(events: fr.Store, tmp_path: Path, sequences: Any, gaps: bool) -> None:
    """Read together, a table cannot have the gaps: it cannot say that a value of an event is missing."""
    stage, table = ranker(tmp_path, sequences), kinds(gaps)
    cascade = Cascade(retriever(events), stage, items=table)
    found = cascade.recommend(HISTORIES, k=9, candidates=9)
    pairs = Predictor(cascade.retriever.model, cascade.retriever.catalog).recommend(HISTORIES, k=9)
    expected = predict(stage.model, stage.encoder, joined(pairs, table, HISTORIES).rename({"score": "own"}))
    both = found.join(expected, on=["user", "item"], validate="1:1")
    assert len(both) == len(found) == 9 * USERS
    assert np.allclose(both["score"], both["probability"], rtol=1e-6) and both["score"].n_unique() > 150
    other = cascade.recommend({"u3": HISTORIES["u4"]}, k=9, candidates=9)
    assert not np.allclose(np.sort(other["score"]), np.sort(found.filter(pl.col("user") == "u3")["score"]))
    assert cascade.ordering(None).plan.history == ("history", "kinds")


def test_an_item_of_no_kind_is_an_event_too(events: fr.Store, tmp_path: Path) -> None:
    cascade = Cascade(retriever(events), ranker(tmp_path, TOGETHER), items=kinds(gaps=True))
    found = cascade.recommend([[7, 8, 9], [8, 9]], k=5, candidates=5)["score"]
    assert found.is_finite().all()
    everything: dict[str, Any] = {"k": ITEMS, "candidates": ITEMS, "seen": "keep"}
    one, other, third = (cascade.recommend([items], **everything).sort("item")["score"] for items in ODD)
    assert np.allclose(one, other, rtol=1e-6) and not np.allclose(one, third), "the newest three are read"


def test_a_table_or_context_that_has_the_sequence_comes_first(events: fr.Store, tmp_path: Path) -> None:
    cascade = Cascade(retriever(events), ranker(tmp_path, "target_attention"), items=kinds())
    how: dict[str, Any] = {"k": 5, "candidates": 5}
    one, other = (cascade.recommend([[1, 2]], context={"history": given}, **how)["score"] for given in ([4], [5, 6]))
    assert not np.allclose(one, other)
    plan = cascade.ordering({"history": [4]}).plan
    assert plan.context == ("history",) and plan.history == ("kinds",)


def test_a_column_that_the_items_lack_is_told(events: fr.Store, tmp_path: Path) -> None:
    with refused("missing-column", "'kind', 'kinds'"):
        Cascade(retriever(events), ranker(tmp_path, TOGETHER)).recommend([[1, 2]], k=5, candidates=5)


def test_the_evaluation_reads_histories(events: fr.Store, tmp_path: Path) -> None:
    stage = replace(ranker(tmp_path, TOGETHER), trained_until=0)
    found = Cascade(retriever(events), stage, items=kinds()).evaluate("test", candidates=20)
    assert found.facts["fields"]["history"] == ("history", "kinds") and len(found.after.metrics)


RATED = [*FIELDS[:4], {"kind": "sequence", "name": "rating", "max_length": 3, "keep_missing": True}]


@pytest.fixture
def rated(events: fr.Store, tmp_path: Path) -> tuple[Cascade, pl.DataFrame]:
    """Histories with ratings beside them, some of which are missing or unknown to the ranker; and the events."""
    histories = events.events.items
    rows = np.arange(events.num_events)
    table = pl.DataFrame({
        "user_id": events.user_ids.gather(histories.row_of()), "item_id": events.catalog.ids.gather(histories.flat()),
        "timestamp": rows, "rating": pl.Series(rows % 6).replace(0, None),
    })  # fmt: skip
    store = fr.prepare(table, tmp_path / "rated", event_features=["rating"])
    seen = joined(log().select("user", "item", "label"), kinds(), HISTORIES).with_columns(
        rating=pl.col("history").list.eval(pl.when(pl.element() % 7 > 0).then(2 + pl.element() % 4))
    )
    shown = fr.prepare_impressions(seen, tmp_path / "seen", schema={"fields": RATED})
    torch.manual_seed(0)
    spec = RankingModel.parse({"embedding": {"dim": 4}, "ranker": {"kind": "fm"}, "sequences": {
        "kind": "target_attention", "together": [["history", "rating"]]}})  # fmt: skip
    stage = RankingStage(shaken(spec.build(shown.fields), 0.5).eval(), shown.encoder, trained_until=0)
    return Cascade(retriever(store), stage, items=kinds()), table


def test_event_features_of_the_history_are_read(rated: tuple[Cascade, pl.DataFrame]) -> None:
    """Of users of the store, and of a table of events, as `predict` reads the joined table."""
    (cascade, table), how = rated, {"k": 9, "candidates": 9, "seen": "keep"}
    assert cascade.retriever.store is not None
    found = cascade.recommend(users=cascade.retriever.store.user_ids.to_list(), **how)
    lists = table.group_by(user="user_id", maintain_order=True).agg(history="item_id", rating="rating")
    pairs = found.rename({"score": "own"}).join(lists, on="user").join(kinds(), on="item")
    expected = predict(cascade.ranker.model, cascade.encoder, pairs)
    assert np.allclose(expected["own"], expected["probability"], rtol=1e-6) and expected["own"].n_unique() > 100
    same = found.join(cascade.recommend(table, **how), on=["user", "item"], suffix="_of_table")
    assert len(same) == len(found) and np.allclose(same["score"], same["score_of_table"], rtol=1e-6)
    assert cascade.ordering(None).plan.history == ("history", "rating")
    given = cascade.ordering({"rating": [3]}).plan
    assert given.history == ("history",) and given.context == ("rating",), "what is given stands above"
    with pytest.warns(UserWarning, match="rating of past events"):
        less = cascade.recommend(table.drop("rating"), **how).join(found, on=["user", "item"])
    assert not np.allclose(less["score"], less["score_right"])


def test_the_evaluation_reads_event_features(rated: tuple[Cascade, pl.DataFrame]) -> None:
    cascade, _ = rated
    found = cascade.evaluate("test", candidates=20)
    assert found.facts["fields"]["history"] == ("history", "rating")
    store = cascade.retriever.store
    assert store is not None
    known = store.event_features
    assert known is not None
    store.event_features = replace(known, categorical=np.zeros_like(known.categorical))
    other = cascade.evaluate("test", candidates=20)
    assert found.after.metrics != other.after.metrics and found.before.metrics == other.before.metrics


def test_the_service_says_what_it_cannot_fill(rated: tuple[Cascade, pl.DataFrame]) -> None:
    cascade, _ = rated
    items, run = cascade.ordering(None).items, Run.__new__(Run)  # of which nothing is asked
    served = ServedRanker(cascade.ranker, "user", "item", items, run, of_items=frozenset({"item", "kind"}))
    with refused("missing-column", "'rating'", "declares no event feature"):
        served.require_whole_histories()
