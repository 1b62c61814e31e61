"""Item-to-item: counts by hand, and against a twin that walks through every pair of events."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from fullrank.models.sequential.baselines.item_to_item import ItemToItem
from fullrank.testing.baselines import fitted
from tiny import ITEMS, histories, padded, store


def twin(rows, spec, history) -> np.ndarray:
    """Scores of one history, from training events row[:-2] of each row."""
    together = Counter()
    count = Counter()
    for row in (row[:-2] for row in rows):
        count.update(row)
        for i, a in enumerate(row):
            for b in row[i + 1 : i + 1 + spec.window]:
                if a != b:
                    together[a, b] += 1
                    together[b, a] += 1
    scores = np.zeros(ITEMS)
    for age, item in enumerate(reversed(history)):
        alike = {b: n / (count[a] * count[b]) ** 0.5 for (a, b), n in together.items() if a == item}
        best = sorted(alike.items(), key=lambda pair: (-pair[1], pair[0]))[: spec.neighbours]
        for other, value in best:
            scores[other] += spec.decay**age * value
    return np.where(scores > 0, scores, [-1 / (1 + count[i]) for i in range(ITEMS)])


def scores(rows: list, size: int, history: list, /, **settings) -> Tensor:
    """What a model that is fitted to these rows says of one history."""
    return fitted(ItemToItem(**settings), store(rows, size)).answer(padded([history], extra=1)).block(0, size)[0]


def test_by_hand() -> None:
    """Trained on 0 1 2 and 0 1: 0 and 1 meet twice, 2 meets each of them once; counts 2, 2, 1."""
    rows = [[0, 1, 2, 3, 3], [0, 1, 4, 4]]
    for history, settings, wanted in (
        ([0], {}, [-1 / 3, 2 / 2, 1 / 2**0.5, -1, -1]),
        ([0], {"window": 1}, [-1 / 3, 1.0, -1 / 2, -1, -1]),
        ([2, 0], {}, [0.8 / 2**0.5, 1 + 0.8 / 2**0.5, 1 / 2**0.5, -1, -1]),
    ):
        torch.testing.assert_close(scores(rows, 5, history, **settings), torch.tensor(wanted))


@pytest.mark.parametrize(
    "spec", [ItemToItem(), ItemToItem(window=1, decay=1), ItemToItem(window=40, neighbours=3)], ids=str
)
def test_equals_its_twin(spec) -> None:
    rows, asked = histories((30, 3, 12, 2, 25, 8), seed=2), histories((1, 4, 10), seed=3)
    found = fitted(spec, store(rows)).answer(padded(asked)).block(0, ITEMS)
    for history, row in zip(asked, found, strict=True):
        np.testing.assert_allclose(row.numpy(), twin(rows, spec, history), rtol=1e-5, atol=1e-6)


def test_histories_do_not_meet() -> None:
    """The last event of one user and the first of the next are no pair; an item is not its own neighbour."""
    rows = [[0, 0, 5, 5], [1, 2, 5, 5]]
    assert not (scores(rows, 6, [0]) > 0).any()
    assert (scores(rows, 6, [1]) > 0).nonzero()[:, 0].tolist() == [2]


def test_rows_without_pairs() -> None:
    assert not (scores([[0, 1, 2], [1, 0, 2]], 3, [0, 1]) > 0).any()


def test_items_without_likeness_come_last_and_by_popularity() -> None:
    """4 was trained on three times and 3 twice, never beside 0; 0's likeness to 1 is small, and still above both."""
    rows = [[*row, 2, 2] for row in ([0, 1], [4], [4], [4], [3], [3], *[[0]] * 8, *[[1]] * 8)]
    for history, wanted in (([0], [1, 0, 4]), ([0, *[3] * 30], [1, 0, 4]), ([], [0, 1, 4])):
        order = scores(rows, 6, history, decay=0.1, history=40).argsort(descending=True, stable=True).tolist()
        assert order == [*wanted, 3, 2, 5]
