"""Click models: whether probabilities are right, and how many directions an impression's tokens use, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fullrank.analysis.report import Figure, Missing, Panel
from fullrank.analysis.report.draw import GREY, legend, look, panel, whole_numbers
from fullrank.analysis.report.known import readable
from fullrank.analysis.report.ranking_findings import RankingFinding
from fullrank.analysis.token_ranks import BIN

RANKS = {"stable_rank": "stable rank", "entropy_rank": "entropy rank"}


def reliability(findings: Sequence[RankingFinding]) -> Figure:
    """Predicted probability against the share that was clicked, over parts of equally many impressions."""

    def paint(axes: Any) -> None:
        top = max(max(point.probability, point.rate) for one in findings for point in one.evaluated.curve)
        axes.plot([0, top], [0, top], color=GREY, linewidth=1, linestyle=":")
        for place, one in enumerate(findings):
            curve = one.evaluated.curve
            axes.plot([p.probability for p in curve], [p.rate for p in curve], label=one.key, **look(place))
        legend(axes, place="upper left")

    caption = (
        "Impressions in order of their predicted probability, cut into parts of about equal size: across is the mean "
        "prediction of a part, upwards the share of it that was clicked. On the dotted line probabilities are right; "
        "below it the model promises too much. The mean distance from the line is the calibration error (ece)."
    )
    alt = "Clicked over predicted. Mean gap: " + "; ".join(
        f"{one.key} {one.evaluated.metrics['ece']:.4f}" for one in findings
    )
    rows = tuple(
        (f"{one.key} {one.name}", point.rows, point.probability, point.rate)
        for one in findings for point in one.evaluated.curve
    )  # fmt: skip
    drawn = panel("reliability", paint, alt, x="predicted probability", y="share clicked")
    headers = ("run", "impressions", "predicted", "clicked")
    return Figure("reliability", "Are the probabilities right?", caption, (drawn,), headers, rows)


def trajectory(findings: Sequence[RankingFinding]) -> Figure | Missing:
    """Figures 2 and 6 of RankElastor: the mean rank behind each layer, with its quartiles."""
    name, title = "trajectory", "How many directions an impression's tokens use"
    there = [one for one in findings if one.taps("stable_rank")]
    absent = tuple(
        f"Run {one.key} ({one.name}) is not shown: {_why(one)}." for one in findings if one not in there
    )  # fmt: skip
    if not there:
        return Missing(name, title, " ".join(absent))
    panels = []
    for figure, word in RANKS.items():

        def paint(axes: Any, figure: str = figure) -> None:
            for one in there:
                means, style = one.taps(figure), look(findings.index(one))
                low, high = (list(one.taps(f"{figure}_quantile", percent).values()) for percent in (25, 75))
                axes.plot(range(len(means)), list(means.values()), label=one.key, **style)
                axes.fill_between(range(len(means)), low, high, color=style["color"], alpha=0.12, linewidth=0)
            _depth(axes, there)
            legend(axes)

        alt = f"mean {word} by layer: " + "; ".join(
            f"{one.key} from {values[0]:.3g} to {values[-1]:.3g}" for one in there
            if (values := list(one.taps(figure).values()))
        )  # fmt: skip
        panels.append(panel(f"{name}-{figure}", paint, alt, x="layer (0: field vectors)", y=word))
    caption = (
        "An impression is a table of numbers behind each layer, one row a token; its rank says how many different "
        "directions the rows really use. The line is the mean over a sample of impressions, the band holds the middle "
        "half. A fall means that tokens become alike and width is wasted (collapse). The stable rank counts directions "
        "as strong as the first, the entropy rank counts softly. Models cut an impression into different numbers of "
        "tokens, so compare the course of a line before its height; the numbers below give what would be the largest."
    )
    rows = tuple(
        (f"{one.key} {one.name}", layer, readable(tap), one.taps("stable_rank")[tap],
         one.taps("stable_rank_rose").get(tap), one.taps("entropy_rank")[tap],
         int(min(one.taps("tokens")[tap], one.taps("width")[tap])))
        for one in there for layer, tap in enumerate(one.taps("stable_rank"))
    )  # fmt: skip
    headers = ("run", "layer", "behind", "stable rank", "share that rose", "entropy rank", "of")
    return Figure(name, title, caption, tuple(panels), headers, rows, absent)


def distribution(one: RankingFinding) -> Figure | Missing:
    """Figures 1 and 5 of RankElastor: the stable ranks of single impressions before and behind each layer."""
    name, title = f"distribution-{one.key}", f"What each layer of run {one.key} does to single impressions"
    bars = _bars(one)
    if not bars:
        return Missing(name, title, f"{one.name}: {_why(one)}.")
    taps = list(bars)
    low, high = min(min(some) for some in bars.values()), max(max(some) for some in bars.values())
    pairs: list[tuple[str, ...]] = list(zip(taps[:-1], taps[1:], strict=True)) or [(taps[0],)]
    panels = tuple(_shift(f"{name}-{place}", one, pair, bars, low, high) for place, pair in enumerate(pairs))
    caption = (
        "Each panel shows how the stable rank of single impressions is distributed before a layer (grey) and behind it "
        "(coloured). A shift to the left is a layer that makes tokens alike."
    )
    quantiles = {percent: one.taps("stable_rank_quantile", percent) for percent in (5, 25, 50, 75, 95)}
    rows = tuple(
        (readable(tap), *(quantiles[percent].get(tap) for percent in quantiles),
         one.taps("stable_rank_change").get(tap), one.taps("stable_rank_rose").get(tap))
        for tap in taps
    )  # fmt: skip
    headers = ("behind", *(f"{percent} %" for percent in quantiles), "mean change", "share that rose")
    return Figure(name, title, caption, panels, headers, rows)


def _shift(
    name: str, one: RankingFinding, pair: tuple[str, ...], bars: dict[str, dict[int, float]], low: int, high: int
) -> Panel:
    """Histograms of one tap, or of two over each other."""
    edges = [place * BIN for place in range(low, high + 2)]
    words = [readable(tap).replace("_", " ") for tap in pair]

    def paint(axes: Any) -> None:
        for place, tap in enumerate(pair):
            heights = [bars[tap].get(bar, 0.0) for bar in range(low, high + 1)]
            colour = look(0)["color"] if place == len(pair) - 1 else GREY
            axes.stairs(heights, edges, fill=True, alpha=0.45, color=colour, label=words[place])
        legend(axes)

    means = one.taps("stable_rank")
    alt = "Shares of impressions by stable rank; means: " + "; ".join(
        f"{word} {means[tap]:.3g}" for word, tap in zip(words, pair, strict=True)
    )
    return panel(name, paint, alt, x="stable rank", y="share of impressions", height=2.4)


def _bars(one: RankingFinding) -> dict[str, dict[int, float]]:
    """Tap -> bar of the histogram -> share."""
    found: dict[str, dict[int, float]] = {}
    for row in one.diagnosis.of("token_ranks", "stable_rank_bin"):
        found.setdefault(str(row["label"]), {})[row["index"]] = row["value"]
    return found


def _depth(axes: Any, there: Sequence[RankingFinding]) -> None:
    """Names of the layers along x where all runs have the same, else whole numbers."""
    names = {tuple(one.taps("stable_rank")) for one in there}
    if len(names) > 1:
        whole_numbers(axes)
        return
    words = [readable(tap).replace("_", " ") for tap in names.pop()]
    axes.set_xticks(range(len(words)), words, rotation=30, ha="right", fontsize=8)


def _why(one: RankingFinding) -> str:
    return one.diagnosis.left_out().get("token_ranks", "it was not measured")
