"""The page about ranking (CTR) models: the answer and what it rests on, calibration, then the models from inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fullrank.analysis.report import duration, join_words, plural
from fullrank.analysis.report.answer import accuracy_sentence
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.facts import run_facts
from fullrank.analysis.report.page import Report, SummaryRow, SummaryTable
from fullrank.analysis.report.paired import most_accurate
from fullrank.analysis.report.results import RunResult, metric_cell, metric_header, not_comparable
from fullrank.analysis.report.sections import blocks_of_runs, joint_figures

ORDER = ("differences", "reliability", "gain", "curves", "size", "token_ranks", "rank_theorems", "jacobian")
"""Order of the sections on the page: these first, then those that are not named here, by name; internals are folded."""
OFF = 0.1
"""Predicted over real clicks this far from 1 is told in a sentence."""
METRICS = ("auc", "logloss", "gauc", "ece", "pcoc")
WORDS = (
    ("impression", "One thing shown to one person, clicked or not. Everything known of it stands in its fields."),
    ("auc", "How often an impression that was clicked gets a higher probability than one that was not; 0.5 is chance."),
    ("logloss", "How surprised the model is by what happened; smaller is better."),
    ("gauc", "The auc within each person's own impressions: who clicks much does not help."),
    (
        "calibration error (ece), predicted / clicked (pcoc)",
        "Whether probabilities are right: mean gap to the share clicked; predicted over real clicks (1 is right).",
    ),
    ("p", "How often a difference this large would come by chance if two runs were alike: below 0.05 it is unlikely."),
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


def ranking_page(results: Sequence[RunResult], split: str) -> Report:
    """One page about some ranking models."""
    verb = "predicts" if len(results) == 1 else "predict"
    return Report(
        title=f"What {plural(len(results), 'ranking model')} {verb}, and how it gets there",
        subtitle=f"Accuracy and calibration on the {split} split.",
        sentences=tuple(_sentences(results)),
        facts=run_facts(results, split),
        summary=_summary(results),
        sections=joint_figures("ranking", ORDER, results, internal=False),
        internals=joint_figures("ranking", ORDER, results, internal=True),
        blocks=blocks_of_runs("ranking", ORDER, results),
        words=WORDS,
        problem="ranking",
        results=tuple(results),
    )


def _sentences(results: Sequence[RunResult]) -> Iterator[str]:
    """Which run is the most accurate and by how much, and whose probabilities are off."""
    why = not_comparable(results)
    if why is not None:
        yield f"The runs' metrics are shown but not compared: {why}."
    else:
        yield accuracy_sentence(most_accurate(results), results)
    for one in results:
        ratio = one.metric("pcoc")
        if ratio is not None and abs(ratio - 1) > OFF:
            word = "more" if ratio > 1 else "fewer"
            yield f"Calibration: {one.key} ({one.name}) predicts {abs(ratio - 1):.0%} {word} clicks than there were."


def _summary(results: Sequence[RunResult]) -> SummaryTable:
    metrics = [name for name in METRICS if any(one.metric(name) is not None for one in results)]
    rows = tuple(
        SummaryRow(one.key, one.name, look(place)["color"], (
            *(metric_cell(one, name) for name in metrics), one.run.manifest["parameters"],
            None if one.seconds is None else duration(one.seconds),
        ), "" if one.run.spec.recipe == one.name else one.run.spec.recipe)
        for place, one in enumerate(results)
    )  # fmt: skip
    count = join_words(sorted({f"{one.evaluation.protocol['rows']:,}" for one in results}))
    sampled = join_words(sorted({f"{one.diagnosis.about().get('impressions', 0):,}" for one in results}))
    note = (
        f"Metrics of {count} impressions; below them their intervals. Model internals are from a sample of {sampled} "
        "impressions."
    )
    headers = (*(metric_header(name) for name in metrics), "parameters", "training")
    return SummaryTable(headers, rows, note)
