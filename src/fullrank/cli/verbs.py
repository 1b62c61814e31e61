"""The app, and how a function becomes a verb of it.

A parameter of the function is an option, an argument, or a group, whose fields are
options (`option_groups.py`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from fullrank import __version__
from fullrank.cli.grouped_help import GroupedCommand, GroupedVerbs
from fullrank.cli.options import LAST, flag

V = TypeVar("V", bound=Callable[..., None])

app = typer.Typer(
    name="fullrank",
    cls=GroupedVerbs,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        print(f"fullrank {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[
        bool, flag("--version", "Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[bool, flag("--debug", "Show the traceback of an error; also accepted after the verb.")] = False,
) -> None:
    """Train, evaluate and use transformer recommenders.

    From a table of events to recommendations in four commands:

    \b
    fullrank prepare events.parquet --items items.parquet --out data/shop
    fullrank train sasrec --data data/shop --out runs/sasrec
    fullrank evaluate runs/sasrec --split test
    fullrank recommend runs/sasrec --history 2,3,5 --k 5

    No data at hand? `fullrank demo` shows all of it on a generated marketplace. Every verb explains
    itself: `fullrank train --help`. Every verb takes --json.
    """


def verb(
    name: str | None = None,
    *,
    cls: type[TyperCommand] = GroupedCommand,
    of: typer.Typer = app,
    help: str | None = None,
) -> Callable[[V], V]:
    """A verb of the app, or of a `group`, by the function's name and docstring unless others are given."""

    def add(function: V) -> V:
        of.command(name, cls=cls, help=help)(flat(function))
        return function

    return add


def group(described: Callable[[], None]) -> typer.Typer:
    """A verb that has verbs of its own; the function has its name and its help."""
    verbs = typer.Typer(help=described.__doc__, rich_markup_mode=None, no_args_is_help=True)
    app.add_typer(verbs, name=described.__name__)
    return verbs


def flat(function: Callable[..., None]) -> Callable[..., None]:
    """A verb with the fields of its groups as options of its own, as typer reads them; those of `LAST` at the end."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    options = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind = groups.get(name)
        types = hints if kind is None else get_type_hints(kind, include_extras=True)
        declared = {name: parameter} if kind is None else inspect.signature(kind).parameters
        options += [
            option.replace(kind=parameter.KEYWORD_ONLY, annotation=types[option.name]) for option in declared.values()
        ]

    @functools.wraps(function)
    def call(**typed: Any) -> None:
        for name, kind in groups.items():
            typed[name] = kind(**{field: typed.pop(field) for field in inspect.signature(kind).parameters})
        function(**typed)

    call.__annotations__ = {option.name: option.annotation for option in options}
    options.sort(key=lambda option: (option.name in LAST, option.name == "as_json"))
    vars(call)["__signature__"] = inspect.Signature(options)
    return call
