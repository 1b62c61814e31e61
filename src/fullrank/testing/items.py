"""Checks of every kind of items: one vector per id, the same in every shape, whole in the state, searchable once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from fullrank.core.spec import Spec
from fullrank.models.sequential.items import ItemIndex, ItemsSpec, unit
from fullrank.testing.inputs import (
    ITEMS,
    Check,
    built,
    catalog,
    close,
    module_device,
    naming,
    reachable,
)

DIM = 6


def check_vectors(items: Any) -> None:
    every = items.all()
    assert items.size == ITEMS and every.shape == (ITEMS, DIM) and every.isfinite().all()
    for ids in (
        torch.tensor(3),
        torch.arange(ITEMS),
        torch.tensor([[1, 2, 2], [5, ITEMS - 1, 0]]),
        torch.zeros(0, 4).long(),
    ):
        ids = ids.to(every.device)
        assert close(items.embed(ids), every[ids])
    assert torch.equal(items.popularity.cpu(), torch.as_tensor(catalog().popularity).float())


def check_state(items: Any, again: Any) -> None:
    """What decides the vectors is in the state dict, the popularity too."""
    again.load_state_dict(items.state_dict())
    assert torch.equal(again.eval().all(), items.eval().all())
    assert "popularity" in items.state_dict()


def check_gradients(items: Any) -> None:
    items.train()
    items.all().pow(3).sum().backward()
    for label, parameter in items.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), label
    items.eval()


def check_index(items: Any) -> None:
    """Before and after the table is made, ids have the same vectors; it is made once; gradients reach the items."""
    for cosine in (False, True):
        items.zero_grad()
        index = ItemIndex(items, normalise=cosine)
        ids = torch.tensor([[1, 2], [2, 7]], device=module_device(items))
        before = index.embed(ids)
        table = index.all()
        assert index.all() is table, "the table is made again"
        assert close(index.embed(ids), before) and close(before, table[ids])
        assert close(table, unit(items.all()) if cosine else items.all())
        assert not cosine or close(table.norm(dim=1), torch.ones(ITEMS, device=table.device))
        table = ItemIndex(items.train(), normalise=cosine).all()  # some parameters are of training alone
        (table * torch.randn(table.shape, device=table.device)).sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in items.parameters()), "a parameter gets no gradient"
        items.eval()


def check_shares(items: Any) -> None:
    """An item without training events counts as one event, so that no probability is zero."""
    log_q = ItemIndex(items, normalise=False).log_q(torch.arange(ITEMS, device=module_device(items)))
    counts = catalog().popularity.clip(1)
    assert close(log_q.exp().cpu(), torch.as_tensor(counts / counts.sum()).float())


def check_one_step(items: Any) -> None:
    """What one step reads gives the same vectors, each id as often as it is asked for."""
    view = items.for_one_step()
    assert view.size == items.size
    for ids in ([3, 1, 3], [1, 5], [5, 3, 1, 0]):
        asked = torch.tensor(ids, device=module_device(items))
        assert close(view.embed(asked), items.embed(asked))
    assert close(view.all(), items.all())


def _of_modules(check: Callable[[Any], None]) -> Check:
    """A check of a module as one of a Spec: of every module that its settings reach."""

    @wraps(check)
    def of_spec(spec: Spec, device: torch.device) -> None:
        for other, items in built(reachable(spec, 2), DIM, catalog(), device=device):
            with naming(other):
                check(items)

    return of_spec


def _state(spec: Spec, device: torch.device) -> None:
    for other, items in built(reachable(spec, 2), DIM, catalog(), device=device):
        with naming(other):
            assert isinstance(other, ItemsSpec)
            check_state(items, other.build(DIM, catalog()).to(device))


_state.__name__ = "check_state"
BASE = ItemsSpec
OF_MODULES = (check_vectors, check_gradients, check_index, check_shares, check_one_step)
CHECKS: tuple[Check, ...] = (*map(_of_modules, OF_MODULES), _state)
