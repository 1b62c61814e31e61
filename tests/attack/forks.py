"""Command lines in children of a process that has imported everything (`everything`), so that hundreds can be killed.

That process never uses the thread pools of polars and torch, which a fork would lose. What a child does to the disk is
counted as it does it (`Places`): opening for writing, renames, folders made and removed, files removed, flushes, locks,
and the writes of polars and safetensors. A child can be made to kill or stop itself before the n-th of them, to lose
its folder there, or to find the disk full from there on.
"""

import errno
import faulthandler
import fcntl
import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

import fullrank
from fullrank.cli import main
from tests.attack.frame import SECONDS, Said, patience, shared, told

ROOT = Path(__file__).resolve().parents[2]
ROOM = 1 << 20
"""Bytes that a pipe holds; nobody reads before the child has ended."""
LOG = 3
"""Where a child writes its places."""


def surroundings() -> dict[str, str]:
    """The environment of a process with one thread, with the package that is imported here."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
    paths = (Path(fullrank.__file__).parents[1], ROOT, ROOT / "tests")
    return {**os.environ, **dict.fromkeys(threads, "1"), "PYTHONPATH": os.pathsep.join(map(str, paths))}


@cache
def context() -> Any:
    """The fork server of this process, without the type checker of the tests."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.attack.everything"])
    more = {"PYTHONWARNINGS": "ignore", "TORCHINDUCTOR_CACHE_DIR": str(shared("inductor", Path.mkdir))}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (surroundings() | more).items():
            patch.setenv(name, value)
        patch.delenv("TMPDIR", raising=False)
        patch.setattr(tempfile, "tempdir", None)  # its socket lies there, in no draw's folder
        forkserver.ensure_running()
    return server


class Child:
    """A command line, or a function (`fullrank:fill_unseen` and its arguments as one mapping), that runs in `home`.

    Before place `at`, `then` happens: "kill", "stop", "full" (the disk, from there on), "remove" (all in its folder).
    `limits` are those of `resource`, such as `RLIMIT_FSIZE`. `places`: count them.
    """

    def __init__(
        self, words: Sequence[object], home: Path, at: int | None = None, then: str = "kill",
        limits: dict[str, int] | None = None, places: bool = False,
    ):  # fmt: skip
        self.words, self.begun = tuple(map(str, words)), time.perf_counter()
        pairs = [context().Pipe(duplex=False) for _ in range(3)]  # not files: a limit on files would hold for them
        self.readers, writers = zip(*pairs, strict=True)
        for writer in writers:
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, ROOM)
        act = (at, then) if places or at is not None else None
        given = [word if isinstance(word, dict) else str(word) for word in words]
        self.process = context().Process(target=_child, args=(given, str(home.resolve()), limits or {}, act, writers))
        self.process.start()
        for writer in writers:
            writer.close()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def wait(self, seconds: float) -> Said:
        """How it ended within that time; its `code` is None where it has not."""
        self.process.join(seconds)
        code = self.process.exitcode
        out, err, places = ("", "", "") if code is None else map(_rest, self.readers)
        return Said(self.words, code, out, err, time.perf_counter() - self.begun, places=tuple(places.splitlines()))

    def halted(self) -> bool:
        """Wait until it has stopped at its place; False where it ended before."""
        state, end = Path(f"/proc/{self.process.pid}/stat"), time.monotonic() + SECONDS
        while self.process.exitcode is None and time.monotonic() < end:
            with suppress(OSError):
                if state.read_text().rpartition(") ")[2][0] == "T":
                    return True
            time.sleep(0.002)
        return False

    def end(self) -> Said:
        """How it ended; what takes longer than a draw may hangs and is killed."""
        done = self.wait(SECONDS * patience())
        if done.code is not None:
            return done
        self.signal(signal.SIGKILL)
        return replace(self.wait(5.0), hung=True)


def run(words: Sequence[object], home: Path, **how: Any) -> Said:
    return Child(words, home, **how).end()


def _rest(reader: Any) -> str:
    os.set_blocking(reader.fileno(), False)
    with open(reader.fileno(), "rb", closefd=False) as file:
        return (file.read() or b"").decode("utf-8", "replace")


class Places:
    """Counts what this process does to files below `root`, and does `then` before place `at`."""

    EVENTS = {
        "os.rename": "rename", "os.mkdir": "mkdir", "os.remove": "remove", "os.rmdir": "rmdir", "os.link": "link",
        "os.truncate": "truncate", "os.chmod": "chmod", "fcntl.flock": "flock",
    }  # fmt: skip
    """Audit events that change a disk, and what a place is called."""
    WRITING = frozenset({"open", "mkdir", "flush", "native"})
    """Places that need room on the disk."""

    def __init__(self, root: str, at: int | None, then: str):
        import polars as pl
        import safetensors.torch

        from fullrank.core import files

        self.root, self.at, self.then, self.count, self.inside = root, at, then, 0, False
        sys.addaudithook(self._heard)
        for owner, name, kind, at in (
            (os, "fsync", "flush", 0), (files, "exchange", "exchange", 0), (pl.DataFrame, "write_parquet", "native", 1),
            (pl.DataFrame, "write_csv", "native", 1), (pl.DataFrame, "write_ndjson", "native", 1),
            (pl.LazyFrame, "sink_parquet", "native", 1), (safetensors.torch, "save_file", "native", 1),
        ):  # fmt: skip
            self._wrap(owner, name, kind, at)

    def _wrap(self, owner: Any, name: str, kind: str, at: int) -> None:
        real = getattr(owner, name)

        def passed(*arguments: Any, **named: Any) -> Any:
            if len(arguments) > at:
                self._passed(kind, arguments[at])
            outer, self.inside = self.inside, True  # what a writer does inside of itself
            try:
                return real(*arguments, **named)
            finally:
                self.inside = outer

        setattr(owner, name, passed)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if path is not None and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._passed("open", path)
        elif event in self.EVENTS:
            folder = arguments[-1] if event in ("os.remove", "os.rmdir") else -1
            self._passed(self.EVENTS[event], arguments[0], folder)

    def _passed(self, kind: str, target: Any, folder: Any = -1) -> None:
        if isinstance(target, int) or hasattr(target, "fileno"):
            path = _path_of(target)
        elif isinstance(target, str | bytes | os.PathLike):
            within = _path_of(folder) if isinstance(folder, int) and folder >= 0 else os.getcwd()
            path = os.path.join(within, os.fsdecode(target))
        else:
            return
        there = os.path.lexists(path)
        changes_nothing = (kind == "mkdir" and there) or (kind in ("remove", "rmdir") and not there)
        if self.inside or changes_nothing or not path.startswith(self.root):
            return
        self.count += 1
        os.write(LOG, f"{kind} {os.path.relpath(path, self.root)}\n".encode())
        if self.at is None or self.count < self.at or (self.count > self.at and self.then != "full"):
            return
        self.inside = True  # what is done at a place is none itself
        try:
            self._act(kind, path)
        finally:
            self.inside = False

    def _act(self, kind: str, path: str) -> None:
        if self.then == "remove":
            for name in {*os.listdir(self.root)} - {"tmp"}:
                shutil.rmtree(os.path.join(self.root, name), ignore_errors=True)
        elif self.then != "full":
            os.kill(os.getpid(), signal.SIGKILL if self.then == "kill" else signal.SIGSTOP)
        elif kind in self.WRITING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _path_of(handle: Any) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{handle if isinstance(handle, int) else handle.fileno()}")
    except (OSError, ValueError):
        return ""


def _child(words: list[Any], home: str, limits: dict[str, int], act: tuple[Any, str] | None, writers: Any) -> None:
    for number, handle in enumerate((os.open(os.devnull, os.O_RDONLY), *(writer.fileno() for writer in writers))):
        os.dup2(handle, number)
    os.closerange(LOG + 1, 256)  # as a process of its own, whatever the limit on open files
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False, buffering=1) for n in (1, 2))
    os.chdir(home)
    tempfile.tempdir, os.environ["TMPDIR"] = None, os.path.join(home, "tmp")
    faulthandler.enable()
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    code = 70
    try:
        if act is not None:
            Places(home + os.sep, *act)
        code = _call(words)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _call(words: list[Any]) -> int:
    if isinstance(words[-1], dict):
        module, name = words[0].split(":")
        function = getattr(importlib.import_module(module), name)
        return told(lambda: found if isinstance(found := function(**words[1]), list) else None)
    sys.argv[1:] = words  # as a process of its own, which has a way to end by a signal
    return main()
