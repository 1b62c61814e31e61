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
"""Most users measured: the first of the sample."""
PAIRS = 100_000
"""Most training transitions whose similarity is measured: the mean to about 0.001."""
FEATURE_ITEMS = 200_000
"""Items above which the graph is one of transitions alone: comparing all of them would take too long."""
LAST = (1, 2)
"""How many of the last events a model may read."""
WORDS = {"model": "model", "graph": "graph", "last_2": "last 2", "last_1": "last 1"}
"""Labels of the rows of the metric, and their words in the figure."""


class Shortcut(Diagnostic):
    """Selection metric of the model, of a transition graph and of the last events alone; what makes the data easy."""

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
        found, accuracy = [], {}
        for place, (label, model) in enumerate(models.items()):
            own = spec.model_copy(update={"decoding": Decoding()}) if model is fitted else spec  # it has no codes
            metrics = evaluate(model, users, context.split, own).metrics
            found += self.rows_of(metrics, label=label)
            accuracy[label] = metrics[spec.selection]
            self.progress(place + 1, len(models) + 1)
        whole = accuracy["model"]
        shares = {label: accuracy[label] / whole if whole > 0 else None for label in list(models)[1:]}
        found += [self.row("share_of_model", share, label=label) for label, share in shares.items()]
        return [*found, *data_rows(context.store, context.sample.first(USERS))]

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        values = {one.key: [_labelled(one.diagnosis, one.accuracy, label) for label in WORDS] for one in there}
        rows = tuple((one.label, *values[one.key], reached_share(one.diagnosis)) for one in there)
        graph = max(of_run[list(WORDS).index("graph")] or 0.0 for of_run in values.values())
        words = tuple(WORDS.values())
        chart = bars(
            "", words, axis=accuracy_word(there), level={"": graph}
        )  # the graph is one for all runs of a store
        verdicts = [(one.key, verdict(one.diagnosis)) for one in there]
        more = "".join(f" Run {key}: {sentence}." for key, sentence in verdicts if sentence is not None)
        return claim.figure(("run", *words, "graph / model"), rows, chart, more=more)

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        """What makes the data easy, and the verdict."""
        rows = [
            (f"{one['name'].replace('_', ' ')}{_place(one)}", one["value"])
            for one in result.diagnosis.of(cls.name)
            if one["name"] in ("branching", "target_is_successor", "feature_similarity", "share_of_model")
        ]
        sentence = verdict(result.diagnosis) or "the model finds nothing"
        return claim.figure(("of the data", "value"), rows, more=f" {sentence[0].upper()}{sentence[1:]}.")


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
