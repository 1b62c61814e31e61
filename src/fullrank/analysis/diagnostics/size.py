"""What more parameters do: runs that differ in the size of their model alone, smallest to largest.

Recommenders: accuracy, fairness, collapse share and effective rank by the parameters without the tables of the items
(SPRINT, KDD 2026, Figure 1, upper half). Ranking models: AUC and effective rank by dense parameters (RankElastor, KDD
2026, Figures 7 and 8). Differs: neither paper draws the rank here; RankElastor has a multiple of the smallest model
across.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

import numpy as np

from fullrank.analysis.activations import FAIRNESS
from fullrank.analysis.diagnostics import Section
from fullrank.analysis.diagnostics.token_ranks import largest_rank, layer_values
from fullrank.analysis.report import Figure, Missing, Panel, Shown
from fullrank.analysis.report.draw import from_zero, integer_ticks, legend, look, panel, powers
from fullrank.analysis.report.results import RunResult, Runs, not_comparable, readable
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.scaling.sequence_size import non_embedding

NAME, TITLE = "size", "Accuracy and effective rank by parameters"
Value = Callable[[Any], float | None]
"""A figure of one run; None where it has none."""
_MEAN = "a point is the mean of its seeds"
_DIFFER = "the size of their model alone (width, layers, heads, inner widths; and in their seed)"
_DIFFER_RANKERS = "the size of their ranker alone (tokens, layers, heads, widths; and in their seed)"

LAYERS = ("encoder.layers",)
"""Settings of a model that make it deeper."""
SIZES = (
    "dim", *LAYERS, "encoder.hidden", "encoder.inner",
    "encoder.attention.heads", "encoder.attention.qk_width", "encoder.attention.value_width",
)  # fmt: skip
"""Settings of a recommender that make it larger. Not among them: what makes it read or reason longer."""
RANKER_SIZES = tuple(
    f"ranker.{name}"
    for name in (
        "tokens", "width", "blocks", "tokeniser.hidden", "feed_forward.expansion", "feed_forward.hidden",
        "feed_forward.experts", "layers", "heads", "crosses", "rank", "experts", "cin", "deep.hidden",
        "first.hidden", "second.hidden", "gate_hidden",
    )
)  # fmt: skip
"""Settings of a ranking model that add dense parameters. Not `embedding.dim`: the tables would grow with it unseen."""
PARTS = ("ranker.rank", "ranker.experts", "ranker.deep.hidden")
"""Where one of these is null or empty, the model lacks a part, which is no matter of size."""
FREE = "free"


class Depth(Section):
    """Accuracy, fairness and collapse share by the number of layers, of runs that differ in nothing else."""

    name = "depth"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        """Accuracy, fairness and collapse share by the number of layers, of runs that differ in nothing else."""
        name, title = "depth", "Accuracy and long-tail share by number of layers"
        layered = [one for one in results if one.layers is not None]
        groups = [group for group in same_but_for(layered, LAYERS) if len({one.layers for one in group}) > 1]
        inside = _inside(groups, name, title, "their number of layers alone (and in their seed)")
        if isinstance(inside, Missing):
            return inside
        accuracy, layers = inside[0].accuracy, {one.key: one.layers or 0 for one in inside}
        values: dict[str, Value] = {
            accuracy: lambda one: one.metric(accuracy),
            FAIRNESS: lambda one: one.metric(FAIRNESS),
            "collapse share": lambda one: one.diagnosis.value("spectrum", "collapse_share"),
        }
        panels = []
        for word, (figure, value) in zip(
            ("accuracy", "long-tail share", "collapse share"), values.items(), strict=True
        ):

            def paint(axes: Any, value: Value = value) -> None:
                _plot(axes, groups, layers, value)
                from_zero(axes)
                integer_ticks(axes)
                legend(axes)

            label = word if figure == word else f"{word} ({figure})"
            alt = f"{label} by number of layers: " + "; ".join(
                f"{one.key} ({one.layers} layers) {found:.4f}" for one in inside if (found := value(one)) is not None
            )
            panels.append(panel(f"{name}-{word.replace(' ', '-')}", paint, alt, x="layers", y=label))
        caption = (
            "Runs that differ only in how many layers they have. If the long-tail share falls and the collapse share "
            "(how much of all scores is one direction) rises from left to right, depth amplifies popularity here."
        )
        rows = tuple((one.label, one.layers, *(value(one) for value in values.values())) for one in inside)
        return Figure(name, title, caption, tuple(panels), ("run", "layers", *values), rows)


class RetrievalSize(Section):
    """Accuracy, fairness, collapse share and effective rank of recommenders by parameters without the items' tables.

    The effective rank is the entropy rank of the last layer's outputs, one row a user of the sample: every model with
    layers has it.
    """

    name = "size"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        trained = [one for one in results if isinstance(one.run.spec.model, Recommender)]
        lines, sizes = _lines(trained, SIZES, lambda one: non_embedding(cast(RecommenderModel, one.run.model())))
        inside = _inside(lines, NAME, TITLE, _DIFFER)
        if isinstance(inside, Missing):
            return inside
        accuracy = inside[0].accuracy
        values: dict[str, Value] = {
            f"accuracy ({accuracy})": lambda one: one.metric(accuracy),
            f"long-tail share ({FAIRNESS})": lambda one: one.metric(FAIRNESS),
            "collapse share": lambda one: one.diagnosis.value("spectrum", "collapse_share"),
            "effective rank": lambda one: one.diagnosis.last_layer("layers", "entropy_rank"),
        }
        caption = (
            f"Runs that differ in {_DIFFER}. Across are the parameters without those of the items' tables; {_MEAN}. If "
            "the long-tail share falls and the collapse share (how much of all scores is one direction) rises from "
            "left to right, size amplifies popularity here. The effective rank is how many directions the people's "
            "states use behind the last layer (its entropy rank). It cannot exceed the width, so compare it with the "
            "width in the data table."
        )
        rows = tuple(
            (one.label, sizes[one.key], one.layers, one.run.spec.model.dim,  # type: ignore[attr-defined]
             *(value(one) for value in values.values()))
            for one in inside
        )  # fmt: skip
        panels, absent = _panels(lines, sizes, values, "parameters without the items' tables")
        return Figure(NAME, TITLE, caption, panels, ("run", "parameters", "layers", "width", *values), rows, absent)


class RankingSize(Section):
    """AUC and effective rank of ranking models by dense parameters.

    The effective rank is the mean stable rank (RankElastor, Eq. 1) behind the last mixing; of a ranker without mixings,
    behind its last layer that gives one vector a token.
    """

    name = "size"
    problem = "ranking"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        lines, sizes = _lines(results, RANKER_SIZES, _dense)
        inside = _inside(lines, NAME, TITLE, _DIFFER_RANKERS)
        if isinstance(inside, Missing):
            return inside
        values: dict[str, Value] = {"auc": lambda one: one.metric("auc"), "effective rank": _mixed}
        caption = (
            f"Runs that differ in {_DIFFER_RANKERS}. Across are the dense parameters, which every impression passes; "
            f"{_MEAN}. The effective rank is how many directions the tokens of an impression use behind the last "
            "mixing, before the feed-forward (its stable rank, mean over a sample); a ranker without mixings is "
            "measured behind its last layer that still has tokens, named in the data table. If the rank stays where "
            "it is while the model grows, the new parameters add no directions. It cannot exceed the number in the "
            "last column."
        )
        rows = tuple(
            (one.label, sizes[one.key], *(value(one) for value in values.values()), *_measured(one)) for one in inside
        )
        panels, absent = _panels(lines, sizes, values, "dense parameters")
        headers = ("run", "dense parameters", "auc", "effective rank", "entropy rank", "behind", "of")
        return Figure(NAME, TITLE, caption, panels, headers, rows, absent)


def same_but_for(results: Runs, free: Sequence[str] = ()) -> list[list[RunResult]]:
    """Groups of runs whose specs agree but for the seed and these settings (dotted, below `model`), in their order."""
    groups: dict[str, list[RunResult]] = {}
    for one in results:
        tree = one.run.spec.dump()
        tree["seed"] = FREE
        for name in free:
            _mask(tree["model"], name)
        groups.setdefault(json.dumps(tree, sort_keys=True), []).append(one)
    return list(groups.values())


def line_label(group: Runs) -> str:
    """`A, B: sasrec`, of more than six runs `A, B, C, ... J: sasrec`.

    It begins with a letter of ours: matplotlib hides labels that begin with an underscore.
    """
    keys = [one.key for one in group]
    shown = ", ".join(keys) if len(keys) <= 6 else f"{', '.join(keys[:3])}, ... {keys[-1]}"
    return f"{shown}: {readable(group[0].run.spec.recipe)}"


def _mask(tree: Any, name: str) -> None:
    """Write `FREE` where a setting stands; nothing where the model has none of that name."""
    *rooms, last = name.split(".")
    for room in rooms:
        tree = tree.get(room) if isinstance(tree, dict) else None
    if isinstance(tree, dict) and last in tree and (tree[last] or name not in PARTS):
        tree[last] = FREE


def _lines(
    results: Runs, free: Sequence[str], count: Callable[[RunResult], int]
) -> tuple[list[list[RunResult]], dict[str, int]]:
    """Lines of at least two sizes, each by rising size, and the sizes by the runs' keys.

    A size is counted only where specs leave it open: that may open the run's weights.
    """
    groups = [group for group in same_but_for(results, free) if len(same_but_for(group)) > 1]
    sizes = {one.key: count(one) for group in groups for one in group}
    lines = [sorted(group, key=lambda one: sizes[one.key]) for group in groups]
    return [line for line in lines if sizes[line[0].key] < sizes[line[-1].key]], sizes


def _inside(lines: Sequence[Runs], name: str, title: str, differ: str) -> list[RunResult] | Missing:
    """The runs of all lines; or why they are not drawn together."""
    inside = [one for line in lines for one in line]
    why = not_comparable(inside) if inside else f"no two runs differ in {differ}"
    return inside if why is None else Missing(name, title, f"{why}.")


def _plot(axes: Any, lines: Sequence[Runs], sizes: Mapping[str, int], value: Value) -> None:
    """A line for each group of runs, through the means over seeds."""
    for number, line in enumerate(lines):
        points = sorted(seed_means(line, sizes, value), key=itemgetter(0))
        axes.plot([n for n, _ in points], [y for _, y in points], label=line_label(line), **look(number))


def _panels(
    lines: Sequence[Runs], sizes: Mapping[str, int], values: Mapping[str, Value], x: str
) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """A panel a figure, and a sentence for each figure that no run has."""
    panels, absent = [], []
    for place, (word, value) in enumerate(values.items()):
        if not any(value(one) is not None for line in lines for one in line):
            absent.append(f"No panel shows the {word}: none of these runs has it.")
            continue

        def paint(axes: Any, value: Value = value) -> None:
            _plot(axes, lines, sizes, value)
            powers(axes)
            legend(axes)

        alt = f"{word} by {x}: " + "; ".join(
            f"{one.key} ({sizes[one.key]:,}) {found:.4g}"
            for line in lines for one in line if (found := value(one)) is not None
        )  # fmt: skip
        panels.append(panel(f"{NAME}-{place}", paint, alt, x=x, y=word))
    return tuple(panels), tuple(absent)


def seed_means(line: Runs, sizes: Mapping[str, int], value: Value) -> list[tuple[int, float]]:
    """Size and mean over the seeds of each setting that has the figure, in the line's order."""
    found = [
        (sizes[seeds[0].key], [y for one in seeds if (y := value(one)) is not None]) for seeds in same_but_for(line)
    ]
    return [(n, float(np.mean(some))) for n, some in found if some]


def _dense(one: RunResult) -> int:
    """As the manifest has it; of a run from before it was kept there, counted."""
    kept = one.run.manifest.get("size")
    found = kept.get("dense_parameters") if isinstance(kept, dict) else None
    return found if type(found) is int else cast(RankingModule, one.run.model()).size().dense


def _measured_layer(one: RunResult) -> str | None:
    """The layer that is measured: the last mixing, else the last one; None without vectors."""
    labels = list(layer_values(one, "stable_rank"))
    return next(reversed([label for label in labels if label.startswith("mixing_")] or labels), None)


def _mixed(one: RunResult) -> float | None:
    label = _measured_layer(one)
    return None if label is None else layer_values(one, "stable_rank")[label]


def _measured(one: RunResult) -> tuple[float | None, str | None, int | None]:
    """Entropy rank after the layer, its name, and what no rank there exceeds."""
    label = _measured_layer(one)
    if label is None:
        return None, None, None
    return layer_values(one, "entropy_rank").get(label), readable(label), largest_rank(one, label)
