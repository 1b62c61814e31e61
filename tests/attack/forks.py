"""A fork server: one process imports everything once, and each command line runs in a child of it.

A child starts in milliseconds, so hundreds can be killed. The server itself never uses the thread pools of polars and
torch, which a fork would lose. What a child does to the disk is counted as it does it (`Places`): opening for writing,
renames, folders made and removed, files removed, flushes, locks, and the writes of polars and safetensors. A child can
be made to kill itself before the n-th of them, or to find the disk full from the n-th on.

`Forks` is the side of the tests; ``python -m tests.attack.forks`` is the server, which talks JSON lines.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.attack.frame import SECONDS, Said, parse_once, patience, shared

Then = Literal["kill", "stop", "full", "remove"]
ROOT = Path(__file__).resolve().parents[2]


class Child:
    """A command line that runs."""

    def __init__(self, server: Forks, pid: int, words: Sequence[object]):
        self.server, self.pid, self.words, self.begun = server, pid, tuple(map(str, words)), time.perf_counter()

    def signal(self, number: int) -> None:
        self.server.ask({"do": "signal", "pid": self.pid, "number": int(number)})

    def wait(self, seconds: float) -> Said:
        """How it ended within that time; its `code` is None where it has not."""
        said = self.server.ask({"do": "wait", "pid": self.pid, "seconds": seconds})
        spent, places = time.perf_counter() - self.begun, tuple(said["places"].splitlines())
        return Said(self.words, said["code"], said["out"], said["err"], spent, False, places)

    def halted(self) -> bool:
        """Wait until it has stopped at its place; False where it ended before."""
        return bool(self.server.ask({"do": "halted", "pid": self.pid, "seconds": SECONDS})["halted"])

    def end(self) -> Said:
        """How it ended; what takes longer than a draw may hangs and is killed."""
        done = self.wait(SECONDS * patience())
        if done.code is not None:
            return done
        self.signal(signal.SIGKILL)
        return replace(self.wait(5.0), hung=True)


class Forks:
    """The server, as the tests see it. `close` it in the end."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
        environment = {**os.environ, **dict.fromkeys(threads, "1"), "PYTHONPATH": path}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        command = [sys.executable, "-W", "ignore", "-m", "tests.attack.forks"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
        )
        assert self._answer() == {"ready": True}

    def start(
        self, words: Sequence[object], home: Path, *, at: int | None = None, then: Then = "kill",
        limits: dict[str, int] | None = None, places: bool = False,
    ) -> Child:  # fmt: skip
        """Run a command line, or a function (`fullrank:fill_unseen` and its arguments as one mapping).

        `home` is its working folder. Before place `at`, `then` happens: it is killed or stopped, the disk is full from
        there on, or everything in its folder is removed. `limits` are those of `resource`, such as `RLIMIT_FSIZE`.
        `places`: count them.
        """
        question = {
            "do": "start", "words": [word if isinstance(word, dict) else str(word) for word in words],
            "home": str(home.resolve()), "at": at, "then": then, "limits": limits or {},
            "places": places or at is not None,
        }  # fmt: skip
        return Child(self, self.ask(question)["pid"], words)

    def run(self, words: Sequence[object], home: Path, **how: Any) -> Said:
        return self.start(words, home, **how).end()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the fork server has died"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


@cache
def forks() -> Forks:
    """The fork server of this process."""
    server = Forks(shared(f"forks-{os.getpid()}", Path.mkdir))
    atexit.register(server.close)
    return server


class Places:
    """Counts what this process does to files below `root`; calls `act` at each place with its number, kind and path."""

    EVENTS = {
        "os.rename": "rename", "os.mkdir": "mkdir", "os.remove": "remove", "os.rmdir": "rmdir", "os.link": "link",
        "os.truncate": "truncate", "os.chmod": "chmod", "fcntl.flock": "flock",
    }  # fmt: skip
    """Audit events that change a disk, and what a place is called."""
    WRITING = frozenset({"open", "mkdir", "flush", "native"})
    """Places that need room on the disk."""

    def __init__(self, root: str, log: int, act: Callable[[int, str, str], None]):
        self.root, self.log, self.act, self.count, self.inside = root, log, act, 0, False

    def install(self) -> None:
        import polars as pl
        import safetensors.torch

        from fullrank.core import files

        sys.addaudithook(self._heard)
        for owner, name, kind, at in (
            (os, "fsync", "flush", 0), (pl.DataFrame, "write_parquet", "native", 1), (pl.DataFrame, "write_csv",
            "native", 1),
            (pl.DataFrame, "write_ndjson", "native", 1), (pl.LazyFrame, "sink_parquet", "native", 1),
            (safetensors.torch, "save_file", "native", 1), (files, "exchange", "exchange", 0),
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
        os.write(self.log, f"{kind} {os.path.relpath(path, self.root)}\n".encode())
        outer, self.inside = self.inside, True  # what is done at a place is none itself
        try:
            self.act(self.count, kind, path)
        finally:
            self.inside = outer


def _path_of(handle: Any) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{handle if isinstance(handle, int) else handle.fileno()}")
    except (OSError, ValueError):
        return ""


def serve() -> None:
    """Answer questions until there are no more."""
    _import_all()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer: dict[str, Any] = {}
        if question["do"] == "start":
            answer = {"pid": _fork(question)}
        elif question["do"] == "signal":
            os.kill(question["pid"], question["number"])
        elif question["do"] == "halted":
            answer = {"halted": _halted(question["pid"], question["seconds"])}
        else:
            answer = _wait(question["pid"], question["seconds"])
        print(json.dumps(answer), flush=True)


def _import_all() -> None:
    import gc
    import pkgutil

    import torch

    import fullrank

    assert str(ROOT / "src") in str(fullrank.__file__), fullrank.__file__
    names = [module.name for module in pkgutil.walk_packages(fullrank.__path__, "fullrank.")]
    for name in (*names, "matplotlib.pyplot", "matplotlib.backends.backend_svg", "jinja2", "optuna", "torch._dynamo",
                 "torch.distributed", "lightning.pytorch", "faiss"):  # fmt: skip
        if not name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(name)
    torch.set_num_threads(1)
    parse_once(pytest.MonkeyPatch())
    gc.freeze()


PIPES: dict[int, list[int]] = {}
"""Child -> where its stdout, its stderr and its places are read. Pipes, since a limit on files would hold for files."""
ROOM = 1 << 20
"""Bytes that a pipe holds; nobody reads before the child has ended."""


def _halted(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        state = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is not None:
            return state.si_code == os.CLD_STOPPED
        time.sleep(0.002)
    return False


def _wait(pid: int, seconds: float) -> dict[str, Any]:
    handle = os.pidfd_open(pid)
    try:
        if not select.select([handle], [], [], seconds)[0]:
            return {"code": None, "out": "", "err": "", "places": ""}
    finally:
        os.close(handle)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    texts = []
    for pipe in PIPES.pop(pid):
        os.set_blocking(pipe, False)
        with open(pipe, "rb") as file:
            texts.append((file.read() or b"").decode("utf-8", "replace"))
    return dict(zip(("code", "out", "err", "places"), (code, *texts), strict=True))


def _fork(question: dict[str, Any]) -> int:
    pipes = [os.pipe() for _ in range(3)]
    for _, end in pipes:
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, ROOM)
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = _child(question, [end for _, end in pipes])
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(code)
    for _, end in pipes:
        os.close(end)
    PIPES[pid] = [begin for begin, _ in pipes]
    return pid


def _child(question: dict[str, Any], ends: list[int]) -> int:
    import faulthandler
    import resource

    for number, handle in enumerate((os.open(os.devnull, os.O_RDONLY), *ends[:2])):
        os.dup2(handle, number)
    # The server's own are of other files: its stdin has questions in it.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False, buffering=1) for n in (1, 2))
    os.chdir(question["home"])
    os.environ["TMPDIR"] = os.path.join(question["home"], "tmp")
    tempfile.tempdir = None
    faulthandler.enable()
    for name, value in question["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if question["places"]:
        root = question["home"] + os.sep
        Places(root, ends[2], _act(root, question["at"], question["then"])).install()
    code = _call(question["words"])
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _act(root: str, at: int | None, then: Then) -> Callable[[int, str, str], None]:
    def act(count: int, kind: str, path: str) -> None:
        if at is None or count < at or (count > at and then != "full"):
            return
        if then == "full":
            if kind in Places.WRITING:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        elif then == "remove":
            for name in {*os.listdir(root)} - {"tmp"}:
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        else:
            os.kill(os.getpid(), signal.SIGKILL if then == "kill" else signal.SIGSTOP)

    return act


def _call(words: list[Any]) -> int:
    if not isinstance(words[-1], dict):
        from fullrank.cli import main

        sys.argv[1:] = words  # as a process of its own, which has a way to end by a signal
        return main()
    from fullrank.core.errors import UserError

    module, name = words[0].split(":")
    try:
        getattr(importlib.import_module(module), name)(**words[1])
    except UserError as error:
        print(json.dumps({"error": str(error), "code": error.code}))
        print(f"Error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    serve()
