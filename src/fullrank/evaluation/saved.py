"""What a saved evaluation has to be before anything is made of it: the types of evaluation.json and of its rows.

`check_tree` and `check_row_types` raise `TypeError` or `ValueError` with the reason, of which `EvaluationResult.load`
makes a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from fullrank.core.errors import brief
from fullrank.data.manifest import is_count
from fullrank.problem import Problem


def check_tree(tree: Mapping[str, Any], problem: Problem) -> None:
    """Refuse an evaluation.json with a value of another type than `EvaluationResult.save` writes."""
    for key in ("metrics", "stderr", "interval", "protocol"):
        _object(key, tree[key])
    for key in ("metrics", "stderr"):
        _numbers(key, tree[key])
    for name, pair in tree["interval"].items():
        if not (isinstance(pair, list) and len(pair) == 2 and all(map(_number, pair))):
            raise TypeError(f"'interval' of {brief(name, 80)} is {brief(pair, 80)}, no two numbers")
    slices = tree["slices"] if problem == "retrieval" else tree.get("slices", {})
    for slice_name, labels in _object("slices", slices).items():
        for label, numbers in _object(f"slices.{slice_name}", labels).items():
            _numbers(f"slices.{slice_name}.{label}", _object(f"slices.{slice_name}.{label}", numbers))
    if problem == "ranking":
        if not isinstance(tree["curve"], list):
            raise TypeError(f"'curve' is {brief(tree['curve'], 80)}, no list")
        for point in tree["curve"]:
            _numbers("curve", _object("curve", point))
    _protocol(tree["protocol"], problem)


def check_row_types(frame: pl.DataFrame, whole: Sequence[str], real: Sequence[str]) -> None:
    """Refuse rows whose columns `whole` are no whole numbers, or whose columns `real` are no numbers."""
    for name, wanted in [*((name, True) for name in whole), *((name, False) for name in real)]:
        if name not in frame.columns:
            raise ValueError(f"the rows lack the column {brief(name, 80)}")
        dtype = frame[name].dtype
        if not (dtype.is_integer() if wanted else dtype.is_numeric()) or frame[name].null_count():
            raise TypeError(f"the column {brief(name, 80)} of the rows is {dtype}, or has gaps, and is to be numbers")


def _protocol(protocol: Mapping[str, Any], problem: Problem) -> None:
    boot = _object("protocol.bootstrap", protocol["bootstrap"])
    for key in ("samples", "seed"):
        if not is_count(boot[key]):
            raise TypeError(f"'protocol.bootstrap.{key}' is {brief(boot[key], 80)}, no whole number of at least 0")
    if not isinstance(boot["unit"], str):
        raise TypeError(f"'protocol.bootstrap.unit' is {brief(boot['unit'], 80)}, no text")
    if not (isinstance(boot["level"], float) and 0 < boot["level"] < 1):
        raise TypeError(f"'protocol.bootstrap.level' is {brief(boot['level'], 80)}, no share between 0 and 1")
    counts = ("users", "items") if problem == "retrieval" else ("rows",)
    for key in counts:
        if not is_count(protocol[key]):
            raise TypeError(f"'protocol.{key}' is {brief(protocol[key], 80)}, no whole number of at least 0")
    names = protocol["metrics"] if problem == "retrieval" else []
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise TypeError(f"'protocol.metrics' is {brief(names, 80)}, no list of names")


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{brief(name, 120)} is {brief(value, 80)}, no object")
    return value


def _numbers(name: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if not _number(value):
            raise TypeError(f"{brief(f'{name}.{key}', 120)} is {brief(value, 80)}, no number")


def _number(value: Any) -> bool:
    """Whether a value is a number, or null: one that cannot be told."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or isinstance(value, float) or (known and abs(value) < 2**1000)  # it becomes a float
