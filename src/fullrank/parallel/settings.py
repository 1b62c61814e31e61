"""Settings of the engine that runs parts, and the runner that they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, get_args

from fullrank.core.checks import check_choice, check_type, check_whole
from fullrank.core.errors import no_effect
from fullrank.parallel import Local, Runner

EngineName = Literal["embedded", "spark", "ray"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
MOST_WORKERS, MOST_PARTS = 1024, 100_000
MOST_WAITING = 10_000
"""Parts that Ray is handed at a time: what waits in its queue is what makes it add nodes."""


class EngineKeywords(TypedDict, total=False):
    """The fields of `EngineSettings` and the number of parts, as keywords of public functions."""

    parts: int | None
    engine: EngineName
    master: str | None
    ray: str | None
    workers: int | None


@dataclass(frozen=True)
class EngineSettings:
    """A caller's choice of the engine."""

    engine: EngineName = "embedded"
    master: str | None = None
    """Spark's address; None: the present session, or that of `spark-submit`."""
    ray: str | None = None
    """Address of the Ray cluster; None is `auto`."""
    workers: int | None = None
    """Processes of this machine; None: one part after the other in this process."""
    parts: int | None = None
    """Parts of the users; None: as many as their number asks for."""

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> EngineSettings:
        """The settings among the keywords of a call.

        Raises `UserError` for an unknown engine, and for a setting of another one.
        """
        return cls(**{name: keywords[name] for name in ENGINE_DEFAULTS if name in keywords})

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ENGINES)
        owners = {"master": "spark", "ray": "ray", "workers": "embedded"}
        for name, owner in owners.items():
            if getattr(self, name) is not None and self.engine != owner:
                raise no_effect(name, f"with engine={self.engine!r}", f"leave it out, or say engine={owner!r}")
        for name in ("master", "ray"):
            if (address := getattr(self, name)) is not None:
                check_type(name, address, str, "an address, in quotes")
        for name, most in (("workers", MOST_WORKERS), ("parts", MOST_PARTS)):
            if (count := getattr(self, name)) is not None:
                check_whole(name, count, 1, most)


ENGINE_DEFAULTS: dict[str, Any] = {setting.name: setting.default for setting in fields(EngineSettings)}
"""Defaults of `EngineKeywords`."""


@contextmanager
def runner_of(settings: EngineSettings, *, table: Any = None, device: str = "auto") -> Iterator[Runner]:
    """The runner that the settings name, for as long as the block runs.

    Its tasks have one thread of torch, which sums floats in another order with another number of
    threads: so a part has the same bits on every engine. `table` may be a Spark DataFrame, whose
    session is taken. Raises `UserError` where the engine cannot be reached.
    """
    if settings.engine == "spark":
        from fullrank.parallel.spark import OnSpark, session_of

        yield OnSpark(session_of(table, settings.master), threads=1)
    elif settings.engine == "ray":
        from fullrank.parallel.ray import RayEngine, ray_cluster

        with ray_cluster(settings.ray or "auto"):
            yield RayEngine("auto", MOST_WAITING, gpus=int(str(device).startswith("cuda")))
    elif settings.workers in (None, 1):
        yield Local(threads=1)
    else:
        from fullrank.parallel.processes import LocalProcesses

        yield LocalProcesses(settings.workers)
