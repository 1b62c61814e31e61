"""How much of a model's accuracy a shortcut reaches: a graph of the last two items, on the same users, untrained.

Claim (Han et al. 2026, arXiv:2605.07125): much of what public data sets measure is reached without any training, by
successors of the last one or two items and similarity of features, where transitions branch little, where consecutive
items are alike and where the older history adds little. Rows: the selection metric of the model, of the baseline
`transition_graph` and of the model when it reads the last one or two events alone; and of the data

    branching              mean of exp(entropy) of what follows an item directly, over the training transitions
    target_is_successor    share of targets that in training directly follow the last item (1), or one of the last two
    feature_similarity     mean cosine of TF-IDF vectors of consecutive items in training, and of random pairs of them

Differs: the paper's measures of the three were not at hand; these are ours, and the graph differs as its file says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from fullrank.analysis.activations import Sample, device_of
from fullrank.analysis.diagnosis import Diagnosis, Row, not_measured, row, rows_of
from fullrank.analysis.diagnostics import RunsFigure
from fullrank.analysis.report import Figure, RunTable
from fullrank.analysis.report.draw import GREY, legend, look, panel
from fullrank.analysis.report.results import RunResult, Runs, accuracy_word, legend_label
from fullrank.data.events.store import Store
from fullrank.evaluation import evaluate
from fullrank.inference.search import Decoding
from fullrank.inference.wrapped_model import WrappedModel
from fullrank.models.contracts import Model
from fullrank.models.sequential.baselines.item_features import cosines, feature_vectors
from fullrank.models.sequential.baselines.transition_graph import TransitionGraph, transitions

USERS = 2048
"""Most users measured: the first of the sample."""
PAIRS = 100_000
"""Most training transitions whose similarity is measured: the mean to about 0.001."""
FEATURE_ITEMS = 200_000
"""Items above which the graph is one of transitions alone: comparing all of them would take too long."""
LAST = (1, 2)
"""How many of the last events a model may read."""
WORDS = {"model": "model", "graph": "graph", "last_2": "last 2", "last_1": "last 1"}
"""Labels of the rows of the metric, and their words in the figure."""


class Shortcut(RunsFigure):
    """Selection metric of the model, of a transition graph and of the last events alone; what makes the data easy."""

    name = "shortcut"
    title = "Accuracy of untrained shortcuts"
    runs_model = True

    def rows(self) -> list[Row]:
        context = self.context
        graph = TransitionGraph() if context.store.num_items <= FEATURE_ITEMS else TransitionGraph(similarity=0.0)
        fitted = graph.build(context.store.catalog)
        fitted.fit(context.store)
        models = {"model": context.model, "graph": fitted}
        models |= {f"last_{count}": LastEvents(context.model, count) for count in LAST}
        spec, users = context.evaluation.selection_alone(), context.first(USERS)
        found, accuracy = [], {}
        for place, (label, model) in enumerate(models.items()):
            device = device_of(fitted if model is fitted else context.model)
            own = spec.model_copy(update={"decoding": Decoding()}) if model is fitted else spec  # it has no codes
            metrics = evaluate(model, users, context.split, own, device=device).metrics
            found += rows_of(self.name, metrics, label=label)
            accuracy[label] = metrics[spec.selection]
            if self.progress is not None:
                self.progress(place + 1, len(models) + 1)
        whole = accuracy["model"]
        shares = {label: accuracy[label] / whole if whole > 0 else None for label in list(models)[1:]}
        found += [row(self.name, "share_of_model", share, label=label) for label, share in shares.items()]
        return [*found, *data_rows(context.store, context.sample.first(USERS))]

    @classmethod
    def draw(cls, there: Runs, results: Runs) -> Figure:
        """The selection metric of each run, of the graph and of the last events alone."""
        bars = {one.key: [_labelled(one.diagnosis, one.accuracy, label) for label in WORDS] for one in there}

        def paint(axes: Any) -> None:
            width = 0.8 / len(there)
            for place, one in enumerate(there):
                at = np.arange(len(WORDS)) + (place - (len(there) - 1) / 2) * width
                heights = [value or 0.0 for value in bars[one.key]]
                axes.bar(at, heights, width, label=legend_label(one, results), color=look(results.index(one))["color"])
            axes.set_xticks(range(len(WORDS)), list(WORDS.values()))
            line = max(values[list(WORDS).index("graph")] or 0.0 for values in bars.values())
            axes.axhline(line, color=GREY, lw=1, ls="--")  # the graph is one for all runs of a store
            axes.set_ylim(0, 1.35 * axes.get_ylim()[1])  # room for the legend above the bars
            legend(axes, place="upper right")

        word = accuracy_word(there)
        alt = f"{word}: " + "; ".join(
            f"{key} " + ", ".join(f"{w} {_shown(v)}" for w, v in zip(WORDS.values(), values, strict=True))
            for key, values in bars.items()
        )
        verdicts = [(one.key, verdict(one.diagnosis)) for one in there]
        caption = " ".join([
            "The graph (the dashed line) counts what followed the last two items in other histories and adds items "
            "with like words and attributes; nothing of it is trained. To its right, the run itself when it may read "
            "the last events alone. A model that is hardly above the line has learned little more than the shortcut.",
            *(f"Run {key}: {said}." for key, said in verdicts if said is not None),
        ])  # fmt: skip
        table = tuple((one.label, *bars[one.key], reached_share(one.diagnosis)) for one in there)
        drawn = panel(cls.name, paint, alt, x="what answers", y=word)
        headers = ("run", *WORDS.values(), "graph / model")
        return Figure(cls.name, cls.title, caption, (drawn,), headers, table)

    @classmethod
    def table_of(cls, result: RunResult) -> RunTable | None:
        """What makes the data easy, and the verdict."""
        named = [
            (f"{one['name'].replace('_', ' ')}{_place(one)}", one["value"])
            for one in result.diagnosis.of(cls.name)
            if one["name"] in ("branching", "target_is_successor", "feature_similarity", "share_of_model")
        ]
        if not named:
            return None
        said = verdict(result.diagnosis) or "the model finds nothing"
        caption = (
            f"{said[0].upper()}{said[1:]}. Branching is the effective number of items that follow "
            "an item directly; the similarity is that of words and attributes, of items one after the other in a "
            "history and of random pairs. Few successors, like neighbours and targets among the successors make a "
            "data set easy for a graph."
        )
        return RunTable(f"Run {result.key}: how easy the data are", caption, ("of the data", "value"), tuple(named))


def verdict(diagnosis: Diagnosis) -> str | None:
    """What the graph reaches, in a sentence; None where it was not measured, or the model finds nothing."""
    share = reached_share(diagnosis)
    metric = next((one["name"] for one in diagnosis.of(Shortcut.name) if one["label"] == "graph"), None)
    if share is None:
        return None
    reached = f"{share:.0%} of" if share < 2 else f"{share:.1f} times"
    return f"a graph of the last two items reaches {reached} this model's {metric}"


def reached_share(diagnosis: Diagnosis) -> float | None:
    """The graph's metric over the model's."""
    return _labelled(diagnosis, "share_of_model", "graph")


class LastEvents(WrappedModel):
    """A model that reads the last events of a history alone; what it may recommend does not change."""

    def __init__(self, model: Model, count: int):
        super().__init__(model, min(count, model.max_length))


def data_rows(store: Store, sample: Sample) -> Iterator[Row]:
    """What makes a data set easy: branching, targets among successors, and similarity of consecutive items."""
    counts = transitions(store)
    yield row(Shortcut.name, "branching", branching(counts))
    history, targets = sample.histories.items, sample.next_items
    reached = np.zeros(len(sample), dtype=bool)
    for back in LAST:
        there = history.lengths >= back
        sources = history.values[history.ends[there] - back]
        reached[there] |= np.asarray(counts[sources, targets[there]]).ravel() > 0
        yield row(Shortcut.name, "target_is_successor", float(reached.mean()), index=back)
    vectors = feature_vectors(store.catalog)
    if vectors is None:
        yield not_measured(Shortcut.name, "the items have no column of text to compare")
        return
    left, right = _consecutive(store)
    for label, other in (("consecutive", right), ("random", np.random.default_rng(0).permutation(right))):
        value = float(cosines(vectors, left, other).mean()) if len(left) else None
        yield row(Shortcut.name, "feature_similarity", value, label=label)


def branching(counts: sparse.csr_matrix) -> float | None:
    """Effective number of successors, exp of the entropy of p(b | a) = c(a, b) / c(a), as a transition meets it: the
    mean over items a by c(a). None where nothing follows anything. Rare items make it small: it says how many
    successors were seen, not how many there are.
    """
    out = np.asarray(counts.sum(axis=1)).ravel()
    items = np.repeat(np.arange(len(out)), np.diff(counts.indptr))
    p = counts.data / out[items]
    entropy = np.bincount(items, -p * np.log(p), minlength=len(out))
    return float((out * np.exp(entropy)).sum() / out.sum()) if out.sum() > 0 else None


def _consecutive(store: Store) -> tuple[np.ndarray, np.ndarray]:
    """Two different items in a row of a training history, at most `PAIRS`, spread evenly over the users."""
    user, items, _ = store.trained()
    at = np.flatnonzero((user[1:] == user[:-1]) & (items[1:] != items[:-1]))
    at = at[np.linspace(0, len(at) - 1, min(len(at), PAIRS)).astype(np.int64)] if len(at) else at
    return items[at], items[at + 1]


def _labelled(diagnosis: Diagnosis, name: str, label: str) -> float | None:
    return diagnosis.values(Shortcut.name, name, "label").get(label)


def _place(one: Row) -> str:
    """Where a row was taken, in words."""
    if one["index"] is not None:
        return f" of the last {one['index']}"
    return "" if one["label"] is None else f", {WORDS.get(one['label'], one['label'])}"


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"
