"""Groups of options that verbs take whole: columns of a table, the engine of parts, a sample, how results are written.

A group is a dataclass, a field for each option, and a verb names it as one parameter (`verbs.py`).
Those that say how something is written are the verb's `Output` too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fullrank.cli.options import (
    Device,
    MovedStore,
    Overwrite,
    Settings,
    Split,
    Word,
    check_out,
    check_owner,
    choice,
    flag,
    option,
)
from fullrank.cli.output import Output

UserCol = Annotated[str | None, option("NAME", "User column of FILE.  [default: user_id]")]
ItemCol = Annotated[str | None, option("NAME", "Item column of FILE.  [default: item_id]")]
TimeUnit = Annotated[Word | None, choice("s|ms|us|ns", "What numbers in the time column count.  [default: s]")]


@dataclass(frozen=True)
class TableColumns:
    """Columns of a table of events."""

    user_col: UserCol = None
    item_col: ItemCol = None
    time_col: Annotated[
        str | None, option("NAME", "Time column of FILE.  [default: timestamp, else order of rows]")
    ] = None
    time_unit: TimeUnit = None

    def keywords(self) -> dict[str, Any]:
        """The typed options as keywords of the library."""
        names = column_names(user_col=self.user_col, item_col=self.item_col, time_col=self.time_col)
        return {**names, "time_unit": self.time_unit or "s"}


@dataclass(frozen=True)
class LaterColumns(TableColumns):
    """Columns of a table of what users did later, which has times or none."""

    time_col: Annotated[str | None, option("NAME|none", "Time column of --events.  [default: timestamp]")] = None


@dataclass(frozen=True)
class EngineOptions:
    """Options of work in parts: the engine, its address, and how many parts and processes."""

    engine: Annotated[
        Word | None, choice("embedded|spark|ray", "Do it in parts: in this process, on Spark, or on a Ray cluster.")
    ] = None
    parts: Annotated[int | None, option("N", "Do it in so many parts of users.  [default: by the number of users]")] = (
        None
    )
    master: Annotated[str | None, option("URL", "Spark's address, such as local[2] or spark://host:7077.")] = None
    ray: Annotated[str | None, option("auto|local|HOST:PORT", "Address of the Ray cluster.  [default: auto]")] = None
    workers: Annotated[int | None, option("N", "Do it in parts, in so many processes of this machine.")] = None

    def keywords(self) -> dict[str, Any]:
        """The typed options as keywords of the library, as far as typed. Raises `UserError` for an
        option of another engine.
        """
        engine = self.engine or "embedded"
        for name, owner in (("master", "spark"), ("ray", "ray"), ("workers", "embedded")):
            check_owner(f"--engine {owner}", engine if engine == owner else None, **{name: getattr(self, name)})
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class SampleOptions:
    """The sample that a run is looked at on."""

    data: MovedStore = None
    split: Split = "test"
    users: Annotated[int | None, option("N", "Users of the sample that is measured.  [default: 4096]")] = None
    impressions: Annotated[
        int | None, option("N", "Impressions of the sample, of ranking models.  [default: 4096]")
    ] = None
    device: Device = "auto"


@dataclass(frozen=True)
class Written(Output):
    """Options of a verb that writes: --json and --overwrite."""

    overwrite: Overwrite = False


@dataclass(frozen=True)
class WrittenByModel(Written):
    """Options of a verb that writes what a model computes: --json, --overwrite and --device."""

    device: Device = "auto"


@dataclass(frozen=True)
class WrittenBySettings(Written):
    """Options of a verb that writes, and reads settings: --json, --overwrite and --set."""

    settings: Settings = None


@dataclass(frozen=True)
class TableOut(WrittenByModel):
    """Options of a verb whose rows are printed, or written to --out."""

    out: Annotated[Path | None, option("FILE", "Write them there (.parquet, .csv or .jsonl).")] = None

    def check(self) -> None:
        """Raise `UserError` where they cannot be written there."""
        from fullrank.core.tables import SUFFIXES

        check_out(self.out, self.overwrite, suffixes=SUFFIXES)


@dataclass(frozen=True, kw_only=True)
class RunOut(Output):
    """Options of the verbs that train: the run folder, settings and device."""

    out: Annotated[Path, option("FOLDER", "The run folder to write.")]
    settings: Settings = None
    resume: Annotated[bool, flag("--resume", "Go on with the run in --out that was cut off.")] = False
    overwrite: Annotated[bool, flag("--overwrite", "Replace the run that is in --out.")] = False
    device: Device = "auto"


def column_names(**typed: str | None) -> dict[str, Any]:
    """The typed columns as keywords of the library; the word `none` means no column of times."""
    named = {name: value for name, value in typed.items() if value is not None}
    return named | ({"time_col": None} if named.get("time_col") == "none" else {})
