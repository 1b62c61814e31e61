"""Transition graph: what followed the last one or two events of a history, and what is like it; nothing is trained.

After the heuristic of Han et al. 2026 (arXiv:2605.07125), which takes what is a few hops from the
last one or two items in the graph of item transitions, and ranks it by similarity of features plus
log1p(count) / max log1p(count) of the edge. Here

    c(a, b)    = sum_{d=1..window} window_decay^(d-1) (a then b, d events apart) + backward (b then a, likewise)
    link(a, b) = log1p(c(a, b)) / max_b' log1p(c(a, b')) + similarity cos(x_a, x_b)
    s(b)       = sum_g decay^g link(a_g, b),   a_0 the last event, a_1 the one before

with the counts of training events and x the TF-IDF vectors of words and attributes: the words of
text columns and the entries of list columns of the item table. What more than one item in twenty
has is left out of large catalogues: it says little and would cost most of the time.

Differs: every item is scored, where the paper fills fixed shares of a list from each ring of hops;
the second hop is left out and the items most like a_g join its successors instead; x are words, not
a language model's embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import polars as pl
from jaxtyping import Float, Int
from scipy import sparse

from fullrank.core.constraints import Factor, Length, ListLength, Names, PositiveShare, Share, only_with
from fullrank.core.errors import no_such
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines import BaselineSpec
from fullrank.models.sequential.baselines.item_links import ItemLinks

WORD = r"[\p{L}\p{N}]+"
"""A word: letters and digits of any alphabet."""
_COMMON_SHARE, _COMMON = 20, 1000
"""A feature of more than one item in 20, and of more than 1,000 items, is left out."""
DIGITS = 9
"""Decimals of a cosine: items with the same features are equally like another, whatever the order of the sums."""
_ROWS = 1024
"""Items whose similarities to all others are alive at once."""


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
        logs = (ahead + spec.backward * ahead.T).log1p().tocsr()
        most = logs.max(axis=1).toarray().ravel()
        links = sparse.diags(1 / np.where(most > 0, most, 1.0)) @ logs  # 1 for the most frequent transition of an item
        vectors = feature_vectors(store.catalog, spec.columns) if spec.similarity else None
        if vectors is not None:
            links = links + spec.similarity * most_alike(vectors, spec.neighbours)
        links = links.tocoo()
        self.keep(links.row, links.col, links.data, store.catalog.popularity.astype(np.float64))


def transitions(store: Store, window: int = 1, window_decay: float = 1.0) -> sparse.csr_matrix:
    """[V, V] how often the training histories go from an item to another, successors
    further away counting less."""
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


def feature_vectors(catalog: Catalog, columns: Sequence[str] = ()) -> sparse.csr_matrix | None:
    """[V, features] TF-IDF rows of length one, zeros where nothing is known of an item; None where no column is text.

    x_i[f] = (1 + log count) log((1 + V) / (1 + V_f)) before it is scaled; V_f items have the
    feature f. Without `columns`, every column of text or of lists of text. Raises `UserError` for a
    column that is not there or holds something else.
    """
    allowed = catalog.text_columns
    for name in columns:
        if name not in allowed:
            problem, more = "the items have no column of text", "; prepare the store with --items" * (not allowed)
            raise no_such(problem, name, allowed, "columns of text", more, code="unknown-column")
    parts = [_features(catalog.frame, name) for name in columns or allowed]
    table = pl.concat(parts) if parts else pl.DataFrame()
    if table.is_empty():
        return None
    # in the order of the table, so that sums below keep theirs
    counts = table.group_by("item", "feature", maintain_order=True).len()
    items = counts["item"].to_numpy()
    features = counts["feature"].rank("dense").to_numpy().astype(np.int64) - 1
    having = np.bincount(features)
    value = (1 + np.log(counts["len"].to_numpy())) * np.log((1 + catalog.size) / (1 + having[features]))
    value[having[features] > max(catalog.size / _COMMON_SHARE, _COMMON)] = 0.0
    length = np.sqrt(np.bincount(items, value**2, minlength=catalog.size))
    value /= np.where(length > 0, length, 1.0)[items]
    matrix = sparse.csr_matrix((value, (items, features)), shape=(catalog.size, len(having)))
    matrix.eliminate_zeros()
    return matrix


def _features(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """(item, feature) for each word, or each entry of a list, of one column; a
    feature has its column's name."""
    column = frame[name]
    if isinstance(column.dtype, (pl.List, pl.Array)):
        entries = column.cast(pl.List(pl.String)).list.eval(pl.element().str.to_lowercase())
    else:
        entries = column.cast(pl.String).str.to_lowercase().str.extract_all(WORD)
    table = pl.DataFrame({"item": np.arange(len(frame)), "feature": entries}).explode("feature")
    return table.drop_nulls().with_columns(feature=pl.lit(f"{name}: ") + pl.col("feature"))


def most_alike(vectors: sparse.csr_matrix, count: int) -> sparse.csr_matrix:
    """[V, V] the cosine of each item with those most like it (`count`, and more
    where the last ones are equal)."""
    blocks = []
    for low in range(0, vectors.shape[0], _ROWS):
        alike = (vectors[low : low + _ROWS] @ vectors.T).tocoo()
        itself = alike.col == alike.row + low
        value = np.where(itself, 0.0, alike.data.round(DIGITS))
        alike = sparse.csr_matrix((value, (alike.row, alike.col)), shape=alike.shape)
        alike.eliminate_zeros()
        bounds = zip(alike.indptr[:-1], alike.indptr[1:], strict=True)
        least = [  # the count-th largest value of each row
            0.0 if stop - start <= count else np.partition(alike.data[start:stop], -count)[-count]
            for start, stop in bounds
        ]
        alike.data[alike.data < np.repeat(least, np.diff(alike.indptr))] = 0.0
        alike.eliminate_zeros()
        blocks.append(alike)
    return sparse.vstack(blocks, format="csr")


def cosines(
    vectors: sparse.csr_matrix, left: Int[np.ndarray, "p"], right: Int[np.ndarray, "p"]
) -> Float[np.ndarray, "p"]:
    """The cosine of each pair of items; 0 where nothing is known of one of them."""
    return np.asarray(vectors[left].multiply(vectors[right]).sum(axis=1)).ravel()
