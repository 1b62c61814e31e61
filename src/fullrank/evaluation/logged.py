"""Evaluation of logged answers: what a service recommended, joined with what its users did afterwards, by version.

    logged = evaluate_log("answers", "events.parquet", within=24)
    logged.versions["may"].metrics["hit@10"], logged.differences

The targets of an answer are the distinct items of the user's events after it, up to `within` hours
later. An answer without targets says nothing about the list, so it is counted and left out of the
means. Answers of one user are no independent draws: a user's value is the mean of their answers,
and users are what means, errors and intervals go over.

What users did depends on what they were shown. Versions that answered side by side, split by user,
are compared fairly; those that followed each other also differ by what else has changed in time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int
from pydantic import Field

from fullrank.core.checks import public, takes
from fullrank.core.errors import UserError, brief
from fullrank.core.files import JsonObject, jsonable, write_json
from fullrank.core.jagged import Jagged
from fullrank.core.parquet import BROKEN, read_parquet, unreadable
from fullrank.core.tables import write_table
from fullrank.data import values
from fullrank.data.column_names import COLUMN_DEFAULTS, ColumnKeywords, EventColumns
from fullrank.data.frames import InputTable
from fullrank.data.manifest import require_no_store
from fullrank.data.values import TextIndex
from fullrank.evaluation.compare import Comparison
from fullrank.evaluation.statistics import bootstrap_p, bounds, draws, resample, sign_flip, summarise
from fullrank.metrics import MetricInputs, UserValues, match
from fullrank.metrics.names import ACCURACY, Name, expand_metrics, parse_metric

COLUMNS: dict[str, Any] = {
    "time": pl.Float64,
    "user": pl.String,
    "version": pl.String,
    "source": pl.String,
    "k": pl.Int32,
    "items": pl.List(pl.String),
}
"""Columns of a log that are read here."""
METRICS = ("hit", "ndcg", "mrr")
FLIPS = 10_000
MOST_KS = 5
"""Lengths of lists, the most frequent ones, at which metrics are computed where none are named."""
MOST_SAMPLES = 10**5


@dataclass(frozen=True)
class LoggedVersion:
    """The answers of one version."""

    answers: int
    """Answers that are logged."""
    scored: int
    """Answers whose user did something afterwards."""
    users: int
    """Users of the scored answers."""
    metrics: dict[str, float]
    """Means over users."""
    stderr: dict[str, float]
    interval: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class LoggedDifference:
    """b minus a in one metric."""

    a: str
    b: str
    paired: bool
    """On the users that both have answered; else over all users of both, resampled together."""
    comparison: Comparison

    def dump(self) -> JsonObject:
        return {"a_version": self.a, "b_version": self.b, "paired": self.paired, **self.comparison.dump()}


@dataclass(frozen=True)
class LoggedEvaluation:
    """Metrics of the logged answers of each version. A number that does not exist is NaN, null on disk."""

    versions: dict[str, LoggedVersion]
    """Versions in the order of their first answers."""
    differences: tuple[LoggedDifference, ...]
    """Differences of each version and the one before it."""
    counts: dict[str, int]
    """`answers`, `without_user`, `user_without_events`, `without_later_event`, `scored`; and those by `source:NAME`."""
    protocol: JsonObject
    rows: pl.DataFrame
    """A row for each scored answer: user, time, version, k, targets, and each metric (null above the answer's k)."""

    def __repr__(self) -> str:
        return f"LoggedEvaluation({len(self.rows):,} answers scored, of versions {', '.join(self.versions)})"

    def dump(self) -> JsonObject:
        """Plain data without the rows; numbers that do not exist are None."""
        measured = {"versions": self.versions, "differences": [difference.dump() for difference in self.differences]}
        return {**jsonable(measured), "counts": self.counts, "protocol": self.protocol}

    def save(self, folder: str | Path) -> None:
        """Write `logged_evaluation.json` and `per_answer.parquet`.

        Raises `UserError` for a folder that is a store or codes, and where the disk refuses.
        """
        require_no_store(Path(folder), "evaluation")
        write_table(self.rows, Path(folder) / "per_answer.parquet")
        write_json(Path(folder) / "logged_evaluation.json", self.dump())


@public
@takes(ColumnKeywords, COLUMN_DEFAULTS)
def evaluate_log(
    log: str | Path,
    events: Any,
    *,
    within: Annotated[float, Field(gt=0, le=24 * 36_500)] | None = 24,
    metrics: Sequence[str] = METRICS,
    samples: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 1000,
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95,
    seed: Annotated[int, Field(ge=0)] = 0,
    **columns: Unpack[ColumnKeywords],
) -> LoggedEvaluation:
    """Evaluate logged answers: metrics by version with errors and intervals, and differences of versions.

    `log` is the folder that `fullrank serve --log` writes, `events` a file or a DataFrame with
    columns of user, item and time, named by `user_col`, `item_col` and `time_col` or all by
    `columns`. Times are numbers in `time_unit` since 1970, dates, or ISO 8601. `within`: hours
    after an answer in which an event counts; None is without end. Times of events are read in whole
    seconds; one in the second of the answer counts as before it. `metrics` are names of accuracy
    metrics, at the list lengths that were asked for most where they name none (`ndcg@10`); answers
    that were asked for fewer items than a metric reads are left out of it.

    Raises `UserError` for a folder without logged answers, for missing columns, and where no user
    or no event after an answer is in both.
    """
    answers = _read_log(Path(log))
    happened = _read_events(events, EventColumns.of(columns, (3,)))
    scored, counts = _joined(answers, happened, within)
    chosen = _names(metrics, answers["k"], int(scored.answers["k"].to_numpy().max()))
    table = scored.values(chosen)
    bootstrap: dict[str, Any] = {"samples": samples, "seed": seed, "level": level}
    versions: dict[str, LoggedVersion] = {}
    means: dict[str, dict[str, UserValues]] = {}
    order = answers.group_by("version").agg(pl.len(), pl.col("time").min()).sort("time", "version")
    for name, logged in order.select("version", "len").iter_rows():
        rows = (scored.answers["version"] == name).to_numpy()
        means[name] = {m: _per_user(scored.user[rows], value[rows], len(scored.users)) for m, value in table.items()}
        versions[name] = _version(int(logged), scored, rows, means[name], **bootstrap)
    differences = [
        difference
        for a, b in pairwise(versions)
        for metric in table
        for difference in _differences(a, b, metric, (means[a][metric], means[b][metric]), **bootstrap)
    ]
    protocol = {
        "kind": "logged answers",
        "log": str(log),
        "within_hours": within,
        "metrics": list(table),
        "unit": "user",
        "bootstrap": bootstrap,
    }
    return LoggedEvaluation(versions, tuple(differences), counts, protocol, scored.frame(table))


@dataclass(frozen=True)
class _Scored:
    """Answers with a target: A rows."""

    users: pl.Series
    user: Int[np.ndarray, "A"]
    """Row of `users` that each answer went to."""
    answers: pl.DataFrame
    lists: Int[np.ndarray, "A k"]
    truth: Jagged

    def values(self, names: Sequence[Name]) -> dict[str, Float[np.ndarray, "A"]]:
        """Each metric of each answer; NaN where the answer was asked for fewer items."""
        inputs = MetricInputs(match(self.lists, self.truth), self.truth.lengths)
        lengths = self.answers["k"].to_numpy()
        return {str(name): np.where(lengths >= name.k, name(inputs), np.nan) for name in names}

    def frame(self, table: Mapping[str, Float[np.ndarray, "A"]]) -> pl.DataFrame:
        columns = {"user": self.users.gather(self.user), **self.answers.select("time", "version", "k").to_dict()}
        frame = pl.DataFrame({**columns, "targets": self.truth.lengths, **table})
        return frame.with_columns(pl.col(list(table)).fill_nan(None))


def _read_log(folder: Path) -> pl.DataFrame:
    """All answers of a log, by time. Raises `UserError` for a folder without any."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    parts = [folder / name for name in names if name.endswith(".parquet") and not name.startswith(".")]
    if not parts:
        raise UserError(
            f"{str(folder)!r} holds no logged answers (files answers-*.parquet, as `fullrank serve --log` writes them)",
            code="no-logged-answers",
        )
    frames = []
    for path in parts:
        try:
            frame = read_parquet(path, "the part of the answer log")
        except FileNotFoundError:  # removed meanwhile: too old, or of a forgotten user
            continue
        lacking = [name for name in COLUMNS if name not in frame.columns]
        if lacking:
            raise UserError(
                f"{str(path)!r} has no column {lacking[0]!r}, so it is no part of an answer log "
                f"(columns: {', '.join(frame.columns) or 'none'})",
                code="not-an-answer-log",
            )
        try:
            frames.append(frame.select(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items()))
        except BROKEN as error:
            raise unreadable(f"the part {str(path)!r} of the answer log", error) from None
    answers = pl.concat(frames) if frames else pl.DataFrame(schema=COLUMNS)
    answers = answers.drop_nulls(["time", "version", "k", "items"]).filter(pl.col("time").is_finite()).sort("time")
    if answers.is_empty():
        raise UserError(f"the answer log {str(folder)!r} holds no answers", code="no-logged-answers")
    return answers


def _read_events(events: Any, columns: EventColumns) -> pl.DataFrame:
    """user, item (text) and seconds of some events. Raises `UserError` for
    missing columns and values."""
    user, item, moment = columns.names
    source = InputTable(events, "the events")
    for name in (user, item, moment):
        source.require(name, "name the columns of user, item and time by columns=")
    frame = source.read([user, item, moment])
    source.require_rows(len(frame))
    users, items = (source.ids(frame, name, text=True) for name in (user, item))
    seconds, _ = values.seconds(frame[moment], source.name, columns.unit, typed=source.typed)
    return pl.DataFrame({"user": users.cast(pl.String), "item": items.cast(pl.String), "time": seconds})


def _joined(answers: pl.DataFrame, events: pl.DataFrame, hours: float | None) -> tuple[_Scored, dict[str, int]]:
    """The answers of users who did something afterwards, and counts of the others by reason."""
    known = answers.filter(pl.col("user").is_not_null())
    distinct = TextIndex(events["user"].unique().sort())
    users = distinct.find(known["user"])
    if (users < 0).all():
        theirs = "none has a user id" if known.is_empty() else f"such as {brief(known['user'][0], 60)}"
        raise UserError(
            f"none of the users of the {len(answers):,} logged answers ({theirs}) has an event (users of the events: "
            f"such as {brief(events['user'][0], 60)}); are these that service's events, with its ids?",
            code="no-common-users",
        )
    answered, users = known.filter(pl.Series(users >= 0)), users[users >= 0]
    items = TextIndex(events["item"].unique().sort())
    # An event is one number, user * width + rank of its time, so that sorted events are in order of
    # (user, time) and two binary searches find where those after an answer, and within its hours,
    # begin and end.
    moments = np.unique(events["time"].to_numpy())
    width = len(moments) + 1
    keys = distinct.find(events["user"]) * width + np.searchsorted(moments, events["time"].to_numpy())
    order = np.argsort(keys, kind="stable")
    keys, done = keys[order], items.find(events["item"])[order]
    times = answered["time"].to_numpy()
    if hours is None:
        until = np.full(len(times), len(moments))
    else:
        until = np.searchsorted(moments, times + hours * 3600, side="right")
    starts = np.searchsorted(keys, users * width + np.searchsorted(moments, times, side="right"))
    ends = np.maximum(np.searchsorted(keys, users * width + until), starts)
    with_event = ends > starts
    if not with_event.any():
        window = "" if hours is None else f" within {hours:g} hours"
        raise UserError(
            f"no event is behind an answer to its user{window}: answers are from {_date(times.min())} to "
            f"{_date(times.max())}, events of these users from {_date(moments[0])} to {_date(moments[-1])}; give the "
            "events that came after the answers, and say their time unit where it is not seconds",
            code="no-event-after-answers",
        )
    chosen = answered.filter(pl.Series(with_event))
    by_source = answers.group_by("source").len().sort("source").iter_rows()
    counts = {
        "answers": len(answers),
        "without_user": len(answers) - len(known),
        "user_without_events": len(known) - len(answered),
        "without_later_event": len(answered) - len(chosen),
        "scored": len(chosen),
        **{f"source:{name}": int(n) for name, n in by_source},
    }
    truth = Jagged(done, starts[with_event], ends[with_event]).distinct()
    return _Scored(distinct.values, users[with_event], chosen, _lists(chosen["items"], items), truth), counts


def _lists(lists: pl.Series, items: TextIndex) -> Int[np.ndarray, "A k"]:
    """Lists as one array of rows of `items`; -1 where an item has no
    event, or a list is shorter."""
    flat = lists.explode(empty_as_null=False, keep_nulls=False) if len(lists) else pl.Series([], dtype=pl.String)
    lengths = lists.list.len().to_numpy().astype(np.int64)
    return Jagged.from_lengths(items.find(flat), lengths).padded(max(int(lengths.max(initial=0)), 1), -1)


def _names(metrics: Sequence[str], logged: pl.Series, longest: int) -> list[Name]:
    """Metrics at the most frequent lengths, up to the longest. Raises `UserError` for
    those that no answer can give."""
    common = logged.value_counts(sort=True).head(MOST_KS)["k"].to_list()
    names = expand_metrics(metrics, sorted(common))
    if not names:
        raise UserError("no metrics are named; give some, such as hit or ndcg@10", code="no-metrics")
    for name in names:
        if name.base not in ACCURACY:
            raise UserError(
                f"the metric {name} reads the catalogue, which an answer log has not (allowed: {', '.join(ACCURACY)})",
                code="metric-needs-catalogue",
            )
    fitting = [name for name in names if name.k <= longest]
    if not fitting:
        raise UserError(
            f"{names[0]} reads {names[0].k} items, and no answer with a later event was asked for more than {longest}",
            code="lists-too-short",
        )
    return fitting


def _per_user(user: Int[np.ndarray, "A"], value: Float[np.ndarray, "A"], users: int) -> UserValues:
    """The mean of each user's answers, of those that have a value; NaN for users without any."""
    has_value = ~np.isnan(value)
    counts = np.bincount(user[has_value], minlength=users)
    sums = np.bincount(user[has_value], value[has_value], users)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _version(
    answers: int,
    scored: _Scored,
    rows: Bool[np.ndarray, "A"],
    per_user: Mapping[str, UserValues],
    **how: Any,
) -> LoggedVersion:
    """Means, errors and intervals of one version; `per_user` has the values of each metric."""
    mean, stderr = (dict.fromkeys(per_user, math.nan) for _ in range(2))
    interval = dict.fromkeys(per_user, (math.nan, math.nan))
    for name, means in per_user.items():
        known = means[~np.isnan(means)]
        if len(known):
            summary = summarise({name: known}, None, [parse_metric(name)], items=0, **how)
            mean, stderr, interval = mean | summary.mean, stderr | summary.stderr, interval | summary.interval
    return LoggedVersion(answers, int(rows.sum()), len(np.unique(scored.user[rows])), mean, stderr, interval)


def _differences(
    a: str, b: str, name: str, means: Sequence[UserValues], *, samples: int, seed: int, level: float
) -> list[LoggedDifference]:
    """b - a over all users of both, and where some users have answers of both, on these."""
    has_value = [~np.isnan(side) for side in means]
    if not has_value[0].any() or not has_value[1].any():
        return []
    differences, in_either, in_both = [], has_value[0] | has_value[1], has_value[0] & has_value[1]
    # one row a user: value and presence of either side, resampled together, so that users of both
    # count as one
    table = np.stack([*np.nan_to_num(means), *has_value], 1)[in_either]
    sums = np.array([counts @ table for counts in draws(len(table), samples, seed)]).reshape(-1, 4)
    sums = sums[(sums[:, 2:] > 0).all(1)]  # samples with users of either side
    drawn = sums[:, 1] / sums[:, 3] - sums[:, 0] / sums[:, 2]
    before, after = (table[:, :2].sum(0) / table[:, 2:].sum(0)).tolist()
    p = bootstrap_p(drawn) if len(drawn) else math.nan
    test = f"bootstrap of all users, {len(drawn)} samples"
    whole = Comparison(name, before, after, after - before, bounds(drawn, level), p, test, len(table))
    differences.append(LoggedDifference(a, b, False, whole))
    if in_both.sum() > 1:
        ours, theirs = (side[in_both] for side in means)
        change = theirs - ours
        span = bounds(resample(change[:, None], samples=samples, seed=seed)[:, 0], level)
        test = f"paired sign-flip permutation of users, {FLIPS} flips"
        p, gap = sign_flip(change, FLIPS, seed), float(change.mean())
        paired = Comparison(name, float(ours.mean()), float(theirs.mean()), gap, span, p, test, len(change))
        differences.append(LoggedDifference(a, b, True, paired))
    return differences


def _date(seconds: Any) -> str:
    return values.with_date(int(seconds))
