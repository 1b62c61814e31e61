"""What an evaluation of clicks found: a row per impression, metrics with intervals, and two runs compared.

Intervals are percentiles of bootstrap samples: rows (or whole groups) drawn with replacement, as counts per row, so
that a resampled AUC costs no sort. Two runs are resampled together; p is two-sided, from the share of samples in which
the difference has the other sign.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from fullrank.errors import UserError, unknown
from fullrank.evaluation.clicks_spec import Clicks
from fullrank.evaluation.compare import Comparison
from fullrank.evaluation.result import BROKEN, differing, float_or_nan, number_or_null
from fullrank.evaluation.statistics import RESAMPLED, bootstrap_p, bounds, resample_clicks
from fullrank.metrics import ctr
from fullrank.ops.safe_files import write_text


@dataclass(frozen=True)
class ClickRows:
    """One row per impression, in the order of the store."""

    rows: Int[np.ndarray, "N"]
    """Row numbers in the store."""
    probabilities: Float[np.ndarray, "N"]
    labels: Float[np.ndarray, "N"]
    groups: Int[np.ndarray, "N"] | None


@dataclass(frozen=True)
class Clicked:
    """What an evaluation of clicks found. A number that cannot be told is NaN here, null on disk."""

    metrics: dict[str, float]
    """auc, logloss, auc-logloss, ece, pcoc; gauc where there are groups."""
    stderr: dict[str, float]
    """Standard deviation of the bootstrap values."""
    interval: dict[str, tuple[float, float]]
    """Lower and upper end of the bootstrap interval."""
    curve: tuple[ctr.Bin, ...]
    """The reliability curve."""
    protocol: dict[str, Any]
    """Everything that the numbers depend on besides the model."""
    per_row: ClickRows
    """The rows behind the numbers."""

    def dump(self) -> dict[str, Any]:
        """Plain data without the rows; numbers that do not exist are None."""
        plain: dict[str, Any] = {
            k: {n: number_or_null(v) for n, v in getattr(self, k).items()} for k in ("metrics", "stderr")
        }
        plain["interval"] = {n: [number_or_null(v) for v in pair] for n, pair in self.interval.items()}
        return {**plain, "curve": [asdict(one) for one in self.curve], "protocol": self.protocol}

    def to_json(self) -> str:
        return json.dumps(self.dump(), indent=2) + "\n"

    def save(self, folder: Path | str) -> None:
        """Writes `evaluation.json` and `per_row.parquet` (row, probability, label, group)."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        rows = self.per_row
        frame = pl.DataFrame({"row": rows.rows, "probability": rows.probabilities, "label": rows.labels})
        if rows.groups is not None:
            frame = frame.with_columns(group=pl.Series(rows.groups))
        frame.write_parquet(folder / "per_row.parquet")
        write_text(folder / "evaluation.json", self.to_json())

    @staticmethod
    def load(folder: Path | str) -> Clicked:
        """The inverse of `save`. Raises `UserError` where the folder does not hold such an evaluation."""
        folder = Path(folder)
        try:
            tree = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
            frame = pl.read_parquet(folder / "per_row.parquet")
            groups = frame["group"].to_numpy() if "group" in frame.columns else None
            row, probability, label = (frame[name].to_numpy() for name in ("row", "probability", "label"))
            rows = ClickRows(row, probability, label, groups)
            metrics, stderr = ({n: float_or_nan(v) for n, v in tree[key].items()} for key in ("metrics", "stderr"))
            interval = {n: (float_or_nan(low), float_or_nan(high)) for n, (low, high) in tree["interval"].items()}
            curve = tuple(ctr.Bin(**one) for one in tree["curve"])
            return Clicked(metrics, stderr, interval, curve, dict(tree["protocol"]), rows)
        except (*BROKEN, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise UserError(f"{folder} does not hold an evaluation saved by `Clicked.save` ({error})") from None


def summarised(rows: ClickRows, spec: Clicks, split: str, fingerprint: str) -> Clicked:
    """Metrics, intervals and protocol of some rows."""
    if spec.unit == "group" and rows.groups is None:
        raise UserError("unit=group resamples groups and this store has no group column: use unit=row")
    curve = ctr.reliability(rows.probabilities, rows.labels, spec.bins)
    area, loss = ctr.auc(rows.probabilities, rows.labels), float(ctr.losses(rows.probabilities, rows.labels).mean())
    clicks = float(rows.labels.sum())
    pcoc = float(rows.probabilities.sum()) / clicks if clicks else math.nan
    metrics = {"auc": area, "logloss": loss, "auc-logloss": area - loss, "ece": ctr.ece(curve), "pcoc": pcoc}
    protocol = {
        "kind": "clicks", "split": split, "fingerprint": fingerprint, "rows": len(rows.rows), "clicks": int(clicks),
        "ties": "one half", "bins": spec.bins, "gauc_groups": None, "gauc_left_out": None,
        "bootstrap": {"samples": spec.bootstrap, "level": spec.level, "seed": spec.seed, "unit": spec.unit},
    }  # fmt: skip
    if rows.groups is not None:
        within = ctr.gauc(rows.probabilities, rows.labels, rows.groups)
        metrics["gauc"] = within.value
        protocol |= {"gauc_groups": within.groups, "gauc_left_out": within.left_out}
    drawn = resampled(rows, spec.bootstrap, spec.seed, spec.unit)
    stderr = {n: float(v.std(ddof=1)) if len(v) > 1 else math.nan for n, v in drawn.items()}
    return Clicked(metrics, stderr, {n: bounds(v, spec.level) for n, v in drawn.items()}, curve, protocol, rows)


def compare_clicks(
    a: Clicked, b: Clicked, metric: str, *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> Comparison:
    """The difference b - a on the same impressions, its paired bootstrap interval and p."""
    free = ("bootstrap", "bins", "gauc_groups", "gauc_left_out")
    ours, theirs = ({k: v for k, v in side.protocol.items() if k not in free} for side in (a, b))
    if ours != theirs or not np.array_equal(a.per_row.rows, b.per_row.rows):
        raise UserError(
            f"these evaluations cannot be compared: their protocols differ in {differing(ours, theirs) or 'rows'}; "
            "evaluate both in the same way"
        )
    if metric not in RESAMPLED:
        raise unknown("metric of a comparison of clicks", metric, RESAMPLED)
    if samples < 1:
        raise UserError(f"samples must be at least 1, not {samples}")
    unit = a.protocol["bootstrap"]["unit"]
    drawn = resampled(b.per_row, samples, seed, unit)[metric] - resampled(a.per_row, samples, seed, unit)[metric]
    p = bootstrap_p(drawn)
    before, after = a.metrics[metric], b.metrics[metric]
    test = f"paired bootstrap of {unit}s, {samples} samples"
    return Comparison(metric, before, after, after - before, bounds(drawn, level), p, test, len(a.per_row.rows))


def resampled(rows: ClickRows, samples: int, seed: int, unit: str) -> dict[str, Float[np.ndarray, "S"]]:
    """Values of the metrics on bootstrap samples; sample s is a pure function of (seed, s)."""
    groups = rows.groups if unit == "group" else None
    return resample_clicks(rows.probabilities, rows.labels, groups, samples=samples, seed=seed)
