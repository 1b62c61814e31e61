"""The command line: one file for each verb or family of verbs, a shell around `fullrank.api`.

A verb's module is named in `VERBS` and has `def add(app: typer.Typer) -> None`, which puts one or more commands on the
app (``app.command("train")(train)``). Its rules:

- Import nothing heavy when the module is imported: `--help` and `list` load no torch. Import inside the command.
- Take the shared options of `cli.options` by name: `as_json: AsJson = False` (required of every verb) and
  `settings: Settings = None` for ``--set``. `--debug` is taken care of, before and after the verb.
- An option that is a setting of a Spec is named, not declared: `app.command(cls=spec_options(SPEC, FLAGS))`.
- Open `output = Output(as_json)`; talk by `output.say`, `output.table`, `output.progress`; end with
  `output.finish({...})`, which prints the one JSON object when `--json` is given.
- Raise `UserError` for what the caller can put right: `main` makes it one sentence and exit code 2. Give it a
  code, which `--json` prints.
- The docstring's first line is the verb's line in `fullrank --help`; a paragraph that starts with a line ``\\b`` keeps
  its line breaks: end with examples that can be pasted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

VERBS = (
    "demo",
    "doctor",
    "components",
    "download",
    "prepare",
    "subset",
    "encode",
    "train",
    "sweep",
    "scale",
    "evaluate",
    "recommend",
    "similar",
    "vectors",
    "serve",
    "predict",
    "cascade",
    "diagnose",
    "explain",
    "report",
    "export",
    "grow",
    "verify",
    "keys",
)
"""Modules with verbs, in the order of the help."""


HELP = {"help_option_names": ["-h", "--help"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (by default that of this process) and return its exit code.

    0 done, 1 a bug, 2 a mistake of the caller, 130 interrupted, 141 the reader of its output has gone.
    """
    from fullrank.cli.errors import guarded

    return guarded(build, list(sys.argv[1:] if arguments is None else arguments))


def build() -> typer.Typer:
    """The app with every verb."""
    import typer

    from fullrank.cli.options import root

    app = typer.Typer(name="fullrank", rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=HELP)
    app.callback()(root)
    for verb in VERBS:
        importlib.import_module(f"fullrank.cli.{verb}").add(app)
    return app
