"""The law of filters, for every path to a list: nothing refused is shown, and a list is full while items remain."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import Whole
from fullrank.core.jagged import Jagged
from fullrank.data.histories import Histories
from fullrank.inference.batches import Batching
from fullrank.inference.filters import Filters, _places, seen_policy
from fullrank.inference.list_options import ListOptions
from fullrank.inference.recommend import most_popular, rank, rank_requests
from fullrank.inference.requests import RequestBatch
from fullrank.inference.search import Decoding
from fullrank.models import Budget
from fullrank.models.sequential.model import Recommender
from fullrank.serving.vector_index import IndexSettings, VectorIndex
from refusals import refused
from thinker import Thinker
from tiny import catalog, coded_catalog, shaken

V, U = 60, 7


@dataclass(frozen=True)
class Case:
    """Histories of U users and filters of every sort at once, and what each user may be shown, in plain Python."""

    histories: Histories
    filters: Filters

    @property
    def left(self) -> list[set[int]]:
        found = []
        for user, seen in enumerate(self.histories.items):
            shown = np.ones(V, bool)
            shown[seen] = False
            if self.filters.excluded is not None:
                shown[list(self.filters.excluded)[user]] = False
            if self.filters.allowed is not None:
                shown &= np.isin(np.arange(V), list(self.filters.allowed)[user])
            for rows, hidden in (*self.filters.masks, (range(U), self.filters.barred)):
                if user in rows and hidden is not None:
                    shown &= ~hidden
            found.append(set(np.flatnonzero(shown).tolist()))
        return found


def case(seed: int, share: float = 0.4, empty: bool = False, kinds: str = "ebam") -> Case:
    """`share` of the items is refused by each filter; `kinds`: of excluded, barred, allowed and masks those in use."""
    draw = np.random.default_rng(seed)

    def lists(lengths: np.ndarray) -> Jagged:
        return Jagged.from_lists([draw.choice(V, n, replace=False).tolist() for n in lengths])

    some = [np.flatnonzero(draw.random(U) < 0.6) for _ in range(3)]  # a user may be in several groups, or in none
    filters = Filters(
        excluded=lists(draw.integers(0, 9, U)) if "e" in kinds else None,
        barred=draw.random(V) < share if "b" in kinds else None,
        allowed=lists(draw.integers(0, V + 1, U)) if "a" in kinds else None,
        masks=tuple((rows, draw.random(V) < share) for rows in some if len(rows)) if "m" in kinds else (),
    )
    lengths = np.zeros(U, np.int64) if empty else draw.integers(1, 6, U)
    return Case(Histories(lists(lengths)), filters)


def check(ids: np.ndarray, left: list[set[int]], k: int) -> None:
    for row, shown in zip(ids.tolist(), left, strict=True):
        real = [item for item in row if item >= 0]
        assert set(real) <= shown, "a refused item is shown"
        assert len(set(real)) == len(real) == min(k, len(shown)), "the list is not full"
        assert row[len(real) :] == [-1] * (k - len(real)), "empty places come last"


SEMANTIC = shaken(
    Recommender(dim=8).override("items=semantic", "task=semantic_tokens").build(coded_catalog(V, (5, 5, 5)))
).eval()
DECODINGS = {
    "exact": Decoding(),
    "graph": Decoding(kind="graph", beams=4, edges=3, steps=1),
    "beam": Decoding(kind="beam", beams=3),
    "pruned": Decoding(kind="pruned", codes=1),
}


def by_codes(case: Case, k: int, kind: str) -> np.ndarray:
    return rank(SEMANTIC, case.histories, k=k, filters=case.filters, search=DECODINGS[kind], how=Batching(block=13)).ids


def dense(case: Case, k: int) -> np.ndarray:
    return rank(Whole(V), case.histories, k=k, filters=case.filters, how=Batching(3, 17)).ids


def vector_index(case: Case, k: int) -> np.ndarray:
    """Of 60 items the last 7 are newer than the index, which reads one of its cells."""
    pytest.importorskip("faiss")
    model = Whole(V)
    settings = IndexSettings(cells=6, probes=1, rerank=1, users=1)
    index = VectorIndex.build(model.table[:-7].numpy(), None, settings, threads=1)
    return rank(model, case.histories, k=k, filters=case.filters, search=index, how=Batching(4)).ids


def early_exit(case: Case, k: int) -> np.ndarray:
    budget = Budget(steps=4, adaptive=5)
    found = rank(Thinker.random(U, V), case.histories, k=k, filters=case.filters, budget=budget, how=Batching(4, 16))
    return found.ids


def popular(case: Case, k: int) -> np.ndarray:
    return most_popular(catalog(V), U, k, case.filters, case.histories)[1]


PATHS: dict[str, Callable[[Case, int], np.ndarray]] = {
    **{kind: partial(by_codes, kind=kind) for kind in DECODINGS},
    "dense": dense,
    "vector index": vector_index,
    "early exit": early_exit,
    "popular": popular,
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kinds", ["e", "m", "bm", "am", "ebam"])
def test_nothing_refused_is_shown_and_lists_are_full(path: str, kinds: str) -> None:
    for seed, (k, share) in enumerate([(1, 0.3), (10, 0.5), (10, 0.95), (V, 0.3), (10, 1.0)]):
        one = case(seed, share, kinds=kinds)
        check(PATHS[path](one, k), one.left, k)


def test_the_law_notices_a_shown_item_and_a_short_list() -> None:
    one = case(0)
    ids = PATHS["dense"](one, 5)
    refused, short = ids.copy(), ids.copy()
    refused[0, 0] = next(iter(set(range(V)) - one.left[0]))
    short[0, -1] = -1
    for wrong in (refused, short):
        with pytest.raises(AssertionError):
            check(wrong, one.left, 5)


def test_a_request_of_users_with_and_without_history() -> None:
    """Those without get the most popular items, under the filters of their own rows."""
    one = case(5)
    items = one.histories.items
    starts = np.where(np.arange(U) % 2, items.starts, items.ends)
    halved = replace(one, histories=Histories(replace(items, starts=starts)))
    request = RequestBatch(None, halved.histories)
    found = rank_requests(Whole(V), catalog(V), request, ListOptions(), one.filters)
    check(found.ids, halved.left, 10)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.lists(st.integers(0, U - 1), min_size=1, max_size=2 * U))
def test_parts_of_a_batch_keep_their_own_filters(seed: int, rows: list[int]) -> None:
    """`take` (of users, in any order, some twice) and `only` (of a batch's rows) refuse what the whole refuses."""
    one, every = case(seed), torch.arange(V).expand(U, -1)
    whole = one.filters.of_batch(one.histories.items)
    assert whole is not None
    refused = whole.refuses(every)
    assert [set(np.flatnonzero(~row).tolist()) for row in refused.numpy()] == one.left
    taken = one.filters.take(np.array(rows)).of_batch(one.histories.items.take(np.array(rows)))
    assert taken is not None and torch.equal(taken.refuses(every[rows]), refused[rows])
    some = torch.tensor(sorted(set(rows)))
    assert torch.equal(whole.only(some, U).refuses(every[some]), refused[some])


@pytest.mark.parametrize("kinds", ["m", "b", "a", "eb", "ea", "em"])
def test_a_block_is_hidden_in_a_copy(kinds: str) -> None:
    """Scores may be the model's own, or one row in memory that serves several users."""
    one = case(7, kinds=kinds)
    filters = one.filters.of_batch(None)
    assert filters is not None
    assert filters.refuses(torch.arange(V).expand(U, -1))[:, 20:50].any()
    for scores in (torch.arange(float(V)).expand(U, -1), torch.randn(U, V)):
        before = scores.clone()
        hidden, undo = filters.hide(scores[:, 20:50], 20)
        assert undo is None and torch.equal(scores, before)
        refused = filters.refuses(torch.arange(V).expand(U, -1))[:, 20:50]
        assert torch.equal(hidden, before[:, 20:50].masked_fill(refused, -torch.inf))


def test_every_part_of_a_batch_filter_is_on_its_device() -> None:
    one = case(3)
    found = one.filters.of_batch(one.histories.items, "meta")
    assert found is not None and found.allowed is not None and found.barred is not None and found.masks
    tensors = [found.barred, *(tensor for mask in found.masks for tensor in mask)]
    tensors += [part for pairs in (found.hidden, found.allowed) for part in (pairs.rows, pairs.items)]
    tensors.append(_places(torch.tensor([2, 0], device="meta"), 4))  # of `only`
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_an_unknown_seen_policy_is_told_the_two_that_there_are() -> None:
    assert (seen_policy("keep"), seen_policy("exclude")) == ("keep", "exclude")
    for wrong in ("exclud", None, 3):
        with refused("unknown-seen-policy", "exclude", "keep"):
            seen_policy(wrong)
