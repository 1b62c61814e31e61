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
