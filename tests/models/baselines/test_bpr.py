"""BPR-MF against one draw after another, and its histories against a minimiser that knows nothing of it."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit

from fullrank.core.errors import UserError
from fullrank.models.sequential.baselines.bpr import BPR, UnseenPairs
from fullrank.testing.baselines import fitted
from tests.models.baselines.test_ease import ROWS, seen
from tiny import ITEMS, histories, padded, store


def test_equals_one_draw_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """LearnBPR of the paper in plain numpy."""
    monkeypatch.setattr("fullrank.models.sequential.baselines.bpr.BATCH", 1)
    spec, on = BPR(dim=4, epochs=3, lr=0.2, l2=0.05, std=0.3), store(ROWS)
    model = fitted(spec, on)
    draw = torch.Generator().manual_seed(torch.initial_seed())
    torch.randperm(ITEMS, generator=draw)
    users = (torch.randn(len(ROWS), 4, generator=draw) * spec.std).double().numpy()
    items = (torch.randn(ITEMS, 4, generator=draw) * spec.std).double().numpy()
    biases, pairs = np.zeros(ITEMS), UnseenPairs(on)
    for _ in range(spec.epochs):
        for u, i, j in zip(*(one.tolist() for one in pairs.draw(draw)), strict=True):
            w, h, g = users[u].copy(), items[i].copy(), items[j].copy()
            wrong = expit(-(w @ (h - g) + biases[i] - biases[j]))
            users[u] += spec.lr * (wrong * (h - g) - spec.l2 * w)
            items[i] += spec.lr * (wrong * w - spec.l2 * h)
            items[j] += spec.lr * (-wrong * w - spec.l2 * g)
            biases[i] += spec.lr * (wrong - spec.l2 * biases[i])
            biases[j] += spec.lr * (-wrong - spec.l2 * biases[j])
    np.testing.assert_allclose(model.vectors.numpy(), items, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.biases.numpy(), biases, rtol=1e-4, atol=1e-5)


def test_what_is_drawn() -> None:
    """Every pair of training and every item that its user has not, as often as the others; full users never."""
    rows = [[*range(ITEMS), 0, 1], [3, 5, 3, 7, 0, 1], [*range(1, ITEMS), 0, 1]]
    pairs, x = UnseenPairs(store(rows)), seen(rows)
    assert len(pairs) == 3 + ITEMS - 1
    draws = [torch.stack(pairs.draw(torch.Generator().manual_seed(seed)), 1) for seed in range(300)]
    user, item, other = torch.cat(draws).numpy().T
    assert x[user, item].all() and not x[user, other].any() and 0 not in user
    assert set(other[user == 2]) == {0}
    for one, allowed in ((item, 3), (other, ITEMS - 3)):
        counts = np.unique(one[user == 1], return_counts=True)[1]
        mean = counts.sum() / allowed
        assert len(counts) == allowed and abs(counts - mean).max() < 5 * mean**0.5


@pytest.mark.parametrize("l2", [0.3, 0.003])
def test_a_history_has_the_minimum_of_its_part(l2: float) -> None:
    """With weak l2 the minimum is far away, and steps do not pass it."""
    model = fitted(BPR(dim=4, epochs=100, l2=l2, std=0.5), store(ROWS))
    h, b, others = model.vectors.double().numpy(), model.biases.double().numpy(), model.others.numpy()
    asked = [*histories((1, 4, 10), seed=3), [3, 5, 3]]
    scores = model.answer(padded(asked)).block(0, ITEMS).numpy()
    for row, found in zip(asked, scores, strict=True):
        mine = np.array([i for i in set(row) for j in others if j not in row])
        theirs = np.array([j for _ in set(row) for j in others if j not in row])

        def part(w: np.ndarray, mine: np.ndarray = mine, theirs: np.ndarray = theirs) -> float:
            x = (h[mine] - h[theirs]) @ w + b[mine] - b[theirs]
            return np.logaddexp(0, -x).mean() + l2 / 2 * w @ w

        best = minimize(part, np.zeros(4), tol=1e-12).x
        np.testing.assert_allclose(found, h @ best + b, rtol=1e-3, atol=2e-3)


def test_seeds_decide() -> None:
    def made(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return fitted(BPR(dim=4, epochs=2), store(ROWS)).vectors

    assert torch.equal(made(1), made(1)) and not torch.equal(made(1), made(2))


def test_new_histories_get_items_of_their_own_cluster() -> None:
    """Where popularity knows no cluster: items of two groups, and users who stay in one."""
    rng, groups = np.random.default_rng(0), np.arange(ITEMS) % 2
    rows = [list(rng.choice(np.flatnonzero(groups == user % 2), 8, replace=False)) for user in range(200)]
    model = fitted(BPR(dim=2, l2=0.05), store([[*map(int, row)] for row in rows]))
    asked = [[group, group + 4] for group in range(2)]
    scores = model.answer(padded(asked)).block(0, ITEMS)
    scores[torch.arange(2)[:, None], torch.tensor(asked)] = -torch.inf
    best = groups[scores.topk(ITEMS // 2 - 2).indices.numpy()]
    assert (best == np.arange(2)[:, None]).mean() > 0.95


def test_a_history_without_items_gets_the_popular() -> None:
    model = fitted(BPR(dim=4, epochs=20), store(ROWS))
    torch.testing.assert_close(model.answer(padded([[], [3]])).block(0, ITEMS)[0], model.biases)
    assert np.corrcoef(model.biases.numpy(), seen(ROWS).sum(0))[0, 1] > 0.5


def test_what_diverges_is_refused() -> None:
    with pytest.raises(UserError, match="lower one of them"):
        fitted(BPR(dim=4, epochs=100, lr=100.0, l2=1.0), store(ROWS))
