"""From run folders to one page: collect results, measure what is missing, draw.

A page has the answer and the facts behind it, then figures, then the models from inside. Figures of
all runs come first, then the figures and tables of each run. A section of another package that
raises an error is missing, and the page says why; an error of a built-in section is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fullrank.analysis.activations import FAIRNESS
from fullrank.analysis.diagnose import sample_size
from fullrank.analysis.diagnostics import Section, failure, find_sections, is_built_in
from fullrank.analysis.report import Drawn, Missing, duration, join_words, plural
from fullrank.analysis.report.answer import accuracy_sentence, retrieval_answer, run_facts
from fullrank.analysis.report.collect import collect
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.page import Report, RunBlock, SummaryRow, SummaryTable, check_extra, is_table
from fullrank.analysis.report.results import RunResult, Runs, metric_cell, metric_header, most_accurate, not_comparable
from fullrank.core.errors import brief
from fullrank.core.log import Tell, quiet
from fullrank.core.registry import Problem
from fullrank.data.impressions.store import AnyStore
from fullrank.evaluation.spec import history_words
from fullrank.run import Run, opened_run, require_problem

ORDER: Mapping[Problem, tuple[str, ...]] = {
    "retrieval": (
        "differences", "recall_bands", "recall_types", "cold_items", "examples", "pareto", "bands", "robustness",
        "shortcut", "feature_worth", "curves", "depth", "size", "step_curve",
        "code_levels", "beam_loss", "code_popularity", "spectrum", "bound", "focus", "case", "layers", "oracle_step",
        "diversity", "attention_share", "ablation", "streams", "latent_attention", "alignment", "norms",
    ),
    "ranking": ("differences", "reliability", "gain", "curves", "size", "token_ranks", "rank_theorems", "jacobian"),
}  # fmt: skip
"""Order of the sections on the page: these first, then those that are not named here, by name; internals are folded."""
MORE = ("recall@10", FAIRNESS, "coverage@10", "lift@10")
"""Metrics of the table of recommenders, beside the accuracy."""
CLICKS = ("auc", "logloss", "gauc", "ece", "pcoc")
"""Metrics of the table of ranking models."""
OFF = 0.1
"""Largest distance of predicted over real clicks from 1 that the page does not mention."""
RETRIEVAL_WORDS = (
    ("accuracy", "How often, and how early in the list, comes what a person really chose next (ndcg, recall, hit)."),
    ("baseline", "A recommender that counts and learns nothing by gradient descent: what training has to beat."),
    (
        "long-tail share (fair0.8@1)",
        "The share of first recommendations that are from the long tail: the least popular 80 % of the catalogue.",
    ),
    ("catalogue coverage", "The share of all items that stand in anybody's list."),
    ("popularity lift", "Popularity of the recommended items over that of what people chose before; 1 is the same."),
    (
        "head, mid, tail",
        "The most popular items that hold the first third of training events, the next third, and all other items.",
    ),
    (
        "interval",
        "Where the number would fall with other users of the same kind, in 95 of 100 draws if not set otherwise.",
    ),
    ("p", "How often a difference this large would come by chance if two runs were alike: below 0.05 it is unlikely."),
    (
        "collapse share",
        "The share of the variance of all scores that is the first singular vector: the largest squared singular value "
        "of the users x items score matrix over the sum of all. At 1 every user gets the same order of items.",
    ),
    (
        "Spearman correlation with popularity",
        "Whether the first singular vector puts items in the order of how often they were used: 1 is the same.",
    ),
    ("effective rank", "How many directions matter, counted softly (entropy rank of Roy and Vetterli)."),
    ("ablation", "Everything measured again with one part of a model switched off; nothing is trained anew."),
    ("layer", "A transformer is a stack of layers; each mixes what a person did before (attention), then reworks it."),
    (
        "reasoning steps",
        "Some models do not answer at once: they feed their own conclusion back a few times (steps), perhaps in "
        "several ways at the same time (streams), and a gate mixes what comes out.",
    ),
    (
        "what helps",
        "If popularity takes over: fewer layers, the regularisers of SPRINT (a bound on how much attention an item can "
        "collect and on the norms of the matrices), another loss or cosine scores. Compare the runs again after it.",
    ),
)
RANKING_WORDS = (
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
"""Glossaries: a word, and what it means."""


def retrieval_page(results: Runs, split: str) -> Report:
    """The page of some recommenders."""
    accuracies = list(dict.fromkeys(run.accuracy for run in results))
    more = [name for name in MORE if name not in accuracies and any(name in run.evaluation.metrics for run in results)]
    users, sampled = _counts(results, "users", "users")
    history = join_words(sorted({history_words(run.evaluation.protocol) for run in results}))
    note = (
        f"Metrics of {users} users over the full catalogue, {history}; below them their intervals. The figures below "
        "are measured alike, but for the validation scores of training, which are by each run's own settings. "
        f"Model internals are from a sample of {sampled} users."
    )
    others = [f"{run.key} was selected by {run.selected}" for run in results if run.selected != run.accuracy]
    if others and len(accuracies) == 1:
        note += f" Accuracy is {accuracies[0]}; {join_words(others)}."
    return _page(
        results,
        split,
        title=f"What {plural(len(results), 'run')} recommend{'s' if len(results) == 1 else ''}, and why",
        subtitle=f"Accuracy, long-tail share and popularity bias on the {split} split.",
        sentences=retrieval_answer(results),
        summary=_summary(results, [*accuracies, *more], {"collapse share": _collapse}, note),
        words=RETRIEVAL_WORDS,
    )


def ranking_page(results: Runs, split: str) -> Report:
    """The page of some ranking models."""
    count, sampled = _counts(results, "rows", "impressions")
    note = (
        f"Metrics of {count} impressions; below them their intervals. Model internals are from a sample of {sampled} "
        "impressions."
    )
    metrics = [name for name in CLICKS if any(run.metric(name) is not None for run in results)]
    return _page(
        results,
        split,
        title=f"What {plural(len(results), 'ranking model')} predict{'s' if len(results) == 1 else ''}, "
        "and how it gets there",
        subtitle=f"Accuracy and calibration on the {split} split.",
        sentences=_sentences(results),
        summary=_summary(results, metrics, {}, note),
        words=RANKING_WORDS,
    )


def _page(
    results: Runs,
    split: str,
    *,
    title: str,
    subtitle: str,
    sentences: Iterable[str],
    summary: SummaryTable,
    words: tuple[tuple[str, str], ...],
) -> Report:
    """The page of some runs; what differs between the two problems is given."""
    problem = results[0].spec.problem
    return Report(
        title=title,
        subtitle=subtitle,
        sentences=tuple(sentences),
        facts=run_facts(results, split),
        summary=summary,
        sections=joint_figures(problem, results, internal=False),
        internals=joint_figures(problem, results, internal=True),
        blocks=blocks_of_runs(problem, results),
        words=words,
        problem=problem,
        results=tuple(results),
    )


def _sentences(results: Runs) -> Iterator[str]:
    """The most accurate ranking model, and those whose probabilities are off."""
    why = not_comparable(results)
    if why is None:
        yield accuracy_sentence(most_accurate(results), results)
    else:
        yield f"The runs' metrics are shown but not compared: {why}."
    for run in results:
        ratio = run.metric("pcoc")
        if ratio is not None and abs(ratio - 1) > OFF:
            word = "more" if ratio > 1 else "fewer"
            yield f"Calibration: {run.key} ({run.name}) predicts {abs(ratio - 1):.0%} {word} clicks than there were."


def _summary(
    results: Runs, metrics: Sequence[str], more: Mapping[str, Callable[[RunResult], Any]], note: str
) -> SummaryTable:
    """Metrics with intervals, `more` (word -> cell), parameters and the time of training."""
    columns: dict[str, Callable[[RunResult], Any]] = {
        **more,
        "parameters": lambda run: run.manifest["parameters"],
        "training": lambda run: None if run.seconds is None else duration(run.seconds),
    }
    rows = []
    for number, run in enumerate(results):
        cells = (*(metric_cell(run, name) for name in metrics), *(cell(run) for cell in columns.values()))
        words = [] if run.spec.recipe == run.name else [run.spec.recipe]
        words += [] if run.layers is None else [plural(run.layers, "layer")]
        rows.append(SummaryRow(run.key, run.name, look(number)["color"], cells, ", ".join(words)))
    return SummaryTable((*map(metric_header, metrics), *columns), tuple(rows), note)


def _counts(results: Runs, evaluated: str, sampled: str) -> tuple[str, str]:
    """Distinct numbers of users (or impressions) of the evaluations and the diagnoses."""
    of_evaluations = {f"{run.evaluation.protocol.get(evaluated, 0):,}" for run in results}
    of_diagnoses = {f"{run.diagnosis.about().get(sampled, 0):,}" for run in results}
    return join_words(sorted(of_evaluations)), join_words(sorted(of_diagnoses))


def _collapse(run: RunResult) -> str | None:
    """The share of the variance of a run's scores that is one direction."""
    share = run.diagnosis.value("spectrum", "collapse_share")
    return None if share is None else f"{share:.0%}"


def joint_figures(problem: Problem, results: Runs, *, internal: bool | None = None) -> tuple[Drawn | Missing, ...]:
    """Figures of all runs together: internal ones, the others, or (None) both."""
    sections = [section for section in find_sections(problem, ORDER[problem]) if internal in (None, section.internal)]
    return tuple(_drawings(sections, "figure", results))


def blocks_of_runs(problem: Problem, results: Runs) -> tuple[RunBlock, ...]:
    """The part of the page about each run alone: its figures, then its tables."""
    sections, blocks = find_sections(problem, ORDER[problem]), []
    for run in results:
        epochs = plural(len(run.epochs), "epoch") if run.epochs else "not trained in epochs"
        note = f"{run.spec.recipe}, seed {run.spec.seed}, {epochs}, {run.manifest['parameters']:,} parameters."
        drawn = sorted(_drawings(sections, "figure_of", run, f"-{run.key}"), key=is_table)
        blocks.append(RunBlock(run.key, run.name, note, tuple(drawn)))
    return tuple(blocks)


def _drawings(
    sections: Sequence[type[Section]], method: str, runs: RunResult | Runs, end: str = ""
) -> Iterator[Drawn | Missing]:
    """Call `method` of each section; one of another package that fails is `Missing`."""
    for section in sections:
        try:
            drawn = getattr(section, method)(runs)
            if not isinstance(drawn, Drawn | Missing | None):
                raise TypeError(f"{brief(drawn)} is no Figure")
        except Exception as error:
            if is_built_in(section):
                raise
            drawn = Missing(section.name + end, section.name, failure(section, error))
        if drawn is not None:
            yield drawn


REPORT: Mapping[Problem, Callable[[Runs, str], Report]] = {"retrieval": retrieval_page, "ranking": ranking_page}
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
    tell: Tell = quiet,
    device: torch.device | str = "cpu",
) -> Report:
    """Make the page of some runs of one problem. The arguments are those of `collect`.

    Raises `UserError` where the runs are of two problems, the sample is of the other one, or
    matplotlib or jinja2 is not installed (naming the extra).
    """
    check_extra()
    opened = [opened_run(run) for run in runs]
    samples = [sample_size(run, users=users, impressions=impressions) for run in opened]
    for run in opened:
        remedy = f"give {opened[0].path} a report of its own"
        require_problem(run, opened[0].spec.problem, remedy, code="two-problems")
    results = collect(
        opened,
        data=Path(data) if isinstance(data, str) else data,
        split=split,
        sample=next(iter(samples), None),
        settings=settings,
        evaluations=evaluations,
        tell=tell,
        device=device,
    )
    return REPORT[opened[0].spec.problem](results, split)
