"""A fork server: one process imports everything once, and each command line runs in a child of it.

A child starts in milliseconds, so hundreds can be killed. The server itself never uses the thread pools of polars and
torch, which a fork would lose. What a child does to the disk is counted as it does it (`Places`): opening for writing,
renames, folders made and removed, files removed, flushes, locks, and the writes of polars and safetensors. A child can
be made to kill itself before the n-th of them, or to find the disk full from the n-th on.

`Forks` is the side of the tests; ``python -m tests.attack.forks`` is the server, which talks JSON lines.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tests.attack.frame import patience, shared

Then = Literal["kill", "stop", "full", "remove"]
HERE = Path(__file__).resolve()
SOURCE, ROOT = HERE.parents[2] / "src", HERE.parents[2]


@dataclass(frozen=True)
class Done:
    """How a child ended."""

    code: int | None
    """The exit status; minus the signal that ended it; None: it still runs."""
    out: str
    err: str
    seconds: float
    places: list[str] = field(default_factory=list)
    """`KIND PATH` of each place that it came by, the path below its folder."""

    @property
    def refusal(self) -> str | None:
        """The code of the refusal that `--json` printed last, or None."""
        lines = self.out.splitlines()
        try:
            code = json.loads(lines[-1]).get("code") if lines else None
        except (ValueError, AttributeError):
            return None
        return code if isinstance(code, str) else None


class Child:
    """A command line that runs."""

    def __init__(self, server: Forks, pid: int, begun: float):
        self.server, self.pid, self.begun = server, pid, begun

    def signal(self, number: int) -> None:
        self.server.ask({"do": "signal", "pid": self.pid, "number": int(number)})

    def wait(self, seconds: float) -> Done:
        """How it ended within that time; its `code` is None where it has not."""
        said = self.server.ask({"do": "wait", "pid": self.pid, "seconds": seconds})
        spent = time.perf_counter() - self.begun
        return Done(said["code"], said["out"], said["err"], spent, said["places"].splitlines())

    def halted(self, seconds: float = 20.0) -> bool:
        """Wait until it has stopped at its place; False where it ended before."""
        return bool(self.server.ask({"do": "halted", "pid": self.pid, "seconds": seconds})["halted"])

    def end(self, seconds: float = 20.0) -> Done:
        """How it ended; what takes longer hangs and is killed (code -SIGKILL, and `err` says so)."""
        seconds *= patience()
        done = self.wait(seconds)
        if done.code is not None:
            return done
        self.signal(signal.SIGKILL)
        done = self.wait(5.0)
        return Done(done.code, done.out, f"{done.err}\nHANG: killed after {seconds:.0f} s", done.seconds, done.places)


class Forks:
    """The server, as the tests see it. `close` it in the end."""

    def __init__(self, place: Path):
        place.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([str(SOURCE), str(ROOT), os.environ.get("PYTHONPATH", "")])
        one = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        environment = {**os.environ, **one, "POLARS_MAX_THREADS": "1", "PYTHONPATH": path}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(place / "inductor")
        command = [sys.executable, "-W", "ignore", "-m", "tests.attack.forks"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=place
        )
        assert self._answer() == {"ready": True}

    def start(
        self,
        words: Sequence[object],
        home: Path,
        *,
        at: int | None = None,
        then: Then = "kill",
        limits: dict[str, int] | None = None,
        places: bool = False,
    ) -> Child:
        """Run a command line, or a function of fullrank (`fullrank:grow_catalog` and its arguments as one mapping).

        `home` is its working folder. Before place `at`, `then` happens: it is killed or stopped, the disk is full from
        there on, or everything in its folder is removed. `limits` are those of `resource`, such as `RLIMIT_FSIZE`.
        `places`: count them.
        """
        told = [words[0], *(word if isinstance(word, dict) else str(word) for word in words[1:])]
        asked = {
            "do": "start", "words": told, "home": str(home.resolve()), "at": at, "then": then, "limits": limits or {},
            "places": places or at is not None,
        }  # fmt: skip
        begun = time.perf_counter()
        return Child(self, self.ask(asked)["pid"], begun)

    def run(self, words: Sequence[object], home: Path, **given: Any) -> Done:
        return self.start(words, home, **given).end()

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
    server = Forks(shared(f"kills-logs-{os.getpid()}", lambda folder: None))
    atexit.register(server.close)
    return server


class Places:
    """Counts what this process does to files below `root`; calls `act` at each place with its number and kind."""

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

        sys.addaudithook(self._heard)
        self._wrap(os, "fsync", "flush")
        for name in ("write_parquet", "write_csv", "write_ndjson"):
            self._wrap(pl.DataFrame, name, "native", at=1)
        self._wrap(pl.LazyFrame, "sink_parquet", "native", at=1)
        self._wrap(safetensors.torch, "save_file", "native", at=1)
        from fullrank.core import files

        if hasattr(files, "exchange"):
            self._wrap(files, "exchange", "exchange")

    def _wrap(self, owner: Any, name: str, kind: str, at: int = 0) -> None:
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

    def _passed(self, kind: str, place: Any, folder: Any = -1) -> None:
        if not isinstance(place, int | str | bytes | os.PathLike):
            return
        if isinstance(place, int) or hasattr(place, "fileno"):
            path = _path_of(place)
        else:
            path = os.fsdecode(place)
            path = os.path.join(_path_of(folder) if isinstance(folder, int) and folder >= 0 else os.getcwd(), path)
        if not path.startswith(self.root):
            return
        there = os.path.lexists(path)
        if self.inside or (kind == "mkdir" and there) or (kind in ("remove", "rmdir") and not there):
            return  # it changes nothing
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
        asked = json.loads(line)
        if asked["do"] == "start":
            answer = {"pid": _fork(asked)}
        elif asked["do"] == "signal":
            os.kill(asked["pid"], asked["number"])
            answer = {}
        elif asked["do"] == "halted":
            answer = {"halted": _halted(asked["pid"], asked["seconds"])}
        else:
            answer = _wait(asked["pid"], asked["seconds"])
        print(json.dumps(answer), flush=True)


def _import_all() -> None:
    import importlib
    import pkgutil

    import fullrank

    assert str(SOURCE) in str(fullrank.__file__), fullrank.__file__
    for module in pkgutil.walk_packages(fullrank.__path__, "fullrank."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)
    for name in ("matplotlib.pyplot", "matplotlib.backends.backend_svg", "jinja2", "optuna", "torch._dynamo",
                 "torch.distributed", "lightning.pytorch", "faiss"):  # fmt: skip
        with suppress(ImportError):
            importlib.import_module(name)
    import gc

    import torch

    torch.set_num_threads(1)
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
    return {"code": code, "out": texts[0], "err": texts[1], "places": texts[2]}


def _fork(asked: dict[str, Any]) -> int:
    pipes = [os.pipe() for _ in range(3)]
    for _, end in pipes:
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, ROOM)
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = _child(asked, [end for _, end in pipes])
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


def _child(asked: dict[str, Any], ends: list[int]) -> int:
    import faulthandler
    import resource
    import tempfile

    os.dup2(ends[0], 1)
    os.dup2(ends[1], 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # The server's own are of other files: its stdin has questions in it.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    os.chdir(asked["home"])
    os.environ["TMPDIR"] = os.path.join(asked["home"], "tmp")
    tempfile.tempdir = None
    faulthandler.enable()
    for name, value in asked["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if asked["places"]:
        root = asked["home"] + os.sep
        Places(root, ends[2], _act(root, asked["at"], asked["then"])).install()
    code = _call(asked["words"])
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _act(root: str, at: int | None, then: Then) -> Callable[[int, str, str], None]:
    import errno
    import shutil

    def act(count: int, kind: str, path: str) -> None:
        if then == "full":
            if at is not None and count >= at and kind in Places.WRITING:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        elif count == at and then == "remove":
            for name in os.listdir(root):
                if name != "tmp":
                    shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        elif count == at:
            os.kill(os.getpid(), signal.SIGKILL if then == "kill" else signal.SIGSTOP)

    return act


def _call(words: list[Any]) -> int:
    if len(words) != 2 or not isinstance(words[1], dict):
        from fullrank.cli import main

        sys.argv[1:] = words  # as a process of its own, which has a way to end by a signal
        return main()
    import importlib

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
