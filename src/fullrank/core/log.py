"""Messages and progress for people, all on stderr.

Messages are one tree of loggers, `fullrank`:

    logging.getLogger("fullrank").setLevel(logging.WARNING)   # steps are silent, doubts are told
    logging.getLogger("fullrank").setLevel(logging.DEBUG)     # all steps, also those that nobody asked to see

A module takes its logger by ``log = logger(__name__)``. Steps that a person asked to see, and what
a person should know, are `INFO`; steps that nobody asked to see are `DEBUG`. The root logger is
never touched; where it writes to stderr already, ours is silent.

`Progress` is what a library function takes, and `Reporter` shows it: a bar on a terminal, a line
now and then elsewhere, nothing where it is off.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys instead of showing them: escape sequences and the like, and overrides of the
direction of text. An id, a title, a column's name or a path may hold any of them."""


def printable(text: str) -> str:
    """A printable text: control characters but newline and tab become escapes (`\\x1b`)."""
    return CONTROLS.sub(lambda control: control[0].encode("unicode_escape").decode(), text)


def logger(name: str) -> logging.Logger:
    """The logger of a module of the library (`fullrank.data.events.prepare`)."""
    top = logging.getLogger("fullrank")
    if not any(isinstance(handler, _Stderr) for handler in top.handlers):
        top.addHandler(_Stderr())
        if top.level == logging.NOTSET:
            top.setLevel(logging.INFO)
    return logging.getLogger(name)


def shown_at(progress: bool) -> int:
    """The level of a step's message: `INFO` where progress is to be shown, else `DEBUG`."""
    return logging.INFO if progress else logging.DEBUG


class _Stderr(logging.Handler):
    """The message alone, on the stderr of the moment (a test or rich may have replaced it)."""

    def emit(self, record: logging.LogRecord) -> None:
        if any(_shows(handler) for handler in logging.getLogger().handlers):
            return  # the application shows what its libraries say: not twice
        try:
            print(printable(self.format(record)), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def _shows(handler: logging.Handler) -> bool:
    """Whether a handler writes to the stdout or stderr of this process."""
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return isinstance(handler, logging.StreamHandler) and any(handler.stream is stream for stream in streams)


Progress = Callable[[int, int], None]
"""Called with (done, in all); `in all` is 0 where it is not known."""
Tell = Callable[[str], Progress]
"""Called with what begins; gives its `Progress`."""
QUIET_SECONDS = 10.0
"""Seconds between two lines of progress where stderr is no terminal."""


class Reporter:
    """Shows one or more tasks while it is open (`with`), and lines that stay."""

    def __init__(self, shown: bool = True, *, sizes: bool = False, lines: bool = True, transient: bool = False):
        """`sizes`: what is counted are bytes. `lines`: without a terminal, a line now and then; without `lines`,
        nothing of tasks there. `transient`: bars vanish in the end."""
        self.shown, self.sizes, self.lines = shown, sizes, lines
        self._bar = _bar(sizes, transient) if shown and sys.stderr.isatty() else None
        self._tasks: dict[str, Any] = {}
        self._said = time.perf_counter()

    def __enter__(self) -> Reporter:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def task(self, name: str) -> Progress:
        """The callback of one task: call it with (done, in all)."""
        return lambda done, total: self.at(name, done, total)

    def at(self, name: str, done: int, total: int, text: str | None = None) -> None:
        """How far a task is; `text` stands in place of its name from now on."""
        if self._bar is not None:
            shown = printable(text or name)
            if name not in self._tasks:
                self._tasks[name] = self._bar.add_task(shown, total=total or None, completed=done)
            self._bar.update(self._tasks[name], completed=done, total=total or None, description=text and shown)
        elif self.shown and self.lines:
            self._line(name, done, total)

    def say(self, text: str) -> None:
        """A line that stays."""
        text = printable(text)
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif self.shown:
            print(text, file=sys.stderr, flush=True)

    def _line(self, name: str, done: int, total: int) -> None:
        now = time.perf_counter()
        ended = self.sizes and done == total  # each file gets a line, however fast it was
        if ended or now - self._said >= QUIET_SECONDS:
            self._said = now
            unit = " bytes" if self.sizes else ""
            known = f" of {total:,}{unit} ({done / total:.0%})" if total else unit
            self.say(f"{name}: {done:,}{known}")


@contextmanager
def reporting(what: str, *, shown: bool = True) -> Iterator[Progress]:
    """Progress of one thing: a bar that vanishes in the end, or a line now and then."""
    with Reporter(shown, transient=True) as reporter:
        if reporter._bar is not None:
            reporter.at(what, 0, 0)  # the bar stands there before anything is known
        yield reporter.task(what)


@contextmanager
def stages(*, shown: bool = True) -> Iterator[Tell]:
    """Progress of one thing after another: what begins ends what was before."""
    with ExitStack() as stack:

        def tell(what: str) -> Progress:
            stack.pop_all().close()
            return stack.enter_context(reporting(what, shown=shown))

        yield tell


def untold(done: int, total: int) -> None:
    """A `Progress` that tells nobody."""


def quiet(what: str) -> Progress:
    """A `Tell` that tells nobody."""
    return untold


def clock(seconds: float) -> str:
    """A duration as a clock shows it: `4:05`, `1:02:03`."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def _bar(sizes: bool, transient: bool) -> Any:
    from rich import progress as rich
    from rich.console import Console

    middle: tuple[rich.ProgressColumn, ...] = (rich.DownloadColumn(), rich.TransferSpeedColumn())
    if not sizes:
        middle = (rich.TextColumn("{task.percentage:>3.0f} %  elapsed"), rich.TimeElapsedColumn())
    return rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        *middle,
        rich.TextColumn("remaining"),
        rich.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=transient,
    )
