"""A ladder from a file: a table with a row for each run, a table with a row for each moment, or the rows of a sweep.

- A CSV with columns such as `valid_ndcg5_ep5`, `valid_ndcg5_ep10`: one row per run, the metric after so many epochs,
  and the FLOPs of one epoch. An empty cell is an epoch that was not measured.
- Any other CSV: a row per moment of a run, with the FLOPs spent until then. Without a column of runs each row is one.
- `.json` and `.jsonl`: what `fullrank sweep` writes, rows.jsonl in its folder or the file of `--results`. A row with
  its validation curve gives a moment for each validation, another one moment: the best epoch, with the metric of the
  validation split. FLOPs are those of an epoch (`size.flops_per_epoch`) times the epochs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fullrank.core.errors import UserError, did_you_mean, unknown
from fullrank.core.readers import read_json, read_jsonl
from fullrank.scaling.ladder import Ladder, Trace

if TYPE_CHECKING:
    import polars as pl

EPOCH = re.compile(r"(.+)_ep(\d+)")


@dataclass(frozen=True)
class ColumnNames:
    """Names of a table's columns; None takes the usual one where it is there."""

    run: str | None = None
    flops: str | None = None
    metric: str | None = None
    parameters: str | None = None
    data: str | None = None

    @property
    def given(self) -> list[str]:
        return [
            f"--{key.replace('parameters', 'params')}-col" for key, value in vars(self).items() if value is not None
        ]


WIDE = ColumnNames("run", "epoch_flops", None, "n_total_params", "interactions")
TIDY = ColumnNames("run", "flops", "metric", "parameters", "data")
SIZES = ("n_nonemb_params", "non_embedding_parameters")
"""Columns with the parameters of a model without its tables."""
GROUP = "dataset"


def read_ladder(path: str | Path, *, metric: str | None = None, columns: ColumnNames | None = None) -> Ladder:
    """The runs of a file. `metric` is a name of it: `valid_ndcg5` of the columns `valid_ndcg5_epN`, or `ndcg@10` of a
    sweep; `columns` are those of a CSV."""
    file, named = Path(path), columns or ColumnNames()
    if not file.is_file():
        raise UserError(
            f"there is no file {file}; give a CSV of runs, or rows.jsonl or the --results of a sweep",
            code="missing-file",
        )
    if file.suffix in (".json", ".jsonl"):
        if named.given:
            raise UserError(
                f"{file} holds rows of a sweep, so {' and '.join(named.given)} have no effect; leave them out",
                code="option-without-effect",
            )
        return read_rows(file, metric)
    if file.suffix != ".csv":
        raise UserError(
            f"{file} has the suffix {file.suffix!r}; allowed are .csv, .json and .jsonl", code="unknown-suffix"
        )
    frame = _read_csv(file)
    series = Counter(found[1] for name in frame.columns if (found := EPOCH.fullmatch(name)))
    if series and named.metric is None:
        return _wide(frame, file, metric, named, list(series))
    if metric is not None:
        if named.metric is not None:
            raise UserError(
                "--metric and --metric-col are given together; --metric-col names the column, keep that",
                code="options-exclude-each",
            )
        named = replace(named, metric=metric)
    return _tidy(frame, file, named)


def as_ladder(source: Ladder | str | Path) -> Ladder:
    """A ladder, or the file that holds one."""
    return source if isinstance(source, Ladder) else read_ladder(source)


def _read_csv(file: Path) -> pl.DataFrame:
    import polars as pl

    try:
        frame = pl.read_csv(file, infer_schema_length=None, glob=False)
    except (OSError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"cannot read {file} as a CSV: {' '.join(str(error).split())[:200]}", code="table-unreadable"
        ) from None
    if not len(frame):
        raise UserError(f"{file} has no rows; give a row for each run", code="empty-table")
    return frame


def _wide(frame: pl.DataFrame, file: Path, metric: str | None, named: ColumnNames, series: list[str]) -> Ladder:
    if metric is None and len(series) > 1:
        raise UserError(f"{file} holds {', '.join(series)} by epochs; choose one with --metric", code="several-metrics")
    if metric is not None and metric not in series:
        raise unknown("metric", metric, series)
    base = metric or series[0]
    found = sorted((int(m[2]), name) for name in frame.columns if (m := EPOCH.fullmatch(name)) and m[1] == base)
    epochs, columns = [epoch for epoch, _ in found], [name for _, name in found]
    if len(set(epochs)) < len(epochs):
        raise UserError(
            f"{file} names an epoch of {base} twice ({', '.join(columns)}); keep one column for each",
            code="repeated-column",
        )
    values = np.stack([_numbers(frame, file, name, empty=True) for name in columns], 1)
    there = np.stack([frame[name].is_not_null().to_numpy() for name in columns], 1)
    flops, rest = _optional(frame, file, named.flops, WIDE.flops), _common(frame, file, named, WIDE)
    traces = []
    for row in range(len(frame)):
        at = np.array(epochs, float)[there[row]]
        spent = None if flops is None else at * flops[row]
        traces.append(
            Trace(metric=values[row][there[row]], flops=spent, epochs=at, **{k: v[row] for k, v in rest.items()})
        )
    return Ladder(tuple(traces), base, str(file), _how(file, named, WIDE, "of one epoch"))


def _tidy(frame: pl.DataFrame, file: Path, named: ColumnNames) -> Ladder:
    name = named.metric or str(TIDY.metric)
    if name not in frame.columns:
        raise UserError(
            f"{file} has no column {name!r}{did_you_mean(name, frame.columns)} and none named by epochs "
            "(NAME_ep5, NAME_ep10): name the metric's column with --metric-col "
            f"(there are: {', '.join(frame.columns)})",
            code="missing-column",
        )
    metric = _numbers(frame, file, name)
    flops, rest = _optional(frame, file, named.flops, TIDY.flops), _common(frame, file, named, TIDY)
    epochs = _optional(frame, file, None, "epoch")
    _every_run_named(frame, file, _present(frame, file, named.run, TIDY.run))
    places: dict[str, list[int]] = {}
    for row, run in enumerate(rest["run"]):
        places.setdefault(run, []).append(row)
    traces = []
    for rows in places.values():
        order = sorted(rows, key=lambda row: 0.0 if flops is None else flops[row])
        own = {key: values[rows[0]] for key, values in rest.items()}
        for key in ("parameters", "data"):
            if len({rest[key][row] for row in rows}) > 1:
                raise UserError(
                    f"{file}, run {own['run']!r}: {key} changes within the run; name the runs with --run-col",
                    code="size-changes-within-run",
                )
        traces.append(Trace(
            metric=metric[order], flops=None if flops is None else flops[order],
            epochs=None if epochs is None else epochs[order], **own,
        ))  # fmt: skip
    return Ladder(tuple(traces), name, str(file), _how(file, named, TIDY, "spent until each row's moment"))


def _every_run_named(frame: pl.DataFrame, file: Path, column: str | None) -> None:
    """Rows without a name would become one run. Raises `UserError` with their lines."""
    if column is None:
        return
    empty = frame[column].cast(str).str.strip_chars().fill_null("") == ""
    lines = [str(row + 2) for row in empty.arg_true()]
    if lines:
        shown = ", ".join(lines[:10]) + (f" and {len(lines) - 10:,} more" if len(lines) > 10 else "")
        which = f"lines {shown} have" if len(lines) > 1 else f"line {shown} has"
        raise UserError(
            f"{file}: {which} no {column}; name the run of every row, or name another column with --run-col (in a file "
            "without a column 'run' each row is a run of its own)",
            code="missing-ids",
        )


def _common(frame: pl.DataFrame, file: Path, named: ColumnNames, usual: ColumnNames) -> dict[str, Sequence[Any]]:
    """What both layouts have for each row: run, parameters, data, size, group."""
    many = len(frame)
    parameters = _optional(frame, file, named.parameters, usual.parameters)
    size = next((_numbers(frame, file, name) for name in SIZES if name in frame.columns), parameters)
    run = _present(frame, file, named.run, usual.run)
    group = frame[GROUP].cast(str).to_list() if GROUP in frame.columns else [""] * many
    return {
        "run": [f"row {n + 1}" for n in range(many)] if run is None else [str(v) for v in frame[run].to_list()],
        "parameters": _list(parameters, many),
        "data": _list(_optional(frame, file, named.data, usual.data), many),
        "size": _list(size, many),
        "group": [str(v) for v in group],
    }


def _present(frame: pl.DataFrame, file: Path, asked: str | None, usual: str | None) -> str | None:
    """The column's name, where it is there. Raises `UserError` where it was asked for and is not."""
    if asked is not None and asked not in frame.columns:
        raise UserError(
            f"{file} has no column {asked!r}{did_you_mean(asked, frame.columns)} "
            f"(there are: {', '.join(frame.columns)})",
            code="missing-column",
        )
    return asked or (usual if usual in frame.columns else None)


def _optional(frame: pl.DataFrame, file: Path, asked: str | None, usual: str | None) -> np.ndarray | None:
    name = _present(frame, file, asked, usual)
    return None if name is None else _numbers(frame, file, name)


def _numbers(frame: pl.DataFrame, file: Path, name: str, *, empty: bool = False) -> np.ndarray:
    column = frame[name]
    if column.null_count() and not empty:
        raise UserError(
            f"{file}: line {int(column.is_null().arg_max() or 0) + 2} has no {name}; fill it in or leave it out",
            code="missing-values",
        )
    if not column.dtype.is_numeric() and column.null_count() < len(column):
        raise UserError(
            f"{file}: the column {name!r} holds {column.drop_nulls()[0]!r}, and numbers are needed",
            code="wrong-column-type",
        )
    return column.cast(float).to_numpy().astype(float)


def _list(values: np.ndarray | None, many: int) -> list[float | None]:
    return [None] * many if values is None else [float(v) for v in values]


def _how(file: Path, named: ColumnNames, usual: ColumnNames, which: str) -> str:
    return (
        f"name the columns with --params-col (usual: {usual.parameters}), --data-col ({usual.data}) and --flops-col "
        f"({usual.flops}: FLOPs {which})"
    )


LACKS = (
    "rows of models whose FLOPs are not counted, or of an older version, have no size.flops_per_epoch and "
    "size.interactions: run `fullrank sweep` again into a new folder, or write the numbers into a CSV and name its "
    "columns with --metric-col, --flops-col, --params-col and --data-col"
)


def read_rows(file: Path, metric: str | None) -> Ladder:
    """The runs of a sweep that ended well, without baselines, which have no epochs; the last row of a run counts."""
    rows = {(str(row["cell"]), str(row["seed"]), str(row.get("data_fingerprint"))): row for row in _rows(file)}
    ended = [row for row in rows.values() if not row.get("error") and row.get("epochs")]
    if not ended:
        raise UserError(f"{file} holds no run with epochs that ended well; run the sweep again", code="no-runs")
    name = metric or _selected(ended, file)
    return Ladder(tuple(_read(row, name, file) for row in ended), name, str(file), LACKS)


def _read(row: dict[str, Any], metric: str, file: Path) -> Trace:
    try:
        return _trace(row, metric, file)
    except UserError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        where = f"{file}, the row of {row['cell']!r} with seed {row['seed']!r}"
        raise UserError(
            f"{where} is damaged ({error}); run the sweep again, or take the row out", code="file-damaged"
        ) from None


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        found: Any = read_jsonl(file, torn=False) if file.suffix == ".jsonl" else read_json(file)["rows"]
    except (UserError, KeyError) as error:
        raise UserError(f"{file} is no readable result of a sweep ({error})", code="file-unreadable") from None
    if not isinstance(found, list) or not all(isinstance(r, dict) and {"cell", "seed"} <= r.keys() for r in found):
        raise UserError(
            f"{file} holds something else than rows of a sweep; give rows.jsonl or the file of --results",
            code="not-sweep-rows",
        )
    return found


def _selected(rows: list[dict[str, Any]], file: Path) -> str:
    names = {row["validation_best"]["metric"] for row in rows if row.get("validation_best")}
    if len(names) != 1:
        raise UserError(
            f"{file}: the runs were selected by {', '.join(sorted(names)) or 'nothing'}; choose one --metric",
            code="several-metrics",
        )
    return str(names.pop())


def _trace(row: dict[str, Any], metric: str, file: Path) -> Trace:
    run, size, best = f"{row['cell']}-seed{row['seed']}", row.get("size") or {}, row.get("validation_best") or {}
    curve = row.get("validation_curve") if best.get("metric") == metric else None
    if curve:
        epochs, values = np.array(curve, float).T
    else:
        known = row.get("metrics", {}).get("validation", {})
        if metric not in known:
            raise unknown(f"metric of the validation split of {run} in {file}", metric, known)
        epochs = np.array([best.get("epoch") or row.get("epochs") or np.nan], float)
        values = np.array([known[metric]], float)
    per_epoch, tables = size.get("flops_per_epoch"), row.get("parameters")
    own = size.get("non_embedding_parameters", size.get("dense_parameters"))
    timed = bool(np.isfinite(epochs).all())
    return Trace(
        run, values, None if per_epoch is None or not timed else epochs * per_epoch, epochs if timed else None,
        tables, size.get("interactions"), own or tables, str(row.get("data", "")),
    )  # fmt: skip
