"""Checks of every kind of items: one vector per id, in any shape, saved and searchable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fullrank.core.device import device_of
from fullrank.core.spec import Spec
from fullrank.models.sequential.items import ItemIndex, ItemsSpec, unit
from fullrank.testing.inputs import (
    ITEMS,
    all_learn,
    built,
    catalog,
    close,
    of_specs,
    reachable,
)

DIM = 6


def check_vectors(items: Any) -> None:
    all_vectors = items.all()
    assert items.size == ITEMS and all_vectors.shape == (ITEMS, DIM) and all_vectors.isfinite().all()
    for ids in (
        torch.tensor(3),
        torch.arange(ITEMS),
        torch.tensor([[1, 2, 2], [5, ITEMS - 1, 0]]),
        torch.zeros(0, 4).long(),
    ):
        ids = ids.to(all_vectors.device)
        assert close(items.embed(ids), all_vectors[ids])
    assert torch.equal(items.popularity.cpu(), torch.as_tensor(catalog().popularity).float())


def check_state(items: Any, again: Any) -> None:
    """The state dict holds the popularity and all that decides the vectors: `again`,
    which loads it, has equal ones."""
    again.load_state_dict(items.state_dict())
    assert torch.equal(again.eval().all(), items.eval().all())
    assert "popularity" in items.state_dict()


def added_scores(index: ItemIndex, device: torch.device) -> Any:
    """Score terms beside the inner product, of three queries and five items each, or None."""
    generator = torch.Generator().manual_seed(4)
    vectors = torch.randn(3, DIM, generator=generator).to(device)
    ids = torch.randint(ITEMS, (3, 5), generator=generator).to(device)
    return index.added(vectors, ids, torch.tensor([10**9, 10**9 + 10**7, 2 * 10**9], device=device))


def check_gradients(items: Any) -> None:
    """Every parameter learns, of the vectors or of what scores have beside them."""
    items.train()
    term = added_scores(ItemIndex(items, normalise=False), device_of(items))
    assert (term is not None) == items.needs_times, "what scores have beside the vectors is not announced"
    (items.all().pow(3).sum() + (0 if term is None else term.pow(3).sum())).backward()
    all_learn(items.named_parameters())
    items.eval()


def check_index(items: Any) -> None:
    """Ids have the same vectors before and after the table is made, once, with gradients."""
    for cosine in (False, True):
        items.zero_grad()
        index = ItemIndex(items, normalise=cosine)
        ids = torch.tensor([[1, 2], [2, 7]], device=device_of(items))
        before = index.embed(ids)
        table = index.all()
        assert index.all() is table, "the table is made again"
        assert close(index.embed(ids), before) and close(before, table[ids])
        assert close(table, unit(items.all()) if cosine else items.all())
        assert not cosine or close(table.norm(dim=1), torch.ones(ITEMS, device=table.device))
        table = ItemIndex(items.train(), normalise=cosine).all()  # some parameters are of training alone
        term = added_scores(index, table.device)
        loss = (table * torch.randn(table.shape, device=table.device)).sum()
        (loss if term is None else loss + term.pow(3).sum()).backward()
        all_learn(items.named_parameters())
        items.eval()


def check_shares(items: Any) -> None:
    """An item without training events counts as one event, so that no probability is zero."""
    log_q = ItemIndex(items, normalise=False).log_q(torch.arange(ITEMS, device=device_of(items)))
    counts = catalog().popularity.clip(1)
    assert close(log_q.exp().cpu(), torch.as_tensor(counts / counts.sum()).float())


def check_read(items: Any) -> None:
    """An encoder reads the vectors that are searched, or `reads_apart` announces otherwise."""
    ids = torch.tensor([[1, 2], [2, 7]], device=device_of(items))
    same = close(items.read(ids), items.embed(ids))
    assert same != items.reads_apart, "vectors that are read and searched differ, and `reads_apart` says otherwise"


def check_exchange(items: Any) -> None:
    """Score terms beside the inner product follow an order of the queries, or stay."""
    if not items.needs_times:
        return
    index, device = ItemIndex(items, normalise=False), device_of(items)
    vectors = torch.randn(1, DIM, generator=torch.Generator().manual_seed(4)).to(device).expand(3, -1)
    ids = torch.tensor([[1, 2], [3, 0], [7, 5]], device=device)
    times = torch.tensor([10**9, 10**9 + 10**7, 2 * 10**9], device=device)

    def added(*order: int) -> torch.Tensor:
        term = index.exchanging(torch.tensor(order, device=device)).added(vectors, ids, times)
        assert term is not None and term.shape == ids.shape
        return term

    whole = index.added(vectors, ids, times)
    assert whole is not None and torch.equal(added(0, 1, 2), whole), "an order that moves nothing changes something"
    assert not close(added(2, 0, 1), whole), "an order of the queries changes nothing"


def check_one_step(items: Any) -> None:
    """The view for one step gives the same vectors, however often an id is asked for."""
    view = items.for_one_step()
    assert view.size == items.size
    for ids in ([3, 1, 3], [1, 5], [5, 3, 1, 0]):
        wanted = torch.tensor(ids, device=device_of(items))
        assert close(view.embed(wanted), items.embed(wanted))
    assert close(view.all(), items.all())


def _reached(spec: Spec, device: torch.device) -> Iterator[tuple[Spec, Any]]:
    return built(reachable(spec), DIM, catalog(), device=device)


def _twice(spec: Spec, device: torch.device) -> Iterator[tuple[Spec, Any, Any]]:
    for other, items in _reached(spec, device):
        assert isinstance(other, ItemsSpec)
        yield other, items, other.build(DIM, catalog()).to(device)


BASE = ItemsSpec
OF_MODULES = (
    check_vectors,
    check_gradients,
    check_index,
    check_shares,
    check_read,
    check_exchange,
    check_one_step,
)
CHECKS = (*of_specs(OF_MODULES, _reached), *of_specs((check_state,), _twice))
