"""Item features as TF-IDF vectors: the words of text columns and the entries of list columns of the item table.

x_i[f] = (1 + log count) log((1 + V) / (1 + V_f)), scaled to length one; V_f items have the feature f. The inner product
of two rows is the cosine of the items. What more than one item in twenty has is left out of large catalogues: it says
little and would cost most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from jaxtyping import Float, Int
from scipy import sparse

from fullrank.core.errors import no_such
from fullrank.data.events.catalog import Catalog
from fullrank.semantic_ids.vectors.text import text_columns

WORD = r"[\p{L}\p{N}]+"
_COMMON_SHARE, _COMMON = 20, 1000
"""A feature of more than one item in 20, and of more than 1,000 items, is left out."""
DIGITS = 9
"""Decimals of a cosine: items with the same features are equally like another, whatever the order of the sums."""
_ROWS = 1024
"""Items whose similarities to all others are alive at once."""


def feature_vectors(catalog: Catalog, columns: Sequence[str] = ()) -> sparse.csr_matrix | None:
    """[V, features] rows of length one, of zeros where nothing is known of an item; None where no column is text.

    Without `columns`, every column of text or of lists of text. Raises `UserError` for a column that is not there or
    holds something else.
    """
    allowed = text_columns(catalog)
    for name in columns:
        if name not in allowed:
            problem, more = "the items have no column of text", "; prepare the store with --items" * (not allowed)
            raise no_such(problem, name, allowed, "columns of text", more, code="unknown-column")
    parts = [_features(catalog.frame, name) for name in columns or allowed]
    table = pl.concat(parts) if parts else pl.DataFrame()
    if table.is_empty():
        return None
    counts = table.group_by("item", "feature", maintain_order=True).len()  # sums below keep their order
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
    """(item, feature) for each word, or each entry of a list, of one column; a feature has its column's name."""
    column = frame[name]
    if isinstance(column.dtype, (pl.List, pl.Array)):
        entries = column.cast(pl.List(pl.String)).list.eval(pl.element().str.to_lowercase())
    else:
        entries = column.cast(pl.String).str.to_lowercase().str.extract_all(WORD)
    table = pl.DataFrame({"item": np.arange(len(frame)), "feature": entries}).explode("feature")
    return table.drop_nulls().with_columns(feature=pl.lit(f"{name}: ") + pl.col("feature"))


def most_alike(vectors: sparse.csr_matrix, count: int) -> sparse.csr_matrix:
    """[V, V] the cosine of each item with those most like it (`count`, and more where the last ones are equal)."""
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
