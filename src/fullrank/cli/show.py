"""`fullrank show`: a recipe or a run as YAML, to read, keep and edit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fullrank.cli.options import AsJson, Settings
from fullrank.cli.screen import Screen


def add(app: typer.Typer) -> None:
    app.command("show")(show)


def show(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="A recipe's name, a YAML or JSON file, or a run folder.")],
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show the settings of a recipe or a run as YAML.

    `fullrank train` reads it back.

    \b
    fullrank show sasrec > mine.yaml
    fullrank show sasrec --set model.dim=256
    fullrank show runs/sasrec
    """
    from fullrank import api
    from fullrank.run import Run

    screen = Screen(as_json)
    if not Path(what).is_dir():
        spec = api.recipe(what, *(settings or ()))
        screen.say(spec.to_yaml().rstrip(), wrap=False)
        screen.finish({"spec": spec.dump()})
        return
    run = Run.open(what)
    spec = run.spec.override(*(settings or ()))
    screen.say(spec.to_yaml().rstrip(), wrap=False)
    last = run.rows()[-1] if run.rows() else None
    screen.finish({"spec": spec.dump(), "manifest": run.manifest, "last": last})
