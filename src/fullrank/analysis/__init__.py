"""Trained model -> rows: what its scores, its layers and its matrices look like from inside.

    rows = diagnose(model, store, split="test", users=4096).rows

A row is a plain mapping with the keys of `row`: which diagnostic, the name of the figure, where it was taken (layer,
head, index, label) and its value. Layers and heads count from 0. What does not apply to a model (a baseline has no
layers) is left out with a row named `left_out` that says why.

An `Observer` sees each batch of one pass over a bounded sample of users (`reading.py`) and then gives its rows. Click
models have a pass over impressions (`click_reading.py`); `diagnose.py` has the list of each problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fullrank.analysis.reading import Reading

Row = dict[str, Any]
"""One figure, as it stands in diagnosis.jsonl."""

LEFT_OUT = "left_out"


class Observer(Protocol):
    def see(self, reading: Reading) -> None:
        """One batch of the sample; called outside of autograd."""
        ...

    def rows(self) -> list[Row]:
        """The figures of the whole sample."""
        ...


def row(
    diagnostic: str,
    name: str,
    value: float | int | None,
    *,
    layer: int | None = None,
    head: int | None = None,
    index: int | None = None,
    label: str | None = None,
) -> Row:
    """One figure. `value` is None where the number does not exist."""
    where: Row = {"layer": layer, "head": head, "index": index, "label": label}
    return {"diagnostic": diagnostic, "name": name, **where, "value": value}


def left_out(diagnostic: str, why: str) -> Row:
    """A diagnostic, or a part of one, that this model does not have."""
    return row(diagnostic, LEFT_OUT, None, label=why)
