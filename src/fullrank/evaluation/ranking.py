"""Evaluation of a ranking model: metrics of click probabilities, their intervals, and a reliability curve.

`slices` gives the metrics by the values of a field, which an average over all impressions hides. A
row stands in the slice of its value, and of a bag in those of all its values. The `MOST` values
with the most rows have a slice each, the others share one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int, Int64

from fullrank.core.errors import UserError, unknown
from fullrank.core.files import JsonObject
from fullrank.core.log import Progress, untold
from fullrank.data.batch import Impressions
from fullrank.data.impressions.encoding import FieldEncoder, is_categorical
from fullrank.data.impressions.schema import AnyField, BagOf, Numeric
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.impressions.vocabulary import FIRST, MISSING, UNKNOWN, Vocabulary
from fullrank.evaluation.result import EvaluationResult, PerImpression
from fullrank.evaluation.retrieval import check_split
from fullrank.evaluation.spec import RankingEvaluation, Selection
from fullrank.evaluation.statistics import bounds
from fullrank.inference.predict import predict_batch
from fullrank.metrics import ctr
from fullrank.models.ranking import ClickModel
from fullrank.models.ranking.calibration import Calibration
from fullrank.models.ranking.model import checked_labels

CALIBRATED = ("ece", "logloss", "pcoc")
"""Metrics that calibration changes."""
MOST = 20
CHUNK = 1 << 16
"""Rows that are read at once."""


def evaluate_ranking(
    model: ClickModel,
    store: ImpressionStore,
    split: str,
    spec: RankingEvaluation = RankingEvaluation(),
    *,
    progress: Progress = untold,
) -> EvaluationResult:
    """The model's metrics on all impressions of a split.

    Raises `UserError` where the split has no impressions, or they have no labels.
    """
    fields = slice_fields(store.encoder, spec.slices)  # an unknown field is refused before minutes are spent
    rows = predict_rows(model, store, split_rows(store, split), spec.batch_size, progress=progress)
    evaluation = ranking_result(rows, spec, split, store.fingerprint)
    if model.calibration is not None:
        evaluation.protocol["calibration"] = _before(rows, model.calibration.spec, spec)
    if not fields:
        return evaluation
    slices: dict[str, dict[str, dict[str, float | int]]] = {}
    for field in fields:
        parts = ((label, rows.take(at)) for label, at in slice_rows(store, rows.rows, field))
        slices[field.name] = {
            label: {"count": len(part.rows), "clicks": int(part.labels.sum())}
            | {name: value for name, value in click_metrics(part, spec.bins).items() if name in evaluation.metrics}
            for label, part in parts
        }
    return replace(evaluation, slices=slices, protocol=evaluation.protocol | {"slices": list(spec.slices)})


def ranking_result(rows: PerImpression, spec: RankingEvaluation, split: str, fingerprint: str) -> EvaluationResult:
    """Metrics, intervals and protocol of these rows."""
    if spec.unit == "group":
        _require_groups(rows, "unit=group", "use unit=row")
    if "gauc" in (spec.metrics or ()):
        _require_groups(rows, "the metric gauc", "leave it out")
    metrics = click_metrics(rows, spec.bins)
    protocol: JsonObject = {
        "kind": "clicks",
        "split": split,
        "fingerprint": fingerprint,
        "rows": len(rows.rows),
        "clicks": int(rows.labels.sum()),
        "ties": "one half",
        "bins": spec.bins,
        "gauc_groups": None,
        "gauc_left_out": None,
        "bootstrap": {"samples": spec.bootstrap, "level": spec.level, "seed": spec.seed, "unit": spec.unit},
    }
    if rows.groups is not None:
        within = rows.gauc
        protocol |= {"gauc_groups": within.groups, "gauc_left_out": within.left_out}
        protocol["bootstrap"]["gauc"] = "groups with both classes"
    if spec.metrics is not None:
        protocol["metrics"] = list(spec.metrics)
        metrics = {name: metrics[name] for name in spec.metrics}
    drawn = rows.resample(by_group=spec.unit == "group", samples=spec.bootstrap, seed=spec.seed)
    drawn = {name: values for name, values in drawn.items() if name in metrics}
    stderr = {n: float(v.std(ddof=1)) if len(v) > 1 else math.nan for n, v in drawn.items()}
    interval = {n: bounds(v, spec.level) for n, v in drawn.items()}
    return EvaluationResult(metrics, stderr, interval, {}, protocol, rows, rows.curve(spec.bins))


def click_metrics(rows: PerImpression, bins: int) -> dict[str, float]:
    """Every metric of these rows; gauc where they have groups, NaN where a metric is not defined on them."""
    area, loss = rows.auc, rows.logloss
    error = ctr.ece(rows.curve(bins))
    clicks = float(rows.labels.sum())
    pcoc = float(rows.probabilities.sum()) / clicks if clicks else math.nan
    metrics = {"auc": area, "logloss": loss, "auc-logloss": area - loss, "ece": error, "pcoc": pcoc}
    if rows.groups is not None:
        metrics["gauc"] = rows.gauc.value
    return metrics


def _before(rows: PerImpression, calibration: Calibration, spec: RankingEvaluation) -> JsonObject:
    """Protocol of a calibration: its method, how many validation rows it was fitted on,
    and the metrics without it."""
    raw = replace(rows, probabilities=calibration.inverse().of_probabilities(rows.probabilities))
    before = {name: value for name, value in click_metrics(raw, spec.bins).items() if name in CALIBRATED}
    return {"method": calibration.method, "fitted_on": "validation", "rows": calibration.rows, "before": before}


def _require_groups(rows: PerImpression, what: str, remedy: str) -> None:
    """Raise `UserError` where the store has no groups, which `what`
    needs; `remedy` says what to do."""
    if rows.groups is None:
        raise no_group_column(what, remedy)


def no_group_column(what: str, remedy: str) -> UserError:
    """The error for what needs groups, of a store without them."""
    return UserError(
        f"{what} needs a group column and this store has none: prepare it with one (user_col), or {remedy}",
        code="no-group-column",
    )


def selection_value(rows: PerImpression, selection: Selection) -> float:
    """The value of a selection metric."""
    if selection == "logloss":
        return rows.logloss
    if selection == "gauc":
        _require_groups(rows, "the selection metric gauc", "select auc")
        return rows.gauc.value
    return rows.auc if selection == "auc" else rows.auc - rows.logloss


def split_rows(store: ImpressionStore, split: str) -> Int[np.ndarray, "N"]:
    """Row numbers of a split."""
    check_split(split)
    rows = store.split(split)
    if not len(rows):
        raise UserError(
            f"the store has no impressions in the split {split!r}: prepare it with another split",
            code="no-impressions-in-split",
        )
    return np.arange(rows.start, rows.stop)


def predict_rows(
    model: ClickModel,
    store: ImpressionStore,
    rows: Int[np.ndarray, "N"],
    batch_size: int,
    *,
    progress: Progress = untold,
) -> PerImpression:
    """Probability, label and group of these rows of a store."""
    probabilities, labels, groups = [], [], []
    for batch in row_batches(store, rows, batch_size, progress):
        labels.append(checked_labels(batch.labels).numpy())
        if batch.groups is not None:
            groups.append(batch.groups.numpy())
        probabilities.append(predict_batch(model, batch))
    group_ids = np.concatenate(groups).astype(np.int64) if groups else None
    return PerImpression(rows, np.concatenate(probabilities), np.concatenate(labels).astype(np.float64), group_ids)


def row_batches(store: ImpressionStore, rows: np.ndarray, size: int, progress: Progress) -> Iterator[Impressions]:
    """Batches of `size` rows of a store."""
    for low in range(0, len(rows), size):
        yield store.batch(rows[low : low + size])
        progress(min(low + size, len(rows)), len(rows))


def slice_fields(encoder: FieldEncoder, names: Sequence[str]) -> list[AnyField]:
    """The fields of these names. Raises `UserError` for a name that is none, and where few rows share a value."""
    fields = {field.name: field for field in encoder.schema.fields}
    for name in names:
        if name not in fields:
            raise unknown("field", name, fields)
        field = fields[name]
        if not is_categorical(field) and not isinstance(field, BagOf):
            raise UserError(
                f"the field {name!r} is {'numbers' if isinstance(field, Numeric) else 'a sequence'}, of which few rows "
                "share a value: slices are of categorical fields, bags, and numbers with transform=bucket",
                code="field-without-slices",
            )
    return [fields[name] for name in names]


def slice_rows(
    store: ImpressionStore, rows: Int64[np.ndarray, "N"], field: AnyField
) -> Iterator[tuple[str, Int[np.ndarray, "n"]]]:
    """Each slice of a field: its label, and the positions of its rows in `rows`;
    the slices of most rows first."""
    positions, ids = _pairs(store, rows, field)
    counts = np.bincount(ids)
    ordered = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())]
    labels: set[str] = set()
    for value in ordered[:MOST].tolist():
        label = _label(store.encoder, field, value)
        label = f"{label} (id {value})" if label in labels else label  # a value may be called "(missing)"
        labels.add(label)
        yield label, positions[ids == value]
    if len(ordered) > MOST:
        others = np.unique(positions[np.isin(ids, ordered[MOST:])])
        yield f"({len(ordered) - MOST:,} other values)", others


def _pairs(
    store: ImpressionStore, rows: Int64[np.ndarray, "N"], field: AnyField
) -> tuple[Int64[np.ndarray, "P"], Int64[np.ndarray, "P"]]:
    """Pairs of a row's position and the id of a value that it has; a bag without
    values has the missing one."""
    encoder = store.encoder
    places, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for low in range(0, len(rows), CHUNK):
        batch = store.batch(rows[low : low + CHUNK])
        if not isinstance(field, BagOf):
            ids.append(batch.categorical[:, encoder.categorical.index(field)].numpy())
            places.append(np.arange(len(ids[-1])) + low)
            continue
        bag = batch.bags[encoder.multivalued.index(field)]
        table, lengths = bag.ids.numpy(), bag.lengths.numpy()
        row, column = np.nonzero(np.arange(table.shape[1]) < lengths[:, None])
        bare = np.flatnonzero(lengths == 0)
        pairs = np.stack([np.append(row, bare), np.append(table[row, column], np.full(len(bare), MISSING))])
        row, value = np.unique(pairs, axis=1)
        places.append(row + low)
        ids.append(value)
    return np.concatenate(places), np.concatenate(ids)


def _label(encoder: FieldEncoder, field: AnyField, value: int) -> str:
    """The label of a slice: the value, the range of a bucket, or the number of a hash bucket."""
    if value in (MISSING, UNKNOWN):
        return "(missing)" if value == MISSING else "(unknown)"
    number = value - FIRST
    if isinstance(field, Numeric):
        edges = encoder.fitted[field.name]["edges"]
        low = f"{edges[number - 1]:g} <= " if number else ""
        return f"{low}{field.name}" + (f" < {edges[number]:g}" if number < len(edges) else "")
    lookup = encoder.lookup(field)
    return str(lookup.values[number]) if isinstance(lookup, Vocabulary) else f"hash bucket {number}"
