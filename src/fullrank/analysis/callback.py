"""Watching collapse while a model is trained: some figures in each epoch's row, and an alarm when it begins.

    fr.train("sasrec", data, "runs/a", callbacks=[Watch()])

Implements `training.Callback`. Of a click model, which scores no catalogue, it watches the effective rank instead
(`watch_ranks.py`). It changes nothing of the training: no random number is drawn, no weight is touched.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from torch import nn

from fullrank.analysis import Row
from fullrank.analysis.reading import readings, sample
from fullrank.analysis.spectrum import Layers, Scores
from fullrank.analysis.watch_ranks import LAST, WatchRanks
from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.data.batch import Model
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import AnyStore
from fullrank.run import metrics_rows
from fullrank.training import TrainState
from fullrank.training.log import MetricsLog

log = logger(__name__)
SHARE = "watch/collapse_share"


@dataclass(frozen=True)
class Watch:
    """Collapse share, ranks and likeness to popularity at each epoch's end, on a sample of users."""

    users: int = 512
    """Users of the sample; validation histories, or training ones where the store has none."""
    alarm: float = 0.8
    """Collapse share from which on the alarm is raised: a line on stderr and a row `alarm` in metrics.jsonl."""

    headline: ClassVar[tuple[str, ...]] = (SHARE, LAST)

    def __post_init__(self) -> None:
        if not 0 < self.alarm <= 1:
            raise UserError(f"the alarm is a share of the score matrix, above 0 and at most 1, not {self.alarm}")
        if self.users < 2:
            raise UserError(f"a sample needs at least 2 users, not {self.users}")

    def check(self, model: nn.Module, store: AnyStore) -> None:
        """Raise `UserError` where there is nothing to watch, or a setting would have no effect."""
        if store.problem == "retrieval":
            return
        if self != Watch():
            raise UserError(
                "users and alarm are of runs that recommend: watch a click model with Watch(), or with "
                "WatchRanks(impressions=N)"
            )
        WatchRanks().check(model, store)

    def on_epoch(self, state: TrainState) -> dict[str, Any]:
        """`watch/...` figures of the scores and of the last layer, and the seconds they took."""
        if state.store.problem == "ranking":
            return WatchRanks().on_epoch(state)
        begun = time.perf_counter()
        figures = {f"watch/{name}": value for name, value in self._figures(cast(Model, state.model), state.store)}
        share = figures.get(SHARE)
        if share is not None and share >= self.alarm and not self._raised(state):
            self._raise(state, share)
        return figures | {"watch_seconds": round(time.perf_counter() - begun, 3)}

    def _figures(self, model: Model, store: Store) -> list[tuple[str, float | None]]:
        split = "validation" if len(store.eval_set("validation")) > 1 else "train"
        some = sample(store, split, self.users)
        scores, layers = Scores(len(some), some.popularity), Layers()
        for reading in readings(model, some):
            scores.see(reading)
            layers.see(reading)
        of_scores = [
            (one["name"], one["value"])
            for one in scores.rows()
            if one["name"] in ("collapse_share", "entropy_rank", "popularity_spearman")
        ]
        return of_scores + _last_layer(layers.rows())

    def _raised(self, state: TrainState) -> bool:
        """Whether the epoch before was above the threshold already: an alarm is raised once per crossing."""
        before = [row for row in metrics_rows(state.out) if row.get("event") == "epoch" and SHARE in row]
        value = before[-1][SHARE] if before else None
        return isinstance(value, int | float) and value >= self.alarm

    def _raise(self, state: TrainState, share: float) -> None:
        log.warning(
            f"Alarm: after epoch {state.epoch} one direction holds {share:.0%} of the score matrix (alarm at "
            f"{self.alarm:.0%}); users are about to get the same popular items"
        )
        MetricsLog(state.out).add("alarm", state.step, state.epoch, {SHARE: share, "threshold": self.alarm})


def _last_layer(rows: list[Row]) -> list[tuple[str, float | None]]:
    top = max((one["layer"] for one in rows if one["layer"] is not None), default=None)
    kept = ("collapse_share", "entropy_rank")
    return [(f"last_layer_{one['name']}", one["value"]) for one in rows if one["layer"] == top and one["name"] in kept]
