"""Watching the effective rank of a click model while it is trained: some figures in each epoch's row.

    fr.train("rankelastor", data, "runs/a", callbacks=[WatchRanks(every=200)])

Implements `training.Callback`. It changes nothing of the training: no random number is drawn, no weight is touched.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from torch import nn

from fullrank.analysis.ranking_reading import click_readings, drawn
from fullrank.analysis.token_ranks import FIGURES, NO_TOKENS, TokenRanks
from fullrank.core.errors import UserError
from fullrank.data.impressions.store import AnyStore, ImpressionStore
from fullrank.models.ranking.model import RankingModule
from fullrank.training import TrainState

LAST = "watch/last_layer_stable_rank"


@dataclass(frozen=True)
class WatchRanks:
    """Mean stable and entropy rank at every tap (`analysis/token_ranks.py`), on a sample of impressions."""

    impressions: int = 1024
    """Impressions of the sample; of the validation split, or of the training one where the store has none."""
    every: int | None = None
    """Optimizer steps between measurements inside an epoch, which get rows `watch` of their own; None is none."""

    headline: ClassVar[str] = LAST

    def __post_init__(self) -> None:
        if self.impressions < 1:
            raise UserError(f"a sample needs at least 1 impression, not {self.impressions}")
        if self.every is not None and self.every < 1:
            raise UserError(f"every is a number of optimizer steps, at least 1, not {self.every}")

    def check(self, model: nn.Module, store: AnyStore) -> None:
        """Raise `UserError` where there is nothing to watch."""
        if store.problem != "ranking" or not isinstance(model, RankingModule):
            raise UserError("the rank of an impression's tokens is of click models: watch this run with fullrank.Watch")
        if not _ranks(model, store, 1):
            raise UserError(f"there is no rank to watch in this model: {NO_TOKENS}; leave watching out")

    def on_epoch(self, state: TrainState) -> dict[str, Any]:
        """`watch/stable_rank/TAP` and `watch/entropy_rank/TAP`, those of the last layer again, and the seconds."""
        begun = time.perf_counter()
        figures: dict[str, Any] = {}
        found = _ranks(cast(RankingModule, state.model), cast(ImpressionStore, state.store), self.impressions)
        for tap, both in found.items():
            for name, value in zip(FIGURES, both, strict=True):
                figures[f"watch/{name}/{tap}"] = figures[f"watch/last_layer_{name}"] = value
        return figures | {"watch_seconds": round(time.perf_counter() - begun, 3)}


def _ranks(model: RankingModule, store: ImpressionStore, impressions: int) -> dict[str, list[float]]:
    """Tap -> means of stable and entropy rank."""
    split = "validation" if len(store.split("validation")) else "train"
    observer = TokenRanks()
    for reading in click_readings(model, store, drawn(store, split, impressions)):
        observer.see(reading)
    return {tap: both.mean(1).tolist() for tap, both in observer.found().items()}
