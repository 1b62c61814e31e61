"""`fullrank doctor-serve`: what a service needs of this machine, and what it gets."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fullrank.cli.doctor import finish, version
from fullrank.cli.options import option
from fullrank.cli.output import Output
from fullrank.cli.verbs import verb
from fullrank.core.errors import UserError, install_extra
from fullrank.core.files import JsonObject

if TYPE_CHECKING:
    from fullrank.inference.predictor import Predictor

PORT = 8000
"""Tried where none is named."""
PACKAGES = ("fastapi", "uvicorn", "orjson", "prometheus-client")
QUICKER = ("uvloop", "httptools")
"""A service works without these, more slowly."""
FILES = 4096
"""File descriptors below which many clients at once may meet the limit: each connection takes one."""
REDIS = ("valkey-server", "redis-server")
REQUESTS = 20
"""Requests whose time is measured."""


@verb()
def doctor_serve(
    output: Output,
    run: Annotated[Path | None, option("RUN", "A run whose time of one answer is measured.")] = None,
    store: Annotated[str | None, option("STORE", "The store of histories to try: a file or redis://HOST:PORT.")] = None,
    port: Annotated[int, option("N", "The port to listen on.", min=0, max=65535)] = PORT,
) -> None:
    """Check what `fullrank serve` needs of this machine.

    Packages, port, cores and open files are looked at; --store and --run are tried where they are
    named. The exit code is 2 where a service would not run. The installation itself: `fullrank doctor`.

    \b
    fullrank doctor-serve
    fullrank doctor-serve --run runs/sasrec --store history.sqlite --port 8000
    """
    finish(output, {"serve": check(output, run, store, port)}, "serve")


def check(output: Output, run: Path | None, store: str | None, port: int) -> JsonObject:
    """Check all that a service needs, and print it: {"ok", "problem", "packages", "port", ...}."""
    report: JsonObject = {
        "packages": _packages(output),
        "port": _port(output, port),
        "processor": _processor(output),
        "files": _files(output),
        "redis_server": _redis_server(output),
        "store": _store(output, store),
        "run": _run(output, run),
    }
    problems = [entry["problem"] for entry in report.values() if isinstance(entry, dict) and entry.get("problem")]
    return {"ok": not problems, "problem": "; ".join(problems) or None, **report}


def _packages(output: Output) -> JsonObject:
    versions = {name: version(name) for name in (*PACKAGES, *QUICKER)}
    output.say("service: " + ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions.items()))
    lacking, slower = ([name for name in names if versions[name] is None] for names in (PACKAGES, QUICKER))
    install = install_extra("serve")
    if slower and not lacking:
        output.say(f"  without {' and '.join(slower)} it works more slowly: {install}")
    return {"versions": versions, "problem": f"{', '.join(lacking)} missing: {install}" if lacking else None}


def _port(output: Output, port: int) -> JsonObject:
    """Check that the port can be listened on."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the service does: one that has just ended
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            problem = f"port {port} cannot be listened on ({error.strerror}); choose another one with --port"
            output.say(problem)
            return {"port": port, "problem": problem}
    output.say(f"port {port} of 127.0.0.1 is free")
    return {"port": port, "problem": None}


def _processor(output: Output) -> JsonObject:
    """Print and return the cores and the threads of torch."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    output.say(
        f"{cores} cores for this process, {threads} threads of torch; a service takes one for the event loop and "
        "--set threads=N for the model"
    )
    return {"cores": cores, "torch_threads": threads, "problem": None}


def _files(output: Output) -> JsonObject:
    """Print and return how many files this process may have open."""
    if sys.platform == "win32":
        return {"limit": None, "problem": None}
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < FILES
    output.say(f"{soft:,} open files allowed" + (f"; for many clients at once: ulimit -n {FILES}" if few else ""))
    return {"limit": soft, "most": hard, "problem": None}


def _redis_server(output: Output) -> str | None:
    """The path of a Redis or Valkey server here, which tests of the store start; a
    service may use one anywhere."""
    server = next((path for name in REDIS if (path := shutil.which(name))), None)
    output.say(f"redis-server: {server or 'none here (only stores redis://... need one, here or elsewhere)'}")
    return server


def _store(output: Output, address: str | None) -> JsonObject:
    """Check that the store takes an event and gives it back, and print what it promises."""
    if address is None:
        output.say("store: none named (--store), so none is tried")
        return {"address": None, "problem": None}
    try:
        facts = asyncio.run(_try_store(address))
    except (UserError, OSError, ModuleNotFoundError) as error:
        problem = f"the store cannot be used: {' '.join(str(error).split())}"
        output.say(problem)
        return {"address": None, "problem": problem}
    output.say(f"store: {facts['address']} took an event in {facts['write_ms']:.1f} ms; {facts['promise']}")
    return facts | {"problem": None}


async def _try_store(address: str) -> JsonObject:
    """Store an event, read it back and delete it; leaves no file that was not there."""
    from fullrank.serving.stores import Event, open_history_store

    store = open_history_store(address)
    file = Path(address.removeprefix("sqlite:"))
    new = not os.path.lexists(file)
    user = f"fullrank doctor {os.getpid()} {time.time_ns()}"  # nobody's name, and deleted again
    await store.open()
    try:
        await store.ping()
        begun = time.perf_counter()
        await store.add_events([Event("1", user, 0, time.time())])
        spent = time.perf_counter() - begun
        events = await store.history(user, 1)
        await store.delete_user(user)
        if len(events) != 1:
            raise UserError("it did not give back the event that it took", code="history-store-damaged")
        return {"address": store.address, "promise": store.promise, "write_ms": round(spent * 1000, 3)}
    finally:
        await store.close()
        for end in ("", "-wal", "-shm") if new else ():  # a look leaves nothing
            Path(f"{file}{end}").unlink(missing_ok=True)


def _run(output: Output, path: Path | None) -> JsonObject:
    """Measure the time of one list of a run, or of one row's probability, without HTTP."""
    if path is None:
        return {"run": None, "problem": None}
    from fullrank import api

    try:
        predictor = api.load(path)
        answer, what = _example_request(predictor)
        times = []
        for _ in range(REQUESTS + 1):
            begun = time.perf_counter()
            answer()
            times.append(time.perf_counter() - begun)
    except UserError as error:
        problem = f"the run cannot answer: {' '.join(str(error).split())}"
        output.say(problem)
        return {"run": path, "problem": problem}
    first, typical = times[0] * 1000, sorted(times[1:])[REQUESTS // 2] * 1000
    output.say(f"run: {path} takes {typical:.1f} ms for {what} ({first:.1f} ms the first time), without HTTP")
    return {"run": path, "ms": round(typical, 2), "first_ms": round(first, 2), "problem": None}


def _example_request(predictor: Predictor) -> tuple[Callable[[], Any], str]:
    """A request that a run can answer, as a function, and the words for its answer."""
    if predictor.problem == "ranking":
        import polars as pl

        row = pl.DataFrame({name: [None] for name in (field.name for field in predictor.encoder.fields)})
        return lambda: predictor.predict(row), "one row"
    history = [predictor.catalog.frame["item_id"].head(20).to_list()]
    return lambda: predictor.recommend(history, k=20), "one list of 20"
