"""Callbacks that watch a training: collapse of a recommender, effective rank of a ranking model.

    fr.train("sasrec", data, "runs/a", callbacks=[Watch()])
    fr.train("rankelastor", data, "runs/b", callbacks=[WatchRanks(every=200)])

Both implement `training.Callback` and add to the row of each epoch. They change nothing of the
training: no random number is drawn, no weight is touched.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar, cast

from torch import nn

from fullrank.analysis.activations import (
    RankingContext,
    RetrievalContext,
    activations,
    ranking_activations,
    sample_impressions,
    sample_users,
)
from fullrank.analysis.diagnosis import Diagnosis
from fullrank.analysis.diagnostics.spectrum import Layers, SpectralCollapse
from fullrank.analysis.diagnostics.token_ranks import FIGURES, NO_TOKENS, TokenRanks
from fullrank.core.checks import check_whole
from fullrank.core.errors import UserError, no_effect
from fullrank.core.files import JsonObject
from fullrank.core.log import logger
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import AnyStore, ImpressionStore
from fullrank.models import Model
from fullrank.models.ranking.model import RankingModule
from fullrank.run import metrics_rows
from fullrank.training import TrainState
from fullrank.training.log import MetricsLog

log = logger(__name__)
SHARE = "watch/collapse_share"
LAST = "watch/last_layer_stable_rank"


@dataclass(frozen=True)
class Watch:
    """Collapse share, ranks and likeness to popularity, epoch by epoch, on a sample."""

    users: int = 512
    """Users of the sample: of the validation split, or of the training one where the store has none."""
    alarm: float = 0.8
    """Collapse share that raises the alarm: a line on stderr and a row `alarm` in metrics.jsonl."""

    headline: ClassVar[tuple[str, ...]] = (SHARE, LAST)

    def __post_init__(self) -> None:
        if not 0 < self.alarm <= 1:
            raise UserError(
                f"the alarm is a share of the score matrix, above 0 and at most 1, not {self.alarm}",
                code="alarm-out-of-range",
            )
        check_whole("users", self.users, 2)

    def check(self, model: nn.Module, store: AnyStore) -> None:
        """Raise `UserError` where there is nothing to watch, or a setting would have no effect."""
        if store.problem == "retrieval":
            return
        if self != Watch():
            remedy = "watch it with Watch(), or with WatchRanks(impressions=N)"
            raise no_effect("users or alarm", "on a ranking model", remedy)
        WatchRanks().check(model, store)

    def on_epoch(self, moment: TrainState) -> JsonObject:
        """Figures `watch/...` of the scores and of the last layer, and the seconds they took."""
        if moment.store.problem == "ranking":
            return WatchRanks().on_epoch(moment)
        begun = time.perf_counter()
        figures = self._figures(cast(Model, moment.model), moment.store)
        share = figures.get(SHARE)
        if share is not None and share >= self.alarm:
            self._raise(moment, share)
        return figures | {"watch_seconds": round(time.perf_counter() - begun, 3)}

    def _figures(self, model: Model, store: Store) -> dict[str, float | None]:
        """The figures of the scores and of the last layer, on the sample."""
        split = "validation" if len(store.eval_set("validation")) > 1 else "train"
        sample = sample_users(store, split, self.users)
        context = RetrievalContext(model, store, split, sample)
        scores, layers = SpectralCollapse(context), Layers(context)
        for batch in activations(model, sample):
            scores.observe(batch)
            layers.observe(batch)
        figures = {
            f"watch/{row['name']}": row["value"]
            for row in scores.rows()
            if row["name"] in ("collapse_share", "entropy_rank", "popularity_spearman")
        }
        by_layer = Diagnosis(tuple(layers.rows()))
        for name in ("collapse_share", "entropy_rank"):
            value = by_layer.last_layer(Layers.name, name)
            if value is not None:
                figures[f"watch/last_layer_{name}"] = value
        return figures

    def _raise(self, moment: TrainState, share: float) -> None:
        """Raise the alarm, unless the share was above the threshold already in the epoch before."""
        before = [row[SHARE] for row in metrics_rows(moment.out) if row.get("event") == "epoch" and SHARE in row]
        if before and isinstance(before[-1], int | float) and before[-1] >= self.alarm:
            return
        log.warning(
            f"Alarm: after epoch {moment.epoch} one direction holds {share:.0%} of the score matrix (alarm at "
            f"{self.alarm:.0%}); users are about to get the same popular items"
        )
        MetricsLog(moment.out).add("alarm", moment.step, moment.epoch, {SHARE: share, "threshold": self.alarm})


@dataclass(frozen=True)
class WatchRanks:
    """Mean stable and entropy rank behind every layer, on a sample of impressions."""

    impressions: int = 1024
    """Impressions of the sample: of the validation split, or of the training one where the store has none."""
    every: int | None = None
    """Optimizer steps between measurements inside an epoch, which get rows `watch`; None measures at its end alone."""

    headline: ClassVar[str] = LAST

    def __post_init__(self) -> None:
        check_whole("impressions", self.impressions, 1)
        if self.every is not None:
            check_whole("every", self.every, 1)

    def check(self, model: nn.Module, store: AnyStore) -> None:
        """Raise `UserError` where there is nothing to watch."""
        if store.problem != "ranking" or not isinstance(model, RankingModule):
            raise UserError(
                "the rank of an impression's tokens is of ranking models: watch this run with fullrank.Watch",
                code="watch-of-other-problem",
            )
        if not _ranks(model, store, 1):
            raise UserError(
                f"there is no rank to watch in this model: {NO_TOKENS}; leave watching out", code="nothing-to-watch"
            )

    def on_epoch(self, moment: TrainState) -> JsonObject:
        """Figures `watch/stable_rank/LAYER` and `watch/entropy_rank/LAYER`, and the seconds."""
        begun = time.perf_counter()
        figures: JsonObject = {}
        ranks = _ranks(cast(RankingModule, moment.model), cast(ImpressionStore, moment.store), self.impressions)
        for label, rank_pair in ranks.items():
            for name, value in zip(FIGURES, rank_pair, strict=True):
                figures[f"watch/{name}/{label}"] = figures[f"watch/last_layer_{name}"] = value
        return figures | {"watch_seconds": round(time.perf_counter() - begun, 3)}


def _ranks(model: RankingModule, store: ImpressionStore, impressions: int) -> dict[str, list[float]]:
    """Label of a layer -> means of its stable and entropy rank."""
    split = "validation" if len(store.split("validation")) else "train"
    context = RankingContext(model, store, split, sample_impressions(store, split, impressions))
    ranks = TokenRanks(context)
    for batch in ranking_activations(model, store, context.rows):
        ranks.observe(batch)
    return {label: rank_pair.mean(1).tolist() for label, rank_pair in ranks.by_layer().items()}
