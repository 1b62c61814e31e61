"""The vector index: recall as measured, the law of filters on every way through it, and files that are whole or not."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.clustered import clustered_vectors
from fullrank.core.jagged import Jagged
from fullrank.inference.exact import top_k
from fullrank.inference.filters import BatchFilter, Filters
from fullrank.models import DenseScorer
from fullrank.serving import vector_search
from fullrank.serving.vector_index import IndexSettings, VectorIndex
from refusals import refused

pytest.importorskip("faiss")
ITEMS, WIDTH = 20_000, 16
Arrays = tuple[np.ndarray, np.ndarray]
"""Vectors of items, and of users."""


@pytest.fixture(scope="module")
def vectors() -> Arrays:
    return clustered_vectors(ITEMS, 600, width=WIDTH, clusters=100)


@pytest.fixture(scope="module")
def index(vectors: Arrays) -> VectorIndex:
    items, users = vectors
    return VectorIndex.build(items, users[:400], threads=1)


def scorer(vectors: Arrays, low: int = 400, high: int = 600, temperature: float = 1.0) -> DenseScorer:
    return DenseScorer(torch.from_numpy(vectors[1][low:high]), torch.from_numpy(vectors[0]), temperature)


def overlap(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found[:, :, None] == exact[:, None]).any(2).double().mean())


def test_recall_is_reached_for_other_users_and_scores_are_exact(index: VectorIndex, vectors: Arrays) -> None:
    facts, asked = index.facts, scorer(vectors, temperature=0.5)
    assert facts.recall - facts.recall_error >= 0.99 and facts.real_users and facts.users == 400
    assert 0 < facts.probes < facts.cells / 4 and facts.recall_codes < facts.recall and facts.bytes > ITEMS * WIDTH
    for k, least in ((10, 0.985), (100, 0.97)):
        scores, ids = index(asked, k)
        exact = top_k(asked, k)
        assert overlap(ids, exact[1]) >= least
        assert torch.allclose(scores, asked.block(0, ITEMS).gather(1, ids), rtol=1e-5)
        assert (scores[:, 1:] <= scores[:, :-1]).all()


def test_more_cells_are_read_for_more_recall(vectors: Arrays) -> None:
    items, users = vectors
    few, most = (
        VectorIndex.build(items[:4000], users[:100], IndexSettings(recall=recall), threads=1).facts
        for recall in (0.5, 1.0)
    )
    assert few.recall < most.recall and few.probes < most.probes
    fixed = VectorIndex.build(items[:4000], None, IndexSettings(cells=20, probes=3), threads=1).facts
    assert (fixed.cells, fixed.probes, fixed.real_users) == (20, 3, False)


def test_eight_bit_codes_of_all_items(vectors: Arrays) -> None:
    items, users = vectors
    flat = VectorIndex.build(items[:4000], users[:100], IndexSettings(kind="flat_int8"), threads=1)
    assert flat.facts.recall == 1 and flat.facts.recall_codes > 0.9 and flat.facts.bytes < 4000 * WIDTH * 1.1
    mask = np.arange(4000) % 7 > 0
    filters = Filters(masks=((np.arange(5), mask),)).of_batch(None)
    asked = DenseScorer(torch.from_numpy(users[:9]), torch.from_numpy(items[:4000]))
    assert torch.equal(flat(asked, 10, filters)[1], top_k(asked, 10, filters=filters)[1])
    with refused("setting-without-effect", "probes"):
        IndexSettings.parse({"kind": "flat_int8", "probes": 3})


def random_filters(seed: int, users: int, items: int, allowed: bool = False) -> Filters:
    draw = np.random.default_rng(seed)

    def lists(most: int) -> Jagged:
        return Jagged.from_lists([draw.choice(items, n, replace=False).tolist() for n in draw.integers(0, most, users)])

    shares = (0.2, 0.6, 0.999)
    masks = tuple((np.flatnonzero(draw.random(users) < 0.5), draw.random(items) < share) for share in shares)
    return Filters(lists(60), draw.random(items) < 0.1, lists(50) if allowed else None, masks)


@pytest.mark.parametrize("grown", [0, 50])
@pytest.mark.parametrize("few", [0, 1000, 10**6])
@pytest.mark.parametrize("allowed", [False, True])
def test_the_law_of_filters(monkeypatch: pytest.MonkeyPatch, grown: int, few: int, allowed: bool) -> None:
    """Masks as selectors, by scoring what is left, and of single users; seen and allowed pairs; items behind the index.

    With all cells read and everything scored again, lists equal the exact ones, ties included.
    """
    monkeypatch.setattr(vector_search, "FEW", few)
    monkeypatch.setattr(vector_search, "OVERFETCH", 40)
    users, items = 9, 2000
    table = torch.randint(-3, 4, (items, 4), generator=torch.Generator().manual_seed(0)).float()
    for whole in (True, False):
        settings = IndexSettings(cells=30, probes=30 if whole else 1, rerank=items if whole else 10, users=8)
        index = VectorIndex.build(table[: items - grown].numpy(), None, settings, threads=1)
        for seed, k in enumerate([1, 10, 200]):
            asked = DenseScorer(torch.randint(-3, 4, (users, 4)).float(), table)
            filters = random_filters(seed, users, items, allowed).of_batch(None)
            assert filters is not None
            scores, ids = index(asked, k, filters)
            exact = top_k(asked, k, filters=filters)
            shown = ids >= 0
            assert torch.equal(shown, exact[1] >= 0), "a list is not full, or fuller than it can be"
            assert not (filters.refuses(ids.clamp_min(0)) & shown).any(), "a refused item is shown"
            assert all(len(set(row)) == len(row) for row in (one[one >= 0].tolist() for one in ids))
            if whole:
                assert torch.equal(ids, exact[1]) and torch.equal(scores, exact[0])


def test_a_category_far_from_the_user(index: VectorIndex, vectors: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mask leaves may lie in cells that the user would never read."""
    monkeypatch.setattr(vector_search, "FEW", 100)
    asked = scorer(vectors, 400, 450)
    for share in (0.5, 0.1):
        order = vectors[0] @ vectors[1][400:450].mean(0)
        filters = Filters(masks=((np.arange(50), order > np.quantile(order, share)),)).of_batch(None)
        assert overlap(index(asked, 10, filters)[1], top_k(asked, 10, filters=filters)[1]) > 0.95


def test_a_plan_is_made_once_for_a_mask(index: VectorIndex, vectors: Arrays) -> None:
    asked, search = scorer(vectors, 400, 402), index
    mask, barred = np.arange(ITEMS) % 2 > 0, np.arange(ITEMS) % 3 > 0
    held = len(search._plans)
    for _ in range(3):
        both = Filters(barred=barred, masks=((np.array([1]), mask),)).of_batch(None)
        ids = index(asked, 5, both)[1]
        assert not barred[ids].any() and not mask[ids[1]].any() and mask[ids[0]].any()
    assert len(search._plans) == held + 2
    for _ in range(vector_search.MOST_PLANS + 3):
        index(asked, 5, Filters(barred=barred.copy()).of_batch(None))
    assert len(search._plans) == vector_search.MOST_PLANS


def test_many_threads_get_the_same_lists(index: VectorIndex, vectors: Arrays) -> None:
    mask = np.arange(ITEMS) % 2 > 0

    def one(user: int) -> torch.Tensor:
        filters = Filters(masks=((np.arange(2), mask),)).of_batch(None) if user % 2 else None
        return index(scorer(vectors, user, user + 2), 10, filters)[1]

    alone = [one(user) for user in range(400, 480)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(one, range(400, 480)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_saved_and_opened(index: VectorIndex, vectors: Arrays, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    index.save(folder)
    index.save(folder)  # in place of the older one
    again = VectorIndex.open(folder, vectors[0])
    assert again.facts == index.facts
    assert torch.equal(again(scorer(vectors), 10)[1], index(scorer(vectors), 10)[1])
    assert sum(file.stat().st_size for file in folder.iterdir()) - index.facts.bytes < 5000
    other = vectors[0].copy()
    other[7, 3] += 1
    for wrong in (other, vectors[0][:-1]):
        with refused("index-of-other-vectors", str(folder)):
            VectorIndex.open(folder, wrong)
    with refused("missing-folder"):
        VectorIndex.open(tmp_path / "nothing", vectors[0])
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "notes.txt").touch()
    with refused("folder-not-empty"):
        index.save(tmp_path / "others")


@pytest.mark.parametrize("file", ["index.faiss", "manifest.json"])
@pytest.mark.parametrize("damage", ["changed", "short", "gone"])
def test_a_damaged_index_is_refused(
    index: VectorIndex, vectors: Arrays, tmp_path: Path, file: str, damage: str
) -> None:
    folder = tmp_path / "index"
    index.save(folder)
    path = folder / file
    held = bytearray(path.read_bytes())
    at = held.index(b'"recall": 0.') + 12 if file == "manifest.json" else len(held) // 2
    code = "file-damaged"
    if damage == "gone":
        path.unlink()
        code = "missing-file" if file == "index.faiss" else "wrong-folder"
    elif damage == "short":
        path.write_bytes(held[: len(held) // 2])
    else:
        held[at] ^= 1
        path.write_bytes(held)
    with refused(code):
        VectorIndex.open(folder, vectors[0])


def test_a_floor_of_recall(index: VectorIndex) -> None:
    index.require(index.facts.recall)
    for recall, floor in ((0.9, 0.9999), (float("nan"), 0.5)):
        with refused("recall-below-floor", floor):
            VectorIndex(index.index, replace(index.facts, recall=recall)).require(floor)


def test_what_cannot_be_searched_is_refused(index: VectorIndex, vectors: Arrays) -> None:
    asked = scorer(vectors, 400, 403)

    class Other:
        size = ITEMS

        def block(self, low: int, high: int) -> torch.Tensor:
            raise AssertionError("no item is scored")

    narrow = DenseScorer(asked.vectors[:, 1:], asked.table[:, 1:])
    newer = torch.cat([asked.table, torch.full((1, WIDTH), torch.nan)])
    wrong: Any
    for wrong, k, code in (
        (Other(), 10, "index-of-other-vectors"),
        (replace(asked, table=asked.table[:-1]), 10, "index-of-other-vectors"),
        (narrow, 10, "index-of-other-vectors"),
        (replace(asked, vectors=asked.vectors * torch.tensor([[1], [torch.nan], [1]])), 10, "nan-scores"),
        (replace(asked, table=newer), 10, "nan-scores"),
    ):
        with refused(code):
            index(wrong, k)
    for items, users, code in (
        (vectors[0] * np.nan, None, "vectors-not-finite"),
        (vectors[0][:0], None, "vectors-not-finite"),
        (vectors[0], vectors[1][:, :5], "vectors-of-other-width"),
    ):
        with refused(code):
            VectorIndex.build(items, users)


def test_small_catalogues() -> None:
    for items in (1, 2, 45):
        table = np.arange(items * 4, dtype=np.float32).reshape(items, 4)
        index = VectorIndex.build(table, None, threads=1)
        asked = DenseScorer(torch.ones(2, 4), torch.from_numpy(table))
        hidden = BatchFilter.of(np.array([0]), np.array([items - 1]))
        for filters in (None, hidden):
            assert torch.equal(index(asked, 5, filters)[1], top_k(asked, 5, filters=filters)[1])
