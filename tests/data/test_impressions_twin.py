"""The store of impressions equals a slow twin in plain Python: vocabularies, splits, numbers, bags, at odd sizes."""

import bisect
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.core.random import uniform_of_rows
from fullrank.core.spec import spec_tree
from fullrank.data import frames
from fullrank.data.impressions.schema import Schema
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.impressions.vocabulary import hash_bucket

Row = dict[str, Any]
SCHEMA = {
    "label": "stars",
    "label_threshold": 4,
    "fields": [
        {"kind": "numeric", "name": "price", "transform": "standard"},
        "user",
        {"name": "item", "min_count": 2},
        {"name": "device", "hash_buckets": 3},
        {"kind": "bag", "name": "tags", "separator": "|", "max_length": 3, "min_count": 2},
        {"kind": "numeric", "name": "age", "transform": "bucket", "buckets": 4},
        {"kind": "numeric", "name": "clicks", "transform": "log"},
        {"kind": "sequence", "name": "history", "shares": "item", "max_length": 2},
        {"kind": "numeric", "name": "raw", "transform": "linear"},
        {"kind": "bag", "name": "colours", "hash_buckets": 2},
    ],
    "group": "user",
    "time": "time",
    "split": "temporal",
}


def table(rows: int, seed: int) -> list:
    """Random rows with missing values, ties in time and in counts, empty and long bags."""
    draw = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if draw.random() < 0.15 else value

    return [
        {
            "stars": draw.randint(1, 5),
            "price": maybe(draw.choice([math.nan, 1.5, -2.0, 1e6, 3.25])),
            "user": draw.randint(-3, 9),
            "item": maybe(draw.choice("abcdefghij") * draw.randint(1, 2)),
            "device": maybe(draw.choice(["phone", "tablet", "", "tv"])),
            "tags": maybe("|".join(draw.choice(["x", " y", "z", "", "w"]) for _ in range(draw.randint(0, 5)))),
            "age": maybe(draw.randint(10, 60)),
            "clicks": maybe(draw.randint(-5, 1000)),
            "history": maybe([draw.choice(["a", "bb", "c", "unseen", None]) for _ in range(draw.randint(0, 4))]),
            "raw": maybe(draw.random()),
            "colours": [draw.randint(0, 5) for _ in range(draw.randint(0, 3))],
            "time": draw.randint(0, rows // 3),
        }
        for _ in range(rows)
    ]


FRAME = {"history": pl.List(pl.String), "colours": pl.List(pl.Int64), "item": pl.String, "device": pl.String,
         "tags": pl.String, "price": pl.Float64, "age": pl.Int64, "clicks": pl.Int64, "raw": pl.Float64}  # fmt: skip


def prepared(table: Any, out: Path, schema: dict = SCHEMA, **how: Any) -> ImpressionStore:
    return fr.prepare_impressions(table, out, schema=schema, **how)


def frame_of(rows: list) -> pl.DataFrame:
    return pl.DataFrame(rows, schema_overrides=FRAME)


class Twin:
    """What a store should hold, one row at a time."""

    def __init__(self, rows: list, extends: bool = False):
        order = sorted(range(len(rows)), key=lambda at: (rows[at]["time"], at))
        cuts = [int(len(rows) * share + 1e-6) for share in (0.8, 0.9)]
        part = [0] * len(rows)
        for rank, at in enumerate(order):
            part[at] = (rank >= cuts[0]) + (rank >= cuts[1])
        self.order = sorted(range(len(rows)), key=lambda at: (part[at], at))
        self.sizes = [part.count(number) for number in range(3)]
        train = [rows[at] for at in range(len(rows)) if part[at] == 0]
        self.user = self._vocabulary((row["user"] for row in train), 1)
        read = (value for row in train for value in self.read(row)) if extends else ()
        self.item = self._vocabulary((row["item"] for row in train), 2, read)
        self.tags = self._vocabulary((tag for row in train for tag in self.split(row["tags"])), 2)
        prices = [row["price"] for row in train if row["price"] is not None and not math.isnan(row["price"])]
        self.mean = sum(prices) / len(prices)
        self.deviation = math.sqrt(sum((price - self.mean) ** 2 for price in prices) / len(prices))
        ages = sorted(row["age"] for row in train if row["age"] is not None)
        self.edges = sorted({ages[math.ceil(share * len(ages)) - 1] for share in (0.25, 0.5, 0.75)})
        self.groups = sorted({row["user"] for row in rows})

    @staticmethod
    def _vocabulary(values: Any, least: int, more: Any = ()) -> dict:
        counts = Counter()
        for column in (values, more):  # often enough in one of them
            found = Counter(value for value in column if value not in (None, ""))
            counts.update({value: count for value, count in found.items() if count >= least})
        kept = sorted(counts, key=lambda value: (-counts[value], value))
        return {value: number + 2 for number, value in enumerate(kept)}

    @staticmethod
    def split(text: str | None) -> list:
        return [part.strip() for part in (text or "").split("|") if part.strip()][:3]

    @staticmethod
    def read(row: Row) -> list:
        return [value for value in row["history"] or [] if value is not None][-2:]

    def categorical(self, row: Row) -> list:
        device = 0 if row["device"] in (None, "") else 2 + hash_bucket(row["device"], 3)
        age = 0 if row["age"] is None else 2 + bisect.bisect_right(self.edges, row["age"])
        item = 0 if row["item"] is None else self.item.get(row["item"], 1)
        return [self.user.get(row["user"], 1), item, device, age]

    def numeric(self, row: Row) -> list:
        price, clicks, raw = (math.nan if row[name] is None else row[name] for name in ("price", "clicks", "raw"))
        return [(price - self.mean) / self.deviation, math.copysign(math.log1p(abs(clicks)), clicks), raw]

    def bags(self, row: Row) -> list:
        return [
            [self.tags.get(tag, 1) for tag in self.split(row["tags"])],
            [self.item.get(value, 1) for value in self.read(row)],
            [2 + hash_bucket(str(value), 2) for value in row["colours"]],
        ]


def check(store: ImpressionStore, rows: list, extends: bool = False) -> None:
    twin = Twin(rows, extends)
    assert [len(store.split(name)) for name in ("train", "validation", "test")] == twin.sizes
    chosen = np.random.default_rng(0).permutation(len(rows))
    batch = store.batch(chosen)
    given = [rows[twin.order[at]] for at in chosen]
    assert batch.rows.tolist() == chosen.tolist()
    assert store.external(chosen)["input_row"].to_list() == [twin.order[at] for at in chosen]
    assert store.external(chosen)["time"].to_list() == [row["time"] for row in given]
    assert store.external(chosen)["group"].to_list() == [row["user"] for row in given]
    assert batch.labels.tolist() == [float(row["stars"] >= 4) for row in given]
    assert batch.groups.tolist() == [twin.groups.index(row["user"]) for row in given]
    assert batch.categorical.tolist() == [twin.categorical(row) for row in given]
    wanted = torch.tensor([twin.numeric(row) for row in given])
    assert torch.equal(batch.missing, wanted.isnan())
    torch.testing.assert_close(batch.numeric, wanted.nan_to_num(0.0))
    for at, bag in enumerate(batch.bags):
        found = [ids[:length] for ids, length in zip(bag.ids.tolist(), bag.lengths.tolist(), strict=True)]
        assert found == [twin.bags(row)[at] for row in given]
        padding = torch.arange(bag.ids.shape[1]) >= bag.lengths[:, None]
        assert int(bag.ids[padding].abs().sum()) == 0
    again = store.encode(frame_of(given))
    assert torch.equal(again.categorical, batch.categorical) and torch.equal(again.numeric, batch.numeric)
    assert torch.equal(again.groups, batch.groups)
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(again.bags, batch.bags, strict=True))


@pytest.mark.parametrize(("rows", "chunk"), [(37, 1 << 17), (211, 50), (211, 7), (1000, 333)])
def test_the_store_is_that_of_the_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, chunk: int) -> None:
    monkeypatch.setattr(frames, "CHUNK", chunk)
    given = table(rows, seed=rows)
    store = prepared(frame_of(given), tmp_path / "store")
    check(store, given)
    assert [field.name for field in store.fields] == [field.name for field in Schema.parse(SCHEMA).fields]
    assert [field.kind for field in store.fields].count("categorical") == 4


@pytest.mark.parametrize("chunk", [1 << 17, 7])
def test_a_sequence_that_extends_a_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(frames, "CHUNK", chunk)
    given = table(211, seed=3)
    assert all(row["item"] != "unseen" for row in given)
    fields = [field | {"extends": True} if "shares" in field else field for field in SCHEMA["fields"]]
    schema = SCHEMA | {"fields": fields}
    store = prepared(frame_of(given), tmp_path / "store", schema)
    check(store, given, extends=True)
    plain = prepared(frame_of(given), tmp_path / "plain")
    assert plain.fingerprint != store.fingerprint
    assert "extends" not in str(spec_tree(plain.schema)), (
        "stores without it keep the fingerprint that they had before it"
    )
    assert "unseen" in store.vocabulary("item") and store.fields[7].size == store.fields[2].size


def test_the_random_split_is_a_function_of_the_row(tmp_path: Path) -> None:
    given = table(500, 1)
    schema = SCHEMA | {"split": {"kind": "random", "seed": 5, "shares": [0.5, 0.2, 0.3]}}
    store = prepared(frame_of(given), tmp_path / "store", schema)
    train = store.external(store.split("train"))["input_row"].to_list()
    assert train == [row for row in range(500) if uniform_of_rows(5, np.array([row]))[0] < 0.5]
    assert sum(len(store.split(name)) for name in ("train", "validation", "test")) == 500
