"""Arrays in parts: several arrays that are read as if they lay behind each other, such as the files of a large store.

Nothing is copied until values are asked for: `array[positions]` and `take` gather from
the parts that hold them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int, Shaped

BLOCK = 1 << 22
"""Values that `stretches` gives at once."""


class PartedArray:
    """One array [E, ...] of parts [E_1, ...], [E_2, ...], ... of one dtype and width."""

    def __init__(self, parts: Sequence[Shaped[np.ndarray, "_ *w"]]):
        kinds = {(part.dtype, part.shape[1:]) for part in parts}
        assert len(kinds) == 1, "parts of one array have one dtype and width"
        self.parts = tuple(parts)
        self.dtype, self._width = kinds.pop()
        self.edges: Int[np.ndarray, "parts_1"] = np.concatenate([[0], np.cumsum([len(part) for part in parts])])

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self._width)

    @property
    def ndim(self) -> int:
        return 1 + len(self._width)

    def __len__(self) -> int:
        return int(self.edges[-1])

    def __getitem__(self, positions: Any) -> Any:
        """One value, a slice, or the values at an array of positions or under a mask."""
        if isinstance(positions, slice):
            start, stop, step = positions.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            pieces = [
                part[max(start - low, 0) : max(stop - low, 0)]
                for part, low, high in zip(self.parts, self.edges, self.edges[1:], strict=False)
                if low < stop and start < high
            ]
            return pieces[0] if len(pieces) == 1 else np.concatenate([self.parts[0][:0], *pieces])
        if isinstance(positions, (int, np.integer)):
            return self.take(np.array([positions]))[0]
        index = np.asarray(positions)
        if index.dtype == bool:
            if len(index) != len(self):
                raise IndexError(f"a mask of {len(index)} for {len(self)} values")
            return np.concatenate(
                [part[index[low:high]] for part, low, high in zip(self.parts, self.edges, self.edges[1:], strict=False)]
            )
        return self.take(index)

    def owners(self, positions: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
        """The number of the part that holds each position."""
        return np.searchsorted(self.edges, positions, side="right") - 1

    def take(self, positions: Int[np.ndarray, "*n"], axis: int = 0, mode: str = "raise") -> Shaped[np.ndarray, "*n_w"]:
        """The values at some positions; ``mode="clip"`` clips those outside, as in numpy."""
        if mode == "clip":
            flat = np.clip(positions.reshape(-1), 0, len(self) - 1)
        else:
            flat = np.where(positions < 0, positions + len(self), positions).reshape(-1)
            if len(flat) and not 0 <= int(flat.min()) <= int(flat.max()) < len(self):
                raise IndexError(f"places {flat.min()} .. {flat.max()} of {len(self)} values")
        if len(self.parts) == 1:
            return np.asarray(self.parts[0][flat]).reshape((*positions.shape, *self._width))
        gathered = np.empty((len(flat), *self._width), self.dtype)
        # one gather from each part: `order` has the requests by part, those of part p from
        # starts[p] to starts[p + 1]
        owner = self.owners(flat)
        order = np.argsort(owner, kind="stable")
        starts = np.searchsorted(owner[order], np.arange(len(self.parts) + 1))
        for number in np.flatnonzero(np.diff(starts)):
            requests = order[starts[number] : starts[number + 1]]
            gathered[requests] = self.parts[number][flat[requests] - self.edges[number]]
        return gathered.reshape((*positions.shape, *self._width))

    def max(self) -> Any:
        return np.max([part.max() for part in self.parts if len(part)])

    def min(self) -> Any:
        return np.min([part.min() for part in self.parts if len(part)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of it in memory."""
        return np.concatenate(self.parts).astype(dtype or self.dtype, copy=False)


if TYPE_CHECKING:
    Flat = np.ndarray
else:
    Flat = np.ndarray | PartedArray
"""An array in one part or in several; type checkers see a plain array, as readers may."""


def stretches(array: Flat) -> Iterator[np.ndarray]:
    """An array in stretches of one part and at most `BLOCK` values, in order; nothing is copied."""
    for part in getattr(array, "parts", (array,)):
        for start in range(0, len(part), BLOCK):
            yield part[start : start + BLOCK]


def occurrences(array: Flat, size: int) -> Int[np.ndarray, "size"]:
    """How often each of 0 .. size - 1 stands in an array, a block at a time."""
    counts = np.zeros(size, np.int64)
    for block in stretches(array):
        counts += np.bincount(block, minlength=size)
    return counts
