"""The page about ranking (CTR) models: accuracy, calibration, and the effective rank behind each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fullrank.analysis.diagnostics.token_ranks import last_layer_value, layer_values
from fullrank.analysis.report import join_words, plural
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.page import Report, SummaryRow, SummaryTable
from fullrank.analysis.report.results import RunResult, not_comparable
from fullrank.analysis.report.sections import blocks_of_runs, joint_figures, metric_cell
from fullrank.evaluation.spec import selection_sign

ORDER = ("reliability", "token_ranks", "size", "curves", "rank_theorems", "jacobian")
"""Order of the sections on the page: these first, then those that are not named here, by name."""
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


def ranking_page(results: Sequence[RunResult], split: str) -> Report:
    """One page about some ranking models."""
    verb = "predicts" if len(results) == 1 else "predict"
    return Report(
        title=f"What {plural(len(results), 'ranking model')} {verb}, and how it gets there",
        subtitle=f"Accuracy, calibration and effective rank on the {split} split.",
        sentences=tuple(_sentences(results)),
        summary=_summary(results),
        sections=joint_figures("ranking", ORDER, results),
        blocks=blocks_of_runs("ranking", ORDER, results),
        words=WORDS,
        problem="ranking",
        results=tuple(results),
    )


def _sentences(results: Sequence[RunResult]) -> Iterator[str]:
    """What there is to see, in sentences."""
    why = not_comparable(results)
    if why is not None:
        yield f"The runs' metrics are shown but not compared: {why}."
    elif len(results) > 1:
        name = results[0].selected
        have = [one for one in results if one.metric(name) is not None]
        if have:
            best = max(have, key=lambda one: selection_sign(results[0].run.spec.evaluation) * (one.metric(name) or 0.0))
            yield f"Most accurate: {best.key} ({best.name}), {name} {best.metric(name):.4f}."
    for one in results:
        means = list(layer_values(one, "stable_rank").values())
        if len(means) > 1:
            word = "falls" if means[-1] < means[0] else "rises"
            yield (
                f"{one.key} ({one.name}): the stable rank {word} from {means[0]:.2f} in the field vectors to "
                f"{means[-1]:.2f} behind the last layer."
            )


def _summary(results: Sequence[RunResult]) -> SummaryTable:
    metrics = [name for name in METRICS if any(one.metric(name) is not None for one in results)]
    rows = tuple(
        SummaryRow(one.key, one.name, look(place)["color"], (
            one.run.spec.recipe, one.run.manifest["parameters"], *(metric_cell(one, name) for name in metrics),
            last_layer_value(one, "stable_rank"), last_layer_value(one, "entropy_rank"),
        ))
        for place, one in enumerate(results)
    )  # fmt: skip
    count = join_words(sorted({f"{one.evaluation.protocol['rows']:,}" for one in results}))
    sampled = join_words(sorted({f"{one.diagnosis.about().get('impressions', 0):,}" for one in results}))
    note = (
        f"Metrics of {count} impressions; in brackets their intervals. Ranks are means behind the last layer, from a "
        f"sample of {sampled} impressions. Whether two runs differ: fullrank evaluate RUN RUN."
    )
    headers = ("recipe", "parameters", *metrics, "stable rank", "entropy rank")
    return SummaryTable(headers, rows, note)
