"""Groups of options that verbs take whole: columns of a table of events, and the engine that works on parts.

A group is a dataclass, a field for each option. A verb names it as one parameter and is given to typer by `flat`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from fullrank.cli.options import LAST, check_beside, chosen

if TYPE_CHECKING:
    UnitName = Literal["s", "ms", "us", "ns"]
else:  # typer would say what is allowed, and not what is nearest
    UnitName = str
UserCol = Annotated[
    str | None, typer.Option("--user-col", metavar="NAME", help="User column of FILE.  [default: user_id]")
]
ItemCol = Annotated[
    str | None, typer.Option("--item-col", metavar="NAME", help="Item column of FILE.  [default: item_id]")
]
TimeUnit = Annotated[  # a lambda in a class's own annotation would not know the names of this module
    UnitName | None,
    typer.Option(
        "--time-unit", metavar="UNIT", help="Of numbers in it: s, ms, us, ns.  [default: s]",
        callback=lambda unit: unit and chosen("--time-unit", unit, ("s", "ms", "us", "ns")),
    ),
]  # fmt: skip


@dataclass(frozen=True)
class TableColumns:
    """Columns of a table of events."""

    user_col: UserCol = None
    item_col: ItemCol = None
    time_col: Annotated[
        str | None,
        typer.Option(
            "--time-col", metavar="NAME", help="Time column of FILE.  [default: timestamp, else order of rows]"
        ),
    ] = None
    time_unit: TimeUnit = None

    def keywords(self) -> dict[str, Any]:
        """What was typed, as keywords of the library."""
        names = column_names(user_col=self.user_col, item_col=self.item_col, time_col=self.time_col)
        return {**names, "time_unit": self.time_unit or "s"}


@dataclass(frozen=True)
class LaterColumns(TableColumns):
    """Columns of a table of what users did later, which has times or none."""

    time_col: Annotated[
        str | None,
        typer.Option("--time-col", metavar="NAME|none", help="Time column of --events.  [default: timestamp]"),
    ] = None


@dataclass(frozen=True)
class EngineOptions:
    """How a verb works on parts, and with whose help."""

    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="embedded|spark|ray",
            help="Do it in parts: in this process, on Spark, or on a Ray cluster.",
        ),
    ] = None
    parts: Annotated[
        int | None,
        typer.Option(
            "--parts", metavar="N", help="Do it in so many parts of users.  [default: by the number of users]"
        ),
    ] = None
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Spark's address, such as local[2] or spark://host:7077."),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="auto|local|HOST:PORT", help="Address of the Ray cluster.  [default: auto]"),
    ] = None
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Do it in parts, in so many processes of this machine.")
    ] = None

    def keywords(self) -> dict[str, Any]:
        """What was typed, as keywords of the library; empty where nothing was.

        Raises `UserError` for an engine that there is not, and for an option of another one.
        """
        engine = chosen("--engine", self.engine or "embedded", ("embedded", "spark", "ray"))
        for name, owner in (("master", "spark"), ("ray", "ray"), ("workers", "embedded")):
            check_beside(f"--engine {owner}", engine if engine == owner else None, **{name: getattr(self, name)})
        return {name: value for name, value in vars(self).items() if value is not None}


def column_names(**typed: str | None) -> dict[str, Any]:
    """The columns that were typed, as keywords of the library; the word `none` is no column of times."""
    named = {name: value for name, value in typed.items() if value is not None}
    return named | ({"time_col": None} if named.get("time_col") == "none" else {})


def flat(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the fields of its groups as options of its own, as typer reads them; those of `LAST` at the end."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: group for name, group in hints.items() if is_dataclass(group)}
    options = []
    for name, parameter in inspect.signature(verb).parameters.items():
        group = groups.get(name)
        types = hints if group is None else get_type_hints(group, include_extras=True)
        defaults = {name: parameter.default} if group is None else {one.name: one.default for one in fields(group)}
        options += [
            parameter.replace(name=option, kind=parameter.KEYWORD_ONLY, default=default, annotation=types[option])
            for option, default in defaults.items()
        ]

    @functools.wraps(verb)
    def call(**typed: Any) -> None:
        for name, group in groups.items():
            typed[name] = group(**{one.name: typed.pop(one.name) for one in fields(group)})
        verb(**typed)

    call.__annotations__ = {one.name: one.annotation for one in options}
    options.sort(key=lambda one: one.name in LAST)
    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return call
