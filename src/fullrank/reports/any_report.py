"""A page about runs of either kind, but of one: recommenders and click models share no figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fullrank.core.progress import Tell
from fullrank.diagnostics.of_run import check_sample
from fullrank.errors import UserError
from fullrank.reports.click_report import ClickReport, click_report
from fullrank.reports.report import Report, report
from fullrank.run import Run


def any_report(
    runs: Sequence[Run | str | Path],
    *,
    data: Any = None,
    split: str = "test",
    users: int | None = None,
    impressions: int | None = None,
    settings: Sequence[str] = (),
    evaluations: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
) -> Report | ClickReport:
    """The page of all runs. Raises `UserError` where they are of two kinds, or the sample is of the other kind."""
    opened = [Run.open(run) if isinstance(run, str | Path) else run for run in runs]
    for run in opened:
        check_sample(run, users=users, impressions=impressions)
    kinds = {run.spec.clicks is not None: run for run in opened}
    if len(kinds) > 1:
        raise UserError(
            f"{kinds[True].path} predicts clicks and {kinds[False].path} recommends items, which have no figure in "
            "common: write one report of each kind"
        )
    if True in kinds:
        return click_report(
            opened, data=data, split=split, impressions=impressions, settings=settings, evaluations=evaluations,
            tell=tell,
        )  # fmt: skip
    return report(
        opened, data=data, split=split, users=users, settings=settings, evaluations=evaluations, tell=tell
    )  # fmt: skip
