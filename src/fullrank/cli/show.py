"""`fullrank show`: a recipe or a run as YAML, to read, keep and edit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.options import AsJson, Settings
from fullrank.cli.output import Output

if TYPE_CHECKING:
    from fullrank.experiment import Experiment

Store = Annotated[
    Path | None, typer.Option("--data", metavar="STORE", help="Count a click model's size on this store's fields.")
]


def add(app: typer.Typer) -> None:
    app.command("show")(show)


def show(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="A recipe's name, a YAML or JSON file, or a run folder.")],
    settings: Settings = None,
    data: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show the settings of a recipe or a run as YAML.

    `fullrank train` reads it back. How large a click model is and what an
    impression costs stands behind it as a comment: of a run, or with --data.

    \b
    fullrank show sasrec > mine.yaml
    fullrank show sasrec --set model.dim=256
    fullrank show runs/sasrec
    fullrank show dcnv2 --data data/ctr
    """
    from fullrank import api
    from fullrank.run import Run

    screen = Output(as_json)
    if not Path(what).is_dir():
        spec = api.recipe(what, *(settings or ()))
        size = None if data is None else size_of(spec, data)
        screen.say(spec.to_yaml().rstrip() + said(size), wrap=False)
        screen.finish({"spec": spec.dump()} | ({} if size is None else {"size": size}))
        return
    run = Run.open(what)
    spec = run.spec.override(*(settings or ()))
    size = run.manifest.get("size") if data is None and not settings else size_of(spec, data or run.path)
    screen.say(spec.to_yaml().rstrip() + said(size), wrap=False)
    last = run.rows()[-1] if run.rows() else None
    told = {"spec": spec.dump(), "manifest": run.manifest, "last": last}
    screen.finish(told if size is None else told | {"size": size})


def size_of(spec: Experiment, place: Path) -> dict[str, Any] | None:
    """A click model's size on the fields of a store or a run. Raises `UserError` where it has none."""
    import torch

    from fullrank.core.errors import UserError
    from fullrank.data.impressions.store import open_store
    from fullrank.run import Run, is_run

    if is_run(place):
        if spec.problem == "retrieval":
            return None
        fields = Run.open(place).fields
    else:
        store = open_store(place)
        if spec.problem == "retrieval" or store.problem == "retrieval":
            raise UserError(
                f"a size is counted of a click model on impressions, not of {spec.recipe} on {place}: leave out --data"
            )
        fields = store.fields
    with torch.device("meta"):  # shapes without memory
        found: dict[str, Any] = spec.model.build(fields).size().dump()  # type: ignore[attr-defined]
    return found


def said(size: dict[str, Any] | None) -> str:
    """The size as comments of the YAML before it."""
    if size is None:
        return ""
    both = f"{size['embedding_parameters']:,} parameters in tables, {size['dense_parameters']:,} dense"
    lines = [both, f"{count(size['flops'])} FLOPs an impression (products of the forward pass)"]
    lines += [f"  {name} {count(flops)}" for name, flops in size["flops_by_component"].items()]
    return "".join(f"\n# {line}" for line in lines)


def count(flops: int | None) -> str:
    return "an unknown number of" if flops is None else f"{flops:,}"
