"""Kill a verb at a place or at a time, look at what is left, start it again, and compare with what was never killed.

What must hold: at any time its output is the old one or the new one, whole; started again it ends with exactly what an
unkilled one ends with; and then nothing is left that an unkilled one would not have left.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError
from fullrank.evaluation import EvaluationResult
from fullrank.run import Run, is_run
from fullrank.training.checkpoint import read_checkpoint
from tests.attack.forks import Done, forks
from tests.attack.frame import Outcome, own_place, shared
from tests.attack.verbs import BY_NAME, VERBS, Verb, listing, served, snapshot, world


@dataclass(frozen=True)
class Unkilled:
    """What a verb does where nobody kills it."""

    seconds: float
    places: list[str]
    files: dict[str, str]
    """`snapshot` behind it."""
    listing: list[str]


@cache
def unkilled(name: str) -> Unkilled:
    """The reference of a verb, made once for all processes."""
    folder = shared(f"kills-{name}", lambda folder: _reference(BY_NAME[name], folder / "reference.json"))
    return Unkilled(**json.loads((folder / "reference.json").read_text()))


def _reference(verb: Verb, path: Path) -> None:
    """Run twice: once as users do, once while its places are counted; both have to agree."""
    found = []
    for places in (False, True):
        with own_place(verb.name) as home, server_for(verb) as (asked, _):
            done = forks().run(asked.begin(home) and asked.line(), home, places=places)
            assert done.code == 0, f"{verb.name}: {done.code} {done.err[-600:]}"
            found.append((done, snapshot(home, verb.out), listing(home)))
    (first, files, names), (second, again, others) = found
    differing = [name for name in {**files, **again} if files.get(name) != again.get(name)]
    assert not differing, f"two calls of {verb.name} wrote different files: {differing}"
    assert names == others, set(names) ^ set(others)
    tree = {"seconds": first.seconds, "places": second.places, "files": files, "listing": names}
    path.write_text(json.dumps(tree))


def killed_at(verb: Verb, nth: int, home: Path) -> Outcome:
    """Killed before one of its places: the `nth` of `verb.kills` that are spread over all of them."""
    places = len(unkilled(verb.name).places)
    at = 1 + nth * places // verb.kills if places > verb.kills else 1 + nth % places
    with server_for(verb) as (asked, _):
        done = forks().run(asked.begin(home) and asked.line(), home, at=at)
        last = done.places[-1] if done.places else "?"
        return _judged(asked, done, home, f"killed before {last} ({at} of {places})")


def killed_after(verb: Verb, share: float, home: Path, number: int = signal.SIGKILL) -> Outcome:
    """Sent a signal when a share of the time has gone that it takes by itself."""
    with server_for(verb) as (asked, _):
        child = forks().start(asked.begin(home) and asked.line(), home)
        done = child.wait(share * unkilled(verb.name).seconds)
        if done.code is None:
            child.signal(number)
            done = child.end()
        return _judged(asked, done, home, f"signal {number} after {share:.0%} of its time", number)


def _judged(verb: Verb, done: Done, home: Path, what: str, number: int = signal.SIGKILL) -> Outcome:
    if "HANG" in done.err:
        return Outcome("hang", f"{what}: {done.err[-200:]}")
    if done.code not in (0, -signal.SIGKILL if number == signal.SIGKILL else 128 + number):
        return Outcome("native" if (done.code or 0) < 0 else "bug", f"{what}: exit {done.code}: {done.err[-300:]}")
    fault = fault_of(verb, home)
    if fault is not None:
        return Outcome("loss", f"{what}: {fault}")
    return started_again(verb, home, what)


def started_again(verb: Verb, home: Path, what: str) -> Outcome:
    """The same verb once more: it has to succeed, with what an unkilled one ends with, and nothing else left."""
    if verb.once and snapshot(home, verb.out) == unkilled(verb.name).files:
        return Outcome("ok", f"{what}: it had written all")
    done = forks().run(verb.line(again=True), home)
    if done.code != 0:
        return Outcome("loss" if done.code == 2 else "bug", f"{what}; again: exit {done.code}: {done.err[-300:]}")
    wanted, files = unkilled(verb.name), snapshot(home, verb.out)
    if files != wanted.files:
        names = sorted(n for n in {**files, **wanted.files} if files.get(n) != wanted.files.get(n))
        return Outcome("silent", f"{what}; again: other files than unkilled: {', '.join(names[:8])}")
    litter = sorted(set(listing(home)) ^ set(wanted.listing))
    if litter:
        return Outcome("noise", f"{what}; again: litter {', '.join(litter[:6])}")
    return Outcome("ok", what)


def fault_of(verb: Verb, home: Path) -> str | None:
    """What is wrong with what a killed verb left, or None."""
    now, new = snapshot(home, verb.out), unkilled(verb.name).files
    if verb.kind == "train":
        return _run_left(verb, home, now)
    if verb.kind == "rows":
        return "a torn table" if "torn" in [v for k, v in now.items() if not k.endswith("metrics.jsonl")] else None
    if verb.kind == "part":
        whole = {name: value for name, value in now.items() if ".part" not in name}
        return None if all(new.get(name) == value for name, value in whole.items()) else f"a half file {whole}"
    before = _old(verb)
    if now in (before, new):
        return None
    if verb.fresh and (not now or (verb.marker and f"{verb.out}/{verb.marker}" not in now)):
        return None
    if verb.pair and _refused_as_torn(home / verb.out):
        return None
    parts = sorted(f"{n}: {_whose(n, now, before, new)}" for n in {**before, **new, **now})
    return f"neither the old output nor the new one ({'; '.join(parts)})"


def _refused_as_torn(folder: Path) -> bool:
    """Whether rows and figures of two evaluations are told apart."""
    try:
        EvaluationResult.load(folder)
    except UserError as error:
        return error.code == "not-an-evaluation"
    return False


@cache
def _old_files(name: str) -> dict[str, str]:
    with own_place(name) as home:
        return snapshot(BY_NAME[name].begin(home), BY_NAME[name].out)


def _old(verb: Verb) -> dict[str, str]:
    return _old_files(verb.name)


def _whose(name: str, now: dict[str, str], before: dict[str, str], new: dict[str, str]) -> str:
    value = now.get(name)
    if value is None:
        return "gone"
    return "same" if before.get(name) == new.get(name) == value else (
        "old" if value == before.get(name) else "new" if value == new.get(name) else "other"
    )  # fmt: skip


def _run_left(verb: Verb, home: Path, now: dict[str, str]) -> str | None:
    """A run that was there is whole until the new one has a checkpoint; a run cut off can be gone on with."""
    run = home / verb.out
    before = _old(verb)
    if now in (before, unkilled(verb.name).files):
        return None
    if verb.fresh and not is_run(run):
        return None
    if not is_run(run):
        return "the run that was there is gone"
    try:
        opened = Run.open(run)
        kept = read_checkpoint(run)
        if (run / "weights.safetensors").exists():
            opened.model()
    except UserError as error:
        return f"the run does not open: {error}"
    if not verb.fresh and kept is None:
        mine = {n: _whose(n, now, before, unkilled(verb.name).files) for n in {**before, **now}}
        return f"neither the old run nor a new one with a checkpoint ({mine})"
    return None


class _Slow(BaseHTTPRequestHandler):
    """A file of 300 kB in six pieces, with ranges."""

    protocol_version = "HTTP/1.1"
    data = b"a,b\n" + b"1,2\n" * 75_000

    def do_GET(self) -> None:
        start = int(self.headers.get("Range", "bytes=0-")[6:].rstrip("-"))
        body = self.data[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", '"v1"')
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(self.data) - 1}/{len(self.data)}")
        self.end_headers()
        try:
            for low in range(0, len(body), 50_000):
                self.wfile.write(body[low : low + 50_000])
                threading.Event().wait(0.02)
        except OSError:  # the client was killed
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def server_for(verb: Verb) -> Iterator[tuple[Verb, str]]:
    """The verb, with a server where it downloads."""
    if verb.kind != "part":
        yield verb, ""
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served(verb, url), url
    finally:
        server.shutdown()
        server.server_close()


__all__ = ["VERBS", "forks", "killed_after", "killed_at", "started_again", "unkilled", "world"]
