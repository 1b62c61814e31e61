"""A ranking model's service under load: requests of `--rows` impressions each, from a process that does not wait.

``p90_ms``, ``p50_ms``, ``p99_ms``, ``rows_per_second``, ``errors``: a ranker trained on frappe, rows of its table in
the requests, an open loop at `--rate` requests a second for `--hold` seconds. ``callers_rows_per_second``: 8 callers
that each wait for their answer. ``one_row_p90_ms``: requests of one row, 100 a second. ``http_p90_ms``: the same load
with a route that answers with the body. ``read_cpu_ms``, ``model_cpu_ms``: processor time of one request, which other
work hardly changes: a body to a table, on the event loop or a thread beside it; its encoding and the forward pass, on
the model thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import fullrank as fr
from benchmarks import impressions
from benchmarks.harness import CACHE, Benchmark, Figures, Say, main, repeat, require, rounded
from benchmarks.serve import closed, echoing, load, served
from fullrank.core.errors import UserError
from fullrank.serving.messages import PredictRequest
from fullrank.serving.prediction import ServedPredictor
from fullrank.serving.settings import ServeSettings

PATH = "/v1/predict"
BODIES = 50
"""Different requests."""


def bodies_of(frame: pl.DataFrame, columns: list[str], rows: int, out: Path, requests: int = BODIES) -> Path:
    """Requests of `rows` rows each, drawn at random."""
    draw = np.random.default_rng(0)
    chosen = (frame.select(columns)[draw.integers(0, len(frame), rows)].to_dicts() for _ in range(requests))
    out.write_text("".join(json.dumps({"rows": one}) + "\n" for one in chosen))
    return out


def columns_of(run: Path) -> list[str]:
    """The columns that a ranking run reads."""
    return [field.name for field in fr.load(run, device="cpu").encoder.fields]


def check() -> None:
    """A service on generated impressions answers as `predict` does, under load without an error."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        store = impressions.prepared(2000, place / "store")
        run = fr.train("lr", store, place / "run", set=["training.max_epochs=1"], device="cpu", progress=False)
        columns = columns_of(run.path)
        bodies = bodies_of(impressions.table(500, seed=1), columns, 40, place / "bodies.jsonl")
        rows = json.loads(bodies.read_text().splitlines()[0])["rows"]
        with served(run.path) as (url, _):
            from fullrank.serving.client import Client

            own = fr.load(run.path, device="cpu").predict(pl.DataFrame(rows))["probability"].to_numpy()
            given = np.array(Client(url).predict(rows))
            require(bool(np.allclose(given, own, atol=1e-6)), f"{given[:3]} is not {own[:3]}")
            found = load(url, bodies, 20, 0, 1, PATH)
            require(found["whole"]["errors"] == 0 and found["whole"]["sent"] > 5, f"errors: {found['statuses']}")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    if options.run is None or options.table is None:
        raise UserError("name a ranking run and the table of its impressions: --run RUN --table TABLE", code="no-run")
    work = CACHE / "predict"
    work.mkdir(parents=True, exist_ok=True)
    frame, columns = pl.read_parquet(options.table), columns_of(options.run)
    bodies = bodies_of(frame, columns, options.rows, work / "bodies.jsonl")
    figures: Figures = {"columns": len(columns), "bytes_of_a_body": len(bodies.read_bytes()) // BODIES}
    figures |= _inside(options.run, bodies)
    with served(options.run) as (url, _):
        load(url, bodies, 5, 0, 3, PATH)  # warm
        say(f"{options.rows:,} rows a request, {options.rate:g} requests a second for {options.hold:g} s")
        found = load(url, bodies, options.rate, 0, options.hold, PATH)["hold"]
        figures |= {f"p{p}_ms": found[f"p{p}_ms"] for p in (50, 90, 99)}
        figures |= {"rows_per_second": found["rps"] * options.rows, "errors": found["errors"]}
        say("8 callers that wait for their answers")
        figures["callers_rows_per_second"] = closed(url, bodies, 8, options.hold, PATH) * options.rows
        say("one row a request")
        single = bodies_of(frame, columns, 1, work / "single.jsonl")
        found = load(url, single, 100, 0, options.hold, PATH)["hold"]
        figures |= {"one_row_p50_ms": found["p50_ms"], "one_row_p90_ms": found["p90_ms"]}
    with echoing() as url:
        figures["http_p90_ms"] = load(url, bodies, options.rate, 0, options.hold, "/echo")["hold"]["p90_ms"]
    return rounded(figures)


def _inside(run: Path, bodies: Path) -> Figures:
    """Processor time of the two halves of an answer, without HTTP, in milliseconds."""
    model = ServedPredictor.open(run, ServeSettings(run=str(run), device="cpu"))
    body = bodies.read_bytes().splitlines()[0]

    def read() -> Any:
        return model.rows.frame(PredictRequest.model_validate_json(body).rows)

    frame = read()
    figures: Figures = {}
    for name, half in {"read_cpu_ms": read, "model_cpu_ms": lambda: model.answer([frame])}.items():
        half()  # warm
        begun = time.process_time()
        repeat(20, half)
        figures[name] = (time.process_time() - begun) / 20 * 1e3
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, help="a run of a ranking model")
    parser.add_argument("--table", type=Path, help="Parquet with the columns that it reads")
    parser.add_argument("--rows", type=int, default=1000, help="rows of a request")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--hold", type=float, default=30.0, help="seconds of each load")


BENCHMARK = Benchmark("predict", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
