"""Stores and batches with features, made of plain tables: no file is written or read."""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import torch

from fullrank.data.batch import Batch, BatchFeatures, Fields, to_fields
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.features import FeatureEncoder, Features, encoder_of
from fullrank.data.events.store import Store
from fullrank.data.features import FeatureRows, FeatureTable, HistoryFeatures
from fullrank.data.histories import EvalSet, Histories
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.schema import Numeric
from fullrank.data.impressions.vocabulary import Vocabulary
from fullrank.inference.predictor import Predictor
from fullrank.run.experiment import Experiment
from fullrank.training.data_module import RetrievalData

NAMES = {"event": ("rating", "dwell", "tags"), "request": ("device", "price"), "user": ("country", "born", "likes")}
KINDS = {"dwell": "numeric", "price": "numeric", "born": "numeric", "tags": "bag", "likes": "bag"}
VALUES = ("a", "b", "c", "d")


def fitted(tables: Mapping[str, pl.DataFrame]) -> FeatureEncoder:
    """An encoder of every column of these tables by role: lists are bags, floats are numbers as they are."""
    schema, lookups = {}, {}
    for role, table in tables.items():
        schema[role] = []
        for one in table:
            kind = "bag" if one.dtype == pl.List else "numeric" if one.dtype.is_float() else "categorical"
            more = {"transform": "linear"} if kind == "numeric" else {}
            schema[role].append({"kind": kind, "name": one.name, **more})
            values = one.explode() if kind == "bag" else one
            if kind != "numeric":
                lookups[one.name] = Vocabulary(values.drop_nulls().unique().sort().cast(pl.String))
    return FieldEncoder(Features.parse(schema), lookups, {})


def table_of(encoder: FeatureEncoder, role: str, frame: pl.DataFrame | None) -> FeatureTable | None:
    return None if frame is None else FeatureTable.of(encoder_of(encoder, role).encode(frame, role))  # type: ignore[arg-type]


class FeaturedStore(Store):
    """A store whose histories have features."""

    @staticmethod
    def of(store: Store, encoder: FeatureEncoder | None = None, **tables: pl.DataFrame) -> "FeaturedStore":
        """A copy with tables by role: event and request have a row for each event, user one for each user."""
        made = object.__new__(FeaturedStore)
        made.__dict__.update(store.__dict__)
        encoder = encoder or fitted(tables)
        made.catalog = copy(store.catalog)
        made.catalog.features = encoder
        for role in ("event", "request", "user"):
            setattr(made, f"{role}_features", table_of(encoder, role, tables.get(role)))
        return made

    def known(self, users: np.ndarray, asked: np.ndarray | None) -> HistoryFeatures:
        people, requests = self.user_features, self.request_features
        return HistoryFeatures(
            self.event_features, requests, None if people is None else FeatureRows(people, users),
            None if requests is None or asked is None else FeatureRows(requests, asked),
            None if self.times is None or asked is None else np.asarray(self.times)[asked],
        )  # fmt: skip

    @property
    def events(self) -> Histories:
        return replace(super().events, features=self.known(np.arange(self.num_users), None))

    def eval_set(self, split: str, *, without_history: bool = False) -> EvalSet:
        found = super().eval_set(split, without_history=without_history)
        features = self.known(found.users, found.targets.starts)
        return EvalSet(replace(found.histories, features=features), found.targets)


def some_tables(events: int, users: int, seed: int = 0) -> dict[str, pl.DataFrame]:
    """Tables of every kind of feature, with what is missing."""
    draw = np.random.default_rng(seed)

    def column(name: str, rows: int) -> pl.Series:
        gone = draw.random(rows) < 0.1
        if KINDS.get(name) == "numeric":
            return pl.Series(name, np.where(gone, np.nan, draw.normal(size=rows))).fill_nan(None)
        if KINDS.get(name) == "bag":
            lists = [draw.choice(VALUES, draw.integers(0, 4), replace=False).tolist() for _ in range(rows)]
            return pl.Series(name, lists, dtype=pl.List(pl.String))
        return pl.Series(name, [None if g else VALUES[k] for g, k in zip(gone, draw.integers(0, 4, rows), strict=True)])

    return {
        role: pl.DataFrame([column(name, users if role == "user" else events) for name in names])
        for role, names in NAMES.items()
    }


def with_features(catalog: Catalog, first_times: bool = True) -> Catalog:
    """The catalogue of a store that declares every kind of feature."""
    made = catalog.with_columns({"first_event_time": pl.Series([10**9 - 7 * i * i for i in range(catalog.size)])})
    made.features = fitted(some_tables(200, 200))
    return made


def random_fields(encoder: FeatureEncoder, role: str, *shape: int, seed: int = 0) -> Fields:
    """Features of rows or places of this shape."""
    count = int(np.prod(shape))
    frame = some_tables(count, count, seed)[role]
    flat = to_fields(encoder_of(encoder, role).encode(frame, role))  # type: ignore[arg-type]
    return flat.map(lambda x: x.view(*shape, x.shape[-1]))


def featured(batch: Batch, encoder: FeatureEncoder, seed: int = 0) -> Batch:
    """A batch as it is loaded, with every kind of feature of its events, its requests and its users."""
    known = {
        role: random_fields(encoder, role, *(batch.items.shape if role != "user" else batch.items.shape[:1]), seed=seed)
        for role in NAMES
    }
    return replace(batch, features=BatchFeatures(**known))


def numbers_of(encoder: FeatureEncoder, role: str) -> list[str]:
    return [one.name for one in encoder_of(encoder, role).schema.declared if isinstance(one, Numeric)]  # type: ignore[arg-type]


def changed(fields: Fields, where: torch.Tensor, seed: int = 99) -> Fields:
    """Other values of some rows or places."""
    draw = torch.Generator().manual_seed(seed)
    numbers = fields.numbers + torch.rand(fields.numbers.shape, generator=draw) + 1
    bags = tuple(torch.where(where[..., None], torch.where(bag == 2, 3, 2), bag) for bag in fields.bags)
    ids = torch.where(where[..., None], torch.where(fields.ids == 2, 3, 2), fields.ids)
    return Fields(
        ids.to(fields.ids.dtype), torch.where(where[..., None], numbers, fields.numbers),
        fields.missing & ~where[..., None], tuple(bag.to(fields.bags[0].dtype) for bag in bags),
    )  # fmt: skip


SHOP_BEGAN = 1_700_000_000
SHOP_FEATURES: dict[str, Any] = {
    "event_features": ["rating", {"kind": "numeric", "name": "dwell"}, {"kind": "bag", "name": "tags"}],
    "request_features": ["device", {"kind": "numeric", "name": "price", "transform": "bucket", "buckets": 3}],
    "user_features": ["country", {"kind": "numeric", "name": "born"}, {"kind": "bag", "name": "likes"}],
}  # fmt: skip
"""What `fr.prepare` is told of `shop_events` and `shop_people`."""


def shop_events(count: int = 400, users: int = 40) -> pl.DataFrame:
    """A table of events with a column of every kind of feature."""
    draw = np.random.default_rng(5)
    return pl.DataFrame({
        "user_id": [f"u{n}" for n in draw.permutation(np.arange(count) % users)],
        "item_id": draw.zipf(1.5, count) % 30,
        "timestamp": SHOP_BEGAN + 3_600 * draw.permutation(count),
        "rating": draw.integers(1, 6, count),
        "dwell": pl.Series(draw.gamma(2.0, 30.0, count)).set(pl.Series(draw.random(count) < 0.2), None),
        "tags": [draw.choice(list("abcde"), n % 4, replace=False).tolist() for n in range(count)],
        "device": draw.choice(["phone", "desk", ""], count).tolist(),
        "price": np.round(draw.gamma(2.0, 10.0, count), 1),
    })  # fmt: skip


def shop_people(users: int = 40) -> pl.DataFrame:
    """The table of its users."""
    draw = np.random.default_rng(6)
    return pl.DataFrame({
        "user_id": [f"u{n}" for n in range(users)],
        "country": draw.choice(["is", "no", "fo"], users).tolist(),
        "born": draw.integers(1950, 2000, users).astype(float),
        "likes": [draw.choice(["sea", "hills", "town"], n % 3, replace=False).tolist() for n in range(users)],
    })  # fmt: skip


def shop_predictor(store: Store, spec: Experiment) -> Predictor:
    """A predictor, not trained, whose features weigh as much as its items."""
    known = RetrievalData.of(spec, store).known
    model: Any = spec.model.build(known)  # type: ignore[attr-defined]
    for name, one in model.named_parameters():
        if "features" in name:
            one.data.mul_(20)
    return Predictor(model, known)
