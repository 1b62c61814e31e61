"""Session kNN against a twin that walks through every session."""

import math

import numpy as np
import pytest
import torch

from fullrank.models.sequential.baselines.session_knn import SessionKNN
from fullrank.testing.baselines import fitted
from tiny import ITEMS, histories, padded, store

ROWS = histories((30, 13, 12, 9, 25, 8, 17, 22, 3, 2), seed=2)
TIMES = [[1_000 * (7 * u % 10) + t for t in range(len(row))] for u, row in enumerate(ROWS)]


def sessions(spec: SessionKNN) -> list[set[int]]:
    """Of training events row[:-2], cut from the end, oldest first."""
    found = []
    for row, times in zip(ROWS, TIMES, strict=True):
        row, end = row[:-2], len(row) - 2
        while end > 0:
            found.append((times[end - 1], set(row[max(end - spec.session, 0) : end])))
            end -= spec.session
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def twin(spec: SessionKNN, asked: list[int]) -> np.ndarray:
    known, asked = sessions(spec), asked[-spec.history :]
    weight = {item: (1 - (len(asked) - 1 - at) / len(asked)) ** spec.falloff for at, item in enumerate(asked)}
    newest = {j: [n for n, one in enumerate(known) if j in one][::-1][: spec.recent] for j in range(ITEMS)}
    likeness = {n: sum(w for item, w in weight.items() if n in newest[item]) for n in range(len(known))}
    near = sorted((n for n in likeness if likeness[n] > 0), key=lambda n: (-likeness[n], -n))[: spec.neighbours]
    scores = np.zeros(ITEMS)
    for n in near:
        last = max(w for item, w in weight.items() if n in newest[item])
        for j in known[n]:
            having = sum(j in one for one in known)
            scores[j] += likeness[n] * last * (math.log(len(known) / having) if spec.rare else 1.0)
    return scores


SPECS = (
    SessionKNN(),
    SessionKNN(neighbours=3, recent=2),
    SessionKNN(session=5, falloff=2.0),
    SessionKNN(falloff=0.0, rare=False),
    SessionKNN(history=2, session=1000),
)


@pytest.mark.parametrize(
    "spec", SPECS, ids=lambda spec: f"{spec.neighbours}-{spec.recent}-{spec.session}-{spec.falloff}"
)
def test_equals_its_twin(spec: SessionKNN) -> None:
    asked = [*histories((1, 4, 10, 25), seed=3), [3, 5, 3, 3]]
    model = fitted(spec, store(ROWS, times=TIMES))
    found = model.answer(padded([row[-spec.history :] for row in asked])).block(0, ITEMS)
    rest = -1 / (1 + model.counts.numpy())
    for row, own in zip(asked, found, strict=True):
        wanted = twin(spec, row)
        np.testing.assert_allclose(own.numpy(), np.where(wanted > 0, wanted, rest), rtol=1e-5, atol=1e-6)


def test_what_goes_together_is_alike() -> None:
    model = fitted(SessionKNN(), store(ROWS, times=TIMES))
    scores = model.similar(torch.tensor([3])).block(0, ITEMS)[0]
    together = set().union(*(one for one in sessions(SessionKNN()) if 3 in one)) - {3}
    assert set((scores > 0).nonzero()[:, 0].tolist()) <= together and scores[3] == -torch.inf


def test_without_times_and_of_nobody() -> None:
    model = fitted(SessionKNN(), store(ROWS))
    found = model.answer(padded([[], [3]])).block(0, ITEMS)
    assert torch.equal(
        found[0].argsort(descending=True, stable=True), model.counts.argsort(descending=True, stable=True)
    )
    assert (found[1] > 0).any()
