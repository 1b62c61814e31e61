"""`fullrank check` on eight data sets: what it finds, the same numbers by polars alone, and its share of `prepare`.

Four sets are prepared from their tables and checked in a process of its own, three times; the seconds are those of the
first preparation and the check behind it, each with what it loads, as in a command, medians; `again` those of a second
one in the same process. `true` holds each number that
a query in polars over the table gives again (`event_truth`, `impression_truth`), which does not use the store. Of order
it is the factor of a table in which the training events of each user were shuffled, 1 but for chance.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from benchmarks.harness import CACHE, ROOT, Benchmark, Figures, Say, main, require, rounded
from fullrank.core.registry import find
from fullrank.data.check import Check, check
from fullrank.data.events.order import order_of
from fullrank.data.events.prepare import prepare
from fullrank.data.impressions.prepare import prepare_impressions
from fullrank.data.sources.planted import Planted

EVENTS = {
    "beauty": "amazon-beauty/events.parquet", "toys": "amazon-toys/events.parquet",
    "ml-1m-sequences": "ml-1m-sequences/events.parquet", "s3rec-beauty": "s3rec-beauty/events.parquet",
    "s3rec-sports": "s3rec-sports/events.parquet", "steam": "steam-100k/events.parquet",
}  # fmt: skip
IMPRESSIONS = {"frappe": "frappe", "movielens_ctr": "ml-1m"}
"""Source -> the folder of its files."""
RUNS = 3
Row = dict[str, Any]


def event_truth(table: pl.DataFrame) -> dict[str, float]:
    """Findings of a store that leave_one_out splits, by polars, from its table: those that have an own number."""
    user, item, moment = pl.col("user_id"), pl.col("item_id"), pl.col("timestamp")
    rows = table.sort("user_id", "timestamp", maintain_order=True).with_columns(
        left=pl.len().over("user_id") - 1 - pl.int_range(pl.len()).over("user_id"), size=pl.len().over("user_id"),
        tied=(moment == moment.shift().over("user_id")).fill_null(False),
        repeat=(item == item.shift().over("user_id")).fill_null(False),
    )  # fmt: skip
    part = pl.when(pl.col("size") < 3).then(pl.lit("train")).otherwise(
        pl.when(pl.col("left") == 0).then(pl.lit("test")).when(pl.col("left") == 1).then(pl.lit("validation"))
        .otherwise(pl.lit("train"))
    )  # fmt: skip
    rows = rows.with_columns(part=part)
    train, test = rows.filter(pl.col("part") == "train"), rows.filter(pl.col("part") == "test")
    first = train.group_by("item_id").agg(first=moment.min(), count=pl.len())
    targets = rows.filter(pl.col("part") != "train").join(first, on="item_id", how="left")
    last = test.join(first, on="item_id", how="left")
    busy = rows.filter((moment.shift(-1000).over("user_id") - moment) < 86_400)["user_id"].unique()
    fast = rows.filter((moment.shift(-60).over("user_id") - moment) < 60)["user_id"].unique()
    seconds = (rows["timestamp"] % 60 != 0).any()
    bots = pl.concat([busy, fast]).unique() if seconds else busy
    top = first.sort("count", "item_id", descending=[True, False]).head(-(-table["item_id"].n_unique() // 100))
    found = {
        "cold_targets": targets["first"].is_null().mean(), "in_a_row": rows["repeat"].mean(),
        "popularity": test["item_id"].is_in(top["item_id"].implode()).mean(),
    }  # fmt: skip
    if rows["timestamp"].max() > 631_152_000:
        times = train["timestamp"].sort().to_numpy()
        found |= {
            "bots": rows.select(user.is_in(bots.implode())).to_series().mean(),
            "duplicates": 1 - rows.select(user, item, moment).n_unique() / len(rows),
            "ties": test["tied"].mean(), "late_items": (last["first"] > last["timestamp"]).sum() / len(last),
            "leak": 1 - np.searchsorted(times, test["timestamp"].to_numpy(), "right").mean() / len(train),
        }  # fmt: skip
    return {name: float(value) for name, value in found.items()}


def impression_truth(table: pl.DataFrame, schema: Any, splits: pl.Series) -> dict[str, float]:
    """The same of impressions; `splits` is the part of each row."""
    names = [field.name for field in schema.fields if field.kind == "categorical"]
    label = pl.col(schema.label)
    rows = table.with_columns(
        part=splits, y=(label >= schema.label_threshold if schema.label_threshold else label > 0).cast(pl.Float64)
    )
    train, held = rows.filter(pl.col("part") == "train"), rows.filter(pl.col("part") == "validation")
    areas, unseen = [], []
    for name in names:
        rates = train.group_by(name).agg(rate=(pl.col("y").sum() + 10 * train["y"].mean()) / (pl.len() + 10))
        known = held.join(rates, on=name, how="left").with_columns(pl.col("rate").fill_null(train["y"].mean()))
        places, clicked = known["rate"].rank("average").to_numpy(), known["y"].to_numpy() > 0
        count = clicked.sum()
        areas.append((places[clicked].sum() - count * (count + 1) / 2) / (count * (len(clicked) - count)))
        unseen.append((~held[name].is_in(train[name].unique().implode())).mean())
    seen = rows.with_columns(  # as a ranker sees them: what training never saw is one value
        pl.when(pl.col(name).is_in(train[name].unique().implode())).then(name).alias(name) for name in names
    ).select(field.name for field in schema.fields)
    return {
        "tells_label": float(max(areas)), "unseen_validation": float(max(unseen)),  # type: ignore[type-var]
        "copies": 1 - seen.n_unique() / len(rows),
    }  # fmt: skip


def shuffled(table: pl.DataFrame) -> pl.DataFrame:
    """The table with the events of each user but the last two in random order, at the times that there are."""
    rows = table.sort("user_id", "timestamp", maintain_order=True)
    place = pl.int_range(pl.len()).over("user_id")
    mixed = rows.with_columns(order=pl.when(place >= pl.len().over("user_id") - 2).then(2.0 + place)
                              .otherwise(pl.Series(np.random.default_rng(0).random(len(rows)))))  # fmt: skip
    items = mixed.sort("user_id", "order")["item_id"]
    return rows.with_columns(item_id=items, timestamp=place)


def same(told: Check, truth: dict[str, float]) -> None:
    """Raise `Wrong` where a finding has another number than the query."""
    for one in told.findings:
        if one.name in truth and one.value is not None:
            require(abs(one.value - truth[one.name]) < 1e-4, f"{one.name} is {one.value}, by polars {truth[one.name]}")


def prepared_check(folder: Path, table: pl.DataFrame | None = None) -> None:
    """The findings of planted events with planted copies and ties are those of the queries."""
    if table is None:
        market = Planted(users=300, items=100).read().events.select("user_id", "item_id", "timestamp")
        table = pl.concat([market, market.head(30)]).with_columns(timestamp=pl.col("timestamp") // 3600 * 3600)
    store = prepare(table, folder / "planted", overwrite=True)
    told = check(store)
    require(not told.ok, "planted copies are not found")
    same(told, event_truth(table))


def check_right() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    prepared_check(CACHE / "data_check")


TIMED = ("beauty", "ml-1m-sequences", "frappe", "movielens_ctr")
ALONE = """
import json, sys, time
from pathlib import Path
import fullrank as fr
from fullrank.core.registry import find
name, table, out = sys.argv[1:]
seconds = []
for _ in range(2):
    begun = time.perf_counter(), time.process_time()
    if table.endswith(".parquet"):
        store = fr.prepare(table, out, overwrite=True)
    else:
        made = find(name, "data.sources")().impressions(Path(table))
        store = fr.prepare_impressions(made.table, out, schema=made.schema, overwrite=True)
    middle = time.perf_counter(), time.process_time()
    fr.check(store)
    end = time.perf_counter(), time.process_time()
    seconds.append([[b - a for a, b in zip(x, y)] for x, y in ((begun, middle), (middle, end))])
print(json.dumps(seconds))
"""
"""A process that loads what it needs when it needs it."""


def _timed(name: str, root: Path, out: Path) -> Figures:
    """Median seconds of [prepare, check] by clock and by processor, of the first and the second in a process."""
    words = [sys.executable, "-c", ALONE, name, root / (EVENTS | IMPRESSIONS)[name], out]
    runs = [json.loads(subprocess.run([*map(str, words)], capture_output=True, check=True).stdout) for _ in range(RUNS)]
    return {
        f"{key}_{clock}_seconds": [round(median(run[turn][what][at] for run in runs), 4) for what in (0, 1)]
        for turn, key in enumerate(("first", "again")) for at, clock in enumerate(("wall", "processor"))
    }  # fmt: skip


def _prepared(name: str, root: Path, out: Path) -> Any:
    if name in EVENTS:
        return prepare(root / EVENTS[name], out, overwrite=True)
    found = find(name, "data.sources")().impressions(root / IMPRESSIONS[name])
    return prepare_impressions(found.table, out, schema=found.schema, overwrite=True)


def measure(options: argparse.Namespace, say: Say) -> Figures:
    figures: Figures = {}
    root = Path(options.data or os.environ.get("FULLRANK_DATA") or ROOT.parent / "shared" / "data")
    for name in (*EVENTS, *IMPRESSIONS):
        say(name)
        place = CACHE / "data_check" / name
        store = _prepared(name, root, place)
        told = check(store)
        if name in EVENTS:
            table = pl.read_parquet(root / EVENTS[name])
            truth = event_truth(table)
            order = order_of(prepare(shuffled(table), place.with_name("shuffled"), overwrite=True))
            truth["order_of_shuffled"] = order.factor(order.real)[0]
        else:
            found = find(name, "data.sources")().impressions(root / IMPRESSIONS[name])
            frame = found.table.lazy().collect()
            parts = np.empty(len(store), object)
            for part in ("train", "validation", "test"):
                parts[store.external(store.split(part))["input_row"].to_numpy()] = part
            truth = impression_truth(frame, found.schema, pl.Series(parts.astype(str)))
        same(told, truth)
        findings = {one.name: {"grade": one.grade, "value": one.value, "said": one.said} for one in told.findings}
        figures[name] = {
            "fingerprint": store.fingerprint, "findings": findings, "true": rounded(truth, 6),
            **(_timed(name, root, place) if name in TIMED else {}),
        }  # fmt: skip
    shares = {}
    for key in ("first", "again"):
        spent = [one[f"{key}_processor_seconds"] for name, one in figures.items() if name in TIMED]
        shares[f"{key}_check_over_prepare"] = max(checked / prepared for prepared, checked in spent)
    return {**rounded(shares), "sets": figures}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default=None, help="the folder of the tables (default: FULLRANK_DATA)")


BENCHMARK = Benchmark("data_check", "fullrank check: findings and seconds", _arguments, check_right, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
