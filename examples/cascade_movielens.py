"""Does a ranker improve a retriever's lists on MovieLens-1M? Recall and nDCG before and after, by two rankers.

    python -m examples.cascade_movielens downloads/ml-1m --out runs/cascade --results results/rankelastor/cascade.json

Everything is split at the same two moments, so that nothing which is asked was trained on. The retriever is a small
SASRec on what users liked (4 stars and more); targets are what they liked later. Two DCNv2 rankers:

- `ratings`: of the movies that a user rated, which did they like? The data set `movielens_ctr` as it is. It has never
  seen a movie that a user would not even watch, and that is what most candidates are.
- `shown`: liked movies against movies drawn by how often they are liked: the question that a cascade asks.

The share of the retriever in the order (`blend`) is chosen on validation, by nDCG@10; the test is asked once for it and
once for the ranker alone (`blend` 0). DATA holds ml-1m.zip (`fullrank download movielens --set variant=1m`), or
ratings, users and movies as Parquet.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import fullrank as fr
from benchmarks import machine
from fullrank.data.sources.movielens import MovieLensCTR

MOMENTS = {"validation_from": 975_768_294, "test_from": 978_132_488}
"""Seconds since 1970: 80 % and 90 % of all ratings are earlier."""
BLENDS = (0.0, 0.25, 0.5, 0.75, 0.9)
DRAWN = 4
"""Movies drawn for each liked one."""
NEWEST = 20
"""Liked movies of a user in each part that the ranker `shown` learns from."""
USERS = ("gender", "age", "occupation", "zip")
MOVIES = ("year", "genre", "genres")
RETRIEVER = (
    "model.dim=64", "model.encoder.dropout=0.2", "model.encoder.input_dropout=0.2", "training.batch_size=8192",
    "training.max_epochs=3",
)  # fmt: skip
RANKER = ("model.embedding.dim=8", "model.ranker.deep.hidden=[64]", "training.max_epochs=2", "training.lr=0.003")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of stores and runs")
    parser.add_argument("--results", type=Path, required=True, help="the JSON file to write")
    given = parser.parse_args()
    source = MovieLensCTR().impressions(given.data)
    ratings = source.table
    items = ratings.select("item", *MOVIES).unique("item", maintain_order=True)
    users = ratings.select("user", *USERS).unique("user", maintain_order=True)
    spec = fr.Prepare.parse({
        "columns": {"user": "user", "item": "item", "rating": "rating"}, "min_rating": 4,
        "split": {"kind": "global_time", **MOMENTS},
    })  # fmt: skip
    store = fr.prepare(ratings, given.out / "liked", items=items, users=users, spec=spec, overwrite=True)
    split = {"kind": "temporal", **MOMENTS}
    rated = fr.prepare_impressions(
        ratings, given.out / "rated", schema=source.schema.model_copy(update={"split": fr.Schema.parse(
            {"fields": ["user"], "time": "timestamp", "split": split}).split}), overwrite=True,
    )  # fmt: skip
    fields: list[Any] = ["user", "item", *USERS, "year", "genre", {"kind": "bag", "name": "genres", "separator": "|"}]
    schema = {"fields": fields, "group": "user", "time": "timestamp", "split": split}
    shown = fr.prepare_impressions(
        with_drawn(ratings, users, items), given.out / "shown", schema=schema, overwrite=True
    )
    retriever, first = trained("sasrec", store, given.out / "runs" / "sasrec", RETRIEVER)
    found: dict[str, Any] = {"retriever": first, "rankers": {}}
    for name, impressions in (("ratings", rated), ("shown", shown)):
        ranker, facts = trained("dcnv2", impressions, given.out / "runs" / name, RANKER)
        found["rankers"][name] = facts | evaluated(fr.Cascade(retriever, ranker), asked_at(store, impressions))
        print(json.dumps(found["rankers"][name], indent=1), flush=True)
    found |= {"settings": {"moments": MOMENTS, "drawn": DRAWN, "newest": NEWEST, "blends": BLENDS}}
    found |= {"command": "python -m examples.cascade_movielens downloads/ml-1m --out runs/cascade --results FILE"}
    found |= {"data": {"retriever": store.fingerprint, "ratings": rated.fingerprint, "shown": shown.fingerprint}}
    found |= {"machine": machine.record(Path(__file__).resolve().parent.parent)}
    given.results.write_text(json.dumps(found, indent=2) + "\n")


def with_drawn(ratings: pl.DataFrame, users: pl.DataFrame, items: pl.DataFrame) -> pl.DataFrame:
    """The newest liked movies of each user before each moment, and `DRAWN` for each of them, at the same time."""
    rng = np.random.default_rng(0)
    part = sum((pl.col("timestamp") >= moment).cast(pl.Int8) for moment in MOMENTS.values())
    liked = ratings.filter(pl.col("rating") >= 4).select("user", "item", "timestamp").with_columns(part=part)
    chosen = liked.sort("timestamp", maintain_order=True).group_by("user", "part", maintain_order=True).tail(NEWEST)
    pool = liked.filter(pl.col("part") == 0)["item"].to_numpy()
    drawn = pl.concat([chosen.with_columns(item=pl.Series(rng.choice(pool, len(chosen)))) for _ in range(DRAWN)])
    drawn = drawn.join(liked, on=["user", "item"], how="anti")
    both = pl.concat([chosen.with_columns(label=pl.lit(1)), drawn.with_columns(label=pl.lit(0))])
    return both.join(users, on="user", how="left").join(items, on="item", how="left")


def asked_at(store: fr.Store, impressions: fr.ImpressionStore) -> dict[str, pl.DataFrame | None]:
    """Hour and weekday of each user's first target, where the ranker reads them: what a server knows when asked."""
    found: dict[str, pl.DataFrame | None] = {}
    for split in ("validation", "test"):
        asked = store.eval_set(split, without_history=True)
        assert store.times is not None
        moment = pl.from_epoch(pl.Series("when", store.times[asked.targets.starts]), time_unit="s")
        table = pl.DataFrame(
            {"user": store.user_ids[asked.users], "hour": moment.dt.hour(), "weekday": moment.dt.weekday()}
        )
        found[split] = table if any(field.name == "hour" for field in impressions.fields) else None
    return found


def trained(recipe: str, data: Any, out: Path, settings: tuple[str, ...]) -> tuple[fr.Run, dict[str, Any]]:
    run = fr.train(recipe, data, out, set=settings, resume=True, progress=False)
    epochs = [row for row in run.rows() if row.get("event") == "epoch"]
    metric = f"validation/{run.spec.evaluation.selection}"
    best = max(epochs, key=lambda row: row[metric])
    return run, {
        "recipe": recipe, "set": settings, "seed": run.spec.seed, "epoch": best["epoch"], metric: best[metric],
        "seconds": round(sum(row["seconds"] for row in epochs), 1),
    }  # fmt: skip


def evaluated(cascade: fr.Cascade, context: dict[str, pl.DataFrame | None]) -> dict[str, Any]:
    """Every blend on validation, then the test with the best one and with the ranker alone."""
    valid = {
        blend: cascade.evaluate("validation", context=context["validation"], blend=blend, set=["bootstrap=0"])
        for blend in BLENDS
    }
    chosen = max(BLENDS, key=lambda blend: valid[blend].after.metrics["ndcg@10"])
    found: dict[str, Any] = {"validation": {str(blend): brief(one) for blend, one in valid.items()}, "chosen": chosen}
    for name, blend in (("ranker_alone", 0.0), ("chosen_blend", chosen)):
        found[f"test_{name}"] = brief(cascade.evaluate("test", context=context["test"], blend=blend))
    return found


def brief(one: Any) -> dict[str, Any]:
    """Recall and nDCG before and after, and the ceiling."""
    names = [name for name in one.differences if name.split("@")[1] in ("10", "20")]
    rows = {name: one.differences[name].dump() for name in names}
    return {**one.facts, "notes": list(one.notes), f"recall@{one.facts['candidates']}": one.ceiling, "metrics": rows}


if __name__ == "__main__":
    main()
