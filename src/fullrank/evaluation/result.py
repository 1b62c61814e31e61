"""What an evaluation found: per-user rows, their summary, and both on disk (Parquet and JSON)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from fullrank.errors import UserError
from fullrank.evaluation.beside import gaps
from fullrank.evaluation.slices import sliced
from fullrank.evaluation.statistics import summarise
from fullrank.metrics.names import Name, expand
from fullrank.ops.safe_files import write_text

BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a file raises that is not what `Evaluated.save` wrote."""

SETTABLE = ("seen", "popularity")
"""Parts of a protocol that one setting of the same name changes."""
FOLLOWING = {"unreachable"}
"""Parts that follow from others."""


@dataclass(frozen=True)
class PerUser:
    """One row per user of a shard, by ascending user row, and the protocol of the whole evaluation."""

    users: Int[np.ndarray, "U"]
    values: dict[str, Float[np.ndarray, "U"]]
    """By metric name; metrics of all lists together are not here."""
    lists: Int[np.ndarray, "U K"] | None
    """The ranked item ids; None under the sampled protocol."""
    groups: dict[str, Int[np.ndarray, "U"]]
    """Slice -> place of the user's label in `slices.LABELS`."""
    protocol: dict[str, Any]
    steps: Int[np.ndarray, "U"] | None = None
    """Reasoning steps of each user where stopping was adaptive."""
    sampled: dict[str, Float[np.ndarray, "U"]] = field(default_factory=dict)
    """Accuracy metrics among shared negatives (`Evaluation.sampled`), where they were asked for."""


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation found, by metric name (`ndcg@10`). A number that cannot be told is NaN here, null on disk."""

    metrics: dict[str, float]
    """Means over users; for metrics of all lists together the value of these lists."""
    stderr: dict[str, float]
    """Standard errors of `metrics` over users."""
    interval: dict[str, tuple[float, float]]
    """Lower and upper end of the bootstrap interval over users."""
    slices: dict[str, dict[str, dict[str, float | int]]]
    """Slice -> label -> the metrics of those users, and how many they are."""
    protocol: dict[str, Any]
    """Everything that the numbers depend on besides the model."""
    per_user: PerUser
    """The rows behind the means."""

    @property
    def mean_steps(self) -> float | None:
        """Reasoning steps a user took on average; None where stopping was not adaptive."""
        return None if self.per_user.steps is None else float(self.per_user.steps.mean())

    @property
    def sampled(self) -> dict[str, dict[str, float]]:
        """Metric -> `full`, `sampled` and their `gap`; empty where no sampled metrics were asked for."""
        return gaps(self.metrics, self.per_user.sampled)

    def dump(self) -> dict[str, Any]:
        """Plain data without the per-user rows; numbers that do not exist are None."""
        found: dict[str, Any] = {} if self.mean_steps is None else {"mean_steps": self.mean_steps}
        if self.per_user.sampled:
            found["sampled"] = self.sampled
        return found | {
            "metrics": _plain(self.metrics),
            "stderr": _plain(self.stderr),
            "interval": {n: [number_or_null(v) for v in pair] for n, pair in self.interval.items()},
            "slices": self.slices,
            "protocol": self.protocol,
        }

    def to_json(self) -> str:
        return json.dumps(self.dump(), indent=2) + "\n"

    def save(self, folder: Path | str) -> None:
        """Writes `evaluation.json` and `per_user.parquet` (user, metrics, `slice:` codes, `steps`, `items`)."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        rows = self.per_user
        columns: dict[str, Any] = {"user": rows.users, **rows.values}
        columns |= {f"slice:{name}": code for name, code in rows.groups.items()}
        columns |= {f"sampled:{name}": values for name, values in rows.sampled.items()}
        if rows.steps is not None:
            columns["steps"] = rows.steps
        frame = pl.DataFrame(columns)
        if rows.lists is not None:
            frame = frame.with_columns(items=pl.Series(rows.lists))
        frame.write_parquet(folder / "per_user.parquet")
        write_text(folder / "evaluation.json", self.to_json())

    @staticmethod
    def load(folder: Path | str) -> Evaluated:
        """The inverse of `save`. Raises `UserError` where the folder does not hold an evaluation."""
        folder = Path(folder)
        try:
            tree = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
            frame = pl.read_parquet(folder / "per_user.parquet")
            return _restored(tree, frame)
        except (*BROKEN, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise UserError(f"{folder} does not hold an evaluation saved by `Evaluated.save` ({error})") from None


def merge(parts: Sequence[PerUser]) -> Evaluated:
    """The evaluation of all users from the rows of every shard, in any order; equal to that of one process."""
    if not parts:
        raise UserError("there are no shards to merge: give the result of `measure` of every rank")
    protocol = parts[0].protocol
    for part in parts[1:]:
        if part.protocol != protocol:
            raise UserError(f"these shards belong to different evaluations: {differing(protocol, part.protocol)}")
    users = np.concatenate([p.users for p in parts])
    if len(users) != protocol["users"] or len(np.unique(users)) != len(users):
        raise UserError(f"the shards hold {len(users)} of {protocol['users']} users: give each shard once")
    order = np.argsort(users, kind="stable")
    filled = [p for p in parts if len(p.users)]
    rows = PerUser(
        users[order],
        {n: np.concatenate([p.values[n] for p in filled])[order] for n in filled[0].values},
        None if filled[0].lists is None else np.concatenate([p.lists for p in filled if p.lists is not None])[order],
        {n: np.concatenate([p.groups[n] for p in filled])[order] for n in filled[0].groups},
        protocol,
        None if filled[0].steps is None else np.concatenate([p.steps for p in filled if p.steps is not None])[order],
        {n: np.concatenate([p.sampled[n] for p in filled])[order] for n in filled[0].sampled},
    )
    return _summarised(rows)


def names_of(protocol: dict[str, Any]) -> list[Name]:
    return expand(protocol["metrics"], ())


def differing(a: dict[str, Any], b: dict[str, Any]) -> str:
    """The keys in which two protocols differ, with both values (of a fingerprint, its beginning)."""
    keys = [k for k in {**a, **b} if a.get(k) != b.get(k)]
    return ", ".join(f"{k} ({_brief(a.get(k))} and {_brief(b.get(k))})" for k in keys)


def remedy(a: dict[str, Any], b: dict[str, Any]) -> str:
    """What makes two protocols alike; nothing where no setting does, as with different data."""
    keys = {k for k in {**a, **b} if a.get(k) != b.get(k)}
    if not keys & set(SETTABLE) or keys - set(SETTABLE) - FOLLOWING:
        return ""
    words = [f"--set {k}={str(a.get(k)).removesuffix(' events')}" for k in SETTABLE if k in keys]
    return "; evaluate them alike with " + " ".join(words)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 24 else f"{text[:13]}...{text[0]}"


def _summarised(rows: PerUser) -> Evaluated:
    boot = rows.protocol["bootstrap"]
    summary = summarise(
        rows.values,
        rows.lists,
        names_of(rows.protocol),
        items=rows.protocol["items"],
        samples=boot["samples"],
        seed=boot["seed"],
        level=boot["level"],
    )
    slices = sliced(rows.values, rows.groups)
    return Evaluated(summary.mean, summary.stderr, summary.interval, slices, rows.protocol, rows)


def _restored(tree: dict[str, Any], frame: pl.DataFrame) -> Evaluated:
    for key in ("metrics", "stderr", "interval", "slices", "protocol"):
        if not isinstance(tree[key], dict):
            raise TypeError(f"{key!r} is no object")
    names = [str(n) for n in names_of(tree["protocol"]) if n.per_user]
    rows = PerUser(
        frame["user"].to_numpy(),
        {n: frame[n].to_numpy() for n in names},
        frame["items"].to_numpy() if "items" in frame.columns else None,
        {c.removeprefix("slice:"): frame[c].to_numpy() for c in frame.columns if c.startswith("slice:")},
        tree["protocol"],
        frame["steps"].to_numpy() if "steps" in frame.columns else None,
        {c.removeprefix("sampled:"): frame[c].to_numpy() for c in frame.columns if c.startswith("sampled:")},
    )
    interval = {n: (float_or_nan(low), float_or_nan(high)) for n, (low, high) in tree["interval"].items()}
    metrics, stderr = ({n: float_or_nan(v) for n, v in tree[key].items()} for key in ("metrics", "stderr"))
    return Evaluated(metrics, stderr, interval, tree["slices"], tree["protocol"], rows)


def _plain(values: dict[str, float]) -> dict[str, float | None]:
    return {name: number_or_null(value) for name, value in values.items()}


def number_or_null(value: float) -> float | None:
    return None if math.isnan(value) else value


def float_or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
