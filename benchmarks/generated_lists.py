"""What `benchmarks.generate --run RUN` measures of a trained run: which of its lists are invalid, what a beam loses.

``invalid_rate``: over all test users, with what they have seen, 20 items that each is not shown, 5 to 200 that alone
may be shown and a tenth of the items barred: ids that do not exist, are refused or stand twice, and places left empty
although enough items were open. ``kept_of_exhaustive_N``: the share of the ten best of all tuples, scored one by one,
that a beam of N finds; seen items left out, some users drawn by a fixed seed.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Figures, Say
from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Batch
from fullrank.data.histories import Histories
from fullrank.inference.batches import Batching, score_batches
from fullrank.inference.exact import top_k
from fullrank.inference.filters import BatchFilter, Filters
from fullrank.inference.trie_beam import TrieBeam
from fullrank.models.sequential.objectives.tasks.generate import GeneratedScorer
from fullrank.run import Run, event_store_of

K, BEAMS = 10, (10, 20, 50, 100)
ROWS, EXHAUSTIVE_ROWS = 256, 16


def filters_of(batch: Batch, items: int, kind: str) -> BatchFilter | None:
    """What the users have seen; 20 items that each is not shown; 5 to 200 that alone may be; or all of these."""
    if kind == "none":
        return None
    draw = np.random.default_rng(0)
    some = lambda most: Jagged.from_lists(  # noqa: E731
        [draw.choice(items, draw.integers(5, most), replace=False).tolist() for _ in batch.lengths]
    )
    seen = Jagged.from_lists(
        [row[:n].tolist() for row, n in zip(batch.items.numpy(), batch.lengths.tolist(), strict=True)]
    )
    excluded = some(21) if kind in ("exclude", "all") else None
    allowed = some(min(200, items // 2)) if kind in ("allow", "all") else None
    barred = draw.random(items) < 0.1 if kind == "all" else None
    return Filters(excluded=excluded, allowed=allowed, barred=barred).of_batch(
        seen if kind in ("seen", "all") else None
    )


FILTERS = ("none", "seen", "exclude", "allow", "all")


def invalid(ids: Tensor, items: int, filters: BatchFilter | None) -> int:
    """Places of the lists that hold no item that the user may be shown, or one a second time, where there was one."""
    every = torch.arange(items).expand(len(ids), -1)
    refused = torch.zeros(every.shape, dtype=torch.bool) if filters is None else filters.refuses(every)
    there = (ids >= 0) & (ids < items)
    there &= ~refused.gather(1, ids.clamp(0, items - 1))
    again = (ids[:, :, None] == ids[:, None]).tril(-1).any(2)
    wanted = (~refused).sum(1).clamp_max(ids.shape[1])
    return int((wanted - (there & ~again).sum(1)).sum() + ((ids >= 0) & ~there).sum())


def of_run(options: argparse.Namespace, say: Say) -> Figures:
    run = Run.open(options.run)
    users = event_store_of(run, options.data).eval_set("test").histories
    model = run.model()
    if not getattr(getattr(model, "task", None), "code_by_code", False):
        raise UserError(f"{options.run} does not generate code by code: name a run of tiger", code="run-does-not-fit")
    return lists_of(model.eval(), users, options.users, say)


def lists_of(model: Any, users: Histories, some: int, say: Say) -> Figures:
    """The figures of all users, and of some of them."""
    drawn = np.random.default_rng(0).permutation(len(users))[:some]
    say(f"what {len(drawn)} users lose by a beam")
    figures = _kept(model, users.take(np.sort(drawn)))
    say(f"lists of {len(users):,} users under all filters")
    found = places = 0
    beam = TrieBeam(model.items, beams=50)
    for at, scorer in score_batches(model, users, Batching(ROWS)):
        filters = filters_of(_batch(users.take(at)), model.num_items, "all")
        ids = beam(_own(scorer), K, filters)[1]
        found, places = found + invalid(ids, model.num_items, filters), places + ids.numel()
    return {
        "invalid_rate": found / places, "places": places, "users": len(users), "items": model.num_items, **figures,
        "kept_users": len(drawn),
    }  # fmt: skip


@torch.inference_mode()
def _kept(model: Any, users: Histories) -> Figures:
    kept: dict[int, list[torch.Tensor]] = {width: [] for width in BEAMS}
    for at, scorer in score_batches(model, users, Batching(EXHAUSTIVE_ROWS, 512)):
        filters = Filters().of_batch(users.items.take(at))
        best = top_k(scorer, K, filters=filters, block=512)[1]
        for width, own in kept.items():
            ids = TrieBeam(model.items, beams=width)(_own(scorer), K, filters)[1]
            own.append((ids[:, :, None] == best[:, None]).any(2).float().mean(1))
    return {f"kept_of_exhaustive_{width}": round(float(torch.cat(own).mean()), 4) for width, own in kept.items()}


def _batch(users: Histories) -> Batch:
    return Batch(torch.from_numpy(users.items.padded().astype(np.int64)), torch.from_numpy(users.lengths))


def _own(scorer: object) -> GeneratedScorer:
    assert isinstance(scorer, GeneratedScorer)
    return scorer
