"""The library's messages: one tree of loggers, `fullrank`, shown on stderr.

    logging.getLogger("fullrank").setLevel(logging.WARNING)   # steps are silent, doubts are told
    logging.getLogger("fullrank").setLevel(logging.DEBUG)     # all steps, also those that nobody asked to see

A module takes its logger by ``log = logger(__name__)``. `INFO` is what a person asked to see or should know, `DEBUG`
the same where nobody asked. The root logger is never touched; where it writes to stderr already, ours is silent.
"""

from __future__ import annotations

import logging
import re
import sys

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys where it should show it: escape sequences and the like, and overrides of the direction of text.
An id, a title, a column's name or a path may hold any of them."""


def printable(text: str) -> str:
    """A text as it may be printed: control characters but newline and tab are shown as escapes (`\\x1b`)."""
    return CONTROLS.sub(lambda control: control[0].encode("unicode_escape").decode(), text)


def logger(name: str) -> logging.Logger:
    """The logger of a module of the library (`fullrank.data.events.prepare`)."""
    top = logging.getLogger("fullrank")
    if not any(isinstance(handler, _Stderr) for handler in top.handlers):
        top.addHandler(_Stderr())
        if top.level == logging.NOTSET:
            top.setLevel(logging.INFO)
    return logging.getLogger(name)


def shown_at(asked: bool) -> int:
    """The level of a step's message: `INFO` where the caller asked to see progress, else `DEBUG`."""
    return logging.INFO if asked else logging.DEBUG


class _Stderr(logging.Handler):
    """The message alone, on what stderr is at that moment (a test, or rich, may have put something in its place)."""

    def emit(self, record: logging.LogRecord) -> None:
        if any(_shows(handler) for handler in logging.getLogger().handlers):
            return  # the application shows what its libraries say: not twice
        try:
            print(printable(self.format(record)), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def _shows(handler: logging.Handler) -> bool:
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return isinstance(handler, logging.StreamHandler) and any(handler.stream is stream for stream in streams)
