"""A blend of five members: its lists against their definition by brute force, and served under load.

``equal_lists`` of ``asked_lists``: lists of `recommend` that have the scores of the definition, which a table of all
members' lists gives by group and sum; without filters, with one on a column, and with items excluded for each history.
``answer_over_members``: processor time of a blend's lists over that of its members one after the other, as `recommend`
makes them for all histories at once. ``rps``, ``p50_ms``, ``p90_ms``, ``p99_ms``, ``errors``: the service at `--rate`
requests a second, as in ``benchmarks.serve``. Members: three that count, `sasrec` and `fmlp`, which are trained for one
epoch here, since what they answer costs no less. Data: amazon-beauty, histories of its test users.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

import fullrank as fr
from benchmarks import data
from benchmarks.harness import CACHE, Benchmark, Figures, Say, main, require, rounded
from benchmarks.serve import bodies_of, events_of, under_load
from fullrank.core.jagged import Jagged
from fullrank.data.events.store import Store
from fullrank.run import Run

MEMBERS = ("transition_graph", "item_to_item", "session_knn", "sasrec", "fmlp")
TRAINED = ("sasrec", "fmlp")
K = 20
NEAR = 1e-6
"""Relative difference of sums that are added in another order."""


def store_of(events: pl.DataFrame, folder: Path) -> Store:
    """A store whose items have a column `in_stock`, true of four in five."""
    ids = events["item_id"].unique().sort()
    stock = np.random.default_rng(0).random(len(ids)) < 0.8
    return fr.prepare(events, folder, items=pl.DataFrame({"item_id": ids, "in_stock": stock}), overwrite=True)


def members_of(store: Store, folder: Path, say: Say, settings: Sequence[str] = ()) -> list[Run]:
    """The five runs."""
    found = []
    for name in MEMBERS:
        if not (folder / name / "manifest.json").is_file():
            say(f"member {name}")
            how = ["training.max_epochs=1", *settings] if name in TRAINED else []
            fr.train(name, store, folder / name, set=how, device="cpu", progress=False)
        found.append(Run.open(folder / name))
    return found


def by_definition(blend: Run, members: list[Run], histories: list[list[Any]], **options: Any) -> pl.DataFrame:
    """user, item, sum of each item of any list: reciprocal places or scores, weighed by the user's weights."""
    spec, model = blend.spec.model, fr.load(blend, device="cpu").model
    known = model.known(Jagged.from_lists([blend.catalog.lookup(one).tolist() for one in histories]))
    x = (known - model.center.numpy()) / model.scale.numpy()
    offset = 60.0 if spec.offset is None else spec.offset
    parts = []
    for number, run in enumerate(members):
        gate = x @ model.slopes[number].numpy() if spec.gate else np.zeros(len(histories))
        weight = np.exp(float(model.bias[number]) + gate)
        lists = fr.recommend(run, histories, k=spec.depth, device="cpu", **options)
        last, best = pl.col("score").min().over("user"), pl.col("score").max().over("user")
        scaled = pl.when(best > last).then((pl.col("score") - last) / (best - last)).otherwise(1.0)
        said = (offset + 1) / (offset + pl.col("rank")) if spec.join == "ranks" else scaled
        weights = pl.DataFrame({"user": np.arange(len(histories)), "weight": weight})
        parts.append(lists.join(weights, on="user").select("user", "item", sum=said * pl.col("weight")))
    return pl.concat(parts).group_by("user", "item").agg(pl.col("sum").sum())


def compared(blend: Run, members: list[Run], histories: list[list[Any]], **options: Any) -> tuple[int, int]:
    """Lists that agree with the definition, and lists asked: the same k best sums, and each item with its own sum."""
    sums = by_definition(blend, members, histories, **options)
    found = fr.recommend(blend, histories, k=K, device="cpu", **options).join(sums, on=["user", "item"], how="left")
    best = (
        sums.sort("user", "sum", descending=[False, True])
        .group_by("user", maintain_order=True)
        .agg(pl.col("sum").head(K).alias("best"))
    )
    own = found.sort("user", "rank").group_by("user", maintain_order=True).agg("score", "sum")
    both = best.join(own, on="user", how="left").sort("user")
    agree = 0
    for wanted, scores, own_sums in zip(both["best"], both["score"], both["sum"], strict=True):
        agree += scores is not None and len(scores) == len(wanted) and all(
            np.allclose(scores, one, rtol=NEAR, atol=0) for one in (wanted, own_sums)
        )  # fmt: skip
    return agree, len(both)


def asked(histories: list[list[Any]], store: Store) -> dict[str, dict[str, Any]]:
    """Ways of asking: plainly, with a filter on a column, and with items that each history does not want."""
    draw = np.random.default_rng(1)
    unwanted = [store.catalog.ids.gather(draw.integers(0, store.num_items, 50)).to_list() for _ in histories]
    return {"plain": {}, "filter": {"filters": {"in_stock": True}}, "exclude": {"exclude": unwanted}}


def histories_of(store: Store, count: int) -> list[list[Any]]:
    """Those of some test users, as ids."""
    rows = store.eval_set("test").histories.items
    users = np.random.default_rng(0).permutation(len(rows))[:count]
    ids = store.catalog.ids.to_numpy()
    return [ids[row].tolist() for row in rows.take(users)]


def check() -> None:
    """On generated data every list is that of the definition, and one with other weights is not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = store_of(events_of(200), folder / "store")
        members = members_of(store, folder, lambda _: None, ["model.dim=16"])
        blend = fr.blend(members, store, folder / "blend", device="cpu")
        histories = histories_of(store, 40)
        for way, options in asked(histories, store).items():
            agree, lists = compared(blend, members, histories, **options)
            require(agree == lists == 40, f"{way}: {agree} of {lists} lists are those of the definition")
        agree, _ = compared(blend, members[::-1], histories)
        require(agree < 40, "members in another order give the same lists")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    work = CACHE / "blend"
    work.mkdir(parents=True, exist_ok=True)
    store = store_of(pl.read_parquet(data.beauty_events()), work / "store")
    members = members_of(store, work, say)
    if not (work / "blend" / "manifest.json").is_file():
        say("blending")
        fr.blend(members, store, work / "blend", device="cpu")
    blend, histories = Run.open(work / "blend"), histories_of(store, options.histories)
    agree = lists = 0
    for way, how in asked(histories, store).items():
        say(f"brute force, {way}")
        some = compared(blend, members, histories, **how)
        agree, lists = agree + some[0], lists + some[1]
    say("lists of the blend and of its members")
    runs = {"blend": blend, **dict(zip(MEMBERS, members, strict=True))}
    opened = {name: fr.load(run, device="cpu") for name, run in runs.items()}
    depth = blend.spec.model.depth
    taken: dict[str, list[float]] = {name: [] for name in opened}
    for _ in range(options.rounds):
        for name, predictor in opened.items():
            begun = time.process_time()
            predictor.recommend(histories, k=K if name == "blend" else depth)
            taken[name].append(time.process_time() - begun)
    seconds = {name: median(some) for name, some in taken.items()}
    say(f"{options.rate:g} requests a second")
    loaded = under_load(
        blend.path, bodies_of(store, work / "beauty.jsonl"), options.rate, options.ramp, options.hold, "blend"
    )
    return rounded({
        "equal_lists": agree, "asked_lists": lists, "members": len(members),
        "answer_over_members": seconds["blend"] / sum(seconds[name] for name in MEMBERS),
        **{f"seconds_{name}": value for name, value in seconds.items()},
        **{name.removesuffix("_blend"): value for name, value in loaded.items()},
    })  # fmt: skip


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--histories", type=int, default=1000, help="histories of the comparisons (default 1000)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of lists (default 5)")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second (default 200)")
    parser.add_argument("--ramp", type=float, default=20.0, help="seconds of the ramp (default 20)")
    parser.add_argument("--hold", type=float, default=60.0, help="seconds at the full rate (default 60)")


BENCHMARK = Benchmark("blend", "a blend of five members, by brute force and under load", _arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
