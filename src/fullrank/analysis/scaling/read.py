"""Read a ladder: a table with a row for each run, a table with a row for each moment, or the rows of a sweep.

- A CSV with columns such as `valid_ndcg5_ep5`, `valid_ndcg5_ep10`: one row per run, the metric after so
  many epochs, and the FLOPs of one epoch. An empty cell is an epoch that was not measured.
- Any other CSV: a row per moment of a run, with the FLOPs spent until then. Without a column of runs
  each row is a run.
- `.json` and `.jsonl`: files of `fullrank sweep`, rows.jsonl in its folder or the file of `--results`. A
  row with its validation curve gives a moment for each validation, any other a single moment: the best
  epoch, with the metric of the validation split. FLOPs are those of an epoch (`size.flops_per_epoch`)
  times the epochs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fullrank.analysis.scaling.ladder import Ladder, Trace
from fullrank.core.checks import check_once, check_one_way
from fullrank.core.errors import UserError, in_context, unknown
from fullrank.core.readers import read_json, read_jsonl

if TYPE_CHECKING:
    import polars as pl

    from fullrank.data.frames import InputTable

EPOCH = re.compile(r"(.+)_ep(\d+)")


@dataclass(frozen=True)
class ColumnNames:
    """Names of a table's columns; None takes the usual one where the table has it."""

    run: str | None = None
    flops: str | None = None
    metric: str | None = None
    parameters: str | None = None
    data: str | None = None

    @property
    def options(self) -> list[str]:
        """The options of the command line that set the names."""
        return [f"--{key.replace('parameters', 'params')}-col" for key, name in vars(self).items() if name is not None]


WIDE = ColumnNames("run", "epoch_flops", None, "n_total_params", "interactions")
TIDY = ColumnNames("run", "flops", "metric", "parameters", "data")
SIZES = ("n_nonemb_params", "non_embedding_parameters")
"""Columns with the parameters of a model without its tables."""
GROUP = "dataset"


def read_ladder(path: str | Path, *, metric: str | None = None, columns: ColumnNames | None = None) -> Ladder:
    """Read the runs of a file.

    `metric` is a name in it: `valid_ndcg5` of the columns `valid_ndcg5_epN`, or `ndcg@10` of a
    sweep. `columns` are the names of a CSV's columns.
    """
    file, named = Path(path), columns or ColumnNames()
    if file.suffix in (".json", ".jsonl"):
        if named.options:
            raise UserError(
                f"{file} holds rows of a sweep, so {' and '.join(named.options)} have no effect; leave them out",
                code="option-without-effect",
            )
        return read_rows(file, metric)
    from fullrank.data.frames import InputTable

    source = InputTable(file, "the table of runs")
    frame = source.infer(source.read(source.columns))
    source.require_rows(len(frame))
    series = Counter(match[1] for name in frame.columns if (match := EPOCH.fullmatch(name)))
    if series and named.metric is None:
        return _by_run(_Columns(frame, source, named, WIDE), metric, list(series))
    check_one_way({"--metric": metric, "--metric-col, which names the column,": named.metric})
    if metric is not None:
        named = replace(named, metric=metric)
    return _by_moment(_Columns(frame, source, named, TIDY))


def as_ladder(source: Ladder | str | Path) -> Ladder:
    """A ladder as it is, or read from its file."""
    return source if isinstance(source, Ladder) else read_ladder(source)


@dataclass(frozen=True)
class _Columns:
    """Columns of a table of runs, by their names."""

    frame: pl.DataFrame
    source: InputTable
    named: ColumnNames
    usual: ColumnNames

    def present(self, field: str) -> str | None:
        """Name of the column of a field of `ColumnNames`; None where it is absent.

        Raises `UserError` for a column that the caller named and that is absent.
        """
        wanted, usual = getattr(self.named, field), getattr(self.usual, field)
        if wanted is not None:
            self.source.require(wanted, f"usual is {usual}")
        return wanted or (usual if usual in self.source.columns else None)

    def optional(self, field: str) -> np.ndarray | None:
        name = self.present(field)
        return None if name is None else self.numbers(name)

    def numbers(self, name: str, *, empty: bool = False) -> np.ndarray:
        """The numbers of a column, which may be `empty`: NaN there."""
        column = self.frame[name]
        numbers = column.cast(float, strict=False)
        bad = numbers.is_null() & ~(column.is_null() & empty)
        self.refuse(bad, name, "missing or unreadable numbers", "unreadable-numbers")
        return numbers.to_numpy().astype(float)

    def refuse(self, bad: pl.Series, name: str, problem: str, code: str) -> None:
        from fullrank.data.values import refuse

        refuse(bad, self.frame[name], self.source.name, problem, code=code)

    def common(self) -> dict[str, Sequence[Any]]:
        """Values of each row in both layouts: run, parameters, data, size, group."""
        frame, run, parameters = self.frame, self.present("run"), self.optional("parameters")
        size = next((self.numbers(name) for name in SIZES if name in frame.columns), parameters)
        numbers = {"parameters": parameters, "data": self.optional("data"), "size": size}
        return {
            "run": [f"row {n + 1}" for n in range(len(frame))] if run is None else [str(v) for v in frame[run]],
            **{k: [None] * len(frame) if v is None else v.tolist() for k, v in numbers.items()},
            "group": [str(v) for v in frame[GROUP]] if GROUP in frame.columns else [""] * len(frame),
        }

    def ladder(self, traces: Sequence[Trace], metric: str, span: str) -> Ladder:
        """The ladder of the traces, whose FLOPs are those of a `span` of training, in words."""
        usual = self.usual
        how = (
            f"name the columns with --params-col (usual: {usual.parameters}), --data-col ({usual.data}) and "
            f"--flops-col ({usual.flops}: FLOPs {span})"
        )
        return Ladder(tuple(traces), metric, str(self.source.table), how)


def _by_run(table: _Columns, metric: str | None, series: list[str]) -> Ladder:
    """The ladder of a table with a row for each run, and a column for each epoch."""
    frame, source = table.frame, table.source
    if metric is None and len(series) > 1:
        raise _several(source.name, series)
    if metric is not None and metric not in series:
        raise unknown("metric", metric, series)
    base = metric or series[0]
    named = sorted((int(m[2]), name) for name in frame.columns if (m := EPOCH.fullmatch(name)) and m[1] == base)
    epochs, columns = zip(*named, strict=True)
    subject = f"{source.name}: of {', '.join(columns)} the epoch"
    check_once(map(str, epochs), subject, "keep one column for each", code="repeated-column")
    values = np.stack([table.numbers(name, empty=True) for name in columns], 1)
    present = np.stack([frame[name].is_not_null().to_numpy() for name in columns], 1)
    flops, rest = table.optional("flops"), table.common()
    traces = []
    for row, measured in enumerate(present):
        at = np.array(epochs, float)[measured]
        spent = None if flops is None else at * flops[row]
        fields = {key: column[row] for key, column in rest.items()}
        traces.append(Trace(metric=values[row][measured], flops=spent, epochs=at, **fields))
    return table.ladder(traces, base, "of one epoch")


def _by_moment(table: _Columns) -> Ladder:
    """The ladder of a table with a row for each moment of a run."""
    frame, source = table.frame, table.source
    name = table.named.metric or str(TIDY.metric)
    source.require(name, "name that of the metric by --metric-col, or those of its epochs NAME_ep5, NAME_ep10, ...")
    metric, flops, rest = table.numbers(name), table.optional("flops"), table.common()
    epochs = table.numbers("epoch") if "epoch" in frame.columns else None
    if (column := table.present("run")) is not None:  # rows without a name would become one run
        empty = frame[column].cast(str).str.strip_chars().fill_null("") == ""
        table.refuse(empty, column, "runs without a name (--run-col names another column)", "missing-ids")
    rows_of: dict[str, list[int]] = {}
    for row, run in enumerate(rest["run"]):
        rows_of.setdefault(run, []).append(row)
    traces = []
    for rows in rows_of.values():
        order = sorted(rows, key=lambda row: 0.0 if flops is None else flops[row])
        shared = {key: values[rows[0]] for key, values in rest.items()}
        for key in ("parameters", "data"):
            if len({rest[key][row] for row in rows}) > 1:
                raise UserError(
                    f"{source.name}, run {shared['run']!r}: {key} changes within the run; name the runs with --run-col",
                    code="size-changes-within-run",
                )
        traces.append(
            Trace(
                metric=metric[order],
                flops=None if flops is None else flops[order],
                epochs=None if epochs is None else epochs[order],
                **shared,
            )
        )
    return table.ladder(traces, name, "spent until each row's moment")


LACKS = (
    "rows of models whose FLOPs are not counted, or of an older version, have no size.flops_per_epoch and "
    "size.interactions: run `fullrank sweep` again into a new folder, or write the numbers into a CSV and name its "
    "columns with --metric-col, --flops-col, --params-col and --data-col"
)


def read_rows(file: Path, metric: str | None) -> Ladder:
    """Read the runs of a sweep that ended well and have epochs; a run's last row counts."""
    rows = {(str(row["cell"]), str(row["seed"]), str(row.get("data_fingerprint"))): row for row in _rows(file)}
    ended = [row for row in rows.values() if not row.get("error") and row.get("epochs")]
    if not ended:
        raise UserError(f"{file} holds no run with epochs that ended well; run the sweep again", code="no-runs")
    selected = {row["validation_best"]["metric"] for row in ended if row.get("validation_best")}
    if metric is None and len(selected) != 1:
        raise _several(str(file), sorted(selected))
    name, traces = metric or str(selected.pop()), []
    for row in ended:
        try:
            traces.append(_trace(row, name, file))
        except UserError:
            raise
        except (AttributeError, TypeError, ValueError) as error:
            where = f"{file}, the row of {row['cell']!r} with seed {row['seed']!r}"
            raise UserError(
                f"{where} is damaged ({error}); run the sweep again, or take the row out", code="file-damaged"
            ) from None
    return Ladder(tuple(traces), name, str(file), LACKS)


def _several(where: str, metrics: Sequence[str]) -> UserError:
    return UserError(
        f"{where}: there is not one metric ({', '.join(metrics) or 'none'}); choose one with --metric",
        code="several-metrics",
    )


def _rows(file: Path) -> list[dict[str, Any]]:
    """The rows in a file of a sweep. Raises `UserError` for a file of something else."""
    with in_context("no readable result of a sweep: "):
        rows: Any = read_jsonl(file, torn=False) if file.suffix == ".jsonl" else read_json(file).get("rows")
    if not isinstance(rows, list) or not all(isinstance(r, dict) and {"cell", "seed"} <= r.keys() for r in rows):
        raise UserError(
            f"{file} holds something else than rows of a sweep; give rows.jsonl or the file of --results",
            code="not-sweep-rows",
        )
    return rows


def _trace(row: dict[str, Any], metric: str, file: Path) -> Trace:
    """The trace of a run from its row: its validation curve, or the best epoch alone."""
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
    per_epoch, parameters = size.get("flops_per_epoch"), row.get("parameters")
    without_tables = size.get("non_embedding_parameters", size.get("dense_parameters"))
    timed = bool(np.isfinite(epochs).all())
    return Trace(
        run,
        values,
        None if per_epoch is None or not timed else epochs * per_epoch,
        epochs if timed else None,
        parameters,
        size.get("interactions"),
        without_tables or parameters,
        str(row.get("data", "")),
    )
