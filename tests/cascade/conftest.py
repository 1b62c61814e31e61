"""What tests of a cascade are made of: a shop with tables, a retriever of whole numbers, and an untrained ranker."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fakes import Whole
from fullrank.cascade import Cascade, RankingStage, RetrievalStage
from fullrank.models.ranking.model import RankingModel
from tiny import shaken

USERS, ITEMS, BEGIN = 25, 40, 1_600_000_000
Both = tuple[fr.Store, fr.ImpressionStore]
HISTORIES = {f"u{u}": [int(i) for i in np.random.default_rng(u).integers(ITEMS, size=1 + u % 5)] for u in range(USERS)}
SCHEMA: dict[str, Any] = {
    "fields": [
        "hour", "user", {"kind": "numeric", "name": "income", "transform": "bucket", "buckets": 3},
        {"kind": "bag", "name": "tags", "separator": "|"}, "item", {"kind": "numeric", "name": "price"},
        {"kind": "sequence", "name": "liked", "shares": "item"}, {"name": "town", "hash_buckets": 7},
        {"kind": "numeric", "name": "age", "transform": "log"}, {"kind": "bag", "name": "colours"},
    ],
    "group": "user", "time": "when",
    "split": {"kind": "temporal", "validation_from": BEGIN + 240, "test_from": BEGIN + 300},
}  # fmt: skip
"""Fields of every kind, those of users, items and the context mixed."""


def people() -> pl.DataFrame:
    rng = np.random.default_rng(1)
    return pl.DataFrame({
        "user": [f"u{u}" for u in range(USERS)],
        "income": [None if u % 6 == 5 else 100.0 * u for u in range(USERS)],
        "liked": [[int(i) for i in rng.integers(ITEMS, size=u % 4)] for u in range(USERS)],
        "town": [None if u % 9 == 8 else f"t{u % 5}" for u in range(USERS)],
        "age": [20 + u for u in range(USERS)],
    })  # fmt: skip


def goods() -> pl.DataFrame:
    return pl.DataFrame({
        "item": range(ITEMS),
        "tags": ["a|b", "b", "", "c|a|b"] * (ITEMS // 4),
        "price": [None if i % 7 == 6 else 1.5 * i for i in range(ITEMS)],
        "colours": [["red", "blue"][: i % 3] for i in range(ITEMS)],
    })  # fmt: skip


def log(rows: int = 360) -> pl.DataFrame:
    """Who had what when, with everything that is known of both; the last users and items are not in it."""
    rng = np.random.default_rng(0)
    pairs = pl.DataFrame({
        "user": [f"u{u}" for u in rng.integers(USERS - 3, size=rows)],
        "item": rng.integers(ITEMS - 4, size=rows),
        "hour": rng.integers(24, size=rows),
        "when": BEGIN + np.arange(rows),
        "label": rng.integers(2, size=rows),
    })  # fmt: skip
    return pairs.join(people(), on="user", how="left").join(goods(), on="item", how="left")


def stores(folder: Path) -> Both:
    """Both split at the same moments; the store of events knows all items."""
    split = {"kind": "global_time", **{key: SCHEMA["split"][key] for key in ("validation_from", "test_from")}}
    rest = pl.DataFrame({"user_id": ["u0"] * ITEMS, "item_id": range(ITEMS), "timestamp": [BEGIN - 1] * ITEMS})
    events = log().select(user_id="user", item_id="item", timestamp="when")
    return (
        fr.prepare(pl.concat([rest, events]), folder / "events", spec=fr.Prepare.parse({"split": split})),
        fr.prepare_impressions(log(), folder / "impressions", schema=SCHEMA),
    )


def ranker(store: fr.ImpressionStore, scale: float = 0.3) -> RankingStage:
    torch.manual_seed(0)
    click = RankingModel.parse({"embedding": {"dim": 4}, "ranker": {"kind": "dcnv2", "deep": {"hidden": [8]}}})
    model = shaken(click.build(store.fields), scale).eval()
    return RankingStage(model, store.encoder, trained_until=store.trained_until)


def retriever(store: fr.Store) -> RetrievalStage:
    return RetrievalStage(Whole(store.num_items), store.catalog, store)


def made(events: fr.Store, shown: fr.ImpressionStore | RankingStage, **settings: Any) -> Cascade:
    """A cascade with the tables of all users and items."""
    stage = shown if isinstance(shown, RankingStage) else ranker(shown)
    return Cascade(retriever(events), stage, **{"users": people(), "items": goods()} | settings)


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return stores(tmp_path_factory.mktemp("cascade"))


@pytest.fixture
def cascade(both: Both) -> Cascade:
    return made(*both)
