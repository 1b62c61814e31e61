"""A service under load: requests a second and latencies, from a second process that does not wait for answers.

``rps_12k``, ``p50_ms_12k``, ``p90_ms_12k``, ``p99_ms_12k``, ``errors``: the `sasrec` recipe as trained on amazon-beauty
(d 128), its test histories in the requests, k 20, a fifth of the requests with a filter on a column, no cache of
answers. Load rises in a line over `--ramp` seconds to `--rate` (ETUDE, ICDE 2024) and stays there for `--hold`: the
percentiles are those of the hold, ``errors`` those of the whole; an answer other than 200 is an error.
``http_p90_ms``: the same load on the same server with a route that reads the body and answers with it.
``batching_speedup``: answers a second of 64 callers that each wait for their answer, over the same one by one.
``rps_1m``, ``p90_ms_1m``, ``recall_1m``: a million clustered items 64 wide, by the index; recall@10 against the exact
list, the bytes of the index and the seconds that it took to build.
``ranker_p90_ms``: a ranking model over 500 candidates of each request, 20 requests a second.
``client_us``: processor time of the load per request, which comes from the same two cores; ``server_us`` the server's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import fullrank as fr
from benchmarks import data
from benchmarks.harness import CACHE, ROOT, Benchmark, Figures, Say, main, require, rounded
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.run import Run, write_copy

HISTORIES = 5000
"""Different requests."""
CLUSTERS, ITEMS_1M, WIDE = 2000, 1_000_000, 64
CANDIDATES = 500
LONGEST = 1000
"""Events of a history: what the service takes by default."""


@contextmanager
def served(run: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a service of its own process, and the process."""
    words = [sys.executable, "-m", "fullrank", "serve", str(run), "--port", "0", "--store", "memory:", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            found = re.search(r"http://[\w.:]+", line)
            if found:
                break
        else:
            raise RuntimeError(f"the service did not start: {''.join(said)}")
        threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop it
        _await_ready(found[0], process)
        yield found[0], process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def echoing() -> Iterator[str]:
    """The address of a server that answers with what it was sent."""
    port = _free_port()
    process: subprocess.Popen[Any] = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.echo", str(port)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        _await_ready(f"http://127.0.0.1:{port}", process, 30)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def load(url: str, bodies: Path, rate: float, ramp: float, hold: float, path: str = "/v1/recommend") -> dict[str, Any]:
    """What the load generator found."""
    words = [sys.executable, "-m", "benchmarks.load", "--url", url, "--bodies", str(bodies), "--path", path]
    numbers = ["--rate", str(rate), "--ramp", str(ramp), "--hold", str(hold)]
    found = subprocess.run([*words, *numbers], cwd=ROOT, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return answer


def with_stock(run: Run, out: Path) -> Path:
    """The run with a column `in_stock` of its items, true of four in five."""
    if not (out / "manifest.json").is_file():
        catalog = run.catalog
        stock = np.random.default_rng(0).random(catalog.size) < 0.8
        write_copy(run, out, Catalog(catalog.frame.with_columns(in_stock=pl.Series(stock))), run.tensors(), {})
    return out


def bodies_of(store: Store, out: Path, **more: Any) -> Path:
    """Requests with the histories of test users; every fifth has a filter."""
    ids = store.catalog.ids.to_numpy()
    rows = store.eval_set("test").histories.items
    users = np.random.default_rng(0).permutation(len(rows))[:HISTORIES]
    return _written([ids[row].tolist() for row in rows.take(users).last(LONGEST)], out, **more)


def events_of(users: int) -> pl.DataFrame:
    """Events of some users with 300 items."""
    draw = np.random.default_rng(0)
    who = np.repeat(np.arange(users), 10)
    return pl.DataFrame({"user_id": who, "item_id": draw.integers(0, 300, len(who)), "timestamp": np.arange(len(who))})


def million(out: Path, say: Say) -> tuple[Path, Path]:
    """A run with a million items in clusters, and requests for it: histories of ten items of one cluster."""
    requests = out.with_suffix(".jsonl")
    if (out / "manifest.json").is_file() and requests.is_file():
        return out, requests
    say("a run with a million items")
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((CLUSTERS, WIDE), dtype=np.float32)
    of = draw.choice(CLUSTERS, ITEMS_1M, p=draw.dirichlet(np.ones(CLUSTERS)))
    table = centres[of] + draw.standard_normal((ITEMS_1M, WIDE), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        store = fr.prepare(events_of(50), Path(folder) / "store")
        run = fr.train("sasrec", store, Path(folder) / "run", set=[f"model.dim={WIDE}", "training.max_epochs=1"])
        tensors = dict(run.tensors())
        for name, tensor in tensors.items():
            if name.startswith("items.") and tensor.ndim and len(tensor) == run.catalog.size:
                if tensor.ndim == 2:
                    tensors[name] = torch.from_numpy(table)
                else:  # training events of each
                    tensors[name] = torch.ones(ITEMS_1M, dtype=tensor.dtype)
            elif name.endswith("position.weight"):
                tensors[name] = tensor * 0.1  # users lie near the clusters of what they read
        frame = pl.DataFrame({
            "item": np.arange(ITEMS_1M), "item_id": np.arange(ITEMS_1M), "train_count": np.ones(ITEMS_1M, np.int64),
            "in_stock": draw.random(ITEMS_1M) < 0.8,
        })  # fmt: skip
        write_copy(run, out, Catalog(frame), tensors, {})
    members = np.argsort(of, kind="stable")
    ends = np.searchsorted(of[members], np.arange(CLUSTERS + 1))
    chosen = of[draw.integers(0, ITEMS_1M, HISTORIES)]
    _written([draw.choice(members[ends[c] : ends[c + 1]], 10).tolist() for c in chosen], requests)
    return out, requests


def closed(url: str, bodies: Path, callers: int, seconds: float, path: str = "/v1/recommend") -> float:
    """Answers a second of callers that each wait for their answer."""
    words = [sys.executable, "-m", "benchmarks.load", "--url", url, "--bodies", str(bodies), "--path", path]
    found = subprocess.run(
        [*words, "--callers", str(callers), "--hold", str(seconds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(found.stdout.splitlines()[-1])["whole"]["rps"])


def check() -> None:
    """A service on generated data answers as `recommend` does, with filters, under load without an error."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        store = fr.prepare(events_of(200), place / "store")
        run = fr.train("sasrec", store, place / "run", set=["model.dim=16", "training.max_epochs=1"])
        stocked, bodies = with_stock(run, place / "stocked"), bodies_of(store, place / "bodies.jsonl")
        predictor, some = fr.load(stocked), [json.loads(line) for line in bodies.read_text().splitlines()[:50]]
        hidden = set(predictor.catalog.frame.filter(~pl.col("in_stock"))["item_id"])
        with served(stocked) as (url, _):
            from fullrank.serving.client import Client

            for answer, asked in zip(Client(url).recommend_batch(some), some, strict=True):
                own = predictor.recommend(
                    [asked["history"]], k=20, exclude=list(hidden) if "filters" in asked else None
                )
                given = [one["item"] for one in answer["items"]]
                require(given == own["item"].to_list(), f"{given} is not {own['item'].to_list()}")
            found = load(url, bodies, 50, 1, 1)
            require(found["whole"]["errors"] == 0 and found["whole"]["sent"] > 20, f"errors: {found['statuses']}")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    figures: Figures = {}
    store = data.beauty(options.data, say)
    work = CACHE / "serve"
    work.mkdir(parents=True, exist_ok=True)
    bodies = bodies_of(store, work / "beauty.jsonl")
    if options.run is None and not (work / "sasrec" / "manifest.json").is_file():
        say("training the recipe (about 14 minutes)")
        fr.train("sasrec", store, work / "sasrec")
    run = with_stock(Run.open(options.run or work / "sasrec"), work / "sasrec-stock")
    if "12k" in options.parts:
        say(f"12 thousand items: 0 to {options.rate:g} requests a second in {options.ramp:g} s")
        figures |= under_load(run, bodies, options.rate, options.ramp, options.hold, "12k")
    if "http" in options.parts:
        say("HTTP alone")
        with echoing() as url:
            found = load(url, bodies, options.rate, 10, 30, "/echo")
            figures |= {"http_p90_ms": found["hold"]["p90_ms"], "http_p99_ms": found["hold"]["p99_ms"]}
    if "batching" in options.parts:
        say("batches against one by one")
        with served(run) as (url, _):
            many = closed(url, bodies, 64, 10)
        with served(run, "--set", "max_batch=1") as (url, _):
            single = closed(url, bodies, 64, 10)
        figures |= {"batched_rps": many, "one_by_one_rps": single, "batching_speedup": many / single}
    if "1m" in options.parts:
        large, requests = million(work / "million", say)
        say("a million items, by the index")
        index = work / "million-index"
        begun = time.perf_counter()
        with served(large, "--set", f"index_folder={index}") as (url, _):
            figures["start_seconds_1m"] = time.perf_counter() - begun
            card = _card(url)["search"]
        seconds = card["train_seconds"] + card["add_seconds"] + card["measure_seconds"]
        figures |= {"recall_1m": card["recall"], "index_bytes_1m": card["bytes"], "index_seconds_1m": seconds}
        figures |= under_load(
            large, requests, options.rate_1m, options.ramp_1m, options.hold, "1m", f"index_folder={index}"
        )
    if "ranker" in options.parts and options.cascade is not None:
        say("a ranker over 500 candidates")
        figures |= ranked(options.cascade, work, options.hold)
    figures["errors"] = sum(value for name, value in figures.items() if name.startswith("errors_"))
    return rounded(figures)


def under_load(run: Path, bodies: Path, rate: float, ramp: float, hold: float, name: str, *settings: str) -> Figures:
    with served(run, *(word for one in settings for word in ("--set", one))) as (url, process):
        load(url, bodies, 50, 0, 3)  # warm
        before = _cpu_seconds(process.pid)
        found = load(url, bodies, rate, ramp, hold)
        spent = _cpu_seconds(process.pid) - before
    held = found["hold"]
    print(json.dumps(found), file=sys.stderr)
    return {
        f"rps_{name}": held["rps"],
        **{f"p{p}_ms_{name}": held[f"p{p}_ms"] for p in (50, 90, 99)},
        f"errors_{name}": found["whole"]["errors"],
        f"requests_{name}": found["whole"]["sent"],
        f"server_us_{name}": spent / max(found["whole"]["sent"], 1) * 1e6,
        f"client_us_{name}": found["client_us_per_request"],
        f"ramp_p90_ms_{name}": found["ramp"].get("p90_ms"),
    }


def ranked(folder: Path, work: Path, hold: float) -> Figures:
    """A retriever and a ranker of `examples.cascade_movielens`, in `folder`."""
    store = Store.open(folder / "liked")
    bodies = bodies_of(store, work / "movies.jsonl", filters=None)
    run = folder / "runs" / "sasrec"
    with served(run, "--ranker", str(folder / "runs" / "shown"), "--set", f"candidates={CANDIDATES}") as (url, _):
        load(url, bodies, 10, 0, 3)
        found = load(url, bodies, 20, 0, hold)
    return {
        "ranker_p50_ms": found["hold"]["p50_ms"],
        "ranker_p90_ms": found["hold"]["p90_ms"],
        "errors_ranker": found["whole"]["errors"],
    }


def _written(histories: list[list[Any]], out: Path, filters: Any = "in_stock") -> Path:
    lines = []
    for number, history in enumerate(histories):
        body: dict[str, Any] = {"history": history, "k": 20}
        if filters and number % 5 == 0:
            body["filters"] = {filters: True}
        lines.append(json.dumps(body))
    out.write_text("\n".join(lines) + "\n")
    return out


def _card(url: str) -> dict[str, Any]:
    from fullrank.serving.client import Client

    found: dict[str, Any] = Client(url).call("GET", "/v1/model")
    return found


def _await_ready(url: str, process: subprocess.Popen[Any], seconds: float = 600) -> None:
    from fullrank.core.errors import UserError
    from fullrank.serving.client import Client

    client, end = Client(url, timeout=5), time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            client.call("GET", "/readyz")
            return
        except UserError:
            time.sleep(0.2)
    raise RuntimeError(f"{url} was not ready within {seconds:g} s, or its process ended")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="a store of amazon-beauty (default: prepared into the cache)")
    parser.add_argument("--run", type=Path, help="the recipe trained on it (default: trained into the cache)")
    parser.add_argument("--cascade", type=Path, help="the folder of examples.cascade_movielens, for the ranker")
    parser.add_argument("--rate", type=float, default=1000.0, help="requests a second at the end of the ramp")
    parser.add_argument("--ramp", type=float, default=600.0, help="seconds of the ramp")
    parser.add_argument("--hold", type=float, default=60.0, help="seconds at the full rate")
    parser.add_argument("--rate-1m", type=float, default=300.0)
    parser.add_argument("--ramp-1m", type=float, default=120.0)
    parser.add_argument(
        "--parts", nargs="+", default=["12k", "http", "batching", "1m", "ranker"],
        choices=["12k", "http", "batching", "1m", "ranker"],
    )  # fmt: skip


BENCHMARK = Benchmark("serve", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
