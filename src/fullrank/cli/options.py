"""Options that several verbs share, declared once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank import __version__
from fullrank.core.errors import UserError

if TYPE_CHECKING:
    from fullrank.run import Run

AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object as the last line of stdout; everything else goes to stderr."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change one setting, such as a.b=3; may be repeated."),
]
Steps = Annotated[
    int | None,
    typer.Option("--reasoning-steps", metavar="N", help="Steps that a reasoner takes; 0 is the encoder alone."),
]
Streams = Annotated[
    int | None, typer.Option("--reasoning-streams", metavar="M", help="Streams that a reasoner thinks in.")
]
Adaptive = Annotated[
    int | None,
    typer.Option("--adaptive", metavar="K", help="Stop each user's reasoning when their first K items stay the same."),
]
Patience = Annotated[
    int | None, typer.Option("--patience", metavar="N", help="Steps that --adaptive wants without a change.")
]
Impressions = Annotated[
    int | None,
    typer.Option("--impressions", metavar="N", help="Impressions of the sample, of click models.  [default: 4096]"),
]
Device = Annotated[
    str,
    typer.Option(
        "--device", metavar="auto|cpu|cuda|...", help="Where the model runs; auto is a CUDA device where there is one."
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as `fullrank train` writes it.")]


def _print_version(asked: bool) -> bool:
    if asked:
        print(f"fullrank {__version__}")
        raise typer.Exit
    return asked


def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and leave.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; also accepted after the verb.")
    ] = False,
) -> None:
    """Train, evaluate and use transformer recommenders.

    From a table of events to recommendations in four commands:

    \b
    fullrank prepare events.parquet --items items.parquet --out data/shop
    fullrank train sasrec --data data/shop --out runs/sasrec
    fullrank evaluate runs/sasrec --split test
    fullrank recommend runs/sasrec --history 2,3,5 --k 5

    No data at hand? `fullrank demo` shows all of it on a generated marketplace. Every verb explains itself:
    `fullrank train --help`. Every verb takes --json.
    """


def chosen(name: str, given: str, allowed: tuple[str, ...]) -> Any:
    """`given` where it is one of the allowed values of an option, else a `UserError` with the nearest."""
    from fullrank.core.errors import did_you_mean

    if given not in allowed:
        raise UserError(f"{name} {given!r} is unknown{did_you_mean(given, allowed)} (allowed: {', '.join(allowed)})")
    return given


def find_store(run: Run, data: Path | None) -> Path:
    """The folder of the store that a run was trained on, or --data; `UserError` where it is not there."""
    from fullrank.run import store_path

    return store_path(run) if data is None else data


def shortcuts(given: Mapping[str, object], settings: list[str] | None) -> list[str]:
    """Dotted settings from options that abbreviate them, then those of ``--set``. None means: option not given.

    Raises `UserError` where both say the same setting: one of them would be without effect.
    """
    import json

    asked = {setting.partition("=")[0].strip() for setting in settings or []}
    made = []
    for path, value in given.items():
        if value is None:
            continue
        if path in asked:
            raise UserError(f"{path} is given twice, by its own option and by --set {path}=; keep one")
        made.append(f"{path}={json.dumps(value)}")
    return made + list(settings or [])
