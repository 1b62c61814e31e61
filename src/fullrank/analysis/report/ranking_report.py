"""A page about click models: accuracy, calibration, and the effective rank behind each layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from fullrank import __version__
from fullrank.analysis.figures.curves import RANKS, curves
from fullrank.analysis.figures.ranking import distribution, reliability, trajectory
from fullrank.analysis.figures.size import click_size
from fullrank.analysis.report import Figure, Missing, listed, plural
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.known import readable
from fullrank.analysis.report.page import Page, render
from fullrank.analysis.report.ranking_findings import RankingFinding, collect_clicks, comparable_clicks
from fullrank.core.progress import Tell
from fullrank.data.impressions.store import ImpressionStore
from fullrank.evaluation.spec import selection_sign
from fullrank.run import Run

METRICS = ("auc", "logloss", "gauc", "ece", "pcoc")
WORDS = (
    ("impression", "One thing shown to one person, clicked or not. Everything known of it stands in its fields."),
    ("auc", "How often an impression that was clicked gets a higher probability than one that was not; 0.5 is chance."),
    ("logloss", "How surprised the model is by what happened; smaller is better."),
    ("gauc", "The auc within each person's own impressions: who clicks much does not help."),
    (
        "ece, pcoc",
        "Whether probabilities are right: mean gap to the share clicked; predicted over real clicks (1 is right).",
    ),
    ("token", "A part of an impression as a row of numbers; layers mix tokens and rework each of them."),
    (
        "stable rank, entropy rank",
        "How many different directions the tokens of one impression use. Stable: the sum of all squared singular "
        "values over the largest. Entropy: counted softly (Roy and Vetterli).",
    ),
    (
        "interval",
        "Where the number would fall with other impressions of the same kind, in 95 of 100 draws if not set otherwise.",
    ),
    (
        "what helps",
        "If the rank falls from layer to layer: full mixing or gated feed-forwards (RankElastor), fewer blocks, or "
        "more tokens. Compare the runs again after it.",
    ),
)
"""What a reader may not know."""


@dataclass(frozen=True)
class RankingReport(Page):
    """A page about click models, and what is on it."""

    problem: ClassVar[Literal["ranking"]] = "ranking"

    findings: tuple[RankingFinding, ...]
    figures: tuple[Figure | Missing, ...]


def click_report(
    runs: Sequence[Run],
    *,
    data: ImpressionStore | Path | None,
    split: str,
    sample: int | None,
    settings: Sequence[str],
    evaluations: Mapping[str, Any] | None,
    tell: Tell | None,
    device: torch.device | str,
) -> RankingReport:
    """One page about some click models. The arguments are those of `collect_clicks`; `sample` are its impressions."""
    findings = collect_clicks(
        runs,
        data=data,
        split=split,
        impressions=sample,
        settings=settings,
        evaluations=evaluations,
        tell=tell,
        device=device,
    )
    joint = [reliability(findings), trajectory(findings), click_size(findings), curves(findings, RANKS)]
    single = {one.key: [distribution(one)] for one in findings}
    blocks = [
        {
            "key": one.key, "name": one.name, "note": _note(one), "figures": single[one.key],
            "tables": [table for table in (_theorems(one),) if table is not None],
        }
        for one in findings
    ]  # fmt: skip
    verb = "predicts" if len(findings) == 1 else "predict"
    content = {
        "title": f"What {plural(len(findings), 'click model')} {verb}, and how it gets there",
        "subtitle": f"Accuracy, calibration and effective rank on the {split} split.",
        "joint": joint, "blocks": blocks, "short": list(_short(findings)), "summary": _summary(findings),
        "foot": f"Written by fullrank {__version__}. The numbers behind each figure can be unfolded below it.",
    }  # fmt: skip
    figures = [*joint, *(figure for some in single.values() for figure in some)]
    return RankingReport(render(content, WORDS), tuple(findings), tuple(figures))


def _short(findings: Sequence[RankingFinding]) -> Iterator[str]:
    """What there is to see, in sentences."""
    why = comparable_clicks(findings)
    if why is not None:
        yield f"The runs' metrics are shown but not compared: {why}."
    elif len(findings) > 1:
        name = findings[0].selected
        have = [one for one in findings if one.metric(name) is not None]
        if have:
            best = max(
                have, key=lambda one: selection_sign(findings[0].run.spec.evaluation) * (one.metric(name) or 0.0)
            )
            yield f"Most accurate: {best.key} ({best.name}), {name} {best.metric(name):.4f}."
    for one in findings:
        means = list(one.taps("stable_rank").values())
        if len(means) > 1:
            word = "falls" if means[-1] < means[0] else "rises"
            yield (
                f"{one.key} ({one.name}): the stable rank {word} from {means[0]:.2f} in the field vectors to "
                f"{means[-1]:.2f} behind the last layer."
            )


def _summary(findings: Sequence[RankingFinding]) -> dict[str, Any]:
    metrics = [name for name in METRICS if any(one.metric(name) is not None for one in findings)]
    rows = [
        {
            "key": one.key, "name": one.name, "colour": look(place)["color"],
            "cells": [
                one.run.spec.recipe, one.run.manifest["parameters"], *(_with_interval(one, name) for name in metrics),
                one.last("stable_rank"), one.last("entropy_rank"),
            ],
        }
        for place, one in enumerate(findings)
    ]  # fmt: skip
    count = listed(sorted({f"{one.evaluated.protocol['rows']:,}" for one in findings}))
    sampled = listed(sorted({f"{one.diagnosis.about().get('impressions', 0):,}" for one in findings}))
    note = (
        f"Metrics of {count} impressions; in brackets their intervals. Ranks are means behind the last layer, from a "
        f"sample of {sampled} impressions. Whether two runs differ: fullrank evaluate RUN RUN."
    )
    headers = ("recipe", "parameters", *metrics, "stable rank", "entropy rank")
    return {"headers": headers, "rows": rows, "note": note}


def _with_interval(one: RankingFinding, name: str) -> str | None:
    value, pair = one.metric(name), one.interval(name)
    if value is None:
        return None
    return f"{value:.4f}" if pair is None else f"{value:.4f} ({pair[0]:.4f}–{pair[1]:.4f})"


def _note(one: RankingFinding) -> str:
    epochs, many = plural(len(one.epochs), "epoch"), one.run.manifest["parameters"]
    return f"{one.run.spec.recipe}, seed {one.run.spec.seed}, {epochs}, {many:,} parameters."


def _theorems(one: RankingFinding) -> dict[str, Any] | None:
    """What of RankElastor's theorems is there in this model."""
    found = one.diagnosis.of("rank_theorems")
    if not found:
        return None
    return {
        "title": f"The theorems of RankElastor in run {one.key}",
        "caption": (
            "Means over the sample. transpose_...: Theorem 2.1, the stable rank behind block transpose between two "
            "bounds, under an overlap near 0 and a coherence near 1. feed_forward_...: Theorems 2.2 and 3.2, the rank "
            "behind a feed-forward over, and less, that of what it was given. They are promises about random weights."
        ),
        "headers": ("module", "figure", "value"),
        "rows": [(readable(str(row["label"])), row["name"], row["value"]) for row in found],
    }
