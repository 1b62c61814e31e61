"""Metrics by size: runs that differ in the size of their model alone, smallest to largest.

Recommenders: accuracy, fairness, collapse share and effective rank by the parameters without the
tables of the items (SPRINT, KDD 2026, Figure 1, upper half). Ranking models: AUC and effective rank
by dense parameters (RankElastor, KDD 2026, Figures 7 and 8).

Differs: neither paper draws the rank here; RankElastor has a multiple of the smallest model across.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from fullrank.analysis.diagnostics import (
    FAIRNESS,
    Claim,
    Figure,
    Missing,
    RunResult,
    Runs,
    Section,
    lines,
    not_comparable,
    readable,
)
from fullrank.analysis.diagnostics.token_ranks import largest_rank, layer_values
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.models.sequential.model.size import non_embedding

TITLE = "Accuracy and effective rank by parameters"
Value = Callable[[Any], float | None]
"""A figure of one run; None where it has none."""

LAYERS = ("encoder.layers",)
"""Settings of a model that make it deeper."""
SIZES = (
    "dim", *LAYERS, "encoder.hidden", "encoder.inner",
    "encoder.attention.heads", "encoder.attention.qk_width", "encoder.attention.value_width",
)  # fmt: skip
"""Settings that make a recommender larger, but do not make it read or reason longer."""
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
"""Settings that switch off a part of the model where they are null or empty, which is no matter of size."""
FREE = "free"


class RetrievalSize(Section):
    """Accuracy, fairness, collapse share and effective rank of recommenders by parameters without the items' tables.

    The effective rank is the entropy rank of the last layer's outputs, one row a user of the
    sample: every model with layers has it.
    """

    name = "size"
    free: ClassVar[Sequence[str]] = SIZES
    """Settings in which the runs of a line may differ, beside their seeds."""
    differ: ClassVar[str] = "the size of their model alone (width, layers, heads, inner widths; and in their seed)"
    across: ClassVar[str] = "parameters without the items' tables"
    axes: ClassVar[Mapping[str, Any]] = {"log": "x"}
    claim = Claim(
        TITLE,
        f"Runs that differ in {differ}. Across are the parameters without those of the items' tables; a point is the "
        "mean of its seeds. If the long-tail share falls and the collapse share (how much of all scores is one "
        "direction) rises from left to right, size amplifies popularity here. The effective rank is how many "
        "directions the people's states use behind the last layer (its entropy rank). It cannot exceed the width, so "
        "compare it with the width in the data table.",
    )

    @classmethod
    def size(cls, run: RunResult) -> int | None:
        """The number across; called only for runs that differ, since it may open weights."""
        model = run.run.model() if isinstance(run.spec.model, Recommender) else None
        return None if model is None else non_embedding(cast(RecommenderModel, model))

    @classmethod
    def values(cls, accuracy: str) -> dict[str, Value]:
        """The figures that are drawn, by their words."""
        return _tail_values(accuracy) | {
            "effective rank": lambda run: run.diagnosis.last_layer("layers", "entropy_rank")
        }

    @classmethod
    def others(cls, run: RunResult) -> dict[str, Any]:
        """More columns of the table."""
        return {"layers": run.layers, "width": getattr(run.spec.model, "dim", None)}

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | Missing:
        groups: list[list[RunResult]] = []
        sizes: dict[str, int] = {}
        for group in same_but_for(there, cls.free):
            if len(same_but_for(group)) > 1:
                sizes |= {run.key: size for run in group if (size := cls.size(run)) is not None}
                sized = sorted((run for run in group if run.key in sizes), key=lambda run: sizes[run.key])
                if sized and sizes[sized[0].key] < sizes[sized[-1].key]:
                    groups.append(sized)
        inside = [run for group in groups for run in group]
        why = not_comparable(inside) if inside else f"no two runs differ in {cls.differ}"
        if why is not None:
            return claim.missing(f"{why}.")
        values = cls.values(inside[0].accuracy)
        charts = []
        for word, value in values.items():
            points = [(line_label(group), *point) for group in groups for point in seed_means(group, sizes, value)]
            charts.append(lines(cls.across, word, by="line", rows=points, **cls.axes))
        rows = [
            (run.label, sizes[run.key], *(value(run) for value in values.values()), *cls.others(run).values())
            for run in inside
        ]
        return claim.figure(("run", cls.across, *values, *cls.others(inside[0])), rows, *charts)


class Depth(RetrievalSize):
    """Accuracy, fairness and collapse share by the number of layers."""

    name = "depth"
    free = LAYERS
    differ = "their number of layers alone (and in their seed)"
    across = "layers"
    axes: ClassVar[Mapping[str, Any]] = {"zero": True}
    claim = Claim(
        "Accuracy and long-tail share by number of layers",
        "Runs that differ only in how many layers they have. If the long-tail share falls and the collapse share "
        "(how much of all scores is one direction) rises from left to right, depth amplifies popularity here.",
    )

    @classmethod
    def size(cls, run: RunResult) -> int | None:
        return run.layers

    @classmethod
    def values(cls, accuracy: str) -> dict[str, Value]:
        return _tail_values(accuracy)

    @classmethod
    def others(cls, run: RunResult) -> dict[str, Any]:
        return {}


class RankingSize(RetrievalSize):
    """AUC and effective rank of ranking models by dense parameters.

    The effective rank is the mean stable rank (RankElastor, Eq. 1) behind the last mixing; of a
    ranker without mixings, behind its last layer that gives one vector a token.
    """

    problem = "ranking"
    free = RANKER_SIZES
    differ = "the size of their ranker alone (tokens, layers, heads, widths; and in their seed)"
    across = "dense parameters"
    claim = Claim(
        TITLE,
        f"Runs that differ in {differ}. Across are the dense parameters, which every impression passes; a point is "
        "the mean of its seeds. The effective rank is how many directions the tokens of an impression use behind the "
        "last mixing, before the feed-forward (its stable rank, mean over a sample); a ranker without mixings is "
        "measured behind its last layer that still has tokens, named in the data table. If the rank stays where "
        "it is while the model grows, the new parameters add no directions. It cannot exceed the number in the "
        "last column.",
    )

    @classmethod
    def size(cls, run: RunResult) -> int | None:
        """Dense parameters by the manifest; counted for older runs, whose manifests lack them."""
        size = run.manifest.get("size")
        dense = size.get("dense_parameters") if isinstance(size, dict) else None
        if type(dense) is int:
            return dense
        model = run.run.model()
        return model.size().dense if isinstance(model, RankingModule) else None

    @classmethod
    def values(cls, accuracy: str) -> dict[str, Value]:
        return {"auc": lambda run: run.metric("auc"), "effective rank": _measured}

    @classmethod
    def others(cls, run: RunResult) -> dict[str, Any]:
        label = _measured_layer(run)
        if label is None:
            return dict.fromkeys(("entropy rank", "behind", "of"))
        rank = layer_values(run, "entropy_rank").get(label)
        return {"entropy rank": rank, "behind": readable(label), "of": largest_rank(run, label)}


def _tail_values(accuracy: str) -> dict[str, Value]:
    """Figures of a recommender that may change with depth and size."""
    return {
        f"accuracy ({accuracy})": lambda run: run.metric(accuracy),
        f"long-tail share ({FAIRNESS})": lambda run: run.metric(FAIRNESS),
        "collapse share": lambda run: run.diagnosis.value("spectrum", "collapse_share"),
    }


def same_but_for(results: Runs, free: Sequence[str] = ()) -> list[list[RunResult]]:
    """Group runs whose specs agree but for the seed and settings below `model` (dotted)."""
    groups: dict[str, list[RunResult]] = {}
    for run in results:
        tree = run.spec.dump()
        tree["seed"] = FREE
        for name in free:
            _mask(tree["model"], name)
        groups.setdefault(json.dumps(tree, sort_keys=True), []).append(run)
    return list(groups.values())


def line_label(group: Runs) -> str:
    """The label of a line of runs: `A, B: sasrec`; for more than six runs `A, B, C, ... J: sasrec`.

    It begins with a run's letter: matplotlib hides labels that begin with an underscore.
    """
    keys = [run.key for run in group]
    shown = ", ".join(keys) if len(keys) <= 6 else f"{', '.join(keys[:3])}, ... {keys[-1]}"
    return f"{shown}: {readable(group[0].spec.recipe)}"


def _mask(tree: Any, name: str) -> None:
    """Replace the setting of this name by `FREE`, where the model has one."""
    *rooms, last = name.split(".")
    for room in rooms:
        tree = tree.get(room) if isinstance(tree, dict) else None
    if isinstance(tree, dict) and last in tree and (tree[last] or name not in PARTS):
        tree[last] = FREE


def seed_means(line: Runs, sizes: Mapping[str, int], value: Value) -> list[tuple[int, float]]:
    """(size, mean of the figure over the seeds) of each setting, smallest first."""
    points = []
    for seeds in same_but_for(line):
        values = [y for run in seeds if (y := value(run)) is not None]
        if values:
            points.append((sizes[seeds[0].key], float(np.mean(values))))
    return sorted(points)


def _measured_layer(run: RunResult) -> str | None:
    """Label of the last mixing, else of the last layer; None without vectors."""
    labels = list(layer_values(run, "stable_rank"))
    return next(reversed([label for label in labels if label.startswith("mixing_")] or labels), None)


def _measured(run: RunResult) -> float | None:
    label = _measured_layer(run)
    return None if label is None else layer_values(run, "stable_rank").get(label)
