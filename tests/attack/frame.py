"""Draws of the attack: a command line or a damage each, what may come of it, and the counting of what came.

`attack` gives each draw of a hypothesis strategy an empty folder of its own (also the working directory and the
temporary folder while it runs), counts its `Outcome`, and fails with the smallest draw that ends in neither an answer
nor a refusal. `call` runs a command line in this process; `outcome_of` judges it by exit code, sentence, JSON, seconds.
"""

import contextlib
import faulthandler
import fcntl
import functools
import io
import itertools
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

import fullrank.cli
from fullrank.cli import main

try:
    from fullrank.core.log import CONTROLS, printable
except ImportError:  # version 0.1, which printed them
    CONTROLS, printable = re.compile(r"(?!)"), str

SURVIVED = ("ok", "refused")
PLAIN = ("tamper", "wrong types")
"""Parts whose folders have no control character in their name, which would stand in every answer."""
PHASES = [Phase.generate, Phase.shrink]
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
SECONDS, NATIVE_SECONDS = 20.0, 240
"""Time of a draw where the processor is its own (`patience`); behind it, code that no signal interrupts is ended."""
SENTENCE, SHOWN = 2000, 250
"""Characters that a sentence may have, and how many of the input it may show in one piece (200 and quotes)."""
MEMORY = 4 << 30
"""Bytes of address space that a call may take beside what the process has."""
SHARE = float(os.environ.get("FULLRANK_ATTACK_SHARE", "1"))
"""Of the draws that a case asks for; `make test-all`, which has an hour and a half for everything, takes a quarter."""
SHARED = "FULLRANK_ATTACK_SHARED"
"""Environment variable: the folder of what `shared` makes."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:")
TALLY: Counter[tuple[str, str, str]] = Counter()
"""(part, verb, kind of outcome) -> draws of the test that runs; the conftest writes it into the test's report."""


@dataclass(frozen=True)
class Outcome:
    """What came of a draw: its kind; the sentence, difference or signal; the code of a refusal."""

    kind: str
    detail: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind


def attack(
    part: str, verb: str, values: SearchStrategy[Any], run: Callable[[Any, Path], Outcome], draws: int, key: object = ""
) -> None:
    """Run `draws` values of a strategy (all, where it has fewer); a failure is shrunk by hypothesis.

    `key` seeds the draws, so that a verb's parameters meet different values.
    """

    def draw(value: Any) -> None:
        outcome = Outcome("bug")
        faulthandler.dump_traceback_later(NATIVE_SECONDS, exit=True, file=sys.__stderr__)
        try:
            with own_folder("attack-" if part in PLAIN else "attack\x1b[7m-") as folder:
                outcome = run(value, folder)
        finally:
            faulthandler.cancel_dump_traceback_later()
            TALLY[part, verb, outcome.kind] += 1
        shown = f"{verb}: {outcome.kind} ({KINDS[outcome.kind]}) from {value!r:.400}: {outcome.detail}"
        assert outcome.kind in SURVIVED, shown

    profile = settings(
        max_examples=max(1, round(draws * SHARE)), database=None, deadline=None,
        suppress_health_check=list(HealthCheck), phases=PHASES, print_blob=False,
    )  # fmt: skip
    profile(seed(zlib.crc32(f"{part} {verb} {key}".encode()))(given(values)(draw)))()


def every(
    values: Iterable[Any], sample: Sequence[Any] = (), name: str = "verb", process: bool = False
) -> pytest.MarkDecorator:
    """Parametrise an attack: the values of `sample` belong to `make test`; `process`: it starts a fork server."""
    rest = pytest.mark.process if process else pytest.mark.slow
    marks = {True: [pytest.mark.attack], False: [pytest.mark.attack, rest]}
    return pytest.mark.parametrize(
        name, [pytest.param(v, id=str(getattr(v, "name", v)), marks=marks[v in sample]) for v in values]
    )


@contextlib.contextmanager
def own_folder(prefix: str = "attack-") -> Iterator[Path]:
    """An empty folder that is the working directory inside, with `tmp` for temporary files; removed behind it."""
    before, temporary = os.getcwd(), (tempfile.tempdir, os.environ.get("TMPDIR"))
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_root()))
    (folder / "tmp").mkdir()
    try:
        os.chdir(folder)
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
        yield folder
    finally:
        os.chdir(before)
        tempfile.tempdir = temporary[0]
        os.environ.pop("TMPDIR") if temporary[1] is None else os.environ.__setitem__("TMPDIR", temporary[1])
        shutil.rmtree(folder, ignore_errors=True)


def shared(name: str, make: Callable[[Path], object]) -> Path:
    """A file or folder that `make` writes once for all processes of a test run; draws copy it or leave it as it is.

    It is made in its place, since a run names its store's folder; a mark beside it says that it is whole.
    """
    path, mark = _root() / name, _root() / f"{name}.whole"
    if not mark.exists():
        with open(_root() / f"{name}.locked", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not mark.exists():
                shutil.rmtree(path, ignore_errors=True)
                make(path)
                mark.touch()
    return path


def copied(source: Path, target: Path) -> Path:
    """A copy of a folder made of hard links: replace its files, do not write into them."""
    shutil.copytree(source, target, copy_function=os.link, symlinks=True)
    return target


def digest(*paths: Path) -> dict[str, tuple[int, int, int]]:
    """Path -> (inode, bytes, time of change) of every file at or below: equal where nothing was touched."""
    found = {}
    for path in (inner for outer in paths for inner in (outer, *outer.rglob("*"))):
        stat = path.lstat()
        found[str(path)] = (stat.st_ino, *((0, 0) if path.is_dir() else (stat.st_size, stat.st_mtime_ns)))
    return found


@dataclass(frozen=True)
class Said:
    """What one command line left behind. The code is minus the signal that ended its process, None while it runs."""

    words: tuple[str, ...]
    code: int | None
    out: str
    err: str
    seconds: float
    hung: bool = False
    places: tuple[str, ...] = ()
    """`KIND PATH` of each change to its folder that a child of `forks` counted."""

    @property
    def json(self) -> Any:
        """The object in the last line of stdout."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def refusal(self) -> str | None:
        """The code of the refusal that `--json` printed last, or None."""
        try:
            return self.json.get("code")
        except (ValueError, AttributeError, IndexError):
            return None


class _Hang(BaseException):
    """The time of a draw is over."""


def steady(tree: Any, volatile: re.Pattern[str]) -> Any:
    """A tree without the keys, and the times of day, that differ from call to call."""
    if isinstance(tree, dict):
        return {key: steady(value, volatile) for key, value in tree.items() if not volatile.search(str(key))}
    if isinstance(tree, str) and MOMENT.match(tree):
        return "a moment"
    return [steady(value, volatile) for value in tree] if isinstance(tree, list) else tree


def paths_in(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and the first positions of a tree, below one another."""
    inner = tree.items() if isinstance(tree, dict) else list(enumerate(tree))[:3] if isinstance(tree, list) else ()
    for key, value in inner:
        yield (*above, key)
        yield from paths_in(value, (*above, key))


def parse_once(patch: pytest.MonkeyPatch) -> None:
    """Let typer read the verbs once for all command lines of this process: it takes longer than most refusals."""
    patch.setattr("fullrank.cli.build", functools.cache(fullrank.cli.build))
    patch.setattr("typer.main.get_command", functools.cache(typer.main.get_command))


def call(*words: object, seconds: float = SECONDS, memory: int = MEMORY) -> Said:
    """Run a command line in this process. stdout and stderr are read at the file descriptors."""
    return said_by(lambda: main([str(word) for word in words]), words, seconds, memory)


def said_by(
    function: Callable[[], int], words: Sequence[object], seconds: float = SECONDS, memory: int = MEMORY
) -> Said:
    """What a function prints, its exit code and its time, which is bounded as its memory is."""
    begun, code, rung = time.perf_counter(), 1, list[int]()
    with captured() as read:
        try:
            with limited(seconds, memory, rung.append):
                code = function()
        except BaseException as error:  # `main` never raises: that it did is what the outcome says
            print(f"Traceback: main raised {type(error).__name__}: {error}", file=sys.stderr)
    return Said(tuple(map(str, words)), code, *read(), time.perf_counter() - begun, bool(rung))


def told(function: Callable[[], Any]) -> int:
    """Print what a function of the library returns or raises as a verb would."""
    from fullrank.cli.errors import explained
    from fullrank.core.files import jsonable

    try:
        print(json.dumps(jsonable(function())))
        return 0
    except BaseException as error:
        problem = explained(error)
        if problem.status == 1:
            traceback.print_exc()
        print(json.dumps({"error": problem.sentence, "code": problem.code}))
        print(f"Error: {problem.sentence}", file=sys.stderr)
        return problem.status


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def outcome_of(said: Said, *, as_json: bool | None = None) -> Outcome:
    """The kind of what a command line left behind. `ok` says nothing about its answer."""
    wants_json = "--json" in said.words if as_json is None else as_json
    lines = said.err.rstrip("\n").split("\n")  # a separator such as U+2028 ends no line here
    last, errors, answer = lines[-1], [line for line in lines if line.startswith("Error: ")], {}
    if said.hung:
        return Outcome("hang", f"{said.seconds:.0f} s: {last}")
    if said.code is None or said.code < 0:
        return Outcome("native", f"signal {said.code}: {said.err[-300:]}")
    if said.code not in (0, 2):
        return Outcome("interrupted" if said.code == 130 else "bug", f"exit {said.code}: {said.err[-500:]}")
    if "Traceback" in said.err:
        return Outcome("noise", f"a traceback: {said.err[-500:]}")
    if raw := CONTROLS.search(said.err + said.out):
        return Outcome("noise", f"a control character for the terminal: {raw[0]!r}")
    if wants_json:
        try:
            (line,) = said.out.removesuffix("\n").split("\n")
            answer = json.loads(line, parse_constant=_refuse)
        except ValueError as error:
            return Outcome("noise", f"stdout is not one line of JSON ({error}): {said.out[:300]}")
    if said.code == 0:
        return Outcome("ok") if not errors else Outcome("noise", f"exit 0 with an error: {errors[0][:300]}")
    sentence = last.removeprefix("Error: ")
    if errors != [last]:
        return Outcome("noise", f"not one sentence at the end of stderr: {said.err[-300:]}")
    if len(sentence) > SENTENCE:
        return Outcome("noise", f"a sentence of {len(last):,} characters: {last[:200]}")
    for word in said.words:
        for start in range(0, max(0, len(word) - SHOWN), SHOWN // 2):
            if word[start : start + SHOWN] in last:
                return Outcome("noise", f"shows more than {SHOWN} characters of the input: {last[:300]}")
    code = str(answer.get("code", ""))
    if wants_json and (not code or printable(str(answer.get("error"))) != sentence):
        return Outcome("noise", f"the JSON says another thing than stderr: {answer}")
    return Outcome("refused", last, code)


def command(*words: object, keep: Sequence[Path] = (), may_grow: Sequence[Path] = (), memory: int = MEMORY) -> Outcome:
    """Run a command line and judge it; `loss` where a file at or below `keep` is not what it was.

    Below the folders `may_grow` files may be added, none changed or removed.
    """
    before, grown = digest(*keep), digest(*may_grow)
    outcome = outcome_of(call(*words, memory=memory))
    after, kept = digest(*keep), digest(*may_grow)
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    changed += [path for path in grown if grown[path] != kept.get(path)]
    return Outcome("loss", f"after {outcome.kind}, touched: {', '.join(changed[:5])}") if changed else outcome


@contextlib.contextmanager
def captured() -> Iterator[Callable[[], tuple[str, str]]]:
    """stdout and stderr of Python and of native code go into files, read behind the block by what is yielded."""
    files, python = [tempfile.TemporaryFile(dir=_root()) for _ in range(2)], (sys.stdout, sys.stderr)
    kept = [os.dup(1), os.dup(2)]
    for number, (stream, file) in enumerate(zip(python, files, strict=True), 1):
        stream.flush()
        os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w", closefd=False), encoding="utf-8", line_buffering=True)
        for number in (1, 2)
    )

    def read() -> tuple[str, str]:
        texts = []
        for file in files:
            with file:
                file.seek(0)
                texts.append(file.read().decode("utf-8", "backslashreplace"))
        return texts[0], texts[1]

    try:
        yield read
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = python
        for number, handle in enumerate(kept, 1):
            os.dup2(handle, number)
            os.close(handle)


@contextlib.contextmanager
def limited(seconds: float, memory: int, rung: Callable[[int], object]) -> Iterator[None]:
    """Inside, an alarm raises after `seconds` (native code may hold it up) and memory beside the present is bounded."""

    begun, late = time.process_time(), itertools.count(1)

    def ring(number: int, frame: object) -> None:
        if time.process_time() - begun >= seconds or next(late) > 3:  # others may have had the processor
            rung(number)  # whoever catches what is raised here
            raise _Hang

    before = signal.signal(signal.SIGALRM, ring)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    present = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (present + memory, hard))
    signal.setitimer(signal.ITIMER_REAL, seconds * patience(), seconds * patience())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def patience() -> float:
    """How many processes wait for each core: what others compute is no fault of the draw."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


_OWN: list[tempfile.TemporaryDirectory[str]] = []


def _root() -> Path:
    """The folder of what is shared: named by the environment, else one of this process alone."""
    if SHARED in os.environ:
        return Path(os.environ[SHARED])
    if not _OWN:
        _OWN.append(tempfile.TemporaryDirectory(prefix="fullrank-attack-"))
    return Path(_OWN[0].name)
