"""Transition graph: what followed the last one or two events of a history, and what is like it; nothing is trained.

After the heuristic of Han et al. 2026 (arXiv:2605.07125), which takes what is a few hops from the last one or two items
in the graph of item transitions, and ranks it by similarity of features plus log1p(count) / max log1p(count) of the
edge. Here

    c(a, b)    = sum_{d=1..window} window_decay^(d-1) (a then b, d events apart) + backward (b then a, likewise)
    link(a, b) = log1p(c(a, b)) / max_b' log1p(c(a, b')) + similarity cos(x_a, x_b)
    s(b)       = sum_g decay^g link(a_g, b),   a_0 the last event, a_1 the one before

with the counts of training events and x the TF-IDF vectors of words and attributes (`item_features.py`).

Differs: every item is scored, where the paper fills fixed shares of a list from each ring of hops; the second hop is
left out and the items most like a_g join its successors instead; x are words, not a language model's embeddings.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from jaxtyping import Float
from scipy import sparse

from fullrank.core.constraints import Factor, Length, ListLength, Names, PositiveShare, Share, only_with
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines import BaselineSpec
from fullrank.models.sequential.baselines.item_features import feature_vectors, most_alike
from fullrank.models.sequential.baselines.item_links import ItemLinks


class TransitionGraph(BaselineSpec):
    """Ranks by transitions from the last events and by similarity of features to them."""

    kind: Literal["transition_graph"] = "transition_graph"
    history: Length = 2
    """Last events of a history that are read."""
    decay: PositiveShare = 0.6
    """Weight of an event relative to the one after it."""
    window: Length = 5
    """Events behind an event that count as its successors; 1 is the next one alone."""
    window_decay: PositiveShare = 0.5
    """Weight of a successor relative to the one before it."""
    backward: Share = 0.15
    """Weight of a transition the other way round."""
    similarity: Factor = 1.0
    """Weight of the similarity of features relative to the most frequent transition; without effect where no column
    of the item table is text."""
    columns: Annotated[Names, only_with("similarity")] = ()
    """Columns of the item table with the features; empty: every column of text or of lists of text."""
    neighbours: ListLength = 100
    """Best links kept per item."""

    def build(self, catalog: Catalog) -> TransitionGraphModel:
        return TransitionGraphModel(catalog.size, self)


class TransitionGraphModel(ItemLinks):
    """Links by transitions and features."""

    spec: TransitionGraph

    def fit(self, store: Store) -> None:
        spec = self.spec
        ahead = transitions(store, spec.window, spec.window_decay)
        links = relative_log(ahead + spec.backward * ahead.T)
        vectors = feature_vectors(store.catalog, spec.columns) if spec.similarity else None
        if vectors is not None:
            links = links + spec.similarity * most_alike(vectors, spec.neighbours)
        links = links.tocoo()
        self.keep(links.row, links.col, links.data, store.catalog.popularity.astype(np.float64))


def transitions(store: Store, window: int = 1, window_decay: float = 1.0) -> sparse.csr_matrix:
    """[V, V] how often the training histories go from an item to another, successors further away counting less."""
    user, items, _ = store.trained()
    size = (store.num_items, store.num_items)
    counts = sparse.csr_matrix(size)
    for gap in range(1, min(window, len(items) - 1) + 1):
        moves = (user[gap:] == user[:-gap]) & (items[gap:] != items[:-gap])
        if not moves.any():  # histories of one user lie together: none is longer than this
            break
        weight = np.full(int(moves.sum()), window_decay ** (gap - 1))
        counts = counts + sparse.csr_matrix((weight, (items[:-gap][moves], items[gap:][moves])), shape=size)
    return counts


def relative_log(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """[V, V] log1p(c) / max log1p(c) of each row: 1 for the most frequent transition of an item."""
    logs = counts.log1p().tocsr()
    most: Float[np.ndarray, "V"] = logs.max(axis=1).toarray().ravel()
    return sparse.diags(1 / np.where(most > 0, most, 1.0)) @ logs
