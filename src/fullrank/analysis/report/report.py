"""From run folders to one page: collect what is known, measure what is missing, draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fullrank.analysis.diagnose import sample_size
from fullrank.analysis.report.collect import collect
from fullrank.analysis.report.page import Report, check_extra
from fullrank.analysis.report.pages import ranking_page, retrieval_page
from fullrank.analysis.report.results import Runs
from fullrank.core.errors import UserError
from fullrank.core.progress import Tell
from fullrank.data.impressions.store import AnyStore
from fullrank.problem import Problem
from fullrank.run import Run

REPORT: Mapping[Problem, Callable[[Runs, str], Report]] = {
    "retrieval": retrieval_page, "ranking": ranking_page,
}  # fmt: skip
"""The page of some runs of one problem on a split."""


def report(
    runs: Sequence[Run | str | Path],
    *,
    data: AnyStore | str | Path | None = None,
    split: str = "test",
    users: int | None = None,
    impressions: int | None = None,
    settings: Sequence[str] = (),
    evaluations: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
    device: torch.device | str = "cpu",
) -> Report:
    """One page about some runs of one problem. The arguments are those of `collect`.

    Raises `UserError` where runs are of two problems, the sample is of the other one, or matplotlib or jinja2 is not
    installed (naming the extra).
    """
    check_extra()
    opened = [Run.open(run) if isinstance(run, str | Path) else run for run in runs]
    samples = [sample_size(run, users=users, impressions=impressions) for run in opened]
    problems = {run.spec.problem: run for run in opened}
    if len(problems) > 1:
        raise UserError(
            f"{problems['ranking'].path} predicts clicks and {problems['retrieval'].path} recommends items, which have "
            "no figure in common: write one report of each kind",
            code="two-problems",
        )
    results = collect(
        opened, data=Path(data) if isinstance(data, str) else data, split=split, sample=next(iter(samples), None),
        settings=settings,
        evaluations=evaluations, tell=tell, device=device,
    )  # fmt: skip
    return REPORT[opened[0].spec.problem](results, split)
