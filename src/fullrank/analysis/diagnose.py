"""Diagnose a model: every diagnostic of its problem on a bounded sample of users, or of impressions.

The size of a sample has the name of what is counted; the other problem's name is refused, because it would say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float

from fullrank.analysis.activations import (
    RankingContext,
    RetrievalContext,
    activations,
    ranking_activations,
    sample_impressions,
    sample_protocol,
    sample_users,
)
from fullrank.analysis.diagnosis import Diagnosis, Row, about_rows, is_row, not_measured, row
from fullrank.analysis.diagnostics import Diagnostic, failure, find_diagnostics, is_built_in
from fullrank.core.errors import UserError, brief
from fullrank.core.files import jsonable
from fullrank.core.log import Progress, untold
from fullrank.core.registry import Problem
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import AnyStore, ImpressionStore
from fullrank.evaluation import Evaluation
from fullrank.inference.search import Decoding
from fullrank.models import Model
from fullrank.models.ranking import ClickModel
from fullrank.models.ranking.model import require_layers
from fullrank.models.sequential.blend import BlendModel
from fullrank.run import Run, require_problem, weights_hash

Result = TypeVar("Result")

USERS = 4096
"""Users of the sample; enough for a few digits, and some seconds on two cores."""
IMPRESSIONS = 4096
"""Impressions of the sample: means to about 0.01 and some seconds on two cores."""
ORDER: Mapping[Problem, Sequence[str]] = {
    "retrieval": (
        "spectrum", "layers", "attention_share", "alignment", "bound", "diversity", "streams", "ensemble", "focus",
        "norms", "ablation", "robustness", "shortcut", "code_levels", "code_popularity", "beam_loss",
        "latent_attention", "case", "step_curve", "oracle_step", "gate_gain",
    ),
    "ranking": ("token_ranks", "rank_theorems", "jacobian"),
}  # fmt: skip
"""Order of the rows: these first, then the diagnostics that are not named here, by name."""
PASS = 0.4
"""Share of the progress that the pass over the sample is."""


def protocol_of(spec: Evaluation) -> dict[str, str]:
    """What decides the accuracy and fairness of the rows, by name."""
    found = {"accuracy": spec.selection, "seen": spec.seen, "popularity": spec.popularity}
    if spec.decoding != Decoding():
        found["decoding"] = ", ".join(f"{name} {value}" for name, value in spec.decoding.described().items())
    return found


def diagnose_retrieval(
    model: Model,
    store: Store,
    *,
    split: str = "test",
    users: int | None = None,
    seed: int = 0,
    evaluation: Evaluation = Evaluation(),
    weights: str | None = None,
    vectors: Float[np.ndarray, "V D"] | None = None,
    progress: Progress = untold,
) -> Diagnosis:
    """Every diagnostic that applies to this model, on `users` users of a split, by default `USERS`.

    `evaluation` gives the protocol of the rows' accuracy, `weights` is the hash that the rows are kept under;
    `vectors` (of the items' texts, say) join co-occurrence in saying which events are relevant (`relevance.py`).
    Raises `UserError` where the split is unknown or has no users, or the store has other items than the model.
    """
    if store.num_items != model.num_items:
        raise UserError(
            f"the model ranks {model.num_items} items but the store's catalogue has {store.num_items}",
            code="other-catalogue",
        )
    sample = sample_users(store, split, USERS if users is None else users, seed=seed)
    spec = sample_protocol(evaluation)
    context = RetrievalContext(model, store, split, sample, spec, vectors)
    about = [*about_rows("users", split, len(sample), seed, store.fingerprint, weights)]
    protocol = [row("about", name, None, label=value) for name, value in protocol_of(spec).items()]
    if isinstance(model, BlendModel):  # it has lists and no inside
        why = "a blend joins lists; diagnose its members (RUN/members/NAME)"
        apart = [not_measured(one.name, why) for one in find_diagnostics("retrieval", ORDER["retrieval"])]
        return Diagnosis((*about, *apart, *protocol))
    batches = activations(model, sample, _part(progress, 0.0, PASS))
    return _diagnosis("retrieval", context, batches, about, protocol, progress)


def diagnose_ranking(
    model: ClickModel,
    store: ImpressionStore,
    *,
    split: str = "test",
    impressions: int | None = None,
    seed: int = 0,
    weights: str | None = None,
    progress: Progress = untold,
) -> Diagnosis:
    """Every diagnostic that applies to this model, on `impressions` impressions of a split, by default `IMPRESSIONS`.

    `weights` is the hash that the rows are kept under. Raises `UserError` where the split is unknown or empty, or the
    store's fields are not those that the model was trained on.
    """
    model = require_layers(model, "a diagnosis", code="model-without-layers")
    if tuple(store.fields) != tuple(model.embedding.fields):
        raise UserError(
            f"{store.path} has other fields than those that the model reads: give the store of its training",
            code="other-fields",
        )
    rows = sample_impressions(store, split, IMPRESSIONS if impressions is None else impressions, seed=seed)
    context = RankingContext(model, store, split, rows)
    about = [*about_rows("impressions", split, len(rows), seed, store.fingerprint, weights)]
    batches = ranking_activations(model, store, rows, _part(progress, 0.0, 1.0))
    return _diagnosis("ranking", context, batches, about, [], progress)


def _diagnosis(
    problem: Problem,
    context: RetrievalContext | RankingContext,
    batches: Iterable[Any],
    about: list[Row],
    protocol: list[Row],
    progress: Progress,
) -> Diagnosis:
    """The rows of all diagnostics: of those that observe the batches, and of those that run the model again."""
    classes = find_diagnostics(problem, ORDER[problem])
    observers = [_Measurement(diagnostic, context) for diagnostic in classes if not diagnostic.runs_model]
    for batch in batches:
        for observer in observers:
            observer.observe(batch)
    found = [*about, *(one for observer in observers for one in observer.rows())]
    if context.split != "train":  # there are no targets to run it on
        found += protocol
        runners = [_Measurement(diagnostic, context) for diagnostic in classes if diagnostic.runs_model]
        for place, runner in enumerate(runners):
            low, high = (PASS + (1 - PASS) * (place + step) / len(runners) for step in (0, 1))
            found += runner.rows(_part(progress, low, high))
    _part(progress, 0.0, 1.0)(1, 1)
    return Diagnosis(tuple(cast(list[Row], jsonable(found))))


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
    progress: Progress = untold,
) -> Diagnosis:
    """The rows of a run's weights, with their hash. `users`, `impressions`: None is the default of the problem."""
    sample = sample_size(run, users=users, impressions=impressions)
    model: Any = run.model().to(device)
    about = {"split": split, "seed": seed, "weights": weights_hash(run.path), "progress": progress}
    return DIAGNOSE[run.spec.problem](run, model, store, sample, vectors, **about)


def sample_size(run: Run, *, users: int | None, impressions: int | None) -> int | None:
    """The one that is given. Raises `UserError` for the one that this problem does not have."""
    if users is not None:
        require_problem(run, "retrieval", "give impressions, not users", code="sample-of-other-problem")
    if impressions is not None:
        require_problem(run, "ranking", "give users, not impressions", code="sample-of-other-problem")
    return users if impressions is None else impressions


def _of_retrieval(run: Run, model: Model, store: Store, sample: int | None, vectors: Any, **about: Any) -> Diagnosis:
    return diagnose_retrieval(model, store, users=sample, evaluation=run.spec.lists, vectors=vectors, **about)


def _of_ranking(
    run: Run, model: ClickModel, store: ImpressionStore, sample: int | None, vectors: Any, **about: Any
) -> Diagnosis:
    if vectors is not None:
        require_problem(run, "retrieval", "leave vectors out", code="vectors-without-history")
    return diagnose_ranking(model, store, impressions=sample, **about)


DIAGNOSE: Mapping[Problem, Callable[..., Diagnosis]] = {"retrieval": _of_retrieval, "ranking": _of_ranking}
"""The diagnosis of a run's weights, with their hash, on a sample of a split of its store."""


class _Measurement:
    """One diagnostic of one diagnosis. An error of ours is raised; one of another package's ends that diagnostic
    alone, and a row that says so stands in place of its rows.
    """

    def __init__(self, diagnostic: type[Diagnostic], context: Any):
        self.diagnostic = diagnostic
        self.failed: Row | None = None
        self.instance: Any = self._try(lambda: diagnostic(context))

    def observe(self, batch: Any) -> None:
        self._try(lambda: self.instance.observe(batch))

    def rows(self, progress: Progress = untold) -> list[Row]:
        """The diagnostic's rows, told of to `progress`; or the one that says why there are none."""

        def measure() -> list[Row]:
            self.instance.progress = progress
            found: list[Row] = self.instance.rows()
            return found if is_built_in(self.diagnostic) else _checked(found, self.diagnostic.name)

        found = self._try(measure)
        return [self.failed] if self.failed is not None else cast(list[Row], found)

    def _try(self, step: Callable[[], Result]) -> Result | None:
        """What a step gives; None where it or one before it failed."""
        if self.failed is not None:
            return None
        try:
            return step()
        except Exception as error:
            if is_built_in(self.diagnostic):
                raise
            self.failed = not_measured(self.diagnostic.name, failure(self.diagnostic, error))
            return None


def _checked(rows: Any, name: str) -> list[Row]:
    """Rows of another package, as they are written. Raises for one that would make the file unreadable, or that is
    under another diagnostic's name.
    """
    found = cast(list[Row], jsonable(list(rows)))
    for one in found:
        if not is_row(one) or one["diagnostic"] != name:
            raise TypeError(f"{brief(one)} is no row of {name!r}: make it by diagnosis.row")
    return found


def _part(progress: Progress, low: float, high: float) -> Progress:
    """Progress of one part of the work, told as thousandths of the whole."""

    def tick(done: int, total: int) -> None:
        progress(round(1000 * (low + (high - low) * done / max(1, total))), 1000)

    return tick
