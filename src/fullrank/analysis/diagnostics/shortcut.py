"""Shortcut: the share of a model's accuracy that an untrained graph of the last two items reaches, on the same users.

Claim (Han et al. 2026, arXiv:2605.07125): much of the accuracy on public data sets is reached
without any training, by successors of the last one or two items and similarity of features, where
transitions branch little, where consecutive items are alike and where the older history adds
little. Rows: the selection metric of the model, of the baseline `transition_graph` and of the model
when it reads only the last one or two events; and of the data

    branching              mean of exp(entropy) of the items that follow an item, over the training transitions
    target_is_successor    share of targets that in training directly follow the last item (1), or one of the last two
    feature_similarity     mean cosine of TF-IDF vectors of consecutive items in training, and of random pairs of them

Differs: the paper's measures of the three were not at hand; these are ours, and the graph
differs as its file says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from fullrank.analysis.diagnostics import (
    Claim,
    Diagnosis,
    Diagnostic,
    Figure,
    Row,
    RunResult,
    Runs,
    Sample,
    accuracy_word,
    bars,
    not_measured,
    row,
)
from fullrank.data.events.store import Store
from fullrank.evaluation import evaluate
from fullrank.inference.batches import WrappedModel
from fullrank.inference.search import Decoding
from fullrank.models import Model
from fullrank.models.sequential.baselines.transition_graph import TransitionGraph, cosines, feature_vectors, transitions

USERS = 2048
"""Most users that are measured: the first of the sample."""
PAIRS = 100_000
"""Most training transitions whose similarity is measured: the mean to about 0.001."""
FEATURE_ITEMS = 200_000
"""Largest catalogue whose features are compared; for more it would take too long."""
LAST = (1, 2)
"""Numbers of last events that a model may read."""
WORDS = {"model": "model", "graph": "graph", "last_2": "last 2", "last_1": "last 1"}
"""Label of the rows of the metric -> its word in the figure."""


class Shortcut(Diagnostic):
    """Selection metric of the model, a transition graph and the last events alone."""

    name = "shortcut"
    claim = Claim(
        "Accuracy of untrained shortcuts",
        "The graph (the dashed line) counts what followed the last two items in other histories and adds items "
        "with like words and attributes; nothing of it is trained. To its right, the run itself when it may read "
        "the last events alone. A model that is hardly above the line has learned little more than the shortcut.",
    )
    runs_model = True
    claim_of = Claim(
        "How easy the data of {} are",
        "Branching is the effective number of items that follow "
        "an item directly; the similarity is that of words and attributes, of items one after the other in a "
        "history and of random pairs. Few successors, like neighbours and targets among the successors make a "
        "data set easy for a graph.",
        table=True,
    )

    def rows(self) -> list[Row]:
        context = self.context
        graph = TransitionGraph() if context.store.num_items <= FEATURE_ITEMS else TransitionGraph(similarity=0.0)
        fitted = graph.build(context.store.catalog)
        fitted.fit(context.store)
        models = {"model": context.model, "graph": fitted}
        models |= {f"last_{count}": LastEvents(context.model, count) for count in LAST}
        spec, users = context.evaluation.selection_alone(), context.first(USERS)
        rows, accuracy = [], {}
        for number, (label, model) in enumerate(models.items()):
            # the graph has no codes that could be decoded
            protocol = spec.model_copy(update={"decoding": Decoding()}) if model is fitted else spec
            metrics = evaluate(model, users, context.split, protocol).metrics
            rows += self.rows_of(metrics, label=label)
            accuracy[label] = metrics[spec.selection]
            self.progress(number + 1, len(models) + 1)
        whole = accuracy.pop("model")
        for label, value in accuracy.items():
            rows.append(self.row("share_of_model", value / whole if whole > 0 else None, label=label))
        return [*rows, *data_rows(context.store, context.sample.first(USERS))]

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        rows: list[tuple[Any, ...]] = []
        graph, more = 0.0, ""
        for run in there:
            values = run.diagnosis.values(cls.name, run.accuracy, "label")
            rows.append((run.label, *map(values.get, WORDS), reached_share(run.diagnosis)))
            graph = max(graph, values.get("graph", 0.0))  # the same for all runs of a store
            sentence = verdict(run.diagnosis)
            more += "" if sentence is None else f" Run {run.key}: {sentence}."
        words = tuple(WORDS.values())
        chart = bars("", words, axis=accuracy_word(there), level={"": graph})
        return claim.figure(("run", *words, "graph / model"), rows, chart, more=more)

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        """A table of how easy the data are, with the verdict."""
        rows = [
            (f"{row['name'].replace('_', ' ')}{_place(row)}", row["value"])
            for row in result.diagnosis.of(cls.name)
            if row["name"] in ("branching", "target_is_successor", "feature_similarity", "share_of_model")
        ]
        sentence = verdict(result.diagnosis) or "the model finds nothing"
        return claim.figure(("of the data", "value"), rows, more=f" {sentence[0].upper()}{sentence[1:]}.")


def verdict(diagnosis: Diagnosis) -> str | None:
    """A sentence on the share that the graph reaches; None where it is not known."""
    share = reached_share(diagnosis)
    if share is None:
        return None
    metric = next((row["name"] for row in diagnosis.of(Shortcut.name) if row["label"] == "graph"), None)
    reached = f"{share:.0%} of" if share < 2 else f"{share:.1f} times"
    return f"a graph of the last two items reaches {reached} this model's {metric}"


def reached_share(diagnosis: Diagnosis) -> float | None:
    """The graph's metric over the model's."""
    return diagnosis.values(Shortcut.name, "share_of_model", "label").get("graph")


class LastEvents(WrappedModel):
    """A model that reads only the last events of a history."""

    def __init__(self, model: Model, count: int):
        super().__init__(model, min(count, model.max_length))


def data_rows(store: Store, sample: Sample) -> Iterator[Row]:
    """Branching, targets among successors, and similarity of consecutive items."""
    counts = transitions(store)
    yield row(Shortcut.name, "branching", branching(counts))
    history, targets = sample.histories.items, sample.next_items
    reached = np.zeros(len(sample), dtype=bool)
    for back in LAST:
        long_enough = history.lengths >= back
        sources = history.values[history.ends[long_enough] - back]
        reached[long_enough] |= np.asarray(counts[sources, targets[long_enough]]).ravel() > 0
        yield row(Shortcut.name, "target_is_successor", reached.mean(), index=back)
    vectors = feature_vectors(store.catalog)
    if vectors is None:
        yield not_measured(Shortcut.name, "the items have no column of text to compare")
        return
    left, right = _consecutive(store)
    for label, other in (("consecutive", right), ("random", np.random.default_rng(0).permutation(right))):
        value = cosines(vectors, left, other).mean() if len(left) else None
        yield row(Shortcut.name, "feature_similarity", value, label=label)


def branching(counts: sparse.csr_matrix) -> float | None:
    """Effective number of successors: exp of the entropy of p(b | a) = c(a, b) / c(a), mean over a weighted by c(a).

    None where no item follows another. Rare items make it small: it says how many successors were
    seen, not how many there are.
    """
    out = np.asarray(counts.sum(axis=1)).ravel()
    items = np.repeat(np.arange(len(out)), np.diff(counts.indptr))  # row a of each count c(a, b)
    p = counts.data / out[items]
    entropy = np.bincount(items, -p * np.log(p), minlength=len(out))
    return float((out * np.exp(entropy)).sum() / out.sum()) if out.sum() > 0 else None


def _consecutive(store: Store) -> tuple[np.ndarray, np.ndarray]:
    """Different consecutive items of training histories, at most `PAIRS`, spread evenly."""
    user, items, _ = store.trained()
    at = np.flatnonzero((user[1:] == user[:-1]) & (items[1:] != items[:-1]))
    at = at[np.linspace(0, len(at) - 1, min(len(at), PAIRS)).astype(np.int64)] if len(at) else at
    return items[at], items[at + 1]


def _place(row: Row) -> str:
    """The place of a row, in words."""
    if row["index"] is not None:
        return f" of the last {row['index']}"
    return "" if row["label"] is None else f", {WORDS.get(row['label'], row['label'])}"
