"""The loader: batch k is a function of (seed, k); an epoch holds every row once; shards are a batch's parts."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fullrank.data.batch import Batch
from fullrank.data.events.loader import Loader
from fullrank.data.events.store import Store
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.objectives.tasks.next_item import NextItem
from refusals import refused
from tiny import histories, store

LENGTHS = (4, 30, 5, 9, 3, 2, 14, 6, 7, 21, 4, 4, 12, 8)
TASK = NextItem().build(4, 10)
ROWS = histories(LENGTHS, seed=1)


def loader(**settings: Any) -> Loader:
    times = [[1000 * u + t for t in range(len(row))] for u, row in enumerate(ROWS)]
    plain = {"by": "tokens", "size": 20, "seed": 5, "counts": TASK.counts}
    return Loader(store(ROWS, times=times), TASK.segments, **(plain | settings))


def same(a: Batch, b: Batch) -> bool:
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


def events(batch: Batch) -> list:
    return [row[:n] for row, n in zip(batch.items.tolist(), batch.lengths.tolist(), strict=True)]


def expected() -> Counter:
    """The last 11 training events of every user with two of them."""
    return Counter(tuple(row[:-2][-11:]) for row in ROWS if len(row) >= 4)


@pytest.mark.parametrize(
    ("by", "size"),
    [*(("tokens", size) for size in (1, 3, 7, 20, 33, 10**6)), *(("rows", size) for size in (1, 4, 100))],
)
def test_an_epoch_holds_every_row_once(by: str, size: int) -> None:
    load = loader(by=by, size=size)
    for epoch in range(3):
        batches = [load.batch(k) for k in range(epoch * load.steps_per_epoch, (epoch + 1) * load.steps_per_epoch)]
        rows = Counter(tuple(row) for b in batches for row in events(b))
        once = by == "rows" or size > 11  # batches smaller than a row are filled up with rows of the next epoch
        assert rows == expected() if once else rows.keys() == expected().keys()
        assert all(len(b.items) > 0 and b.items.shape[1] == int(b.lengths.max()) for b in batches)
        assert all(b.step == epoch * load.steps_per_epoch + i and b.seed == 5 for i, b in enumerate(batches))


def test_held_out_events_are_never_read() -> None:
    load = loader(times=True)
    last = np.array([1000 * u + len(row) - 3 for u, row in enumerate(ROWS)])
    for k in range(2 * load.steps_per_epoch):
        batch = load.batch(k)
        at = batch.times[torch.arange(len(batch.items)), batch.lengths - 1].numpy()
        assert np.isin(at, last).all(), "a row ends with its user's last training event"


def test_batch_k_is_a_function_of_seed_and_k() -> None:
    steps = loader().steps_per_epoch
    straight = [loader().batch(k) for k in range(3 * steps)]
    other = loader()
    for k in reversed(range(3 * steps)):  # any order, any epoch, a fresh process
        assert same(other.batch(k), straight[k])
    assert not all(same(loader(seed=6).batch(k), replace(straight[k], seed=6)) for k in range(steps))
    first, second = straight[:steps], straight[steps : 2 * steps]
    assert any(events(a) != events(b) for a, b in zip(first, second, strict=True)), "epochs differ in their order"


@pytest.mark.parametrize("shards", [1, 3])
def test_the_keys_of_users_stand_beside_their_rows(shards: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "user_keys", keys := np.arange(len(ROWS)) * 7)  # it has no table of users
        load = loader(users=True, shards=shards)
    for k in range(load.steps_per_epoch):
        for shard in range(shards):
            batch = load.batch(k, shard)
            assert batch.user_keys.tolist() == keys[batch.users.numpy()].tolist()
            assert events(batch) == [ROWS[user][:-2][-11:] for user in batch.users]
    assert loader().batch(0).user_keys is None


def test_rows_of_like_length_share_a_batch() -> None:
    """By tokens, batches are about as long as asked and padded little; by rows, they have about as many rows."""
    load = loader(size=30)
    batches = [load.batch(k) for k in range(load.steps_per_epoch)]
    tokens = [int(b.lengths.sum()) for b in batches]
    assert max(tokens) <= 30 + 11
    spread = [int(b.lengths.max() - b.lengths.min()) for b in batches]
    shuffled = loader(by="rows", size=4)
    wide = [shuffled.batch(k) for k in range(shuffled.steps_per_epoch)]
    assert np.mean(spread) < np.mean([int(b.lengths.max() - b.lengths.min()) for b in wide])
    assert {len(b.items) for b in wide} <= {3, 4}


@pytest.mark.parametrize("shards", [2, 3, 40])
def test_shards_are_parts(shards: int) -> None:
    """Together they hold the batch's rows; each knows the whole's counts; an empty one says so."""
    whole, parts = loader(), loader(shards=shards)
    for k in range(whole.steps_per_epoch + 2):
        batch = whole.batch(k)
        mine = [parts.batch(k, s) for s in range(shards)]
        real = [b for b in mine if not b.empty_shard]
        assert Counter(map(tuple, (r for b in real for r in events(b)))) == Counter(map(tuple, events(batch)))
        assert all(b.counts == TASK.counts(batch) for b in mine)
        ids = torch.cat([b.rows for b in real])  # type: ignore[misc]
        assert sorted(ids.tolist()) == sorted(batch.rows.tolist())  # type: ignore[union-attr]
        assert len(real) == min(shards, len(batch.items))
        assert all(b.step == k for b in mine)


def test_iterate() -> None:
    load = loader(shards=3)
    found = list(load.iterate(1, 4, range(1, 3)))
    wanted = [load.batch(k, s) for k in range(1, 4) for s in (1, 2)]
    assert len(found) == 6 and all(same(a, b) for a, b in zip(found, wanted, strict=True))


def test_row_ids_are_places_in_the_store() -> None:
    """A row's id is where it ends in the store: its own in every epoch, whatever batch it is in."""
    load = loader()
    flat = [item for row in ROWS for item in row]
    for k in range(load.steps_per_epoch):
        batch = load.batch(k)
        for row, end in zip(events(batch), batch.rows.tolist(), strict=True):  # type: ignore[union-attr]
            assert flat[end - len(row) : end] == row


def test_prefixes_change_with_the_epoch() -> None:
    task = LastItem(per_user=2).build(4, 10)
    load = loader()
    load = Loader(load.store, task.segments, by="rows", size=5, seed=1)
    epochs = []
    for epoch in range(2):
        batches = [load.batch(epoch * load.steps_per_epoch + i) for i in range(load.steps_per_epoch)]
        ids = [int(i) for b in batches for i in b.rows]  # type: ignore[union-attr]
        assert len(set(ids)) == len(ids)
        epochs.append(set(ids))
    assert epochs[0] != epochs[1]


def test_too_little_to_train_on() -> None:
    with refused("too-few-events"):
        Loader(store([[1, 2, 3], [4, 5, 6]]), TASK.segments, by="rows", size=2, seed=0)
