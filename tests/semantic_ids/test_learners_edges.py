"""Learners of codes where vectors are few, alike, or enormous; in a process of its own, since faiss may end it."""

import pytest
import torch

from folders import python
from fullrank.core.registry import kinds
from fullrank.semantic_ids.opq import Opq
from refusals import refused

LEARN = """
import sys
import torch
from fullrank.core.registry import find, kinds
from fullrank.semantic_ids.opq import Opq

NETWORK = {"epochs": 2, "hidden": (16,), "width": 8}
QUICK = {"opq": {"rounds": 3}, "rqvae": NETWORK, "letter": {**NETWORK, "alignment": 0}}
SHAPES = [(1, 8), (2, 8), (7, 8), (8, 8), (9, 8), (40, 64), (63, 64), (64, 64), (120, 384), (383, 384), (384, 384)]
torch.manual_seed(0)
cases = [(torch.randn(n, d), size) for n, d in SHAPES for size in (1, 2, 8) if size <= n]
dull = torch.randn(50, 8)
dull[:, 3] = 0
cases += [(torch.ones(50, 8), 8), (torch.ones(4, 8), 4), (torch.zeros(50, 8), 8), (dull, 8)]
cases += [(torch.randn(16, 8), 16), (torch.randn(50, 8) * 1e12 / 8, 8), (torch.randn(50, 8) * 1e-40, 8)]
for x, size in cases:
    for kind in kinds("items.codes"):
        learner = find(kind, "items.codes")(levels=4, size=size, **QUICK.get(kind, {}))
        learned = learner.fit(x, 0, lambda done, total: None)
        codes = learned.encode(x)
        assert codes.shape == (len(x), 4) and 0 <= int(codes.min()) and int(codes.max()) < size, (kind, x.shape, size)
        assert bool(learned.decode(codes).isfinite().all()), (kind, x.shape, size)
print(len(cases), "cases")
"""


@pytest.mark.process
def test_learners_survive_every_shape() -> None:
    """Fewer vectors than dimensions ended the process: SIGSEGV, or `free(): invalid size`."""
    assert "cases" in python(LEARN, MALLOC_CHECK_="3", MALLOC_PERTURB_="165").stdout


def test_faiss_is_chosen_where_it_can_learn() -> None:
    pytest.importorskip("faiss")
    assert Opq().chosen(384, 384) == "faiss"
    assert Opq().chosen(383, 384) == "torch"
    with refused("too-few-vectors-for-faiss", 384, 383, "engine=torch"):
        Opq(engine="faiss").chosen(383, 384)


@pytest.mark.parametrize("value", [1e13, float("inf"), float("nan")])
def test_values_that_do_not_add_up_are_refused(value: float) -> None:
    """faiss ends the process on them."""
    assert {"opq", "rq_kmeans"} <= set(kinds("items.codes"))
    x = torch.randn(50, 8)
    x[3, 4] = value
    with refused("vectors-too-large", f"{value:g}"):
        Opq(levels=4, size=8).fit(x, 0, lambda done, total: None)
