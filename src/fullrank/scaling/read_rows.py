"""A ladder from what `fullrank sweep` writes: rows.jsonl in its folder, or the file of `--results`.

A row that has its validation curve gives a moment for each validation, another one moment: the best epoch, with the
metric of the validation split. FLOPs are those of an epoch (`size.flops_per_epoch`) times the epochs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fullrank.core.errors import UserError, unknown
from fullrank.core.readers import read_json, read_jsonl
from fullrank.scaling.ladder import Ladder, Trace

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
        raise UserError(f"{file} holds no run with epochs that ended well; run the sweep again")
    name = metric or _selected(ended, file)
    return Ladder(tuple(_read(row, name, file) for row in ended), name, str(file), LACKS)


def _read(row: dict[str, Any], metric: str, file: Path) -> Trace:
    try:
        return _trace(row, metric, file)
    except UserError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        where = f"{file}, the row of {row['cell']!r} with seed {row['seed']!r}"
        raise UserError(f"{where} is damaged ({error}); run the sweep again, or take the row out") from None


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        found: Any = read_jsonl(file, torn=False) if file.suffix == ".jsonl" else read_json(file)["rows"]
    except (UserError, KeyError) as error:
        raise UserError(f"{file} is no readable result of a sweep ({error})") from None
    if not isinstance(found, list) or not all(isinstance(r, dict) and {"cell", "seed"} <= r.keys() for r in found):
        raise UserError(f"{file} holds something else than rows of a sweep; give rows.jsonl or the file of --results")
    return found


def _selected(rows: list[dict[str, Any]], file: Path) -> str:
    names = {row["validation_best"]["metric"] for row in rows if row.get("validation_best")}
    if len(names) != 1:
        raise UserError(
            f"{file}: the runs were selected by {', '.join(sorted(names)) or 'nothing'}; choose one --metric"
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
