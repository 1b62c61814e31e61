"""Laws of every task: nothing leaks, the targets are what was hidden, and inference asks what training answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discover import Pair, everything, name
from fullrank.data.batch import Batch, Queries, States
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items import ItemIndex
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.items.table import Table
from fullrank.models.sequential.objectives.tasks.cloze import Cloze, ClozeTask
from fullrank.models.sequential.objectives.tasks.last_item import LastItem, LastItemTask
from fullrank.models.sequential.objectives.tasks.next_item import NextItem, NextItemTask
from tiny import ITEMS, Flat, built, catalog, close, histories, padded, plain, reachable, shaken

DIM, LONGEST = 8, 10
ALL = pytest.mark.parametrize("pair", everything("objectives.tasks"), ids=name)


def tasks(pair: Pair) -> Iterator[tuple[Any, Any]]:
    return built(reachable(plain(pair), 2), DIM, LONGEST, items_for(pair[1] == "semantic_tokens"))


def items_for(generates: bool) -> Any:
    """What a task can ask for."""
    return shaken((Semantic() if generates else Table()).build(DIM, catalog()), 1.0)


class Whole(nn.Module):
    """A task with items and an encoder that sees as much as the task allows: items, their order and their times."""

    def __init__(self, task: Any, causal: bool | None = None):
        super().__init__()
        self.task = task
        self.items = items_for(getattr(task, "generates", False))
        sees = task.causal if causal is None else causal
        attention = HSTU(causal=bool(sees))  # a task of either kind is tried with what sees most
        self.encoder = shaken(Transformer(attention=attention, positions_from="end").build(DIM, LONGEST + 2))
        self.eval()

    def queries(self, batch: Batch) -> tuple[tuple[Queries, ...], Batch]:
        x, inputs = self.task.training_inputs(self.items, batch)
        generates = getattr(self.task, "generates", False)
        catalogue = ItemIndex(self.items, normalise=False) if generates else Flat(self.items.all())
        return self.task.queries(self.encoder(x, inputs), inputs, batch, catalogue), inputs

    def answer(self, batch: Batch) -> Tensor:
        x, inputs = self.task.inference_inputs(self.items, batch)
        return self.task.readout(self.encoder(x, inputs), inputs)


def rows(task: Any, *, seed: int = 0, lengths: tuple[int, ...] = (2, 3, 25, 7, 11, 10)) -> Batch:
    """An epoch's rows of some histories."""
    whole = histories(lengths, seed=seed)
    users, starts, ends = task.segments(np.array(lengths), np.random.default_rng(seed))
    cut = [whole[u][s:e] for u, s, e in zip(users, starts, ends, strict=True)]
    return padded(cut, extra=1, step=seed)


def check_leak(task: Any) -> None:
    """An item that a query may not see does not change its vector: those behind its position, or those covered.

    Neither does its time; but a query may know when the event happened that it asks about, unless that is the last.
    """
    whole = Whole(task)
    batch = rows(task)
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
        places = torch.arange(batch.items.shape[1])
        unknown = (places > t) | (places == batch.lengths[:, None] - 1)
        after, _ = whole.queries(replace(batch, items=other, times=torch.where(unknown, batch.times + 99, batch.times)))
        for a, b in zip(before, after, strict=True):
            earlier = a.positions < t
            assert close(a.vectors[earlier], b.vectors[earlier]), f"{a.name} sees position {t} before it happens"


def check_sight(task: Any) -> None:
    """What a query may see does change its vector (so that `check_leak` is no blind instrument), times too."""
    whole = Whole(task)
    batch = rows(task)
    before, inputs = whole.queries(batch)
    seen = inputs.valid if inputs.hidden is None else inputs.valid & ~inputs.hidden
    other = batch.items.clone()
    width = inputs.items.shape[1]
    other[:, :width] = torch.where(seen, (other[:, :width] + 1) % ITEMS, other[:, :width])
    after, _ = whole.queries(replace(batch, items=other))
    for a, b in zip(before, after, strict=True):
        informed = seen[a.rows].any(1)
        assert (a.vectors != b.vectors).any(1)[informed].all()
    assert batch.times is not None
    slower, _ = whole.queries(replace(batch, times=batch.times * 50))
    for a, b in zip(before, slower, strict=True):
        assert (a.vectors != b.vectors).any(), f"{a.name} sees no times"


def check_counts(task: Any) -> None:
    whole = Whole(task)
    for seed, lengths in ((0, (2, 2)), (1, (2, 3, 25, 7)), (2, (10, 11, 12))):
        batch = rows(task, seed=seed, lengths=lengths)
        found, _ = whole.queries(batch)
        assert task.counts(batch) == {q.name: len(q.targets) for q in found}
        assert all(len(q.vectors) == len(q.rows) == len(q.positions) == len(q.targets) for q in found)
        assert sum(len(q.targets) for q in found) > 0


def check_targets(task: Any) -> None:
    """A target is an event of its query's row: behind the position, or the covered one there."""
    whole = Whole(task)
    batch = rows(task)
    found, inputs = whole.queries(batch)
    for q in found:
        ahead = 0 if inputs.hidden is not None else int(q.name.rpartition("_")[2]) if "ahead_" in q.name else 1
        at = q.positions + ahead
        assert batch.valid[q.rows, at].all() and inputs.valid[q.rows, q.positions].all()
        assert torch.equal(q.targets if q.items is None else q.items, batch.items[q.rows, at])
        if q.items is not None:  # codes of the item, which stand in its row of the table
            assert torch.equal(q.targets, whole.items.codes[q.items, int(q.name.rpartition("_")[2]) - 1])
        assert (q.rows.diff() >= 0).all(), "queries are in order of their rows"


def check_segments(task: Any) -> None:
    lengths = np.array([0, 1, 2, 3, 10, 11, 12, 40, 0, 2])
    for seed in range(5):
        users, starts, ends = task.segments(lengths, np.random.default_rng(seed))
        again = task.segments(lengths, np.random.default_rng(seed))
        assert all(np.array_equal(a, b) for a, b in zip((users, starts, ends), again, strict=True))
        assert ((starts >= 0) & (ends - starts >= 2) & (ends <= lengths[users])).all()
        assert set(users) == set(np.flatnonzero(lengths >= 2)), "every user with two events is trained on"
        assert len(set(zip(users, ends, strict=True))) == len(users), "no row twice in an epoch"
        top = padded([[1] * int(e - s) for s, e in zip(starts, ends, strict=True)])
        _, inputs = task.training_inputs(Table().build(DIM, catalog()), top)
        assert int(inputs.lengths.max()) <= LONGEST >= inputs.items[:, : int(inputs.lengths.max())].shape[1]
    empty = task.segments(np.array([1, 0]), np.random.default_rng(0))
    assert all(len(part) == 0 for part in empty)


def check_inference(task: Any) -> None:
    """The answer to a history is the vector with which training asked for the event behind it."""
    whole = Whole(task)
    for length in (1, 2, 6, LONGEST):
        row = histories([length + 1], seed=length)[0]
        if isinstance(task, ClozeTask):
            task.last_share = 1.0  # the training rows that cover their last position alone
            batch = padded([row[-LONGEST:]])
        else:
            batch = padded([row])
        found, _ = whole.queries(batch)
        answered = whole.answer(padded([row[:-1]]))
        asked = torch.stack([q.vectors[-1:] for q in found], 1) if answered.ndim == 3 else found[0].vectors[-1:]
        assert close(asked, answered), f"a history of {length} is answered otherwise than trained"


@ALL
@pytest.mark.parametrize(
    "check", [check_leak, check_sight, check_counts, check_targets, check_segments, check_inference]
)
def test_laws(pair: Pair, check: Callable[[Any], None]) -> None:
    for spec, task in tasks(pair):
        try:
            check(task)
        except AssertionError as error:
            raise AssertionError(f"{spec!r}: {error}") from error


@ALL
def test_answers_do_not_depend_on_padding_or_company(pair: Pair) -> None:
    for _, task in tasks(pair):
        whole = Whole(task)
        rows = histories([1, 4, LONGEST, LONGEST - 1])
        together = whole.answer(padded(rows))
        for i, row in enumerate(rows):
            assert close(whole.answer(padded([row]))[0], together[i])


class Ahead(NextItemTask):
    """Planted: shows the whole row, so that a position's own input is its target's."""

    def training_inputs(self, items: Any, batch: Batch) -> tuple[Tensor, Batch]:
        x, inputs = super().training_inputs(items, batch)
        return x + items.embed(batch.items[:, 1:]), inputs


class Behind(NextItemTask):
    """Planted: the target is the event at the position itself."""

    def queries(self, states: States, inputs: Batch, batch: Batch, catalogue: Any) -> tuple[Queries, ...]:
        found = super().queries(states, inputs, batch, catalogue)
        return tuple(replace(q, targets=batch.items[q.rows, q.positions]) for q in found)


class Uncovered(ClozeTask):
    """Planted: the cover is thin."""

    def _view(self, items: Any, inputs: Batch) -> Tensor:
        return super()._view(items, inputs) + 0.01 * items.embed(inputs.items)


class Dated(ClozeTask):
    """Planted: a covered event keeps its time."""

    def training_inputs(self, items: Any, batch: Batch) -> tuple[Tensor, Batch]:
        x, inputs = super().training_inputs(items, batch)
        return x, replace(inputs, times=batch.times)


class Timeless(ClozeTask):
    """Planted: inference takes the covered place as long past."""

    def inference_inputs(self, items: Any, batch: Batch) -> tuple[Tensor, Batch]:
        x, inputs = super().inference_inputs(items, batch)
        assert inputs.times is not None and inputs.hidden is not None
        return x, replace(inputs, times=torch.where(inputs.hidden, 0, inputs.times))


class Greedy(LastItemTask):
    """Planted: the prefix holds its target."""

    def training_inputs(self, items: Any, batch: Batch) -> tuple[Tensor, Batch]:
        return items.embed(batch.items), batch


class Overlong(NextItemTask):
    """Planted: cuts nothing."""

    def segments(self, lengths: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        users = np.flatnonzero(lengths >= 2)
        return users, np.zeros_like(users), lengths[users]


class Generous(NextItemTask):
    """Planted: counts events instead of queries."""

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"ahead_1": int(batch.lengths.sum())}


class Shifted(LastItemTask):
    """Planted: inference forgets the last event."""

    def inference_inputs(self, items: Any, batch: Batch) -> tuple[Tensor, Batch]:
        shorter = replace(batch, lengths=(batch.lengths - 1).clamp_min(1))
        return items.embed(batch.items), shorter


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Ahead, check_leak),
        (Behind, check_targets),
        (Uncovered, check_leak),
        (Dated, check_leak),
        (Timeless, check_inference),
        (Greedy, check_targets),
        (Overlong, check_segments),
        (Generous, check_counts),
        (Shifted, check_inference),
    ],
)
def test_planted_faults_are_caught(fault: type, check: Callable[[Any], None]) -> None:
    sound = next(s for s in (NextItemTask, ClozeTask, LastItemTask) if issubclass(fault, s))
    sizes = (DIM, LONGEST)
    given = {NextItemTask: (*sizes, NextItem()), ClozeTask: (*sizes, Cloze()), LastItemTask: (LONGEST, LastItem())}[
        sound
    ]
    check(sound(*given))
    with pytest.raises(AssertionError):
        check(fault(*given))
