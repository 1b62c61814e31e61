"""A folder that is made in parts: it lies beside its place until it is whole, and a call that was killed goes on there.

OUT.preparing/state.json     what was asked for, and what is known since the reading
OUT.preparing/scratch/       what only the tasks need
OUT.preparing/part-00000     a part, whole or not there; when all are there, the folder takes the place OUT
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fullrank.core.errors import UserError
from fullrank.core.files import jsonable, not_written, take_place, write_json
from fullrank.core.readers import JsonObject, read_json

SUFFIX = ".preparing"
"""Behind the name of the place: the folder of what is under way."""
STATE, SCRATCH = "state.json", "scratch"


@dataclass(frozen=True)
class Unfinished:
    """A folder in which a place is made in parts."""

    path: Path
    request: JsonObject
    state: JsonObject | None
    """What an earlier call of the same request has noted; None: this one is the first."""

    @property
    def scratch(self) -> Path:
        return self.path / SCRATCH

    def note(self, state: JsonObject) -> JsonObject:
        """Note what is known once everything is read: the next call goes on behind it."""
        write_json(self.path / STATE, state | self.request)
        return state


@contextmanager
def unfinished(out: Path, request: JsonObject) -> Iterator[Unfinished]:
    """A folder that takes the place `out` when the block ends without an error; its caller holds the lock.

    It goes on where an earlier call with the same `request` was killed; where
    `request["input"]` is None, nothing tells the input apart and all begins anew. Raises
    `UserError` where the disk refuses.
    """
    path = out.with_name(out.name + SUFFIX)
    with not_written(out, folder=True):
        work = Unfinished(path, request, _known_state(path / STATE, request))
        if work.state is None:
            shutil.rmtree(path, ignore_errors=True)
            work.scratch.mkdir(parents=True)
        yield work
        (path / STATE).unlink()  # first: nobody goes on without the whole scratch
        shutil.rmtree(work.scratch)
        take_place(path, out)


def _known_state(path: Path, request: JsonObject) -> JsonObject | None:
    if request["input"] is None or not path.is_file():
        return None
    try:
        state: JsonObject = read_json(path)
    except UserError:
        return None
    return state if all(state.get(key) == jsonable(wanted) for key, wanted in request.items()) else None
