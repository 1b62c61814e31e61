"""`fullrank schema`: JSON Schema of what a YAML file may say, so that an editor completes and checks it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.list import full_room
from fullrank.cli.options import AsJson
from fullrank.cli.output import Output
from fullrank.core.errors import UserError, unknown
from fullrank.core.files import write_json

if TYPE_CHECKING:
    from fullrank.core.spec import Spec


def add(app: typer.Typer) -> None:
    app.command("schema")(schema)


def schema(
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", metavar="KIND", help="One component (see `fullrank list`), `prepare`, `impressions` or `encode`."
        ),
    ] = None,
    room: Annotated[
        str | None, typer.Option("--room", metavar="ROOM", help="Where two rooms have that kind, which is meant.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write there, not to stdout.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a JSON Schema, for editors to complete.

    Begin a YAML file with the line `# yaml-language-server: $schema=experiment.schema.json` (VS Code, Neovim and
    JetBrains editors understand it). `fullrank show sasrec > mine.yaml` gives a file to begin with.

    \b
    fullrank schema --out experiment.schema.json
    fullrank schema --kind transformer
    """
    output = Output(as_json)
    if room is not None and kind is None:
        raise UserError("--room says which --kind is meant: give both or neither")
    tree = spec_of(kind, room).model_json_schema()
    tree = {"$schema": "https://json-schema.org/draft/2020-12/schema", **tree}
    text = json.dumps(tree, indent=2)
    if out is not None:
        write_json(out, tree)
        output.say(f"written to {out}")
        output.finish({"out": out, "title": tree.get("title")})
        return
    if not as_json:
        output.say(text, wrap=False)
    output.finish(tree)


def spec_of(kind: str | None, room: str | None) -> type[Spec]:
    """The Spec class of a kind; without one, of an experiment. `UserError` where the name is unknown or ambiguous."""
    from fullrank.core.registry import ROOMS, find, kinds

    if kind is None:
        from fullrank.experiment import Experiment

        return Experiment
    if kind == "prepare" and room is None:
        from fullrank.data.events.prepare import Prepare

        return Prepare
    if kind == "impressions" and room is None:
        from fullrank.data.impressions.fields import Schema

        return Schema
    if kind == "encode" and room is None:
        from fullrank.semantic_ids.spec import Encode

        return Encode
    rooms = [full_room(room)] if room is not None else list(ROOMS)
    found = [name for name in rooms if kind in kinds(name)]
    if not found:
        raise unknown("kind", kind, sorted({known for name in rooms for known in kinds(name)}))
    if len(found) > 1:
        raise UserError(f"{kind!r} is a kind of {' and of '.join(found)}: choose by --room")
    answer: Any = find(kind, found[0])
    return answer
