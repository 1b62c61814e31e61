"""The model of a batch call on its way to workers, each of which opens it once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fullrank.core.files import open_whole, scratch_folder
from fullrank.inference.predictor import Predictor
from fullrank.parallel import Runner


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

    def sent(self, runner: Runner) -> ModelSource:
        """The same, on its way to the workers of a runner."""
        return replace(self, shared=None if self.files is None else runner.share(self.files), files=None)

    def open(self) -> Predictor:
        """The model, opened by the first call in a process."""
        return _opened(self)

    def _load(self) -> Predictor:
        if self.shared is None:
            return self.load(Path(self.name), self.device)
        with scratch_folder() as folder:
            for name, content in self.shared.value.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with open_whole(folder / name) as file:
                    file.write(content)
            return self.load(folder, self.device)


@lru_cache(maxsize=1)
def _opened(source: ModelSource) -> Predictor:
    return source._load()


def forget_models() -> None:
    """Let go of the model that this process has opened."""
    _opened.cache_clear()
