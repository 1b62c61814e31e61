"""Streaming top-k equals a full sort, whatever the ties, the block and what was seen."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fakes import listed
from fullrank.inference import exact
from fullrank.inference.exact import top_k
from fullrank.inference.filters import BatchFilter
from fullrank.models import DenseScorer
from refusals import refused

Pairs = set[tuple[int, int]]
"""Rows and items that are hidden."""


class Table:
    """An answer that holds all scores."""

    def __init__(self, scores: torch.Tensor):
        self.scores = scores
        self.size = scores.shape[1]

    def block(self, low: int, high: int) -> torch.Tensor:
        return self.scores[:, low:high]


def pairs(seen: Pairs) -> BatchFilter:
    rows, items = np.array(sorted(seen), dtype=np.int64).reshape(-1, 2).T
    return BatchFilter.of(rows, items)


def check(scores: torch.Tensor, k: int, block: int, seen: Pairs) -> None:
    before = scores.clone()
    values, ids = top_k(Table(scores), k, filters=pairs(seen) if seen else None, block=block)
    assert torch.equal(scores, before), "the model's own scores were changed"
    rows = scores.double().numpy()
    assert ids.tolist() == [listed(s, k, {i for r, i in seen if r == row}) for row, s in enumerate(rows)]
    given_back = torch.where(ids < 0, -torch.inf, scores.gather(1, ids.clamp_min(0)).float())
    assert torch.equal(values, given_back)


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, int, int, Pairs]:
    rows, items = draw(st.integers(1, 5)), draw(st.integers(1, 400))
    seed, levels = draw(st.integers(0, 2**31)), draw(st.sampled_from([1, 2, 7, 1000]))
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.integers(0, levels, (rows, items))).float()
    scores[torch.from_numpy(rng.random((rows, items)) < 0.05)] = -torch.inf
    share = draw(st.sampled_from([0, 0.05, 0.5, 1.0]))
    seen = {(int(r), int(i)) for r, i in zip(*np.nonzero(rng.random((rows, items)) < share), strict=True)}
    return scores, draw(st.integers(1, 30)), draw(st.sampled_from([1, 3, 7, 64, 257, 300, 1000])), seen


@given(cases())
def test_equals_a_full_sort(case: tuple[torch.Tensor, int, int, Pairs]) -> None:
    check(*case)


@pytest.mark.parametrize("items", [255, 256, 257, 1999, 5003])
@pytest.mark.parametrize("block", [512, 2048, 8192])
def test_grouped_selection_at_odd_sizes(items: int, block: int) -> None:
    """Wide enough that groups of groups are searched, with and without ties at the edge of the list."""
    generator = torch.Generator().manual_seed(items)
    for levels in (2, 40, 1 << 20):
        scores = torch.randint(0, levels, (7, items), generator=generator).float()
        check(scores, 20, block, {(0, 3), (6, items - 1), (6, 0)})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    scores = torch.randn(5, 3001, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    check(scores, 10, 1024, {(0, 0), (1, 5)})


def test_scores_that_differ_only_in_float64_keep_their_order() -> None:
    scores = torch.ones(1, 2000, dtype=torch.float64)
    scores[0, 1234] += 1e-12
    assert top_k(Table(scores), 2)[1].tolist() == [[1234, 0]]


def test_one_row_of_scores_may_serve_all_users() -> None:
    """A popularity model answers with an expanded row; covering one user's items must not cover another's."""
    shared = torch.arange(100.0).expand(3, 100)
    _, ids = top_k(Table(shared), 2, filters=pairs({(0, 99), (1, 98)}))
    assert ids.tolist() == [[98, 97], [99, 97], [99, 98]]


def test_scores_made_in_inference_mode_are_accepted() -> None:
    with torch.inference_mode():
        scores = torch.arange(50.0).repeat(2, 1)
    assert top_k(Table(scores), 1, filters=pairs({(0, 49)}))[1].tolist() == [[48], [49]]


@pytest.mark.parametrize("at", [0, 700, 2999])
@pytest.mark.parametrize("block", [300, 1000, 8192])
def test_nan_is_refused(at: int, block: int) -> None:
    scores = torch.randn(4, 3000, generator=torch.Generator().manual_seed(1))
    scores[2, at] = torch.nan
    with refused("nan-scores", "1", "4"):
        top_k(Table(scores), 10, block=block)


def test_no_items_are_refused() -> None:
    with refused("no-items"):
        top_k(Table(torch.zeros(1, 0)), 1, block=10)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("block", [7, 100, 4096])
def test_dense_answers_go_through_one_buffer(block: int, temperature: float) -> None:
    """Multiplied into reused memory, the scores are the ones that the answer gives (whole numbers: exactly)."""
    generator = torch.Generator().manual_seed(0)
    vectors, table = (torch.randint(-3, 4, (n, 5), generator=generator).float() for n in (6, 1501))
    answer = DenseScorer(vectors.requires_grad_(), table, temperature)
    seen = pairs({(0, 3), (5, 1500)})
    plain = top_k(Table(answer.block(0, 1501).detach()), 10, filters=seen, block=block)
    for ours, theirs in zip(top_k(answer, 10, filters=seen, block=block), plain, strict=True):
        assert torch.equal(ours, theirs)


class Watched:
    """Remembers the blocks it gave out and says how many still live when the next one is asked for."""

    def __init__(self, size: int):
        self.size, self.alive, self.widest = size, 0, 0
        self.given: list[weakref.ref[torch.Tensor]] = []

    def block(self, low: int, high: int) -> torch.Tensor:
        self.alive = max(self.alive, sum(r() is not None for r in self.given))
        self.widest = max(self.widest, high - low)
        scores = torch.randn(8, high - low)
        self.given.append(weakref.ref(scores))
        return scores


def test_one_block_lives_at_a_time() -> None:
    """Memory must not grow with the catalogue: no earlier block is alive when the next is made."""
    answer = Watched(20_000)
    top_k(answer, 10, filters=pairs({(0, 5), (3, 9000)}), block=1024)
    assert (answer.alive, answer.widest, len(answer.given)) == (0, 1024, 20)


class Largest(TorchDispatchMode):
    """The size in bytes of the largest memory behind any tensor that an operation returns."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(value, torch.Tensor) and not func.is_view:
                self.size = max(self.size, value.untyped_storage().nbytes())
        return found


@pytest.mark.parametrize("items", [30_000, 300_000])
def test_nothing_is_as_large_as_the_catalogue(items: int) -> None:
    answer = DenseScorer(torch.randn(8, 4), torch.randn(items, 4))
    with Largest() as largest:
        top_k(answer, 10, filters=pairs({(0, 5), (3, 9000)}), block=1024)
    assert largest.size == 8 * 1024 * 4, "the block of scores in float32"


def _as_they_are(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return given[-2:]


def _late_block_first(best: tuple[torch.Tensor, ...], block: tuple[torch.Tensor, ...], k: int) -> tuple:
    values, at = torch.cat([block[0], best[0]], 1).sort(dim=1, descending=True, stable=True)
    return values[:, :k], torch.cat([block[1], best[1]], 1).gather(1, at[:, :k])


@pytest.mark.parametrize(
    ("name", "broken", "levels"),
    [("_repair", _as_they_are, 3), ("_ordered", _as_they_are, 1000), ("merge", _late_block_first, 1000)],
)
def test_planted_faults_are_caught(name: str, broken: Callable, levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the three places that keep ties in order is needed: without it the twin disagrees."""
    monkeypatch.setattr(exact, name, broken)
    scores = torch.randint(0, levels, (9, 5003), generator=torch.Generator().manual_seed(0)).float()
    with pytest.raises(AssertionError):
        check(scores, 10, 2048, set())
