"""Checks of every task: nothing leaks, targets were hidden, inference answers as trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.models import Queries
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders import EncoderSpec
from fullrank.models.sequential.encoders.seq2seq import Seq2Seq
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items import ItemIndex
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.items.table import Table
from fullrank.models.sequential.objectives.tasks import TaskSpec
from fullrank.models.sequential.objectives.tasks.cloze import ClozeTask
from fullrank.testing.inputs import (
    ITEMS,
    Device,
    Flat,
    built,
    catalog,
    close,
    histories,
    of_specs,
    padded,
    reachable,
    shaken,
    times_of,
)

DIM, LONGEST = 8, 10
GENERATE = ("semantic_tokens", "generate")
"""Tasks whose items are codes."""


def items_for(generates: bool) -> Any:
    """Items of the kind that a task asks for."""
    return shaken((Semantic() if generates else Table()).build(DIM, catalog()), 1.0)


class Whole(nn.Module):
    """A task with items, and an encoder that sees all that the task lets it see: items, order and times."""

    def __init__(self, task: Any, device: Device = "cpu"):
        super().__init__()
        self.task = task
        self.items = items_for(task.generates)
        attention = HSTU(causal=bool(task.causal))  # causal or not, a task is tried with the attention that sees most
        encoder: EncoderSpec = Transformer(attention=attention, positions_from="end")
        if task.code_by_code:  # its rows go on with codes, which have no times
            encoder = Transformer(attention=Softmax(rope=True), positions="none") if task.causal else Seq2Seq()
        self.encoder = shaken(encoder.build(DIM, (LONGEST + 2) * task.tokens_per_event))
        self.device = device
        self.to(device).eval()

    def queries(self, batch: Batch) -> tuple[tuple[Queries, ...], Batch]:
        batch = batch.to(self.device)
        x, inputs = self.task.training_inputs(self.items, batch)
        generates = self.task.generates
        table = ItemIndex(self.items, normalise=False) if generates else Flat(self.items.all())
        return self.task.queries(self.encoder(x, inputs), inputs, batch, table), inputs

    def answer(self, batch: Batch) -> Tensor:
        batch = batch.to(self.device)
        x, inputs = self.task.inference_inputs(self.items, batch)
        return self.task.readout(self.encoder(x, inputs), inputs)


def rows(task: Any, *, seed: int = 0, lengths: tuple[int, ...] = (2, 3, 25, 7, 11, 10)) -> Batch:
    """An epoch's rows of some histories."""
    whole = histories(lengths, seed=seed)
    users, starts, ends = task.segments(np.array(lengths), np.random.default_rng(seed))
    cut = [whole[u][s:e] for u, s, e in zip(users, starts, ends, strict=True)]
    return padded(cut, extra=1, step=seed)


def check_leak(task: Any, device: Device = "cpu") -> None:
    """An item that a query may not see does not change its vector: those behind its position, or those covered.

    Neither does its time; but a query may know when the event happened that it asks about,
    unless that is the last.
    """
    whole = Whole(task, device)
    batch = rows(task).to(device)
    before, inputs = whole.queries(batch)
    assert batch.times is not None
    if inputs.hidden is not None:
        other = torch.where(inputs.hidden, (batch.items + 1) % ITEMS, batch.items)
        later = torch.where(inputs.hidden, batch.times + 12345, batch.times)
        after, _ = whole.queries(replace(batch, items=other, times=later))
        for a, b in zip(before, after, strict=True):
            assert close(a.vectors, b.vectors), f"{a.name} sees what is covered"
        return
    for t in range(1, batch.items.shape[1]):
        other = batch.items.clone()
        other[:, t:] = (other[:, t:] + 1) % ITEMS
        places = torch.arange(batch.items.shape[1], device=batch.items.device)
        unknown = (places > t) | (places == batch.lengths[:, None] - 1)
        after, _ = whole.queries(replace(batch, items=other, times=torch.where(unknown, batch.times + 99, batch.times)))
        for a, b in zip(before, after, strict=True):
            earlier = a.positions - task.tokens_before < t * task.tokens_per_event
            assert close(a.vectors[earlier], b.vectors[earlier]), f"{a.name} sees position {t} before it happens"


def check_sight(task: Any, device: Device = "cpu") -> None:
    """A query's vector depends on all that it may see, times too: `check_leak` is not blind."""
    whole = Whole(task, device)
    batch = rows(task).to(device)
    before, inputs = whole.queries(batch)
    seen = inputs.valid if inputs.hidden is None else inputs.valid & ~inputs.hidden
    seen = seen[:, task.tokens_before :: task.tokens_per_event]
    other = batch.items.clone()
    width = seen.shape[1]
    other[:, :width] = torch.where(seen, (other[:, :width] + 1) % ITEMS, other[:, :width])
    after, _ = whole.queries(replace(batch, items=other))
    for a, b in zip(before, after, strict=True):
        informed = seen[a.rows].any(1)
        assert (a.vectors != b.vectors).any(1)[informed].all()
    if inputs.times is None or batch.times is None:
        return
    slower, _ = whole.queries(replace(batch, times=batch.times * 50))
    seeing = [bool((a.vectors != b.vectors).any()) for a, b in zip(before, slower, strict=True)]
    assert any(seeing), "no query sees times"


def check_counts(task: Any, device: Device = "cpu") -> None:
    whole = Whole(task, device)
    for seed, lengths in ((0, (2, 2)), (1, (2, 3, 25, 7)), (2, (10, 11, 12))):
        batch = rows(task, seed=seed, lengths=lengths).to(device)
        queries, _ = whole.queries(batch)
        assert task.counts(batch) == {q.name: len(q.targets) for q in queries}
        assert all(len(q.vectors) == len(q.rows) == len(q.positions) == len(q.targets) for q in queries)
        assert sum(len(q.targets) for q in queries) > 0


def check_targets(task: Any, device: Device = "cpu") -> None:
    """A target is an event of its query's row: behind the position, or the covered one there."""
    whole = Whole(task, device)
    batch = rows(task).to(device)
    queries, inputs = whole.queries(batch)
    for q in queries:
        ahead = 0 if inputs.hidden is not None else int(q.name.rpartition("_")[2]) if "ahead_" in q.name else 1
        at = (q.positions - task.tokens_before + ahead) // task.tokens_per_event
        assert batch.valid[q.rows, at].all() and inputs.valid[q.rows, q.positions].all()
        assert torch.equal(q.sought, batch.items[q.rows, at])
        assert q.times is None or torch.equal(q.times, times_of(batch)[q.rows, at]), "the time of another event"
        if q.items is not None:  # codes of the item, which stand in its row of the table
            assert torch.equal(q.targets, whole.items.codes[q.items, int(q.name.rpartition("_")[2]) - 1])
        assert (q.rows.diff() >= 0).all(), "queries are in order of their rows"


def check_segments(task: Any, device: Device = "cpu") -> None:
    lengths = np.array([0, 1, 2, 3, 10, 11, 12, 40, 0, 2])
    for seed in range(5):
        users, starts, ends = task.segments(lengths, np.random.default_rng(seed))
        again = task.segments(lengths, np.random.default_rng(seed))
        assert all(np.array_equal(a, b) for a, b in zip((users, starts, ends), again, strict=True))
        assert ((starts >= 0) & (ends - starts >= 2) & (ends <= lengths[users])).all()
        assert set(users) == set(np.flatnonzero(lengths >= 2)), "every user with two events is trained on"
        assert len(set(zip(users, ends, strict=True))) == len(users), "no row twice in an epoch"
        top = padded([[1] * int(e - s) for s, e in zip(starts, ends, strict=True)])
        _, inputs = task.training_inputs(items_for(task.generates).to(device), top.to(device))
        most = LONGEST if task.tokens_per_event == 1 else (LONGEST + 1) * task.tokens_per_event - 1
        most += task.tokens_before
        assert int(inputs.lengths.max()) <= most >= inputs.items[:, : int(inputs.lengths.max())].shape[1]
    empty = task.segments(np.array([1, 0]), np.random.default_rng(0))
    assert all(len(part) == 0 for part in empty)


def check_inference(task: Any, device: Device = "cpu") -> None:
    """The answer to a history is the vector with which training asked for the event behind it."""
    whole = Whole(task, device)
    for length in (1, 2, 6, LONGEST):
        row = histories([length + 1], seed=length)[0]
        if isinstance(task, ClozeTask):
            task.last_share = 1.0  # the training rows that cover their last position alone
            batch = padded([row[-LONGEST:]])
        else:
            batch = padded([row])
        queries, _ = whole.queries(batch)
        answered = whole.answer(padded([row[:-1]]))
        trained = torch.stack([q.vectors[-1:] for q in queries], 1) if answered.ndim == 3 else queries[0].vectors[-1:]
        if task.adds_groups:
            trained = torch.stack([q.weight * q.vectors[-1:] for q in queries]).sum(0)
        assert close(trained, answered), f"a history of {length} is answered otherwise than trained"


def check_company(task: Any, device: Device = "cpu") -> None:
    """Neither padding nor company changes the vector that inference reads out."""
    whole = Whole(task, device)
    rows = histories([1, 4, LONGEST, LONGEST - 1])
    together = whole.answer(padded(rows))
    for i, row in enumerate(rows):
        assert close(whole.answer(padded([row]))[0], together[i]), f"row {i} depends on its company"


def _reached(spec: Spec, device: torch.device) -> Iterator[tuple[Any, ...]]:
    for other, task in built(reachable(spec), DIM, LONGEST, items_for(spec.kind_of() in GENERATE), device=device):
        yield other, task, device


BASE = TaskSpec
OF_MODULES = (
    check_leak,
    check_sight,
    check_counts,
    check_targets,
    check_segments,
    check_inference,
    check_company,
)
CHECKS = of_specs(OF_MODULES, _reached)
