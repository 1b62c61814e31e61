"""Check of a new version of a ranking model: that it reads the same columns, answers, and is not worse on a table.

Canaries are rows of a table of impressions (`--canary`); where it has labels, the log loss of the new version is
compared with that of the one that answers, paired by row. Without a table a row of missing values is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float

from fullrank.data.frames import InputTable
from fullrank.data.impressions.encoding import known_labels, require_fields
from fullrank.evaluation.statistics import bounds, resample
from fullrank.metrics import ctr
from fullrank.serving.canary import FEWEST, SAMPLES, CanarySettings, Check, RunOnModel, here
from fullrank.serving.prediction import ServedPredictor
from fullrank.serving.stores import HistoryStore

ROWS = 50
"""Rows asked for each history that a recommender would be asked for."""
AT_ONCE = 1000
"""Rows of one forward pass: requests wait no longer than that for it."""


def read_rows(path: Path, settings: CanarySettings) -> pl.DataFrame:
    """Rows of a table of impressions, drawn at random. Raises `UserError` where it cannot be read."""
    source = InputTable(path, "the canaries")
    frame = source.read(source.columns)
    most = settings.requests * ROWS
    return frame.sample(most, seed=0) if len(frame) > most else frame


async def no_rows(store: HistoryStore, settings: CanarySettings) -> pl.DataFrame:
    """The store of a ranking model's service knows no rows."""
    return pl.DataFrame()


def ask_rows(
    model: ServedPredictor, rows: pl.DataFrame | Sequence[object], k: int = 1, run: RunOnModel = here
) -> Float[np.ndarray, "R"]:
    """The probabilities of canaries, a few at a time; of a row of missing values where there are none."""
    asked = rows if isinstance(rows, pl.DataFrame) and len(rows) else model.blank
    require_fields(InputTable(asked, "the canaries"), model.predictor.encoder.schema)
    return np.concatenate([run(partial(model.probabilities, part)) for part in asked.iter_slices(AT_ONCE)])


def check_predictor(
    model: ServedPredictor,
    active: ServedPredictor | None,
    rows: pl.DataFrame,
    settings: CanarySettings,
    run: RunOnModel = here,
) -> list[Check]:
    """All that is asked of an opened version, beside the one that answers now (None: none does)."""
    checks = [] if active is None else [_check_columns(model, active)]
    if not all(check.ok for check in checks):
        return checks
    found = ask_rows(model, rows, run=run)
    bad = int((~np.isfinite(found) | (found < 0) | (found > 1)).sum())
    told = f"{bad:,} of {len(found):,} answers are no probability" if bad else ""
    checks.append(Check("answers", not bad, 1 - bad / len(found), 1.0, told))
    if not bad and active is not None and len(rows):
        checks += _check_quality(active, rows, found, ask_rows(active, rows, run=run), settings)
    return checks


def _check_columns(model: ServedPredictor, active: ServedPredictor) -> Check:
    """Requests give every column of the version that answers, so that another one has to read the same."""
    before, now = active.rows.properties, model.rows.properties
    changed = {
        "no longer read": before.keys() - now.keys(),
        "new": now.keys() - before.keys(),
        "of another type": {name for name in before.keys() & now.keys() if before[name] != now[name]},
    }
    told = [f"{what}: {', '.join(sorted(names))}" for what, names in changed.items() if names]
    return Check("columns", not told, detail="; ".join(told))


def _check_quality(
    active: ServedPredictor,
    rows: pl.DataFrame,
    new: Float[np.ndarray, "R"],
    old: Float[np.ndarray, "R"],
    settings: CanarySettings,
) -> Iterator[Check]:
    """Log loss, paired by row."""
    schema = active.predictor.encoder.schema
    labels = known_labels(schema, rows, "the canaries")
    if labels is None or len(rows) < FEWEST:
        lack = f"{len(rows)} rows, fewer than {FEWEST}" if labels is not None else f"no labels in {schema.label!r}"
        yield Check("quality", True, detail=f"not judged: {lack}")
        return
    before, after = (ctr.losses(found, labels.astype(np.float64)) for found in (old, new))
    upper = bounds(resample((before - after)[:, None], samples=SAMPLES, seed=0)[:, 0], 0.95)[1]
    was, now = float(before.mean()), float(after.mean())
    more = (now - was) / max(was, ctr.LEAST)
    detail = f"{now:.4f}, {was:.4f} of the version that answers; upper end of what is gained {upper:+.4f}"
    yield Check("rise of log loss", not (upper < 0 and more > settings.tolerance), more, settings.tolerance, detail)
