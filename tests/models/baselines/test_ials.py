"""iALS against its objective and against one least-squares problem after another."""

import numpy as np
import pytest
import torch

from fullrank.models.sequential.baselines.ials import IALS
from fullrank.testing.baselines import fitted
from tests.models.baselines.test_ease import ROWS, seen
from tiny import ITEMS, histories, padded, store


def solved(x: np.ndarray, table: np.ndarray, spec: IALS) -> np.ndarray:
    """[R, D] of each row of x by the normal equations of the objective, 0 for one without any."""
    found = np.zeros((len(x), table.shape[1]))
    for row, line in enumerate(x):
        if not line.any():
            continue
        weight = line + spec.unobserved  # of (1 - w h)^2 where observed, and of (w h)^2 everywhere
        held = spec.l2 * (line.sum() + spec.unobserved * len(table)) ** spec.nu
        left = (table * weight[:, None]).T @ table + held * np.eye(table.shape[1])
        found[row] = np.linalg.solve(left, table.T @ line)
    return found


def objective(x: np.ndarray, users: np.ndarray, items: np.ndarray, spec: IALS) -> float:
    scores = users @ items.T
    held = [(side.sum(1) + spec.unobserved * side.shape[1]) ** spec.nu for side in (x, x.T)]
    lengths = sum((h * (table**2).sum(1)).sum() for h, table in zip(held, (users, items), strict=True))
    return float((x * (1 - scores) ** 2).sum() + spec.unobserved * (scores**2).sum() + spec.l2 * lengths)


@pytest.mark.parametrize("nu", [1.0, 0.0])
def test_equals_one_problem_after_another(nu: float) -> None:
    spec, x = IALS(dim=4, sweeps=3, l2=0.1, nu=nu), seen(ROWS)
    items = np.asarray(torch.randn(ITEMS, 4, generator=torch.Generator().manual_seed(0)) * spec.std / 2, float)
    last = np.inf
    for _ in range(3):
        users = solved(x, items, spec)
        items = solved(x.T, users, spec)
        before, last = last, objective(x, users, items, spec)
        assert last < before
    model = fitted(spec, store(ROWS))
    np.testing.assert_allclose(model.vectors.numpy(), items, rtol=1e-3, atol=1e-5)
    asked = [*histories((1, 4, 10), seed=3), [3, 5, 3]]
    lines = np.zeros((len(asked), ITEMS))
    for row, history in zip(lines, asked, strict=True):
        row[history] = 1
    wanted = solved(lines, items, spec) @ items.T
    np.testing.assert_allclose(model.answer(padded(asked)).block(0, ITEMS).numpy(), wanted, rtol=1e-3, atol=1e-5)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fitted(IALS(dim=4, sweeps=2), store(ROWS)).vectors
    monkeypatch.setattr("fullrank.models.sequential.baselines.ials.ENTRIES", 100)
    torch.testing.assert_close(fitted(IALS(dim=4, sweeps=2), store(ROWS)).vectors, whole)


def test_a_history_without_items_gets_the_popular() -> None:
    model = fitted(IALS(dim=4), store(ROWS))
    empty = model.answer(padded([[], [3]])).block(0, ITEMS)[0]
    assert torch.equal(empty, model.counts)
