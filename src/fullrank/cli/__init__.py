"""The command line: one file for each verb or family of verbs, a shell around `fullrank.api`.

A verb is a function that `@verb()` of `cli.verbs` puts on the app, in a module that is
named in `VERBS`. Its rules:

- Import nothing heavy when the module is imported: `--help` and `list` load no torch. Import inside the command, and
  look at arguments, then at folders, files and settings (`early_checks`), before what loads torch.
- Take `output: Output` (it has --json, which every verb has), or a group of `cli.option_groups` that is one, and the
  shared options of `cli.options` by name. `--debug` is taken care of, before and after the verb.
- An option that is a setting of a Spec is named, not declared: `@verb(cls=spec_options(SPEC, FLAGS))`; options of
  lists are not even named: `@verb(cls=list_options())`.
- A verb does one thing, so that no two of its options exclude each other; an option without effect is told by
  `check_owner`. What was spelt otherwise before stands in `core/errors.py`.
- Talk by `output.say`, `output.table`, `output.progress`; end with `output.finish({...})`, which prints the one JSON
  object when `--json` is given.
- Raise `UserError` for what the caller can put right: `main` makes it one sentence and exit code 2. Give it a
  code, which `--json` prints.
- The docstring's first line is the verb's line in `fullrank --help`; a paragraph that starts with a line ``\\b`` keeps
  its line breaks: end with examples that can be pasted.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

VERBS = (
    "demo",
    "doctor",
    "doctor_serve",
    "components",
    "prepare",
    "stores",
    "encode",
    "train",
    "transfer",
    "auto",
    "sweep",
    "scale",
    "evaluate",
    "study",
    "recommend",
    "serve",
    "predict",
    "diagnose",
    "report",
    "export",
)
"""Modules with verbs; the order of the help is that of `grouped_help.py`."""


AT_ONCE = ("list", "schema", "keys")
"""Verbs that load nothing heavy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (by default that of this process) and return its exit code.

    0 done, 1 a bug, 2 a user error, 130 interrupted, 141 the reader of its output has
    gone, 143 ended by SIGTERM.
    """
    signalled: list[int] = []
    try:
        if arguments is None:
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, partial(_interrupt, signalled))
            _sign_of_life(sys.argv[1:])
        from fullrank.cli.errors import guarded

        code = guarded(build, list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # before there is anything to say
        code = 130
    return 128 + signal.SIGTERM if code == 130 and signalled else code


def _interrupt(signalled: list[int], number: int, frame: FrameType | None) -> None:
    """Treat SIGTERM as Ctrl-C (close what is open, take away what is half written), and
    note it for the exit status.

    Python drops what is raised inside a finaliser, so one that is running is let go on, and the
    signal comes again.
    """
    signalled.append(number)
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _sign_of_life(words: list[str]) -> None:
    """Print a word to stderr before torch is imported, which takes seconds; of torchrun's processes
    the first alone does.
    """
    for_help = {"-h", "--help", "--version"} & set(words)
    if words and not words[0].startswith("-") and words[0] not in AT_ONCE and not for_help:
        if os.environ.get("RANK", "0") == "0":
            print(f"fullrank {words[0]}: starting", file=sys.stderr, flush=True)


def build() -> typer.Typer:
    """The app with every verb."""
    for module in VERBS:
        importlib.import_module(f"fullrank.cli.{module}")
    from fullrank.cli.verbs import app

    return app
