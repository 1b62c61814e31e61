"""Where the runs of `sweep` and `tune` are run: the options that both have, and the engine that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.options import chosen
from fullrank.core.errors import UserError

if TYPE_CHECKING:
    from fullrank.sweeps.engine import Engine

ENGINES = ("local", "processes", "ray")
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="local|processes|ray",
        help="What runs the runs: this process one by one, several of this machine, or a Ray cluster.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", metavar="N", help="Runs at a time.  [default: of processes 2, of ray as many as there is room for]"
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="The Ray cluster: auto, local (one is started here) or HOST:PORT.  [default: auto]",
    ),
]
Cpus = Annotated[
    float | None, typer.Option("--job-cpus", metavar="N", help="CPUs of a run on Ray, and its threads.  [default: 1]")
]
Gpus = Annotated[float | None, typer.Option("--job-gpus", metavar="N", help="GPUs of a run on Ray.  [default: 0]")]
PlacedAt = Annotated[
    Path | None,
    typer.Option(
        "--place", metavar="FOLDER", help="Copy the store into this folder of every Ray node's disk, and read it there."
    ),
]


def engine_of(
    engine: str, jobs: int | None, ray: str | None, cpus: float | None, gpus: float | None, placed: Path | None,
    device: str,
) -> Engine:  # fmt: skip
    """The engine that the options name. Raises `UserError` for an option that it does not read."""
    chosen("--engine", engine, ENGINES)
    of_ray = {"address": ray, "cpus": cpus, "gpus": gpus, "placed": placed}
    options = {"--jobs": jobs, "--ray": ray, "--job-cpus": cpus, "--job-gpus": gpus, "--place": placed}
    read = {"local": (), "processes": ("--jobs",), "ray": tuple(options)}[engine]
    if unread := [name for name, value in options.items() if value is not None and name not in read]:
        raise UserError(
            f"{unread[0]} has no effect with --engine {engine}: leave it out, or choose another engine",
            code="option-without-effect",
        )
    own: dict[str, Any] = {"jobs": jobs} if engine == "processes" else {"jobs": jobs, **of_ray}
    given = {name: value for name, value in own.items() if value is not None}
    if engine == "processes":
        from fullrank.sweeps.processes import LocalProcesses

        return LocalProcesses(**given, device=device)
    if engine == "ray":
        from fullrank.sweeps.ray_engine import RayEngine

        return RayEngine(**given, device=device)
    from fullrank.sweeps.engine import Local

    return Local(device)
