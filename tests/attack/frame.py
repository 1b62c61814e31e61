"""Attack cases: one input each, what may come of it, and the counting of what came.

A `Case` has a function that is given an empty folder of its own (also the working directory and the temporary folder
while it runs) and returns an `Outcome`. `call` runs one command line in this process and judges it: exit code, one
sentence, one JSON line, seconds. `attacks(CASES, one_in=50)` parametrises a test with cases: all of them carry the mark
`attack`, and those outside the sample (by a hash of the name, so that it does not depend on other cases) the mark
`slow` too. `check` runs a case, counts it and fails where the outcome is not allowed.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fullrank.cli import main
from fullrank.core.log import CONTROLS, printable

SURVIVED = frozenset({"ok", "refused"})
KINDS = {
    "ok": "exit 0",
    "refused": "exit 2, one sentence and a code",
    "interrupted": "exit 130",
    "bug": "exit 1",
    "silent": "another answer without a word",
    "loss": "something that was there is gone or changed",
    "native": "ended by a signal",
    "hang": "no end within the time allowed",
    "noise": "a traceback, several sentences, no JSON, a sentence or a shown value that is too long",
}
SECONDS = 20.0
"""Time that a case may take, where the processor is its own; `patience` says what that is on a busy machine."""
SENTENCE, SHOWN = 2000, 250
"""Characters that a sentence may have, and how many of what was given it may show in one piece (200 and quotes)."""
MEMORY = 4 << 30
"""Bytes of address space that a call may take beside what the process has."""
RESULTS = "FULLRANK_ATTACK_RESULTS"
"""Environment variable: the folder where each process adds a line of JSON per case."""
SHARED = "FULLRANK_ATTACK_SHARED"
"""Environment variable: the folder of `shared` folders."""


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    kind: str
    detail: str = ""
    """For a reader of the table: the sentence, the difference, the signal."""
    code: str = ""
    """The code of the refusal."""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind


@dataclass(frozen=True)
class Case:
    """One attack. Its name is unique within its part and verb, and the same in every run."""

    part: str
    """Group of the table: `options`, `tables`, `tamper`, `kills`."""
    verb: str
    name: str
    run: Callable[[Path], Outcome] = field(repr=False)
    allowed: frozenset[str] = SURVIVED

    @property
    def id(self) -> str:
        text = f"{self.verb}-{self.name}".encode("ascii", "backslashreplace").decode().replace("\0", "\\0")
        clean = "".join(char if char.isalnum() or char in "-_.=,:+" else "_" for char in text)
        return clean if len(clean) <= 120 else f"{clean[:110]}~{zlib.crc32(text.encode()):08x}"

    def sampled(self, one_in: int) -> bool:
        """Whether the case belongs to the fast sample of one case in `one_in`."""
        return zlib.crc32(f"{self.part}/{self.id}".encode()) % one_in == 0


def attacks(cases: Iterable[Case], *, one_in: int) -> pytest.MarkDecorator:
    """Parametrise a test with `case`; one in `one_in` belongs to `make test`, all of them to `make test-attack`."""
    params, names = [], set[str]()
    for case in cases:
        assert case.id not in names, f"two cases are named {case.id}"
        names.add(case.id)
        marks = [pytest.mark.attack] if case.sampled(one_in) else [pytest.mark.attack, pytest.mark.slow]
        params.append(pytest.param(case, id=case.id, marks=marks))
    return pytest.mark.parametrize("case", params)


def check(case: Case) -> Outcome:
    """Run a case in a folder of its own, count it, and fail where its outcome is not allowed."""
    begun = time.perf_counter()
    outcome = Outcome("bug", "the case itself raised")
    try:
        with own_place(case.id) as place:
            outcome = case.run(place)
    except BaseException as error:
        outcome = Outcome("bug", f"the case itself raised {type(error).__name__}: {error}")
        raise
    finally:
        record(case, outcome, time.perf_counter() - begun)
    assert outcome.kind in case.allowed, f"{outcome.kind} ({KINDS[outcome.kind]}): {outcome.detail}"
    return outcome


def record(case: Case, outcome: Outcome, seconds: float) -> None:
    """Add a line about a case to this process's file in the folder of results, where one is named."""
    folder = os.environ.get(RESULTS)
    if folder:
        row = {"part": case.part, "verb": case.verb, "name": case.id, "held": outcome.kind in case.allowed}
        row |= asdict(outcome) | {"seconds": round(seconds, 3)}
        row["detail"] = outcome.detail[:600]
        with open(Path(folder) / f"{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@contextlib.contextmanager
def own_place(name: str) -> Iterator[Path]:
    """An empty folder that is the working directory inside, with `tmp` for temporary files; removed behind it."""
    before, temporary = os.getcwd(), (tempfile.tempdir, os.environ.get("TMPDIR"))
    place = Path(tempfile.mkdtemp(prefix="attack\x1b[7m-", dir=_root()))
    (place / "tmp").mkdir()
    try:
        os.chdir(place)
        tempfile.tempdir = os.environ["TMPDIR"] = str(place / "tmp")
        yield place
    finally:
        os.chdir(before)
        tempfile.tempdir = temporary[0]
        os.environ.pop("TMPDIR") if temporary[1] is None else os.environ.__setitem__("TMPDIR", temporary[1])
        shutil.rmtree(place, ignore_errors=True)


def shared(name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills once for all processes of a test run. Cases copy it or leave it as it is.

    It is made in its place, since a run names its store's folder; a mark beside it says that it is whole.
    """
    root = _root()
    folder, mark = root / name, root / f"{name}.whole"
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            mark.touch()
    return folder


def copied(source: Path, target: Path) -> Path:
    """A copy of a folder made of hard links: replace its files, do not write into them."""
    shutil.copytree(source, target, copy_function=os.link, symlinks=True)
    return target


def digest(*folders: Path) -> dict[str, tuple[int, int, int]]:
    """Path -> (inode, bytes, time of change) of every file below the folders: equal where nothing was touched."""
    found = {}
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            stat = path.lstat()
            found[str(path)] = (stat.st_ino, 0, 0) if path.is_dir() else (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found


@dataclass(frozen=True)
class Said:
    """What one command line left behind."""

    words: tuple[str, ...]
    code: int
    """The exit code; minus the signal where one ended the process."""
    out: str
    err: str
    seconds: float
    hung: bool = False

    @property
    def json(self) -> Any:
        """The object in the last line of stdout."""
        return json.loads(self.out.splitlines()[-1])


class _Hang(BaseException):
    """The time of a case is over."""


def call(*words: object, seconds: float = SECONDS, memory: int = MEMORY) -> Said:
    """Run a command line in this process. stdout and stderr are read at the file descriptors."""
    given = tuple(str(word) for word in words)
    begun, code, hung = time.perf_counter(), 0, False
    with captured() as streams, limited(seconds, memory) as clock:
        try:
            code = main(list(given))
        except _Hang:
            code = 1
        except BaseException as error:  # `main` never raises: that it did is what the outcome says
            print(f"Traceback: main raised {type(error).__name__}: {error}", file=sys.stderr)
            code = 1
        hung = clock.rang
    out, err = streams.read()
    return Said(given, code, out, err, time.perf_counter() - begun, hung)


def outcome_of(said: Said, *, as_json: bool | None = None) -> Outcome:
    """The kind of what a command line left behind. `ok` says nothing about its answer."""
    wants_json = "--json" in said.words if as_json is None else as_json
    told = said.err.rstrip("\n").split("\n")  # a separator such as U+2028 ends no line here
    last = told[-1]
    errors = [line for line in told if line.startswith("Error: ")]
    if said.hung:
        return Outcome("hang", f"{said.seconds:.0f} s: {last}")
    if said.code < 0:
        return Outcome("native", f"signal {-said.code}: {said.err[-300:]}")
    if said.code == 130:
        return Outcome("interrupted", last)
    if said.code not in (0, 2):
        return Outcome("bug", f"exit {said.code}: {last[:500]}")
    if "Traceback" in said.err:
        return Outcome("noise", f"a traceback: {said.err[-500:]}")
    if raw := CONTROLS.search(said.err + said.out):
        return Outcome("noise", f"a control character for the terminal: {raw[0]!r}")
    if wants_json:
        try:
            (line,) = said.out.removesuffix("\n").split("\n")
            answer = json.loads(line)
        except ValueError as error:
            return Outcome("noise", f"stdout is not one line of JSON ({error}): {said.out[:300]}")
    else:
        answer = {}
    if said.code == 0:
        return Outcome("ok") if not errors else Outcome("noise", f"exit 0 with an error: {errors[0][:300]}")
    if len(errors) != 1 or last != errors[0]:
        return Outcome("noise", f"not one sentence at the end of stderr: {said.err[-300:]}")
    if len(last.removeprefix("Error: ")) > SENTENCE:
        return Outcome("noise", f"a sentence of {len(last):,} characters: {last[:200]}")
    for word in said.words:
        for start in range(0, max(0, len(word) - SHOWN), SHOWN // 2):
            if word[start : start + SHOWN] in last:
                return Outcome("noise", f"shows more than {SHOWN} characters of what was given: {last[:300]}")
    code = str(answer.get("code", "")) if wants_json else ""
    if wants_json and (not code or printable(str(answer.get("error"))) != last.removeprefix("Error: ")):
        return Outcome("noise", f"the JSON says another thing than stderr: {answer}")
    return Outcome("refused", last, code)


def command(
    *words: object,
    keep: Sequence[Path] = (),
    may_grow: Sequence[Path] = (),
    seconds: float = SECONDS,
    memory: int = MEMORY,
) -> Outcome:
    """Run a command line and judge it; `loss` where a file below the folders `keep` is not what it was.

    Below the folders `may_grow` files may be added, none changed or removed.
    """
    before, grown = digest(*keep), digest(*may_grow)
    outcome = outcome_of(call(*words, seconds=seconds, memory=memory))
    after, kept = digest(*keep), digest(*may_grow)
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    changed += [path for path in grown if grown[path] != kept.get(path)]
    if changed:
        return Outcome("loss", f"after {outcome.kind}, touched: {', '.join(changed[:5])}")
    return outcome


class _Streams:
    def __init__(self) -> None:
        self.files = [tempfile.TemporaryFile(dir=_root()) for _ in range(2)]

    def read(self) -> tuple[str, str]:
        texts = []
        for file in self.files:
            file.seek(0)
            texts.append(file.read().decode("utf-8", "backslashreplace"))
            file.close()
        return texts[0], texts[1]


@contextlib.contextmanager
def captured() -> Iterator[_Streams]:
    """stdout and stderr of Python and of native code go into files, read by `read` behind the block."""
    streams, python = _Streams(), (sys.stdout, sys.stderr)
    kept = [os.dup(1), os.dup(2)]
    for stream in python:
        stream.flush()
    for number, file in enumerate(streams.files, 1):
        os.dup2(file.fileno(), number)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", line_buffering=True)
    try:
        yield streams
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = python
        for number, handle in enumerate(kept, 1):
            os.dup2(handle, number)
            os.close(handle)


@dataclass
class _Clock:
    rang: bool = False


@contextlib.contextmanager
def limited(seconds: float, memory: int = MEMORY) -> Iterator[_Clock]:
    """Inside, an alarm raises after `seconds` (native code may hold it up) and memory beside the present is bounded."""
    clock = _Clock()

    def ring(number: int, frame: object) -> None:
        clock.rang = True
        raise _Hang

    before = signal.signal(signal.SIGALRM, ring)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + memory, hard))
    signal.setitimer(signal.ITIMER_REAL, seconds * patience())
    try:
        yield clock
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def patience() -> float:
    """How many processes wait for each core: what others compute is no fault of the case."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def _address_space() -> int:
    """Bytes of address space that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


_OWN: list[tempfile.TemporaryDirectory[str]] = []


def _root() -> Path:
    """The folder of shared folders: named by the environment, else one of this process alone."""
    named = os.environ.get(SHARED)
    if named:
        return Path(named)
    if not _OWN:
        _OWN.append(tempfile.TemporaryDirectory(prefix="fullrank-attack-"))
    return Path(_OWN[0].name)
