"""Draws the figures of the documentation from the files in results/: ``python docs/make_figures.py``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fullrank.analysis.report.draw import COLOURS, STYLE, look, plain_powers

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 3.1, 2.7
"""Inches of a panel."""


def sprint_depth() -> Figure:
    """Collapse share, fairness and accuracy by depth, with and without SPRINT."""
    rows = json.loads((ROOT / "results/sprint/2026-11-21_2cpu_depth_report.json").read_text())["rows"]
    shown: dict[str, Callable[[dict[str, Any]], float]] = {
        "collapse share": lambda row: row["collapse_share"],
        "fair0.8@1": lambda row: row["test"]["fair0.8@1"],
        "NDCG@5": lambda row: row["test"]["ndcg@5"],
    }
    figure, panels = _panels(len(shown))
    for axes, (label, value) in zip(panels, shown.items(), strict=True):
        for place, method in enumerate(("plain", "sprint")):
            points = sorted((row["layers"], value(row)) for row in rows if row["method"] == method)
            axes.plot(*zip(*points, strict=True), label={"sprint": "SPRINT"}.get(method, method), **look(place))
        axes.set(xlabel="layers", ylabel=label, xticks=[1, 2, 4, 8], ylim=(0, None))
    panels[0].legend()
    return figure


def plr_dial() -> Figure:
    """Accuracy, seconds and distance of the streams by steps, one line for each number of streams that think."""
    found = json.loads((ROOT / "results/plr/2026-11-21_2cpu_dial.json").read_text())
    points = [point for point in found["curve"] if not point["adaptive"]]
    figure, (accuracy, cost, apart) = _panels(3)
    for streams in sorted({point["streams"] for point in points}):
        own = sorted((p for p in points if p["streams"] == streams), key=lambda point: point["asked"])
        steps, style = [point["asked"] for point in own], look(streams - 1)
        accuracy.plot(steps, [p["metrics"]["ndcg@10"] for p in own], label=f"{streams} of {found['streams']}", **style)
        cost.plot(steps, [p["seconds"] for p in own], **style)
    distance = {int(step): value for step, value in found["distance"].items()}
    apart.plot(list(distance), list(distance.values()), **look(found["streams"] - 1))
    accuracy.set(xlabel="steps", ylabel="NDCG@10", ylim=(0, None))
    cost.set(xlabel="steps", ylabel="seconds per 1,000 users", ylim=(0, None))
    apart.set(xlabel="steps", ylabel=f"squared distance of {found['streams']} streams", ylim=(0, None))
    accuracy.legend(title="streams", loc="lower left")
    return figure


LADDERS = {"width": "width of tokens", "depth": "blocks", "joint": "width and blocks", "hidden": "hidden width of FFNs"}
NAMES = {"rankelastor": "RankElastor", "rankmixer": "RankMixer"}


def rankelastor_ladder() -> Figure:
    """Test AUC by dense parameters, a panel for each ladder that was run (RankElastor's Figures 7 and 8)."""
    rows = _rows("rankelastor", "ladder")
    run = {name: title for name, title in LADDERS.items() if any(f"-{name}-" in row["cell"] for row in rows)}
    figure, panels = _panels(len(run), sharey=True)
    for axes, (ladder, title) in zip(panels, run.items(), strict=True):
        for place, method in enumerate(NAMES):
            cells = {row["cell"] for row in rows if row["cell"].startswith((f"{method}-{ladder}-", f"{method}-base"))}
            points = sorted(_point(rows, cell, "dense_parameters") for cell in cells)
            axes.plot(*zip(*points, strict=True), label=NAMES[method], **look(place))
        axes.set(xlabel="dense parameters", title=title, xscale="log")
        plain_powers(axes.xaxis)
    panels[0].set_ylabel("test AUC")
    panels[0].legend()
    return figure


def rankelastor_ablation() -> Figure:
    """Test AUC of mixing times FFN (RankElastor's Table 3): every seed, and their mean."""
    rows = _rows("rankelastor", "ablation")
    figure, (axes,) = _panels(1)
    cells = {"transpose_gelu": "transpose\nGELU", "transpose_glu": "transpose\nGLU", "full_gelu": "full\nGELU"}
    for place, cell in enumerate([*cells, "full_glu"]):
        found = _aucs(rows, cell)
        axes.plot([place] * len(found), found, "o", color=COLOURS[place], alpha=0.5)
        axes.plot([place - 0.25, place + 0.25], [sum(found) / len(found)] * 2, color=COLOURS[place])
    axes.set(ylabel="test AUC", xticks=range(4), xticklabels=[*cells.values(), "full\nGLU"])
    return figure


def rankelastor_efficiency() -> Figure:
    """Test AUC of every ranker by FLOPs of an impression and by dense parameters (in place of Figure 4's seconds)."""
    rows = _rows("rankelastor", "headline")
    figure, panels = _panels(2, sharey=True)
    cells = dict.fromkeys(row["cell"] for row in rows)
    for axes, (key, label) in zip(
        panels, {"flops": "FLOPs an impression", "dense_parameters": "dense parameters"}.items(), strict=True
    ):
        for place, cell in enumerate(cells):
            x, y = _point(rows, cell, key)
            axes.plot([x], [y], label=NAMES.get(cell, cell), **{**look(place), "linestyle": ""})
        axes.set(xlabel=label)
        axes.set_xscale("symlog", linthresh=1e4)  # lr and fm have no product and no dense weight
        axes.xaxis.set_major_formatter("{x:g}")
    panels[0].set_ylabel("test AUC")
    panels[1].legend(fontsize=7, ncols=2)
    return figure


def scaling_ladder() -> Figure:
    """NDCG@10 by FLOPs of every epoch, with the sigmoid of all runs and that of all but the largest; by size."""
    tree = _newest("scaling", "ladder")
    rows, fit = tree["rows"], tree["fits"]["sigmoid"]
    figure, (left, right) = _panels(2)
    sizes = sorted({row["size"]["non_embedding_parameters"] for row in rows})
    for row in rows:
        place = sizes.index(row["size"]["non_embedding_parameters"])
        points = [(epoch * row["size"]["flops_per_epoch"], value) for epoch, value in row["validation_curve"]]
        shade = str(0.85 - 0.15 * place)
        whole = row["data"] == "ml"
        label = f"width {row['cell'].rpartition('-d')[2]}" if whole else None
        left.plot(*zip(*points, strict=True), color=shade, lw=1, label=label)
    ends = [epochs * row["size"]["flops_per_epoch"] for row in rows for epochs in (1, row["epochs"])]
    over = np.geomspace(min(ends), max(ends), 100)
    without = next(held for held in fit["held_out"] if held["without_the_largest"] == "size")
    for found, style, label in ((fit, "-", "all runs"), (without, "--", "without the largest size")):
        left.plot(over, _sigmoid(found["parameters"], over), style, color=COLOURS[1], lw=1.4, label=label)
    left.set(xscale="log", xlabel="FLOPs", ylabel="validation NDCG@10", ylim=(0, None))
    left.legend(loc="upper left", fontsize=6)
    plain_powers(left.xaxis)
    for place, data in enumerate(sorted({row["size"]["interactions"] for row in rows})):
        own = sorted((row["size"]["non_embedding_parameters"], row["metrics"]["test"]["ndcg@10"])
                     for row in rows if row["size"]["interactions"] == data)  # fmt: skip
        right.plot(*zip(*own, strict=True), label=f"{data / 1000:,.0f}", **look(place))
    right.set(xscale="log", xlabel="parameters without the table", ylabel="test NDCG@10", ylim=(0, None))
    right.legend(title="thousand\ninteractions", loc="lower right", fontsize=6, title_fontsize=6)
    plain_powers(right.xaxis)
    return figure


def srt_negatives() -> Figure:
    """Test NDCG@5 of SRT by the negatives of an example, and of the exact softmax."""
    figure, panels = _panels(2)
    for axes, (name, label) in zip(panels, (("srt", "s3rec-beauty"), ("srt_sports", "s3rec-sports")), strict=True):
        found = {row["cell"]: row["metrics"]["test"]["ndcg@5"] for row in _rows("scaling", name)}
        counts = [(count, found[cell]) for cell, count in NEGATIVES.items() if cell in found]
        axes.plot(*zip(*counts, strict=True), label="sampled", **look(0))
        axes.axhline(found["full"], color=COLOURS[1], ls="--", label="exact softmax")
        axes.set(xscale="log", xlabel="negatives of an example", ylabel="test NDCG@5", ylim=(0, None), title=label)
        plain_powers(axes.xaxis)
    panels[0].legend(loc="lower right")
    return figure


def catalogue_growth() -> Figure:
    """Seconds and memory of a training step by the size of the catalogue: text items, and a vector per item."""
    figures = _newest("catalogue", "*")["figures"]
    figure, panels = _panels(2)
    for axes, (name, label) in zip(
        panels, (("step_seconds_{}", "seconds of a step"), ("peak_memory_{}_mb", "peak memory, MB")), strict=True
    ):
        for place, (prefix, kind) in enumerate((("", "text"), ("table_", "a vector per item"))):
            keys = {size: prefix + name.format(suffix) for suffix, size in CATALOGUES.items()}
            points = [(size, figures[key]) for size, key in keys.items() if key in figures]
            axes.plot(*zip(*points, strict=True), label=kind, **look(place))
        axes.set(xscale="log", xlabel="items", ylabel=label, ylim=(0, None))
        plain_powers(axes.xaxis)
    panels[0].legend(loc="upper left")
    return figure


BEST_BASE = "base of final_tuned.yaml, plr of final.yaml: each at its own best settings"
SPRINT = "sprint/2026-11-28_2cpu_equal_choice_paired.json"
FAIR, PLR = "fair/2026-11-23_2cpu_final_paired.json", "plr/2026-11-23_2cpu_final_paired.json"
TRANSFER, TO_STAGES = "scaling/2026-11-24_2cpu_transfer.json", {"share": 1.0, "from": "scratch", "to": "staged"}
ON_ML = {"seen": "exclude", "data": "ml-1m-sequences"}
CLAIMS: dict[str, tuple[float | None, str, dict[str, Any]]] = {
    "SPRINT: NDCG@5 on amazon-beauty (R)": (43, SPRINT, {"metric": "ndcg@5", "seen": "keep"}),
    "the same, history excluded (X)": (None, SPRINT, {"metric": "ndcg@5", "seen": "exclude"}),
    "FAIR's attention: NDCG@10 (R)": (3, FAIR, {"metric": "ndcg@10", "seen": "keep"}),
    "the same (X)": (None, FAIR, {"metric": "ndcg@10", "seen": "exclude"}),
    "PLR over the best base: NDCG@20 (R)": (11, PLR, {"metric": "ndcg@20", "seen": "keep", "pair": BEST_BASE}),
    "PLR on ml-1m: NDCG@10 (X)": (None, PLR, {"metric": "ndcg@10", **ON_ML}),
    "pre-training, all users: NDCG@10 (X)": (12, TRANSFER, {"metric": "ndcg@10", **TO_STAGES}),
}
"""Claim -> what the paper has (per cent; None: nothing alike), the file of our comparison, and which one of it."""


def what_holds() -> Figure:
    """Differences of the headline pairs in per cent, with intervals, beside those of the papers."""
    figure = Figure(figsize=(2 * WIDTH, 0.42 * len(CLAIMS) + 0.8))
    axes = figure.subplots()
    for place, (paper, file, wanted) in enumerate(CLAIMS.values()):
        found = json.loads((ROOT / "results" / file).read_text())
        rows = found.get("comparisons") or found.get("paired") or found["rows"]
        row = next(row for row in rows if wanted.items() <= row.items())
        low, middle, high = (
            100 * value / row["a"] for value in (row["interval"][0], row["difference"], row["interval"][1])
        )
        axes.plot([low, high], [place, place], color=COLOURS[0], linewidth=2)
        axes.plot(middle, place, "o", color=COLOURS[0], label="here, 95 % interval" if place == 0 else None)
        if paper is not None:
            axes.plot(paper, place, "D", color=COLOURS[1], label="the paper" if place == 0 else None)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set(yticks=range(len(CLAIMS)), yticklabels=list(CLAIMS), xlabel="difference, %")
    axes.invert_yaxis()
    axes.legend(loc="center right")
    return figure


CATALOGUES = {"10k": 10_000, "100k": 100_000, "1m": 1_000_000, "10m": 10_000_000}
NEGATIVES = {"srt_10": 10, "srt_100": 100, "srt_300": 300, "srt_1k": 1000}

FIGURES = {
    "what_holds": what_holds,
    "scaling_ladder": scaling_ladder,
    "srt_negatives": srt_negatives,
    "catalogue_growth": catalogue_growth,
    "sprint_depth": sprint_depth,
    "plr_dial": plr_dial,
    "rankelastor_ladder": rankelastor_ladder,
    "rankelastor_ablation": rankelastor_ablation,
    "rankelastor_efficiency": rankelastor_efficiency,
}


def _rows(folder: str, name: str) -> list[dict[str, Any]]:
    """The rows without an error of the newest file of that name."""
    return [row for row in _newest(folder, name)["rows"] if not row.get("error")]


def _newest(folder: str, name: str) -> dict[str, Any]:
    """The newest results/FOLDER/<date>_2cpu_NAME.json; of a benchmark (name "*") the newest of any machine."""
    pattern = "*.json" if name == "*" else f"*_2cpu_{name}.json"
    files = sorted((ROOT / "results" / folder).glob(pattern))
    if not files:
        raise FileNotFoundError(f"results/{folder}/{pattern}")
    found: dict[str, Any] = json.loads(files[-1].read_text())
    return found


def _sigmoid(parameters: dict[str, float], flops: np.ndarray) -> np.ndarray:
    """SRT's Eq. 3."""
    a, k, x0, c = (parameters[name] for name in ("a", "k", "x0", "c"))
    return a / (1 + np.exp(-k * (np.log(flops) - x0))) + c


def _aucs(rows: list[dict[str, Any]], cell: str) -> list[float]:
    return [row["metrics"]["test"]["auc"] for row in rows if row["cell"] == cell]


def _point(rows: list[dict[str, Any]], cell: str, key: str) -> tuple[int, float]:
    """A figure of a cell's size, and its mean test AUC over seeds."""
    found = _aucs(rows, cell)
    size: int = next(row["size"][key] for row in rows if row["cell"] == cell)
    return size, sum(found) / len(found)


def _panels(count: int, **shared: Any) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(WIDTH * count, HEIGHT))
    return figure, list(figure.subplots(1, count, squeeze=False, **shared)[0])


def main() -> None:
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, draw in FIGURES.items():
            try:
                FigureCanvasSVG(draw()).print_svg(folder / f"{name}.svg", metadata={"Date": None})
            except FileNotFoundError as error:
                print(f"{name}: not drawn, there is no {error}")


if __name__ == "__main__":
    main()
