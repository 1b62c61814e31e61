"""EASE against the closed form in plain numpy, and its sparse form against the regression of each item by itself."""

import numpy as np
import pytest
import torch

from fullrank.models.sequential.baselines.ease import EASE
from fullrank.testing.baselines import fitted
from tiny import ITEMS, histories, padded, store

ROWS = histories((30, 13, 12, 9, 25, 8, 17, 22), seed=2)


def seen(rows: list, items: int = ITEMS) -> np.ndarray:
    """[U, V] 1 where an item is among the training events row[:-2]."""
    found = np.zeros((len(rows), items))
    for user, row in enumerate(rows):
        found[user, row[:-2]] = 1
    return found


def weights(x: np.ndarray, l2: float, *, met: bool = False) -> np.ndarray:
    """B by the definition: for each j the ridge regression of column j on all others, or on those it has `met`."""
    found = np.zeros((x.shape[1], x.shape[1]))
    for j in range(x.shape[1]):
        others = np.delete(np.arange(x.shape[1]), j)
        if met:
            others = others[x[:, others].T @ x[:, j] > 0]
        a = x[:, others]
        found[others, j] = np.linalg.solve(a.T @ a + l2 * np.eye(len(others)), a.T @ x[:, j])
    return found


def twin(x: np.ndarray, b: np.ndarray, asked: list, decay: float = 1.0) -> np.ndarray:
    """Scores of one history: each of its items once, by its last event."""
    found = np.zeros(len(b))
    done = set()
    for age, item in enumerate(reversed(asked)):
        if item not in done:
            found += decay**age * b[item]
        done.add(item)
    return found


def scores(spec: EASE, asked: list) -> np.ndarray:
    return fitted(spec, store(ROWS)).answer(padded(asked)).block(0, ITEMS).numpy()


@pytest.mark.parametrize("dense", [10**6, 1], ids=["whole", "local"])
@pytest.mark.parametrize("decay", [1.0, 0.7])
def test_equals_the_regression_of_each_item(dense: int, decay: float) -> None:
    """The sparse form on all items that share a user with it."""
    asked = histories((1, 4, 10, 25), seed=3)
    spec = EASE(l2=2.0, decay=decay, dense=dense, local=ITEMS, neighbours=ITEMS)
    b = weights(seen(ROWS), 2.0, met=dense == 1)
    for row, found in zip(asked, scores(spec, asked), strict=True):
        np.testing.assert_allclose(found, twin(seen(ROWS), b, row, decay), rtol=1e-4, atol=2e-6)


def test_the_sparse_form_regresses_on_the_most_alike() -> None:
    x, n = seen(ROWS), 5
    found = fitted(EASE(l2=2.0, dense=1, local=n, neighbours=ITEMS), store(ROWS))
    gram = x.T @ x
    for j in range(ITEMS):
        alike = gram[:, j] / np.sqrt(np.maximum(np.diag(gram) * gram[j, j], 1e-9))
        alike[j] = -1
        own = {int(i): float(v) for i in range(ITEMS) for t, v in zip(found.ids[i], found.likeness[i], strict=True)
               if t == j and v != 0}  # fmt: skip
        least = np.sort(alike)[::-1][n - 1]
        assert len(own) <= n and all(alike[i] >= least - 1e-9 for i in own)
        if not own:
            continue
        group = sorted(own)
        a = x[:, group]
        expected = np.linalg.solve(a.T @ a + 2.0 * np.eye(len(group)), a.T @ x[:, j])
        if len(group) == n:
            np.testing.assert_allclose([own[i] for i in group], expected, rtol=1e-4, atol=1e-6)


def test_only_the_largest_weights_are_kept() -> None:
    b = weights(seen(ROWS), 2.0)
    found = fitted(EASE(l2=2.0, neighbours=4), store(ROWS))
    for item in range(ITEMS):
        kept = set(found.ids[item][found.likeness[item] != 0].tolist())
        assert kept <= set(np.argsort(-np.abs(b[item]), kind="stable")[: 4 + 2].tolist())


def test_a_history_that_nothing_is_known_of_gets_the_popular() -> None:
    model = fitted(EASE(), store(ROWS))
    empty = model.answer(padded([[], [3]])).block(0, ITEMS)[0]
    assert torch.equal(empty.argsort(descending=True, stable=True), model.counts.argsort(descending=True, stable=True))


def test_repeats_count_once() -> None:
    model = fitted(EASE(l2=2.0), store(ROWS))
    a, b = (model.answer(padded([row])).block(0, ITEMS)[0] for row in ([3, 5, 3, 3], [5, 3]))
    torch.testing.assert_close(a, b)
