"""Groups of options that verbs take whole: columns of a table, the engine of parts, a sample, where a table is written.

A group is a dataclass, a field for each option. A verb names it as one parameter and is given to typer by `flat`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from fullrank.cli.options import (
    LAST,
    AsJson,
    Device,
    MovedStore,
    Overwrite,
    Settings,
    Split,
    Word,
    check_beside,
    check_out,
    choice,
    flag,
    option,
)

UserCol = Annotated[str | None, option("--user-col", "NAME", "User column of FILE.  [default: user_id]")]
ItemCol = Annotated[str | None, option("--item-col", "NAME", "Item column of FILE.  [default: item_id]")]
TimeUnit = Annotated[
    Word | None, choice("--time-unit", "s|ms|us|ns", "What numbers in the time column count.  [default: s]")
]


@dataclass(frozen=True)
class TableColumns:
    """Columns of a table of events."""

    user_col: UserCol = None
    item_col: ItemCol = None
    time_col: Annotated[
        str | None,
        option("--time-col", "NAME", "Time column of FILE.  [default: timestamp, else order of rows]"),
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
        option("--time-col", "NAME|none", "Time column of --events.  [default: timestamp]"),
    ] = None


@dataclass(frozen=True)
class EngineOptions:
    """How a verb works on parts, and with whose help."""

    engine: Annotated[
        Word | None,
        choice("--engine", "embedded|spark|ray", "Do it in parts: in this process, on Spark, or on a Ray cluster."),
    ] = None
    parts: Annotated[
        int | None,
        option("--parts", "N", "Do it in so many parts of users.  [default: by the number of users]"),
    ] = None
    master: Annotated[
        str | None,
        option("--master", "URL", "Spark's address, such as local[2] or spark://host:7077."),
    ] = None
    ray: Annotated[
        str | None,
        option("--ray", "auto|local|HOST:PORT", "Address of the Ray cluster.  [default: auto]"),
    ] = None
    workers: Annotated[
        int | None, option("--workers", "N", "Do it in parts, in so many processes of this machine.")
    ] = None

    def keywords(self) -> dict[str, Any]:
        """What was typed, as keywords of the library; empty where nothing was.

        Raises `UserError` for an option of another engine.
        """
        engine = self.engine or "embedded"
        for name, owner in (("master", "spark"), ("ray", "ray"), ("workers", "embedded")):
            check_beside(f"--engine {owner}", engine if engine == owner else None, **{name: getattr(self, name)})
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class SampleOptions:
    """What a run is looked at on."""

    data: MovedStore = None
    split: Split = "test"
    users: Annotated[int | None, option("--users", "N", "Users of the sample that is measured.  [default: 4096]")] = (
        None
    )
    impressions: Annotated[
        int | None,
        option("--impressions", "N", "Impressions of the sample, of ranking models.  [default: 4096]"),
    ] = None
    device: Device = "auto"


@dataclass(frozen=True)
class TableOut:
    """Where the rows of a verb go, and what makes them."""

    out: Annotated[Path | None, option("--out", "FILE", "Write them there (.parquet, .csv or .jsonl).")] = None
    overwrite: Overwrite = False
    device: Device = "auto"
    as_json: AsJson = False

    def check(self) -> None:
        """Raise `UserError` where they cannot be written there."""
        from fullrank.core.tables import SUFFIXES

        check_out(self.out, self.overwrite, suffixes=SUFFIXES)


@dataclass(frozen=True)
class RunOut:
    """How a run is written by the verbs that train."""

    out: Annotated[Path, option("--out", "FOLDER", "The run folder to write.")]
    settings: Settings = None
    resume: Annotated[bool, flag("--resume", "Go on with the run in --out that was cut off.")] = False
    overwrite: Annotated[bool, flag("--overwrite", "Replace the run that is in --out.")] = False
    device: Device = "auto"
    as_json: AsJson = False


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
        declared = {name: parameter} if group is None else inspect.signature(group).parameters
        options += [one.replace(kind=parameter.KEYWORD_ONLY, annotation=types[one.name]) for one in declared.values()]

    @functools.wraps(verb)
    def call(**typed: Any) -> None:
        for name, group in groups.items():
            typed[name] = group(**{one.name: typed.pop(one.name) for one in fields(group)})
        verb(**typed)

    call.__annotations__ = {one.name: one.annotation for one in options}
    options.sort(key=lambda one: one.name in LAST)
    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return call
