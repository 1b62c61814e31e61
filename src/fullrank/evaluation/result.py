"""Evaluation results: metrics with standard errors and intervals, the rows behind them, and their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Float, Int, Integer

from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, NotWritten, jsonable, whole_file, write_json
from fullrank.core.parquet import read_parquet
from fullrank.core.readers import read_json, refuse_special
from fullrank.core.registry import Problem
from fullrank.core.tables import write_table
from fullrank.data.manifest import check_seal, require_no_store, sealed, sha256_file
from fullrank.evaluation.sampled import sampled_gaps
from fullrank.evaluation.saved import check_row_types, read_saved
from fullrank.evaluation.spec import HISTORY
from fullrank.evaluation.statistics import resample_clicks, slice_labels, slice_means, summarise
from fullrank.evaluation.summary import metric_table, population, protocol_notes
from fullrank.metrics import RankedIds, RowValues, UserValues, ctr
from fullrank.metrics.names import Name, expand_metrics

BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of reading a file that `EvaluationResult.save` did not write."""

SETTABLE = ("seen", "popularity")
"""Parts of a protocol that one setting of the same name changes."""
FOLLOWING = {"unreachable"}
"""Parts that follow from others."""


@dataclass(frozen=True)
class PerUser:
    """One row per user of a shard, by ascending user row, and the protocol of the whole evaluation."""

    problem: ClassVar[Literal["retrieval"]] = "retrieval"
    file: ClassVar[str] = "per_user.parquet"

    users: Int[np.ndarray, "U"]
    values: dict[str, UserValues]
    """Values by metric name; metrics of all lists together are not here."""
    lists: RankedIds | None
    """The ranked item ids; None under the sampled protocol."""
    groups: dict[str, Int[np.ndarray, "U"]]
    """Slice -> index of the user's label in `statistics.slice_labels`."""
    protocol: JsonObject
    steps: Int[np.ndarray, "U"] | None = None
    """Reasoning steps of each user where stopping was adaptive."""
    sampled: dict[str, UserValues] = field(default_factory=dict)
    """Accuracy metrics among shared negatives (`Evaluation.sampled`), where they were asked for."""

    @property
    def ids(self) -> Int[np.ndarray, "U"]:
        """Rows of the users: two results are compared only on the same ones."""
        return self.users

    def table(self) -> pl.DataFrame:
        """The columns user, each metric, `slice:` codes, `sampled:` metrics, `steps` and `items`."""
        columns: dict[str, Any] = {"user": self.users, **self.values}
        columns |= {f"slice:{name}": code for name, code in self.groups.items()}
        columns |= {f"sampled:{name}": values for name, values in self.sampled.items()}
        if self.steps is not None:
            columns["steps"] = self.steps
        frame = pl.DataFrame(columns)
        return frame if self.lists is None else frame.with_columns(items=pl.Series(self.lists))

    @staticmethod
    def read(frame: pl.DataFrame, protocol: JsonObject) -> PerUser:
        """The inverse of `table`. Raises `TypeError` or `ValueError` for columns that it did not write."""
        optional = [name for name in frame.columns if name == "steps" or name.startswith("slice:")]
        accuracy = [str(name) for name in metric_names(protocol) if name.per_user]
        check_row_types(frame, ["user", *optional], accuracy)
        return PerUser(
            frame["user"].to_numpy(),
            {name: frame[name].to_numpy() for name in accuracy},
            frame["items"].to_numpy() if "items" in frame.columns else None,
            _prefixed(frame, "slice:"),
            protocol,
            frame["steps"].to_numpy() if "steps" in frame.columns else None,
            _prefixed(frame, "sampled:"),
        )


@dataclass(frozen=True)
class PerImpression:
    """One row per impression, in the order of the store."""

    problem: ClassVar[Literal["ranking"]] = "ranking"
    file: ClassVar[str] = "per_row.parquet"

    rows: Int[np.ndarray, "N"]
    """Row numbers in the store."""
    probabilities: RowValues
    labels: RowValues
    groups: Int[np.ndarray, "N"] | None

    @property
    def ids(self) -> Int[np.ndarray, "N"]:
        """Rows of the impressions: two results are compared only on the same ones."""
        return self.rows

    @property
    def auc(self) -> float:
        """NaN where a class has no row."""
        return ctr.auc(self.probabilities, self.labels)

    @property
    def logloss(self) -> float:
        return float(ctr.losses(self.probabilities, self.labels).mean())

    @property
    def gauc(self) -> ctr.Grouped:
        """Within groups, which have to be there."""
        assert self.groups is not None
        return ctr.gauc(self.probabilities, self.labels, self.groups)

    def curve(self, bins: int) -> tuple[ctr.Bin, ...]:
        """The reliability curve."""
        return ctr.reliability_curve(self.probabilities, self.labels, bins)

    def resample(self, *, by_group: bool, samples: int, seed: int) -> dict[str, Float[np.ndarray, "S"]]:
        """The metrics of bootstrap samples of the rows, or of whole groups."""
        return resample_clicks(
            self.probabilities, self.labels, self.groups, by_group=by_group, samples=samples, seed=seed
        )

    def take(self, at: Integer[np.ndarray, "n"]) -> PerImpression:
        """The rows at these positions."""
        groups = None if self.groups is None else self.groups[at]
        return PerImpression(self.rows[at], self.probabilities[at], self.labels[at], groups)

    def table(self) -> pl.DataFrame:
        """The columns row, probability, label, and group where there are groups."""
        frame = pl.DataFrame({"row": self.rows, "probability": self.probabilities, "label": self.labels})
        return frame if self.groups is None else frame.with_columns(group=pl.Series(self.groups))

    @staticmethod
    def read(frame: pl.DataFrame, protocol: JsonObject) -> PerImpression:
        """The inverse of `table`. Raises `TypeError` or `ValueError` for columns that it did not write."""
        check_row_types(frame, [name for name in ("row", "group") if name in frame.columns], ["probability", "label"])
        row, probability, label = (frame[name].to_numpy() for name in ("row", "probability", "label"))
        return PerImpression(row, probability, label, frame["group"].to_numpy() if "group" in frame.columns else None)


Rows = PerUser | PerImpression
R = TypeVar("R", PerUser, PerImpression)


@dataclass(frozen=True)
class EvaluationResult:
    """Metrics of an evaluation by name (`ndcg@10`, `auc`), with errors, intervals, slices, protocol and rows.

    A number that does not exist is NaN here, null on disk. `rows` say which problem it is of.
    """

    metrics: dict[str, float]
    """Means over users, and of all lists together their value; or the value over all impressions."""
    stderr: dict[str, float]
    """Standard errors of `metrics` over users, or standard deviations of bootstrap samples of impressions."""
    interval: dict[str, tuple[float, float]]
    """Lower and upper end of the bootstrap interval over users or impressions."""
    slices: dict[str, dict[str, dict[str, float | int]]]
    """Slice -> label -> the metrics of those users or impressions, and how many they are."""
    protocol: JsonObject
    """Everything that the numbers depend on besides the model."""
    rows: Rows
    """The rows behind the numbers."""
    curve: tuple[ctr.Bin, ...] = ()
    """The reliability curve; of impressions only."""

    def __repr__(self) -> str:
        shown = [f"{name} {value:.4f}" for name, value in self.metrics.items()]
        names = ", ".join([*shown[:3], *[f"and {len(shown) - 3} more"] * (len(shown) > 3)])
        return f"EvaluationResult({self.protocol.get('split', 'no split')}: {names})"

    def __str__(self) -> str:
        """The main metrics of lists as a table, and whom they are measured on; for
        click probabilities, as `repr`."""
        if self.problem != "retrieval":
            return repr(self)
        table = metric_table(self.metrics, self.per_user.values)
        lines = [str(table), table.note, population(self.protocol), *(f"note: {note}" for note in self.notes)]
        return "\n".join(line for line in lines if line)

    @property
    def problem(self) -> Problem:
        return self.rows.problem

    @property
    def per_user(self) -> PerUser:
        """The rows of users. Raises `UserError` where there is one per impression."""
        return self._rows_of(PerUser)

    @property
    def per_impression(self) -> PerImpression:
        """The rows of impressions. Raises `UserError` where there is one per user."""
        return self._rows_of(PerImpression)

    def _rows_of(self, kind: type[R]) -> R:
        """The rows, where they are of this kind. Raises `UserError` where
        they are of the other problem."""
        if isinstance(self.rows, kind):
            return self.rows
        users = self.problem == "retrieval"
        present, lacking = ("user", "impression") if users else ("impression", "user")
        raise UserError(
            f"this evaluation has a row per {present} and none per {lacking}: read per_{present}",
            code="rows-of-users" if users else "rows-of-impressions",
        )

    @property
    def notes(self) -> list[str]:
        """Notes to read the numbers by, as sentences: what was left out, and what may have leaked."""
        return [*protocol_notes(self.protocol)] if self.problem == "retrieval" else []

    @property
    def mean_steps(self) -> float | None:
        """Reasoning steps a user took on average; None where stopping was not adaptive."""
        rows = self.rows
        return float(rows.steps.mean()) if rows.problem == "retrieval" and rows.steps is not None else None

    @property
    def sampled(self) -> dict[str, dict[str, float]]:
        """Metric -> `full`, `sampled` and their `gap`; empty where no sampled metrics were asked for."""
        return sampled_gaps(self.metrics, self.rows.sampled) if self.rows.problem == "retrieval" else {}

    def dump(self) -> JsonObject:
        """Plain data without the rows; numbers that do not exist are None."""
        tree: JsonObject = {} if self.mean_steps is None else {"mean_steps": self.mean_steps}
        if sampled := self.sampled:
            tree["sampled"] = sampled
        tree |= {"metrics": self.metrics, "stderr": self.stderr, "interval": self.interval}
        if self.slices or self.problem == "retrieval":
            tree["slices"] = self.slices
        if self.problem == "ranking":
            tree["curve"] = self.curve
        return {**jsonable(tree), "protocol": self.protocol}

    def to_json(self) -> str:
        return json.dumps(self.dump(), indent=2) + "\n"

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write the rows as `per_user.parquet` or `per_row.parquet` (see their `table`), and `evaluation.json`.

        Raises `UserError` for a folder that is a store or codes, that holds an evaluation of the
        other seen policy (unless `overwrite`), and where the disk refuses.
        """
        folder = Path(folder)
        require_no_store(folder, "evaluation")
        if not overwrite:
            require_same_history(folder, self.protocol.get("seen"))
        page = folder / "evaluation.json"
        try:
            with whole_file(page) as part:  # both are on the disk before either takes its place
                table = part.with_name(self.rows.file)
                write_table(self.rows.table(), table)
                # the hash tells rows of this evaluation from those of a process that was killed
                # between the two
                write_json(part, sealed(self.dump() | {"rows_sha256": sha256_file(table)}))
                table.replace(folder / table.name)
        except NotWritten as error:
            raise NotWritten(page, error.reason) from error

    @staticmethod
    def load(folder: Path | str) -> EvaluationResult:
        """The inverse of `save`, of either problem. Raises `UserError` where the folder
        does not hold an evaluation."""
        folder = Path(folder)
        try:
            tree = read_json(folder / "evaluation.json")
            check_seal(tree, folder / "evaluation.json", "evaluate again")
            return _restored(tree, folder)
        except BROKEN as error:
            raise UserError(
                f"{folder} does not hold an evaluation saved by `EvaluationResult.save` ({str(error)[:300]})",
                code="not-an-evaluation",
            ) from None


def require_same_history(folder: Path, seen: str | None) -> None:
    """Raise `UserError` where the folder holds an evaluation that treats the history otherwise than `seen`.

    The name of the file does not say how it treats the history, so one evaluation
    would pass for the other.
    """
    try:
        saved = read_json(folder / "evaluation.json")["protocol"]["seen"]
    except (UserError, *BROKEN):  # no evaluation, a damaged one, or one of click probabilities: replaced as usual
        return
    if seen in HISTORY and saved in HISTORY and saved != seen:
        raise UserError(
            f"{folder} holds an evaluation with the {HISTORY[saved]} and this one has the {HISTORY[seen]}: save it "
            "in another folder, or delete the evaluation.json that is there",
            code="other-evaluation-there",
        )


def merge(parts: Sequence[PerUser]) -> EvaluationResult:
    """The evaluation of all users from the rows of every shard, in any order; equal to that of one process."""
    if not parts:
        raise UserError("there are no shards to merge: give the result of `measure` of every rank", code="no-shards")
    protocol = parts[0].protocol
    for part in parts[1:]:
        require_same_protocol(protocol, part.protocol, "these shards cannot be merged")
    users = np.concatenate([p.users for p in parts])
    if len(users) != protocol["users"] or len(np.unique(users)) != len(users):
        raise UserError(
            f"the shards hold {len(users)} of {protocol['users']} users: give each shard once", code="shards-incomplete"
        )
    order = np.argsort(users, kind="stable")
    filled = [p for p in parts if len(p.users)]

    def joined(name: str) -> Any:
        """A field of all shards in the order of users, or each column of it; None where shards have none."""
        fields = [getattr(part, name) for part in filled]
        if isinstance(fields[0], dict):
            return {key: np.concatenate([columns[key] for columns in fields])[order] for key in fields[0]}
        return None if fields[0] is None else np.concatenate(fields)[order]

    values, lists, groups, steps, sampled = map(joined, ("values", "lists", "groups", "steps", "sampled"))
    rows = PerUser(users[order], values, lists, groups, protocol, steps, sampled)
    boot = protocol["bootstrap"]
    bootstrap = {"samples": boot["samples"], "seed": boot["seed"], "level": boot["level"]}
    summary = summarise(rows.values, rows.lists, metric_names(protocol), items=protocol["items"], **bootstrap)
    slices = slice_means(rows.values, rows.groups, slice_labels(protocol))
    return EvaluationResult(summary.mean, summary.stderr, summary.interval, slices, protocol, rows)


def metric_names(protocol: JsonObject) -> list[Name]:
    return expand_metrics(protocol["metrics"], ())


def require_same_protocol(ours: JsonObject, theirs: JsonObject, what: str) -> None:
    """Raise `UserError` where two protocols differ, naming how; `what` says what cannot be done then."""
    if ours != theirs:
        raise UserError(
            f"{what}: their protocols differ in {protocol_difference(ours, theirs)}"
            f"{setting_to_align(ours, theirs) or '; evaluate both in the same way'}",
            code="protocols-differ",
        )


def protocol_difference(a: JsonObject, b: JsonObject) -> str:
    """The keys in which two protocols differ, with both values (of a fingerprint, its beginning)."""
    keys = [k for k in {**a, **b} if a.get(k) != b.get(k)]
    return ", ".join(f"{k} ({_brief(a.get(k))} and {_brief(b.get(k))})" for k in keys)


def setting_to_align(a: JsonObject, b: JsonObject) -> str:
    """Settings that make two protocols alike, as words; empty where none do, as with different data."""
    keys = {k for k in {**a, **b} if a.get(k) != b.get(k)}
    if not keys & set(SETTABLE) or keys - set(SETTABLE) - FOLLOWING:
        return ""
    words = [f"--set {k}={str(a.get(k)).removesuffix(' events')}" for k in SETTABLE if k in keys]
    return "; evaluate them alike with " + " ".join(words)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 24 else f"{text[:13]}...{text[0]}"


def _restored(tree: JsonObject, folder: Path) -> EvaluationResult:
    """The evaluation whose JSON this is, with its rows. Raises one of
    `BROKEN` for what is damaged."""
    protocol = tree.get("protocol")
    clicks = isinstance(protocol, dict) and protocol.get("kind") == "clicks"
    kind: type[Rows] = PerImpression if clicks else PerUser
    saved = read_saved(tree, kind.problem)
    refuse_special(folder / kind.file)
    if "rows_sha256" in tree and sha256_file(folder / kind.file) != tree["rows_sha256"]:
        raise ValueError(f"{kind.file} is of another evaluation than evaluation.json: evaluate again")
    frame = read_parquet(folder / kind.file, "the rows")
    try:
        rows = kind.read(frame, tree["protocol"])
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError) as error:
        raise ValueError(f"{kind.file}: {error}") from None
    curve = tuple(ctr.Bin(int(point["rows"]), point["probability"], point["rate"]) for point in saved.curve)
    return EvaluationResult(saved.metrics, saved.stderr, saved.interval, saved.slices, tree["protocol"], rows, curve)


def _prefixed(frame: pl.DataFrame, prefix: str) -> dict[str, np.ndarray]:
    return {c.removeprefix(prefix): frame[c].to_numpy() for c in frame.columns if c.startswith(prefix)}
