"""The page about runs that recommend: the answer and what it rests on, then figures, then the models from inside."""

from __future__ import annotations

from collections.abc import Sequence

from fullrank.analysis.activations import FAIRNESS
from fullrank.analysis.report import duration, join_words, plural
from fullrank.analysis.report.answer import retrieval_answer
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.facts import run_facts
from fullrank.analysis.report.page import Report, SummaryRow, SummaryTable
from fullrank.analysis.report.results import RunResult, metric_cell, metric_header
from fullrank.analysis.report.sections import blocks_of_runs, joint_figures
from fullrank.metrics.names import history_words

MORE = ("recall@10", FAIRNESS, "coverage@10", "lift@10")
"""Metrics of the table of runs beside the accuracy."""
ORDER = (
    "differences", "recall_bands", "cold_items", "examples", "pareto", "bands", "robustness", "shortcut", "curves",
    "depth", "size", "step_curve",
    "code_levels", "beam_loss", "code_popularity", "spectrum", "bound", "focus", "case", "layers", "oracle_step",
    "diversity", "attention_share", "ablation", "streams", "latent_attention", "alignment", "norms",
)  # fmt: skip
"""Order of the sections on the page: these first, then those that are not named here, by name; internals are folded."""
WORDS = (
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
"""What a reader may not know."""


def retrieval_page(results: Sequence[RunResult], split: str) -> Report:
    """One page about some runs that recommend items."""
    return Report(
        title=f"What {plural(len(results), 'run')} recommend{'s' if len(results) == 1 else ''}, and why",
        subtitle=f"Accuracy, long-tail share and popularity bias on the {split} split.",
        sentences=tuple(retrieval_answer(results)),
        facts=run_facts(results, split),
        summary=_summary(results),
        sections=joint_figures("retrieval", ORDER, results, internal=False),
        internals=joint_figures("retrieval", ORDER, results, internal=True),
        blocks=blocks_of_runs("retrieval", ORDER, results),
        words=WORDS,
        problem="retrieval",
        results=tuple(results),
    )


def _summary(results: Sequence[RunResult]) -> SummaryTable:
    accuracies = list(dict.fromkeys(one.accuracy for one in results))
    more = [name for name in MORE if name not in accuracies and any(name in one.evaluation.metrics for one in results)]
    rows = tuple(
        SummaryRow(one.key, one.name, look(place)["color"], (
            *(metric_cell(one, name) for name in [*accuracies, *more]), _collapse(one),
            one.run.manifest["parameters"], None if one.seconds is None else duration(one.seconds),
        ), _kind(one))
        for place, one in enumerate(results)
    )  # fmt: skip
    headers = (*(metric_header(name) for name in [*accuracies, *more]), "collapse share", "parameters", "training")
    users = join_words(sorted({f"{one.evaluation.protocol['users']:,}" for one in results}))
    history = join_words(sorted({history_words(one.evaluation.protocol) for one in results}))
    note = (
        f"Metrics of {users} users over the full catalogue, {history}; below them their intervals. The figures below "
        "are measured alike, but for the validation scores of training, which are by each run's own settings. "
        f"Model internals are from a sample of {join_words(sorted({_sampled(one) for one in results}))} users."
    )
    others = [one for one in results if one.selected != one.accuracy]
    if others and len(accuracies) == 1:
        note += (
            f" Accuracy is {accuracies[0]}; "
            + join_words([f"{o.key} was selected by {o.selected}" for o in others])
            + "."
        )
    return SummaryTable(headers, rows, note)


def _collapse(one: RunResult) -> str | None:
    """The share of the variance of its scores that is one direction."""
    share = one.diagnosis.value("spectrum", "collapse_share")
    return None if share is None else f"{share:.0%}"


def _kind(one: RunResult) -> str:
    """Recipe and layers, where the name does not say them."""
    words = [] if one.run.spec.recipe == one.name else [one.run.spec.recipe]
    return ", ".join(words + ([] if one.layers is None else [plural(one.layers, "layer")]))


def _sampled(one: RunResult) -> str:
    return f"{one.diagnosis.about().get('users', 0):,}"
