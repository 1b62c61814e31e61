"""Item vectors as an index of faiss, with ids: exact inner products, or 8-bit vectors with their measured recall.

A user's vector (`Predictor.user_vectors`) times an item's is the score. The index answers with external ids where these
are whole numbers of at least 0, else with item numbers, which items.parquet names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from fullrank.core.files import open_whole
from fullrank.data.histories import Histories
from fullrank.inference.batches import BLOCK, score_batches
from fullrank.inference.predictor import Predictor
from fullrank.inference.rank import rank
from fullrank.models.contracts import DenseScorer

FILE = "index.faiss"
K = 10
"""Of recall."""
USERS = 1000
"""Most users that recall is measured on."""


def write_index(predictor: Predictor, folder: Path, histories: Histories, *, int8: bool, source: str) -> dict[str, Any]:
    """Write index.faiss; what the manifest says of it, with the recall@10 of these histories against exact lists.

    Raises `UserError` for a model that does not score by inner products.
    """
    import faiss

    vectors = np.ascontiguousarray(predictor.item_vectors(), np.float32)
    size, dim = vectors.shape
    kind = faiss.ScalarQuantizer.QT_8bit
    inner: Any = faiss.IndexScalarQuantizer(dim, kind, faiss.METRIC_INNER_PRODUCT) if int8 else faiss.IndexFlatIP(dim)
    if int8:
        inner.train(vectors)
    ids, external = index_ids(predictor.catalog.ids)
    index = faiss.IndexIDMap(inner)
    index.add_with_ids(vectors, ids)
    path = folder / FILE
    with open_whole(path) as file:  # faiss's own writing does not look whether its end reached the disk
        file.write(faiss.serialize_index(index).data)
    recall, users = measured_recall(predictor, faiss.read_index(str(path)), ids, histories)
    return {
        "inputs": [{"name": "vectors", "dtype": "float32", "shape": ["B", dim], "meaning": "vectors of users"}],
        "outputs": [
            {"name": "scores", "dtype": "float32", "shape": ["B", "k"], "meaning": "inner products, largest first"},
            {"name": "ids", "dtype": "int64", "shape": ["B", "k"], "meaning": "the index's ids, -1 where none is left"},
        ],
        "items": size, "width": dim, "int8": int8, "ids": "item_id" if external else "item",
        "bytes": path.stat().st_size,
        "parity": {f"recall@{K}": recall, "users": users, "histories": source},
    }  # fmt: skip


def index_ids(ids: pl.Series) -> tuple[Int[np.ndarray, "V"], bool]:
    """The ids in the index, and whether they are the external ones. -1 stands for no item, so none may be below 0."""
    if ids.dtype.is_integer() and int(ids.min()) >= 0 and int(ids.max()) < 2**63:  # type: ignore[arg-type]
        return ids.to_numpy().astype(np.int64), True
    return np.arange(len(ids)), False


def measured_recall(
    predictor: Predictor, index: Any, ids: Int[np.ndarray, "V"], histories: Histories
) -> tuple[float, int]:
    """The share of each user's exact list that the index finds, seen items included, and how many users were asked."""
    k = min(K, len(ids))
    budget = predictor.budget.model_copy(update={"adaptive": None, "patience": None})
    own = None if predictor.model.reasoner is None else budget
    exact = rank(predictor.model, histories, k=k, seen="keep", budget=own, index=predictor.index).ids
    users: Float[np.ndarray, "U D"] | None = None
    for at, scorer in score_batches(predictor.model, histories, block=BLOCK, budget=own, index=predictor.index):
        assert isinstance(scorer, DenseScorer)  # `item_vectors` has refused others
        found = (scorer.vectors / scorer.temperature).float().cpu().numpy()
        users = np.zeros((len(histories), found.shape[1]), np.float32) if users is None else users
        users[at] = found
    assert users is not None
    _, listed = index.search(users, k)
    hits = (ids[exact][:, :, None] == listed[:, None]).any(2)
    return float(hits.mean()), len(histories)
