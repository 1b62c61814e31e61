"""Types of a saved evaluation, checked before anything is made of it: evaluation.json and the columns of its rows.

A wrong one is a `TypeError` or `ValueError` with the reason, which
`EvaluationResult.load` turns into a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import polars as pl
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from fullrank.core.errors import brief
from fullrank.core.registry import Problem
from fullrank.core.spec import error_sentence

Real = Annotated[float, Field(strict=True), BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number; null, which stands for one that does not exist, is NaN."""
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Figures = dict[str, Count | Real]


class SavedBootstrap(BaseModel):
    """The bootstrap behind the intervals."""

    samples: Count
    seed: Count
    unit: str
    level: Annotated[float, Field(strict=True, gt=0, lt=1)]


class SavedProtocol(BaseModel):
    bootstrap: SavedBootstrap


class ListProtocol(SavedProtocol):
    users: Count
    items: Count
    metrics: list[str]


class ClickProtocol(SavedProtocol):
    rows: Count


class SavedEvaluation(BaseModel):
    """An evaluation.json, with the parts of its protocol that are read."""

    metrics: dict[str, Real]
    stderr: dict[str, Real]
    interval: dict[str, tuple[Real, Real]]
    slices: dict[str, dict[str, Figures]] = {}
    curve: list[Figures] = []
    protocol: SavedProtocol


class SavedLists(SavedEvaluation):
    slices: dict[str, dict[str, Figures]]
    protocol: ListProtocol


class SavedClicks(SavedEvaluation):
    curve: list[Figures]
    protocol: ClickProtocol


def read_saved(tree: Any, problem: Problem) -> SavedEvaluation:
    """The content of an evaluation.json, which `EvaluationResult.save` wrote."""
    try:
        return (SavedLists if problem == "retrieval" else SavedClicks).model_validate(tree)
    except ValidationError as error:
        raise ValueError(f"evaluation.json: {error_sentence(error)}") from None


def check_row_types(frame: pl.DataFrame, whole: Sequence[str], real: Sequence[str]) -> None:
    """Refuse rows whose columns `whole` are no whole numbers, or whose columns `real` are no numbers."""
    for name in (*whole, *real):
        if name not in frame.columns:
            raise ValueError(f"the rows lack the column {brief(name, 80)}")
        dtype = frame[name].dtype
        if not (dtype.is_integer() if name in whole else dtype.is_numeric()) or frame[name].null_count():
            raise TypeError(f"the column {brief(name, 80)} of the rows is {dtype}, or has gaps, and is to be numbers")
