"""`fullrank list`: what there is to choose from, read from the source text, so that nothing heavy is imported."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from fullrank.cli.options import AsJson
from fullrank.cli.output import Output
from fullrank.core.errors import unknown


def add(app: typer.Typer) -> None:
    app.command("list")(list_)


def list_(
    room: Annotated[str | None, typer.Argument(metavar="ROOM", help="One room; without it, all of them.")] = None,
    as_json: AsJson = False,
) -> None:
    """List recipes, data sources, losses and the rest.

    Everything is in a room: a room holds components that do the same job. A component's name is what `kind` takes
    in a YAML recipe and in --set (`--set model.loss=bce`). Components of installed third parties are listed too.

    \b
    fullrank list              the rooms
    fullrank list recipes      what `fullrank train` knows by name
    fullrank list sources      what `fullrank download` and `prepare` know by name
    """
    from fullrank.core.registry import ROOMS, kinds

    output = Output(as_json)
    if room is None:
        rows = [(name, len(kinds(name)), what) for name, what in ROOMS.items()]
        output.table(("room", "kinds", "what"), rows)
        output.say("\nfullrank list ROOM names the kinds of one room.")
        output.finish({"rooms": [{"room": name, "kinds": kinds(name), "what": what} for name, what in ROOMS.items()]})
        return
    full = full_room(room)
    lines = {kind: first_line(full, kind) for kind in kinds(full)}
    output.table(("kind", "what"), list(lines.items()))
    output.finish({"room": full, "what": ROOMS[full], "kinds": [{"kind": k, "what": t} for k, t in lines.items()]})


def full_room(given: str) -> str:
    """A room by its full or last name (`losses` -> `objectives.losses`); `UserError` with the nearest where unknown."""
    from fullrank.core.registry import ROOMS

    for room in ROOMS:
        if given in (room, room.split(".")[-1]):
            return room
    raise unknown("room", given, [*ROOMS, *(room.split(".")[-1] for room in ROOMS if "." in room)])


def first_line(room: str, kind: str) -> str:
    """The first line of the docstring of the file that declares a kind, or of its class where the file has several.

    Empty where the source is out of reach.
    """
    from fullrank.core.registry import declared

    own = declared(room)
    if kind in own:
        several = list(own.values()).count(own[kind]) > 1
        return _docstring(own[kind], kind if several else None)
    points = importlib.metadata.entry_points(group=f"fullrank.{room}")
    return next((_docstring(point.module) for point in points if point.name == kind), "")


def _docstring(module: str, kind: str | None = None) -> str:
    """Of a module found beside its top package, or of the class in it that has the kind; neither is imported."""
    from fullrank.core.registry import kinds_in

    top, *rest = module.split(".")
    found = importlib.util.find_spec(top) if top else None
    if found is None or found.origin is None:
        return ""
    base = Path(found.origin)
    file = base if not rest else base.parent.joinpath(*rest).with_suffix(".py")
    if not file.is_file() or file.suffix != ".py":
        return ""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    text = ast.get_docstring(tree if kind is None else kinds_in(tree)[kind]) or ""
    return text.strip().splitlines()[0] if text.strip() else ""
