"""All diagnostics of a model on a bounded sample of users, or of impressions, and their file.

The size of a sample has the name of what is counted; the other problem's name is refused, because it would say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from jaxtyping import Float, Int

from fullrank.analysis import LEFT_OUT, Observer, Row, row
from fullrank.analysis.ablation import ablation_rows, accuracy_of, protocol_of
from fullrank.analysis.alignment import Alignment
from fullrank.analysis.attention_share import AttentionShare
from fullrank.analysis.bound import Bound
from fullrank.analysis.diversity import Diversity
from fullrank.analysis.ensemble import Ensemble
from fullrank.analysis.explain import case_rows
from fullrank.analysis.focus import Focus
from fullrank.analysis.latent_attention import latent_attention_rows
from fullrank.analysis.norms import norm_rows
from fullrank.analysis.rank_theorems import RankTheorems
from fullrank.analysis.ranking_reading import click_readings, drawn
from fullrank.analysis.reading import Sample, readings, sample
from fullrank.analysis.relevance import Relevance
from fullrank.analysis.robustness import robustness_rows
from fullrank.analysis.spectrum import Layers, Scores
from fullrank.analysis.streams import Streams
from fullrank.analysis.thinking import thinking_rows
from fullrank.analysis.token_ranks import TokenRanks
from fullrank.core.errors import UserError
from fullrank.core.files import jsonable, write_jsonl
from fullrank.core.progress import Progress
from fullrank.core.readers import read_jsonl
from fullrank.data.batch import Model
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import AnyStore, ImpressionStore
from fullrank.evaluation import Evaluation
from fullrank.evaluation.retrieval import Split
from fullrank.models.ranking.model import RankingModule
from fullrank.problem import Problem
from fullrank.run import Run, weights_hash

NAME = "diagnosis.jsonl"
"""File of a run folder."""
USERS = 4096
"""Users of the sample; enough for a few digits, and some seconds on two cores."""
IMPRESSIONS = 4096
"""Impressions of the sample: means to about 0.01 and some seconds on two cores."""
KEYS = frozenset(row("", "", None))


@dataclass(frozen=True)
class Diagnosis:
    """The rows of one model. The first ones, of the diagnostic `about`, say what the others depend on."""

    rows: tuple[Row, ...]

    def about(self) -> dict[str, Any]:
        """Split, users (of a click model: impressions), seed, fingerprint, and where known the weights' hash."""
        return {one["name"]: one["value"] if one["label"] is None else one["label"] for one in self.of("about")}

    def of(self, diagnostic: str, name: str | None = None) -> list[Row]:
        """The rows of one diagnostic (and name), without those that say what was left out."""
        return [
            one for one in self.rows
            if one["diagnostic"] == diagnostic and one["name"] != LEFT_OUT and name in (None, one["name"])
        ]  # fmt: skip

    def value(self, diagnostic: str, name: str) -> float | None:
        """A figure that is there once; None where it is not."""
        found = self.of(diagnostic, name)
        return found[0]["value"] if found else None

    def left_out(self) -> dict[str, str]:
        """Diagnostic -> why it, or a part of it, is not there."""
        return {one["diagnostic"]: str(one["label"]) for one in self.rows if one["name"] == LEFT_OUT}

    def save(self, path: str | Path) -> None:
        """One JSON object a line."""
        write_jsonl(path, (jsonable(one) for one in self.rows))

    @staticmethod
    def load(path: str | Path) -> Diagnosis:
        """The inverse of `save`. Raises `UserError` for a file that is none."""
        try:
            rows = read_jsonl(path, torn=False)
        except UserError as error:
            raise UserError(f"{path} is no readable diagnosis ({error}); `fullrank diagnose` writes one") from None
        if not rows or not all(_sound(one) for one in rows):
            raise UserError(f"{path} holds rows that are no diagnosis; `fullrank diagnose` writes one")
        return Diagnosis(tuple(rows))


def diagnose(
    model: Model,
    store: Store,
    *,
    split: str = "test",
    users: int = USERS,
    seed: int = 0,
    evaluation: Evaluation | None = None,
    weights: str | None = None,
    vectors: Float[np.ndarray, "V D"] | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Everything that applies to this model, measured on `users` users of a split.

    `evaluation` gives the protocol of the ablation's accuracy, `weights` is the hash that the rows are kept under;
    `vectors` (of the items' texts, say) join co-occurrence in saying which events are relevant (`relevance.py`).
    Raises `UserError` where the split is unknown or has no users, or the store has other items than the model.
    """
    if store.num_items != model.num_items:
        raise UserError(f"the model ranks {model.num_items} items but the store's catalogue has {store.num_items}")
    some = sample(store, split, users, seed=seed)
    scores = Scores(len(some), some.popularity)
    observers: list[Observer] = [scores, Layers(), AttentionShare(some.popularity), Alignment(), Bound(scores)]
    relevance = Relevance(store, vectors)
    observers += [Diversity(model), Streams(model), Ensemble(model, _targets(some, split))]
    observers += [Focus(_targets(some, split), relevance)]
    tick = _Ticks(progress)
    for reading in readings(model, some, tick.part(0.0, 0.4)):
        for observer in observers:
            observer.see(reading)
    found: list[Row] = list(about_rows("users", split, len(some), seed, store.fingerprint, weights))
    for observer in observers:
        found += observer.rows()
    found += norm_rows(model)
    if split != "train":
        spec = accuracy_of(evaluation or Evaluation())
        found += [row("about", name, None, label=value) for name, value in protocol_of(spec).items()]
        part = cast(Split, split)
        found += ablation_rows(model, store, some, part, spec, tick.part(0.4, 0.8))
        found += robustness_rows(model, store, some, part, spec)
        found += latent_attention_rows(model, some)
        found += case_rows(model, store, some, split, relevance)
        found += thinking_rows(model, store, some, part, spec, tick.part(0.8, 1.0))
    tick.part(0.0, 1.0)(1, 1)
    return Diagnosis(tuple(cast(list[Row], jsonable(found))))


def diagnose_clicks(
    model: RankingModule,
    store: ImpressionStore,
    *,
    split: str = "test",
    impressions: int = IMPRESSIONS,
    seed: int = 0,
    weights: str | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Everything that applies to this model, measured on `impressions` impressions of a split.

    `weights` is the hash that the rows are kept under. Raises `UserError` where the split is unknown or empty, or the
    store's fields are not those that the model was trained on.
    """
    if tuple(store.fields) != tuple(model.embedding.fields):
        raise UserError(
            f"{store.path} has other fields than those that the model reads: give the store of its training"
        )
    rows = drawn(store, split, impressions, seed=seed)
    observers = (TokenRanks(), RankTheorems(model))
    for reading in click_readings(model, store, rows, progress):
        for observer in observers:
            observer.see(reading)
    found: list[Row] = list(about_rows("impressions", split, len(rows), seed, store.fingerprint, weights))
    for observer in observers:
        found += observer.rows()
    return Diagnosis(tuple(cast(list[Row], jsonable(found))))


class Diagnose(Protocol):
    """The diagnosis of a run's weights, with their hash, on a sample of a split of its store.

    `sample` is its size, in users or impressions; None is the default. `vectors` of items help where items are read.
    """

    def __call__(
        self,
        run: Run,
        store: Any,
        split: str,
        *,
        sample: int | None,
        seed: int,
        device: torch.device | str,
        vectors: Float[np.ndarray, "V D"] | None,
        progress: Progress | None,
    ) -> Diagnosis: ...


def diagnose_run(
    run: Run,
    store: AnyStore,
    split: str,
    *,
    users: int | None = None,
    impressions: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    vectors: Float[np.ndarray, "V D"] | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """The rows of a run's weights, with their hash. `users`, `impressions`: None is the default of the problem."""
    sample = sample_size(run, users=users, impressions=impressions)
    return DIAGNOSE[run.spec.problem](
        run, store, split, sample=sample, seed=seed, device=device, vectors=vectors, progress=progress
    )


def sample_size(run: Run, *, users: int | None, impressions: int | None) -> int | None:
    """The one that is given. Raises `UserError` for the one that this problem does not have."""
    if run.spec.problem == "ranking" and users is not None:
        raise UserError(f"{run.path} is a click model, whose sample is of impressions: give impressions, not users")
    if run.spec.problem == "retrieval" and impressions is not None:
        raise UserError(f"{run.path} recommends items, and its sample is of users: give users, not impressions")
    return impressions if users is None else users


def _of_retrieval(
    run: Run, store: Store, split: str, *, sample: int | None, seed: int, device: torch.device | str,
    vectors: Float[np.ndarray, "V D"] | None, progress: Progress | None,
) -> Diagnosis:  # fmt: skip
    model: Any = run.model().to(device)
    return diagnose(
        model, store, split=split, users=USERS if sample is None else sample, seed=seed, evaluation=run.spec.lists,
        weights=weights_hash(run.path), vectors=vectors, progress=progress,
    )  # fmt: skip


def _of_ranking(
    run: Run, store: ImpressionStore, split: str, *, sample: int | None, seed: int, device: torch.device | str,
    vectors: Float[np.ndarray, "V D"] | None, progress: Progress | None,
) -> Diagnosis:  # fmt: skip
    if vectors is not None:
        raise UserError(f"{run.path} is a click model, which has no history to look into: leave vectors out")
    model: Any = run.model().to(device)
    return diagnose_clicks(
        model, store, split=split, impressions=IMPRESSIONS if sample is None else sample, seed=seed,
        weights=weights_hash(run.path), progress=progress,
    )  # fmt: skip


DIAGNOSE: Mapping[Problem, Diagnose] = {"retrieval": _of_retrieval, "ranking": _of_ranking}


def _targets(some: Sample, split: str) -> Int[np.ndarray, "U"] | None:
    """What each user of the sample chose next (the first of several); None for training, which asks at every place."""
    return None if split == "train" else some.next_items


def about_rows(what: str, split: str, count: int, seed: int, fingerprint: str, weights: str | None) -> Iterator[Row]:
    """What all figures of a diagnosis depend on; `what` was counted (users, impressions)."""
    yield row("about", "split", None, label=split)
    yield row("about", what, count)
    yield row("about", "seed", seed)
    yield row("about", "fingerprint", None, label=fingerprint)
    if weights is not None:
        yield row("about", "weights", None, label=weights)


def _sound(one: Any) -> bool:
    if not isinstance(one, dict) or set(one) != KEYS:
        return False
    numbers = all(one[key] is None or type(one[key]) is int for key in ("layer", "head", "index"))
    texts = isinstance(one["diagnostic"], str) and isinstance(one["name"], str)
    return numbers and texts and isinstance(one["label"], str | None) and isinstance(one["value"], int | float | None)


class _Ticks:
    """Progress of several parts as one, in thousandths."""

    def __init__(self, progress: Progress | None):
        self.progress = progress

    def part(self, low: float, high: float) -> Progress:
        def tick(done: int, total: int) -> None:
            if self.progress is not None:
                self.progress(round(1000 * (low + (high - low) * done / max(1, total))), 1000)

        return tick
