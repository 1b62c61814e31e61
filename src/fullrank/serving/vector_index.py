"""Vector index: approximate top-k over the item vectors of large catalogues, with the recall that was measured.

Items lie in cells around centroids (inverted file, Sivic and Zisserman, ICCV 2003) as 8-bit codes
of their difference from the centroid, in faiss. A query reads the codes of the `probes` best cells,
and the best `rerank` items by code are scored again with the true vectors (`vector_search.py`).
`flat_int8` keeps 8-bit codes of all items without cells.

When an index is built, its recall against exact search is measured on vectors of users, and more
cells are read until it reaches what was asked for. The figure is stored with the index, which opens
only beside the vectors that it was built from. Needs faiss (the extra `codes`).
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fullrank.core.constraints import MOST_COUNT, MOST_LIST, only_with
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, open_whole, require_replaceable, whole_folder
from fullrank.core.log import logger
from fullrank.core.spec import Spec
from fullrank.data import manifest as manifests
from fullrank.inference.exact import top_k
from fullrank.models import DenseScorer
from fullrank.serving.vector_search import VectorSearch, faiss_threads, the_library

log = logger(__name__)

FORMAT, VERSION, CODES = "fullrank.index", 1, "index.faiss"
AGAIN = "build the index again"
FORM = manifests.FolderFormat("vector index", "make one with VectorIndex.build(...).save", FORMAT, VERSION, AGAIN)
K, LONG = 10, 100
"""Lengths of the lists whose recall is measured."""
WORTH_IT = 50_000
"""Items from which on a service should have an index: below, exact search takes less than a millisecond a request."""
TRAINED = 40
"""Items per cell from which centroids are learned; faiss asks for 39."""
ROUNDS = 8
"""Rounds of k-means; more do not raise recall at equal work on a million items."""


class IndexSettings(Spec):
    """How an index is built."""

    kind: Literal["ivf", "flat_int8"] = "ivf"
    """Cells of 8-bit codes, of which the best are read; or 8-bit codes of all items, which are all read."""
    rerank: int = Field(40, ge=1, le=MOST_LIST)
    """Items scored again with their true vectors (at least half as many again as the list is long)."""
    recall: float = Field(0.99, ge=0, le=1)
    """Share of the true best 10 that lists have to hold: more cells are read until they do."""
    cells: Annotated[int | None, only_with("kind", "ivf")] = Field(None, ge=1, le=65536)
    """Cells; null is 4 sqrt(items)."""
    probes: Annotated[int | None, only_with("kind", "ivf")] = Field(None, ge=1, le=65536)
    """Cells that a query reads; null is as many as the recall asks for."""
    users: int = Field(1024, ge=1, le=MOST_COUNT)
    """Most user vectors on which recall is measured."""


@dataclass(frozen=True)
class IndexFacts:
    """Facts of an index; all of them are stored."""

    kind: str
    items: int
    width: int
    rerank: int
    cells: int
    """0: it has none."""
    probes: int
    recall: float
    """Share of the true best 10 among the first 10 of a list, mean over `users`.

    An item with the score of the tenth counts as one of them.
    """
    recall_error: float
    """Its standard error."""
    recall_100: float
    """Recall of lists of 100."""
    recall_codes: float
    """Recall of the first 10 without scoring again: the worth of the 8-bit codes alone."""
    users: int
    """Vectors of users on which recall was measured."""
    real_users: bool
    """False: they were sums of item vectors."""
    train_seconds: float
    add_seconds: float
    measure_seconds: float
    bytes: int
    """Size of the index in memory and on disk, without the item vectors."""
    vectors: str
    """SHA-256 of the item vectors."""
    faiss: str


class VectorIndex(VectorSearch):
    """An index and the search with it: a `Search` of `inference/search.py` for models that score by inner products.

    Safe from many threads. A list may lack an item of the exact one (`facts.recall`); what filters
    refuse is never shown, scores are exact, and a list is full while items remain. The table of a
    scorer may have grown by items behind those of the index: they are scored one by one. Rows of
    the index's own items have to be as they were.
    """

    def __init__(self, index: Any, facts: IndexFacts):
        super().__init__(index, facts.items, facts.cells, facts.probes, facts.rerank)
        self.facts = facts

    @staticmethod
    def build(
        vectors: Float[np.ndarray, "V D"],
        users: Float[np.ndarray, "U d"] | None = None,
        settings: IndexSettings | None = None,
        *,
        threads: int | None = None,
        seed: int = 0,
    ) -> VectorIndex:
        """An index of these item vectors (`Predictor.item_vectors`), its recall measured on these vectors of users.

        Without `users` (`Predictor.user_vectors` of sampled histories), recall is measured on sums
        of two items' vectors, which says less. A million items of width 64 take about 40 seconds of
        one core's time. Raises `UserError` for vectors that are no finite numbers.
        """
        faiss = the_library()
        settings = settings or IndexSettings()
        table = _finite_table(vectors, "item vectors")
        draw = np.random.default_rng(seed)
        real = users is not None and len(users) > 0
        queries = (
            _finite_table(users, "user vectors")
            if users is not None and real
            else _stand_ins(table, settings.users, draw)
        )
        if queries.shape[1] != table.shape[1]:
            raise UserError(
                f"user vectors have {queries.shape[1]} numbers, item vectors {table.shape[1]}: give those of one model",
                code="vectors-of-other-width",
            )
        queries = queries[np.sort(draw.permutation(len(queries))[: settings.users])]
        with faiss_threads(threads or os.cpu_count() or 1):
            began = time.perf_counter()
            index, cells = _trained_index(table, settings, draw)
            trained = time.perf_counter()
            index.add(table)
            added = time.perf_counter()
        measured = _measure(index, cells, table, queries, settings)
        facts = IndexFacts(
            kind=settings.kind,
            items=len(table),
            width=table.shape[1],
            rerank=settings.rerank,
            cells=cells,
            **measured,
            users=len(queries),
            real_users=real,
            train_seconds=round(trained - began, 2),
            add_seconds=round(added - trained, 2),
            measure_seconds=round(time.perf_counter() - added, 2),
            bytes=len(faiss.serialize_index(index)),
            vectors=hash_of(table),
            faiss=faiss.__version__,
        )
        log.info(
            f"index of {facts.items:,} items: recall@{K} {facts.recall:.4f}, {facts.bytes / 2**20:.0f} MB, "
            f"{facts.probes} of {facts.cells} cells read"
        )
        return VectorIndex(index, facts)

    def save(self, folder: str | Path) -> None:
        """Write the index and its facts, all or nothing; an index that is there is replaced."""
        faiss = the_library()
        manifests.require_outside_stores(Path(folder))
        require_replaceable(Path(folder), "vector index", is_index, {manifests.NAME, CODES}.__contains__)
        with whole_folder(folder, "the build of an index") as part:
            with open_whole(part / CODES) as file:
                file.write(faiss.serialize_index(self.index).data)
            facts, files = {"facts": asdict(self.facts)}, manifests.describe_files(part)
            manifests.write_manifest(part, FORM, facts, files)

    @staticmethod
    def open(folder: str | Path, vectors: Float[np.ndarray, "V D"]) -> VectorIndex:
        """The index of these item vectors that `save` wrote.

        Raises `UserError` where there is none, for a damaged one, and for one of
        other vectors (`index-of-other-vectors`).
        """
        faiss = the_library()
        folder = Path(folder)
        manifest = manifests.read_header(folder, FORM)
        facts = _facts_of(manifest, folder)
        manifests.check_files(folder, manifest["files"], {CODES}, {CODES}, AGAIN)
        manifests.verify_hashes(folder, manifest, AGAIN)
        table = _finite_table(vectors, "item vectors")
        if table.shape != (facts.items, facts.width) or hash_of(table) != facts.vectors:
            raise UserError(
                f"the index {str(folder)!r} was built from other item vectors ({facts.items:,} of width {facts.width}; "
                f"given are {len(table):,} of width {table.shape[1]}): {AGAIN} from those of this model",
                code="index-of-other-vectors",
            )
        try:
            index = faiss.deserialize_index(np.fromfile(folder / CODES, np.uint8))
        except RuntimeError as error:
            raise manifests.damaged_file(folder / CODES, str(error), AGAIN) from None
        return VectorIndex(index, facts)

    def require(self, floor: float) -> None:
        """Raise `UserError` (`recall-below-floor`) unless the recall measured is at least `floor`."""
        if not self.facts.recall >= floor:
            raise UserError(
                f"the index finds {self.facts.recall:.4f} of the true best {K} items and {floor} are asked for: build "
                "it with a larger rerank or more cells, lower the floor, or serve with exact search",
                code="recall-below-floor",
            )


def is_index(folder: Path) -> bool:
    """Whether a folder says that it holds an index (of any version)."""
    return manifests.format_of(folder) == FORMAT


def hash_of(vectors: Float[np.ndarray, "V D"]) -> str:
    """SHA-256 of vectors in float32, row after row."""
    return hashlib.sha256(np.ascontiguousarray(vectors, np.float32).data).hexdigest()


def _finite_table(vectors: np.ndarray, what: str) -> Float[np.ndarray, "n D"]:
    table = np.ascontiguousarray(vectors, np.float32)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise UserError(
            f"the {what} have shape {tuple(table.shape)} and must be a table of finite numbers with at least one row: "
            "has training diverged?",
            code="vectors-not-finite",
        )
    return table


def _stand_ins(table: Float[np.ndarray, "V D"], count: int, draw: np.random.Generator) -> Float[np.ndarray, "n D"]:
    """One item and half of another: stand-ins for users."""
    first, second = draw.integers(0, len(table), (2, count))
    return table[first] + table[second] / 2


def _trained_index(table: np.ndarray, settings: IndexSettings, draw: np.random.Generator) -> tuple[Any, int]:
    """An empty faiss index that has seen a sample of the items, and its number of cells."""
    faiss = the_library()
    items, width = table.shape
    codes = faiss.ScalarQuantizer.QT_8bit
    if settings.kind == "flat_int8":
        index, cells = faiss.IndexScalarQuantizer(width, codes, faiss.METRIC_INNER_PRODUCT), 0
    else:
        usual = min(round(4 * items**0.5), max(items // TRAINED, 1), 65536)
        cells = min(settings.cells or usual, items)
        index = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(width), width, cells, codes, faiss.METRIC_INNER_PRODUCT)
        index.cp.niter, index.cp.min_points_per_centroid = ROUNDS, 1  # 1: no warning on stderr
        index.cp.seed = int(draw.integers(2**31 - 1))
        index.cp.max_points_per_centroid = TRAINED
    count = min(items, max(cells * TRAINED, 100_000))
    index.train(table if count == items else table[np.sort(draw.choice(items, count, replace=False))])
    return index, cells


def _measure(index: Any, cells: int, table: np.ndarray, queries: np.ndarray, settings: IndexSettings) -> JsonObject:
    """Probes, and recall with them: cells are added by steps of a third until the recall asked for is passed.

    It is passed once the mean exceeds it by one standard error, so that other users find as much.
    """
    scorer = DenseScorer(torch.from_numpy(queries), torch.from_numpy(table))
    k, long = min(K, len(table)), min(LONG, len(table))
    best = torch.cat([top_k(DenseScorer(part, scorer.table), long)[0] for part in scorer.vectors.split(256)])

    def hits(values: Float[Tensor, "U k"]) -> Float[Tensor, "U k"]:
        least = best[:, values.shape[1] - 1, None]
        return (values >= least - 1e-5 * least.abs()).double()

    probes = settings.probes or max(cells // 256, 1)
    while True:
        probes = min(probes, max(cells, 1))
        search = VectorSearch(index, len(table), cells, probes, settings.rerank)
        per_user = hits(search(scorer, k)[0]).mean(1)
        mean, error = float(per_user.mean()), float(per_user.std(correction=0)) / len(per_user) ** 0.5
        if settings.probes or probes >= cells or mean - error >= settings.recall:
            break
        probes += -(-probes // 3)
    ids = torch.from_numpy(search.nearest(queries, k))
    scores = torch.einsum("bd,bkd->bk", scorer.vectors, scorer.table[ids.clamp_min(0)]).masked_fill(ids < 0, -torch.inf)
    return {
        "probes": probes if cells else 0,
        "recall": round(mean, 5),
        "recall_error": round(error, 5),
        "recall_100": round(float(hits(search(scorer, long)[0]).mean(1).mean()), 5),
        "recall_codes": round(float(hits(scores).mean()), 5),
    }


def _facts_of(manifest: JsonObject, folder: Path) -> IndexFacts:
    kinds = {manifests.SEAL: str, "facts": dict, "files": dict, "content": str}
    manifests.require_keys(folder, manifest, kinds, AGAIN)
    if manifest["facts"].keys() != {field.name for field in fields(IndexFacts)}:
        raise manifests.incomplete_manifest(folder, "lacks the facts of an index", AGAIN)
    return IndexFacts(**manifest["facts"])
