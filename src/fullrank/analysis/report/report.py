"""From run folders to one page: collect, draw, write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import torch

from fullrank import __version__
from fullrank.analysis import figures as drawings
from fullrank.analysis.ablation import FAIRNESS
from fullrank.analysis.diagnose import sample_size
from fullrank.analysis.report import Figure, Missing, listed, plural
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.findings import Finding, collect, comparable
from fullrank.analysis.report.known import readable
from fullrank.analysis.report.page import Page, check_extra, render
from fullrank.analysis.report.ranking_report import RankingReport, click_report
from fullrank.core.errors import UserError
from fullrank.core.progress import Tell
from fullrank.data.impressions.store import AnyStore
from fullrank.problem import Problem
from fullrank.run import Run

COLLAPSED = 0.8
"""Collapse share from which on the page says so in words (the alarm of `diagnostics.callback.Watch`)."""
MORE = ("recall@10", "lift@10", "gini@10", "coverage@10")
"""Metrics of the summary beside accuracy and fairness."""


@dataclass(frozen=True)
class Report(Page):
    """A page about recommenders, and what is on it."""

    problem: ClassVar[Literal["retrieval"]] = "retrieval"

    findings: tuple[Finding, ...]
    figures: tuple[Figure | Missing, ...]


class WritePage(Protocol):
    """The page of some runs of one problem; `sample` is the size of the diagnosis, in users or impressions."""

    def __call__(
        self,
        runs: Sequence[Run],
        *,
        data: Any,
        split: str,
        sample: int | None,
        settings: Sequence[str],
        evaluations: Mapping[str, Any] | None,
        tell: Tell | None,
        device: torch.device | str,
    ) -> Report | RankingReport: ...


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
) -> Report | RankingReport:
    """One page about some runs of one problem. The arguments are those of `findings.collect`.

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
            "no figure in common: write one report of each kind"
        )
    if not opened:
        raise UserError("a report needs at least one run")
    return REPORT[opened[0].spec.problem](
        opened, data=Path(data) if isinstance(data, str) else data, split=split, sample=samples[0], settings=settings,
        evaluations=evaluations, tell=tell, device=device,
    )  # fmt: skip


def _recommenders(
    runs: Sequence[Run], *, data: Any, split: str, sample: int | None, settings: Sequence[str],
    evaluations: Mapping[str, Any] | None, tell: Tell | None, device: torch.device | str,
) -> Report:  # fmt: skip
    findings = collect(
        runs, data=data, split=split, users=sample, settings=settings, evaluations=evaluations, tell=tell, device=device
    )
    joint = drawings.joint(findings)
    single = {one.key: drawings.single(one) for one in findings}
    blocks = [
        {
            "key": one.key,
            "name": one.name,
            "note": _note(one),
            "figures": single[one.key],
            "tables": [table for table in (_loadings(one), _alignment(one), _norms(one)) if table is not None],
        }
        for one in findings
    ]
    html = render({
        "title": f"What {plural(len(findings), 'run')} recommend{'s' if len(findings) == 1 else ''}, and why",
        "subtitle": f"Accuracy, fairness and popularity bias on the {split} split.",
        "joint": joint, "blocks": blocks, "short": list(_short(findings)), "summary": _summary(findings),
        "foot": f"Written by fullrank {__version__}. The numbers behind each figure can be unfolded below it.",
    })  # fmt: skip
    figures = [*joint, *(figure for some in single.values() for figure in some)]
    return Report(html, tuple(findings), tuple(figures))


REPORT: Mapping[Problem, WritePage] = {"retrieval": _recommenders, "ranking": click_report}


def _short(findings: Sequence[Finding]) -> Iterator[str]:
    """What there is to see, in sentences."""
    why = comparable(findings)
    if why is not None:
        yield f"The runs' metrics are shown but not compared: {why}."
    elif len(findings) > 1:
        for name, word in ((findings[0].accuracy, "accurate"), (FAIRNESS, "fair to niche items")):
            best = max(findings, key=lambda one: one.evaluated.metrics[name])
            yield f"Most {word}: {best.key} ({best.name}), {name} {best.evaluated.metrics[name]:.4f}."
    for one in findings:
        share = one.diagnosis.value("spectrum", "collapse_share")
        likeness = one.diagnosis.value("spectrum", "popularity_spearman")
        if share is not None and share >= COLLAPSED:
            alike = "" if likeness is None else f"; its likeness to popularity is {likeness:.2f}"
            yield f"{one.key} ({one.name}) has collapsed: one pattern is {share:.0%} of all its scores{alike}."
    shares = {one.key: one.diagnosis.value("spectrum", "collapse_share") for one in findings}
    measured = {key: share for key, share in shares.items() if share is not None}
    if measured and max(measured.values()) < COLLAPSED:
        yield f"No collapse: in {listed(list(measured))} no single pattern is {COLLAPSED:.0%} of the scores."


def _summary(findings: Sequence[Finding]) -> dict[str, Any]:
    accuracies = list(dict.fromkeys(one.accuracy for one in findings))
    more = [name for name in MORE if name not in accuracies and any(name in one.evaluated.metrics for one in findings)]
    rows = [
        {
            "key": one.key,
            "name": one.name,
            "colour": look(place)["color"],
            "cells": [
                one.run.spec.recipe, one.layers, one.run.manifest["parameters"],
                *(_with_interval(one, name) for name in [*accuracies, FAIRNESS]),
                *(one.metric(name) for name in more),
                one.diagnosis.value("spectrum", "collapse_share"),
                one.diagnosis.value("spectrum", "popularity_spearman"),
            ],
        }
        for place, one in enumerate(findings)
    ]  # fmt: skip
    headers = ("recipe", "layers", "parameters", *accuracies, FAIRNESS, *more, "collapse share", "likeness")
    users = listed(sorted({f"{one.evaluated.protocol['users']:,}" for one in findings}))
    seen = listed(sorted({str(one.evaluated.protocol["seen"]) for one in findings}))
    note = (
        f"Metrics of {users} users over the full catalogue; in brackets their intervals. Items of the history: {seen}. "
        f"Collapse and likeness from a sample of {listed(sorted({_sampled(one) for one in findings}))} users."
    )
    others = [one for one in findings if one.selected != one.accuracy]
    if others and len(accuracies) == 1:
        note += (
            f" Accuracy is {accuracies[0]}; " + listed([f"{o.key} was selected by {o.selected}" for o in others]) + "."
        )
    return {"headers": headers, "rows": rows, "note": note}


def _sampled(one: Finding) -> str:
    return f"{one.diagnosis.about().get('users', 0):,}"


def _with_interval(one: Finding, name: str) -> str | None:
    value, pair = one.metric(name), one.interval(name)
    if value is None:
        return None
    return f"{value:.4f}" if pair is None else f"{value:.4f} ({pair[0]:.4f}–{pair[1]:.4f})"


def _note(one: Finding) -> str:
    epochs = plural(len(one.epochs), "epoch") if one.epochs else "fitted at once"
    return f"{one.run.spec.recipe}, seed {one.run.spec.seed}, {epochs}, {one.run.manifest['parameters']:,} parameters."


def _loadings(one: Finding) -> dict[str, Any] | None:
    """The items that the first direction raises most, with their titles."""
    found = one.diagnosis.of("spectrum", "loading")
    catalog = one.run.catalog
    if not found or any(row["index"] is None or not 0 <= row["index"] < catalog.size for row in found):
        return None
    order = (-catalog.popularity).argsort(kind="stable").argsort()
    titles = catalog.titles
    rows = [
        (readable(str(catalog.ids[row["index"]])), "" if titles is None else readable(titles[row["index"]] or ""),
         int(catalog.popularity[row["index"]]), int(order[row["index"]]) + 1, row["value"])
        for row in found
    ]  # fmt: skip
    return {
        "title": f"What the first pattern of run {one.key} raises",
        "caption": (
            "The items with the largest part in the strongest pattern of all scores, and their places by popularity. "
            "If they are the most popular ones, the pattern is popularity."
        ),
        "headers": ("item", "title", "training events", "place by popularity", "part in the pattern"),
        "rows": rows,
    }


def _alignment(one: Finding) -> dict[str, Any] | None:
    """Table 3 of SPRINT: the cosines that Theorem 3.2 assumes to be near 1."""
    cosines, pairs = one.diagnosis.of("alignment", "uv_cosine"), one.diagnosis.of("alignment", "layer_cosine")
    if not cosines:
        return None
    rows = [
        (f"layer {row['layer'] + 1}, head {row['head'] + 1}", "mean of users" if row["label"] is None else "largest",
         row["value"])
        for row in cosines
    ]  # fmt: skip
    rows += [(f"layers {row['layer'] + 1} and {row['index'] + 1}", "mean of users", row["value"]) for row in pairs]
    return {
        "title": f"How alike the attention patterns of run {one.key} are",
        "caption": (
            "A layer's attention writes one pattern best and reads one pattern best; the cosine says how alike they "
            "are, and how alike two layers read. Near 1, what one layer raises the next raises again."
        ),
        "headers": ("where", "of", "cosine"),
        "rows": rows,
    }


def _norms(one: Finding) -> dict[str, Any] | None:
    """The largest singular value of each matrix."""
    found = one.diagnosis.of("norms")
    if not found:
        return None
    rows = [
        (_matrix(row), None if row["layer"] is None else row["layer"] + 1,
         None if row["head"] is None else row["head"] + 1, row["value"])
        for row in found
    ]  # fmt: skip
    return {
        "title": f"Norms of the matrices of run {one.key}",
        "caption": "Largest singular values, and the logs of their products; SPRINT's regulariser keeps these low.",
        "headers": ("matrix", "layer", "head", "value"),
        "rows": rows,
    }


def _matrix(row: Mapping[str, Any]) -> str:
    label = readable(str(row["label"])).replace("_", "-")
    return label if row["name"] == "sigma" else f"log of the product: {label}"
