"""The daily loop: new events, training that goes on, a check of the new model, and a swap without a lost request.

    python -m examples.daily_loop --out loop --days 2

A service answers with the run of the first day and watches the folder `runs`. Every day its users ask for lists and do
something, which the service stores; at night all events so far become a new store, training goes on from the run of the
day before (`fr.train("same", ..., init_from=...)`: an item keeps its vector by its external id, new items get one), and
the new run appears in `runs`. The service finds it there, checks it on what its users did last, and swaps. Answers are
logged, so in the end `fr.evaluate_log` tells what each model's lists were worth.

The marketplace is generated. With data of your own, `events_of_the_day` is an export of your events, training
runs where it always does, and the service is `fullrank serve runs/day-0 --watch runs --log answers`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

import polars as pl

import fullrank as fr
from fullrank.data.sources.planted import Planted
from fullrank.serving.messages import EventsRequest, RecommendRequest
from fullrank.serving.service import Service
from fullrank.serving.settings import ServeSettings

RECIPE = ("model.dim=16", "model.encoder.layers=1", "model.max_length=20", "training.batch_size=256")
FIRST = (*RECIPE, "training.max_epochs=8", "training.lr=3e-3")
NIGHT = (*RECIPE, "training.max_epochs=2", "training.lr=1e-3")
"""Going on needs few epochs, and a smaller step."""
ASKING = 60
"""Users who come every day."""
PATIENCE = 60.0
"""Seconds that a new run may take from its folder to its first answer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of stores, runs and the answer log")
    parser.add_argument("--days", type=int, default=2, help="days after the first [default: 2]")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(loop(given.out, given.days)), indent=1))


async def loop(out: Path, days: int, users: int = 400, items: int = 120) -> dict[str, Any]:
    """Run the service for some days; which version answered each day, its check, and what its answers were worth."""
    market, coming = generated(days, users, items)
    run = prepare_and_train(market, out, 0, None)
    settings = ServeSettings(
        run=str(run.path), watch=str(out / "runs"), store=str(out / "histories.sqlite"), log=str(out / "answers")
    )
    service, told = Service(settings), []
    await service.open()
    try:
        await stored(service, market.filter(pl.col("user_id").is_in(coming[0]["user_id"].unique().implode())))
        for day, events in enumerate(coming, 1):
            answered = await serve_a_day(service, events)
            market = pl.concat([market, events_of_the_day(events)])
            await stored(service, market.tail(len(events)))
            # beside the service, as training would be: it goes on answering
            run = await asyncio.to_thread(prepare_and_train, market, out, day, run)
            verdict = await swapped(service, run.path.name)
            told.append({"day": day, "answered by": answered, "next": run.path.name, "check": verdict})
    finally:
        await service.close()
    worth = fr.evaluate_log(out / "answers", market, within=24, metrics=["hit", "ndcg"])
    versions = {name: {"answers": one.answers, **one.metrics} for name, one in worth.versions.items()}
    return {"days": told, "versions": versions}


def generated(days: int, users: int, items: int) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """Events so far, and those of the days to come: the last ones of some users."""
    events = Planted(users=users, items=items, events_per_user=12).read().events
    events = events.select("user_id", "item_id", pl.col("timestamp").cast(pl.Int64)).sort("user_id", "timestamp")
    left = pl.col("timestamp").cum_count(reverse=True).over("user_id")
    asking = pl.col("user_id").is_in(events["user_id"].unique(maintain_order=True).head(ASKING).implode())
    coming = [events.filter(asking & (left == days - day)) for day in range(days)]
    return events.filter(~asking | (left > days)), coming


def events_of_the_day(events: pl.DataFrame) -> pl.DataFrame:
    """What users did after they were shown lists: in reality an export."""
    return events.with_columns(timestamp=pl.lit(int(time.time()) + 1, dtype=pl.Int64))


def prepare_and_train(events: pl.DataFrame, out: Path, day: int, before: fr.Run | None) -> fr.Run:
    """A run on all events so far that goes on from the one before.

    The service waits for it while it is trained in the watched folder: its manifest is sealed last.
    """
    store = fr.prepare(events, out / "data" / f"day-{day}", overwrite=True)
    what, settings = ("sasrec", FIRST) if before is None else ("same", NIGHT)
    return fr.train(
        what, store, out / "runs" / f"day-{day}", set=settings, init_from=before, device="cpu", progress=False
    )  # fmt: skip


async def stored(service: Service, events: pl.DataFrame) -> None:
    """Tell the service what happened, some events a call."""
    for some in events.iter_slices(100):
        rows = [{"user": user, "item": item, "time": at} for user, item, at in some.iter_rows()]
        await service.add_events(EventsRequest.model_validate({"events": rows}))


async def serve_a_day(service: Service, events: pl.DataFrame) -> list[str]:
    """Every user asks once; the versions that answered."""
    asked = [RecommendRequest.model_validate({"user": user, "k": 10}) for user in events["user_id"].unique()]
    answers = await asyncio.gather(*(service.recommend(one) for one in asked))
    return sorted({answer["version"] for answer in answers})


async def swapped(service: Service, name: str) -> dict[str, Any]:
    """Wait until a version answers or is refused; what its check found."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for one in service.versions.describe()["versions"]:
            if one["name"] == name and one["state"] in ("serving", "refused"):
                return {"state": one["state"], **{c["name"]: c["figure"] for c in one["verdict"]["checks"]}}
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{name} has not been checked in {PATIENCE:g} seconds")


if __name__ == "__main__":
    main()
