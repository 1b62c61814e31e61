"""One pass over some impressions: what every layer of a click model made of them.

Layer outputs are the ranker's own taps (`rankers.RankerOutput`). Hooks add what its feed-forwards per token were given,
which lies behind a mixing's last norm and is no tap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from fullrank.core.errors import UserError, unknown
from fullrank.core.progress import Progress
from fullrank.data.impressions.store import ImpressionStore
from fullrank.evaluation.retrieval import Split
from fullrank.models.ranking import EVERY
from fullrank.models.ranking.model import RankingModule

ROWS = 2048
"""Impressions in a batch. Does not change results beyond rounding."""


@dataclass(frozen=True)
class RankingReading:
    """What one batch showed."""

    taps: Mapping[str, Tensor]
    """[B, T, D], each of its own T and D, in order of depth; none of width 0 (of a ranker that reads no vectors)."""
    fed: Mapping[str, Tensor]
    """[B, T, D], what the feed-forward whose tap has this name was given."""


def drawn(store: ImpressionStore, split: str, impressions: int, *, seed: int = 0) -> Int[np.ndarray, "n"]:
    """Row numbers of impressions of a split, ascending (all, where it has no more): a function of seed and split alone.

    Raises `UserError` for another split, for one without impressions, and for a sample of none.
    """
    allowed = (*get_args(Split), "train")
    if split not in allowed:
        raise unknown("split", split, allowed)
    if impressions < 1:
        raise UserError(f"a sample needs at least 1 impression, not {impressions}")
    rows = store.split(split)
    if not len(rows):
        raise UserError(f"the split {split!r} of {store.path} has no impressions: choose another one")
    order = np.random.default_rng([seed, len(rows)]).permutation(len(rows))[:impressions]
    return np.sort(rows.start + order)


def click_readings(
    model: RankingModule, store: ImpressionStore, rows: Int[np.ndarray, "n"], progress: Progress | None = None
) -> Iterator[RankingReading]:
    """The impressions, batch by batch, through the model as it predicts; it is left in the mode it was in."""
    training, device = model.training, next(model.parameters()).device
    model.eval()
    try:
        with _listening(model.ranker) as fed:
            for low in range(0, len(rows), ROWS):
                with torch.inference_mode():
                    out = model.output(store.batch(rows[low : low + ROWS]).to(device), EVERY)
                yield RankingReading({name: tap for name, tap in out.captures.items() if tap.shape[-1]}, dict(fed))
                fed.clear()
                if progress is not None:
                    progress(min(low + ROWS, len(rows)), len(rows))
    finally:
        model.train(training)


def parts_of(model: RankingModule, name: str) -> list[nn.Module]:
    """The ranker's `mixings` or `feed_forwards`; none for a ranker without such."""
    found = getattr(model.ranker, name, None)
    return list(found) if isinstance(found, nn.ModuleList) else []


@contextmanager
def _listening(ranker: nn.Module) -> Iterator[dict[str, Tensor]]:
    fed: dict[str, Tensor] = {}

    def listen(place: int, module: nn.Module) -> Any:
        def note(_: nn.Module, given: tuple[Any, ...]) -> None:
            fed[f"ffn_{place}"] = given[0]

        return module.register_forward_pre_hook(note)

    found = getattr(ranker, "feed_forwards", None)
    hooks = [listen(n, one) for n, one in enumerate(found)] if isinstance(found, nn.ModuleList) else []
    try:
        yield fed
    finally:
        for hook in hooks:
            hook.remove()
