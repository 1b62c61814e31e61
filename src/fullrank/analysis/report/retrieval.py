"""The page about runs that recommend: accuracy, fairness, popularity bias, and where in a model it arises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fullrank.analysis.activations import FAIRNESS
from fullrank.analysis.diagnostics.shortcut import reached_share, verdict
from fullrank.analysis.report import join_words, plural
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.page import Report, SummaryRow, SummaryTable
from fullrank.analysis.report.results import RunResult, not_comparable
from fullrank.analysis.report.sections import blocks_of_runs, joint_figures, metric_cell
from fullrank.metrics.names import history_words

COLLAPSED = 0.8
"""Collapse share from which on the page says so in words (the alarm of `analysis.watch.Watch`)."""
SOLVED = 0.9
"""Share of a model's accuracy that a graph reaches, from which on the page says so in words."""
MORE = ("recall@10", "lift@10", "gini@10", "coverage@10")
"""Metrics of the summary beside accuracy and fairness."""
ORDER = (
    "pareto", "bands", "depth", "size", "spectrum", "layers", "bound", "focus", "case", "robustness", "shortcut",
    "curves", "step_curve", "oracle_step", "diversity", "attention_share", "ablation", "streams", "latent_attention",
    "alignment", "norms",
)  # fmt: skip
"""Order of the sections on the page: these first, then those that are not named here, by name."""
WORDS = (
    ("accuracy", "How often, and how early in the list, comes what a person really chose next (ndcg, recall, hit)."),
    ("fairness", "The share of recommendations that are niche items: the least popular 80 % of the catalogue."),
    (
        "collapse share",
        "How much of all scores is a single pattern. At 1 every user gets the same order of items. (The largest "
        "squared singular value of the users x items score matrix over the sum of all.)",
    ),
    (
        "likeness to popularity",
        "Whether that pattern puts items in the order of how often they were used: 1 is the same.",
    ),
    ("directions in use", "How many patterns matter, counted softly (entropy rank of Roy and Vetterli)."),
    ("layer", "A transformer is a stack of layers; each mixes what a person did before (attention), then reworks it."),
    (
        "reasoning steps",
        "Some models do not answer at once: they feed their own conclusion back a few times (steps), perhaps in "
        "several ways at the same time (streams), and a gate mixes what comes out.",
    ),
    (
        "interval",
        "Where the number would fall with other users of the same kind, in 95 of 100 draws if not set otherwise.",
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
        subtitle=f"Accuracy, fairness and popularity bias on the {split} split.",
        sentences=tuple(_sentences(results)),
        summary=_summary(results),
        sections=joint_figures("retrieval", ORDER, results),
        blocks=blocks_of_runs("retrieval", ORDER, results),
        words=WORDS,
        problem="retrieval",
        results=tuple(results),
    )


def _sentences(results: Sequence[RunResult]) -> Iterator[str]:
    """What there is to see, in sentences."""
    why = not_comparable(results)
    if why is not None:
        yield f"The runs' metrics are shown but not compared: {why}."
    elif len(results) > 1:
        for name, word in ((results[0].accuracy, "accurate"), (FAIRNESS, "fair to niche items")):
            best = max(results, key=lambda one: one.evaluation.metrics[name])
            yield f"Most {word}: {best.key} ({best.name}), {name} {best.evaluation.metrics[name]:.4f}."
    for one in results:
        share = one.diagnosis.value("spectrum", "collapse_share")
        likeness = one.diagnosis.value("spectrum", "popularity_spearman")
        if share is not None and share >= COLLAPSED:
            alike = "" if likeness is None else f"; its likeness to popularity is {likeness:.2f}"
            yield f"{one.key} ({one.name}) has collapsed: one pattern is {share:.0%} of all its scores{alike}."
        reached, said = reached_share(one.diagnosis), verdict(one.diagnosis)
        if reached is not None and reached >= SOLVED:
            yield f"{one.key} ({one.name}): {said}."
    shares = {one.key: one.diagnosis.value("spectrum", "collapse_share") for one in results}
    measured = {key: share for key, share in shares.items() if share is not None}
    if measured and max(measured.values()) < COLLAPSED:
        yield f"No collapse: in {join_words(list(measured))} no single pattern is {COLLAPSED:.0%} of the scores."


def _summary(results: Sequence[RunResult]) -> SummaryTable:
    accuracies = list(dict.fromkeys(one.accuracy for one in results))
    more = [name for name in MORE if name not in accuracies and any(name in one.evaluation.metrics for one in results)]
    rows = tuple(
        SummaryRow(one.key, one.name, look(place)["color"], (
            one.run.spec.recipe, one.layers, one.run.manifest["parameters"],
            *(metric_cell(one, name) for name in [*accuracies, FAIRNESS]),
            *(one.metric(name) for name in more),
            one.diagnosis.value("spectrum", "collapse_share"),
            one.diagnosis.value("spectrum", "popularity_spearman"),
        ))
        for place, one in enumerate(results)
    )  # fmt: skip
    headers = ("recipe", "layers", "parameters", *accuracies, FAIRNESS, *more, "collapse share", "likeness")
    users = join_words(sorted({f"{one.evaluation.protocol['users']:,}" for one in results}))
    history = join_words(sorted({history_words(one.evaluation.protocol) for one in results}))
    note = (
        f"Metrics of {users} users over the full catalogue, {history}; in brackets their intervals. The figures below "
        "are measured alike, but for the validation scores of training, which are by each run's own settings. "
        f"Collapse and likeness from a sample of {join_words(sorted({_sampled(one) for one in results}))} users."
    )
    others = [one for one in results if one.selected != one.accuracy]
    if others and len(accuracies) == 1:
        note += (
            f" Accuracy is {accuracies[0]}; "
            + join_words([f"{o.key} was selected by {o.selected}" for o in others])
            + "."
        )
    return SummaryTable(headers, rows, note)


def _sampled(one: RunResult) -> str:
    return f"{one.diagnosis.about().get('users', 0):,}"
