"""Engines: who runs the parts of batch inference, and the model that each worker process opens once.

A task is a function of a part's number that can be sent to another process; what it gives comes back in any order. Each
runs with one thread of torch on a CPU, wherever it runs: floats are summed in one order for one number of threads, so a
part has the same bits on every engine.
"""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar, get_args

import torch

from fullrank.core.checks import check_choice, check_type, check_whole
from fullrank.core.errors import UserError, no_effect
from fullrank.core.files import open_whole, scratch_folder
from fullrank.core.ray_cluster import ray_cluster
from fullrank.data.events import spark
from fullrank.inference.predictor import Predictor

T = TypeVar("T")
Task = Callable[[int], T]
EngineName = Literal["embedded", "spark", "ray"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
MOST_WORKERS, MOST_PARTS = 1024, 100_000


class PartEngine(ABC):
    """Whoever runs tasks."""

    session: Any = None
    """The Spark session that reads a table; None: this process does."""

    @abstractmethod
    def map(self, task: Task[T], numbers: Sequence[int]) -> Iterator[T]:
        """What the task gives for each of these numbers, in any order. Raises `UserError` where one fails."""

    def share(self, files: Callable[[], dict[str, bytes]]) -> Any | None:
        """Files on their way to every worker: what has them as its `value` there; None where workers see ours."""
        return None


class EngineKeywords(TypedDict, total=False):
    """The fields of `EngineSettings` and the number of parts, as keywords of public functions."""

    parts: int | None
    engine: EngineName
    master: str | None
    ray: str | None
    workers: int | None


@dataclass(frozen=True)
class EngineSettings:
    """What a caller says about the engine."""

    engine: EngineName = "embedded"
    master: str | None = None
    """Spark's address; None: the session that is there, or the one that `spark-submit` describes."""
    ray: str | None = None
    """Address of the Ray cluster; None is `auto`."""
    workers: int | None = None
    """Processes of this machine; None: one part after the other in this process."""
    parts: int | None = None
    """Parts of the users; None: as many as their number asks for."""

    @classmethod
    def of(cls, keywords: EngineKeywords) -> EngineSettings:
        """The settings among the keywords of a call.

        Raises `UserError` for an unknown engine, and for a setting of another one.
        """
        return cls(**{name: keywords[name] for name in ENGINE_DEFAULTS if name in keywords})  # type: ignore[literal-required]

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ENGINES)
        owners = {"master": "spark", "ray": "ray", "workers": "embedded"}
        for name, owner in owners.items():
            if getattr(self, name) is not None and self.engine != owner:
                raise no_effect(name, f"with engine={self.engine!r}", f"leave it out, or say engine={owner!r}")
        for name in ("master", "ray"):
            if (given := getattr(self, name)) is not None:
                check_type(name, given, str, "an address, in quotes")
        for name, most in (("workers", MOST_WORKERS), ("parts", MOST_PARTS)):
            if (count := getattr(self, name)) is not None:
                check_whole(name, count, 1, most)


ENGINE_DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(EngineSettings)}
"""What `EngineKeywords` are where the caller says nothing."""


@contextmanager
def engine_of(settings: EngineSettings, *, table: Any = None, device: str = "auto") -> Iterator[PartEngine]:
    """The engine, for as long as the block runs. `table` may be a Spark DataFrame, whose session is taken.

    Raises `UserError` where it cannot be reached.
    """
    try:
        if settings.engine == "spark":
            yield PartsOnSpark(spark.session_of(table, settings.master))
        elif settings.engine == "ray":
            with ray_cluster(settings.ray or "auto") as ray:
                yield PartsOnRay(ray, gpus=int(str(device).startswith("cuda")))
        else:
            yield PartsHere() if settings.workers in (None, 1) else PartsInProcesses(settings.workers)
    finally:
        _opened.cache_clear()  # the caller's process keeps no model


class PartsHere(PartEngine):
    """One part after the other, in this process."""

    def map(self, task: Task[T], numbers: Sequence[int]) -> Iterator[T]:
        return map(OneThread(task), numbers)


@dataclass(frozen=True)
class PartsInProcesses(PartEngine):
    """Processes of this machine. They begin anew, so a script that starts them has to be guarded by `__name__`."""

    count: int

    def map(self, task: Task[T], numbers: Sequence[int]) -> Iterator[T]:
        with ProcessPoolExecutor(self.count, mp_context=multiprocessing.get_context("spawn")) as pool:
            waiting = [pool.submit(OneThread(task), number) for number in numbers]
            try:
                for done in as_completed(waiting):
                    yield done.result()
            except BrokenProcessPool as error:
                raise UserError(
                    "a worker process died, perhaps for want of memory: take fewer workers or more parts; what is "
                    "written stays",
                    code="worker-died",
                ) from error
            finally:
                pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class PartsOnSpark(PartEngine):
    """A Spark task for each part."""

    session: Any

    def map(self, task: Task[T], numbers: Sequence[int]) -> Iterator[T]:
        with spark.told_as_user_error():
            spread = self.session.sparkContext.parallelize(list(numbers), max(len(numbers), 1))
            found: list[T] = spread.map(OneThread(task)).collect()
        return iter(found)

    def share(self, files: Callable[[], dict[str, bytes]]) -> Any:
        return self.session.sparkContext.broadcast(files())


@dataclass(frozen=True)
class PartsOnRay(PartEngine):
    """A Ray task of one CPU (and, for `device="cuda"`, one GPU) for each part."""

    ray: Any
    gpus: int = 0

    def map(self, task: Task[T], numbers: Sequence[int]) -> Iterator[T]:
        remote = self.ray.remote(_called).options(num_cpus=1, num_gpus=self.gpus)
        shared = self.ray.put(OneThread(task))
        waiting = [remote.remote(shared, number) for number in numbers]
        try:
            while waiting:
                done, waiting = self.ray.wait(waiting)
                yield from self.ray.get(done)
        except self.ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, UserError):
                raise UserError(str(cause), code=cause.code) from error
            reason = (str(cause or error).strip() or type(error).__name__).splitlines()[-1][:300]
            raise UserError(f"Ray could not do it: {reason}", code="ray-failed") from error
        finally:
            for one in waiting:
                self.ray.cancel(one)

    def share(self, files: Callable[[], dict[str, bytes]]) -> RayObject:
        return RayObject(self.ray.put(files()))


@dataclass(frozen=True)
class RayObject:
    """An object in Ray's store, fetched where it is asked for."""

    place: Any

    @property
    def value(self) -> Any:
        import ray

        return ray.get(self.place)


@dataclass(frozen=True)
class OneThread(Generic[T]):
    """A task with one thread of torch, whose refusals can be sent from process to process."""

    task: Task[T]

    def __call__(self, number: int) -> T:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self.task(number)
        except UserError as error:  # of whatever class: one that is made of its sentence alone
            raise UserError(str(error), code=error.code) from error
        finally:
            torch.set_num_threads(before)


def _called(task: Task[T], number: int) -> T:
    return task(number)


@dataclass(frozen=True)
class ModelSource:
    """A model on its way to the workers, each of which opens it once."""

    name: str
    """The run's folder, as the caller named it."""
    identity: str
    """A hash of all that decides its answers."""
    device: str
    load: Callable[[Path, str], Predictor] = field(compare=False)
    """Opens a run folder on a device."""
    shared: Any | None = field(default=None, compare=False)
    """What has the files of the run as its `value`; None where the folder is there."""
    files: Callable[[], dict[str, bytes]] | None = field(default=None, compare=False)
    """Reads the files of the run, for workers that do not see its folder."""

    def sent(self, engine: PartEngine) -> ModelSource:
        """The same, on its way to the workers of an engine."""
        return replace(self, shared=None if self.files is None else engine.share(self.files), files=None)

    def open(self) -> Predictor:
        """The model, opened by the first call in a process."""
        return _opened(self)

    def _load(self) -> Predictor:
        if self.shared is None:
            return self.load(Path(self.name), self.device)
        with scratch_folder() as folder:
            for name, content in self.shared.value.items():
                with open_whole(folder / name) as file:
                    file.write(content)
            return self.load(folder, self.device)


@lru_cache(maxsize=1)
def _opened(source: ModelSource) -> Predictor:
    return source._load()
