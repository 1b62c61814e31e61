"""Activations of a ranking model: the output of every layer, in one pass over sampled impressions.

Layer outputs are the ranker's own (`models.ranking.RankerOutput`). Hooks add the inputs of its feed-forwards per
token, which lie after a mixing's last norm and are no layer's output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from fullrank.core.checks import check_whole
from fullrank.core.errors import UserError
from fullrank.core.log import Progress
from fullrank.data.impressions.store import ImpressionStore
from fullrank.evaluation.retrieval import check_split
from fullrank.models.ranking import EVERY
from fullrank.models.ranking.model import RankingModule

ROWS = 2048
"""Impressions in a batch. Does not change results beyond rounding."""


@dataclass(frozen=True)
class RankingActivations:
    """What passed through a ranking model for one batch of the sample."""

    layers: Mapping[str, Tensor]
    """[B, T, D], each of its own T and D, in order of depth; none of width 0 (of a ranker that reads no vectors)."""
    feed_forward_inputs: Mapping[str, Tensor]
    """[B, T, D], the input of the feed-forward whose output has this name."""


@dataclass(frozen=True)
class RankingContext:
    """What a diagnostic of a ranking model is given: one model on a sample of a split of a store."""

    model: RankingModule
    store: ImpressionStore
    split: str
    rows: Int[np.ndarray, "n"]
    """Row numbers of the sampled impressions, ascending."""


def sample_impressions(store: ImpressionStore, split: str, impressions: int, *, seed: int = 0) -> Int[np.ndarray, "n"]:
    """Row numbers of impressions of a split, ascending (all, where it has no more): a function of seed and split alone.

    Raises `UserError` for another split, for one without impressions, and for a sample of none.
    """
    check_split(split, "train")
    check_whole("impressions", impressions, 1)
    rows = store.split(split)
    if not len(rows):
        raise UserError(
            f"the split {split!r} of {store.path} has no impressions: choose another one", code="no-rows-in-split"
        )
    order = np.random.default_rng([seed, len(rows)]).permutation(len(rows))[:impressions]
    return np.sort(rows.start + order)


def ranking_activations(
    model: RankingModule,
    store: ImpressionStore,
    rows: Int[np.ndarray, "n"],
    progress: Progress | None = None,
    *,
    batch_size: int | None = None,
) -> Iterator[RankingActivations]:
    """The impressions, batch by batch, through the model as it predicts; it is left in the mode it was in."""
    size = batch_size or ROWS
    training, device = model.training, next(model.parameters()).device
    model.eval()
    try:
        with _recording(model.ranker) as inputs:
            for low in range(0, len(rows), size):
                with torch.inference_mode():
                    out = model.output(store.batch(rows[low : low + size]).to(device), EVERY)
                layers = {name: layer for name, layer in out.captures.items() if layer.shape[-1]}
                yield RankingActivations(layers, dict(inputs))
                inputs.clear()
                if progress is not None:
                    progress(min(low + size, len(rows)), len(rows))
    finally:
        model.train(training)


def layers_of(model: RankingModule, name: str) -> list[nn.Module]:
    """The ranker's `mixings` or `feed_forwards`; none for a ranker without such."""
    found = getattr(model.ranker, name, None)
    return list(found) if isinstance(found, nn.ModuleList) else []


@contextmanager
def _recording(ranker: nn.Module) -> Iterator[dict[str, Tensor]]:
    inputs: dict[str, Tensor] = {}

    def record(place: int, module: nn.Module) -> Any:
        def on_input(_: nn.Module, given: tuple[Any, ...]) -> None:
            inputs[f"ffn_{place}"] = given[0]

        return module.register_forward_pre_hook(on_input)

    found = getattr(ranker, "feed_forwards", None)
    hooks = [record(n, one) for n, one in enumerate(found)] if isinstance(found, nn.ModuleList) else []
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()
