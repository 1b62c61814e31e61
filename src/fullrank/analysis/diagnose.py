"""Diagnose a model: every diagnostic of its problem on a bounded sample of users, or of impressions.

The size of a sample has the name of what is counted; the other problem's name is refused,
because it would say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

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
from fullrank.models.sequential.baselines.blend import BlendModel
from fullrank.run import Run, require_problem, weights_hash

USERS = 4096
"""Default size of the sample of users: a few digits, in some seconds on two cores."""
IMPRESSIONS = 4096
"""Default size of the sample of impressions: means to about 0.01, in some seconds on two cores."""
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
"""Share of the progress that is reported for the pass over the sample."""


def protocol_of(spec: Evaluation) -> dict[str, str]:
    """Settings that decide the accuracy and fairness of the rows, by name."""
    protocol = {"accuracy": spec.selection, "seen": spec.seen, "popularity": spec.popularity}
    if spec.decoding != Decoding():
        protocol["decoding"] = ", ".join(f"{name} {value}" for name, value in spec.decoding.described().items())
    return protocol


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
    """Run every diagnostic that applies to a recommender, on `users` users of a split (`USERS`).

    `evaluation` gives the protocol of the rows' accuracy, `weights` is the hash under which the
    rows are stored; `vectors` of the items (of their texts, say) help to tell relevant events from
    noise (`relevance.py`). Raises `UserError` where the split is unknown or has no users, or where
    the store has other items than the model.
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
        diagnostics = find_diagnostics("retrieval", ORDER["retrieval"])
        return Diagnosis((*about, *(not_measured(diagnostic.name, why) for diagnostic in diagnostics), *protocol))
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
    """Run every diagnostic that applies to a ranking model, on `impressions` rows of a split (`IMPRESSIONS`).

    `weights` is the hash under which the rows are stored. Raises `UserError` where the split is
    unknown or empty, or where the store's fields are not those that the model was trained on.
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
    """Rows of the diagnostics that observe the batches, then of those that run the model again."""
    classes = find_diagnostics(problem, ORDER[problem])
    observers = [_Measurement(diagnostic, context) for diagnostic in classes if not diagnostic.runs_model]
    for batch in batches:
        for observer in observers:
            observer.observe(batch)
    rows = about + [row for observer in observers for row in observer.rows()]
    if context.split != "train":  # training has no targets to run the model on
        rows += protocol
        runners = [_Measurement(diagnostic, context) for diagnostic in classes if diagnostic.runs_model]
        for number, runner in enumerate(runners):
            low, high = (PASS + (1 - PASS) * (number + step) / len(runners) for step in (0, 1))
            rows += runner.rows(_part(progress, low, high))
    _part(progress, 0.0, 1.0)(1, 1)
    return Diagnosis(tuple(cast(list[Row], jsonable(rows))))


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
    """Diagnose the weights of a run on a split of its store; the rows have the hash of the weights.

    `users` is the size of the sample for a recommender, `impressions` for a ranking model. Raises
    `UserError` where the size or `vectors` are for the other problem.
    """
    sample_size(run, users=users, impressions=impressions)
    if vectors is not None:
        require_problem(run, "retrieval", "leave vectors out", code="vectors-without-history")
    settings: dict[str, Any] = {"impressions": impressions}
    if run.spec.problem == "retrieval":
        settings = {"users": users, "evaluation": run.spec.lists, "vectors": vectors}
    return DIAGNOSE[run.spec.problem](
        run.model().to(device),
        store,
        split=split,
        seed=seed,
        weights=weights_hash(run.path),
        progress=progress,
        **settings,
    )


DIAGNOSE: Mapping[Problem, Callable[..., Diagnosis]] = {"retrieval": diagnose_retrieval, "ranking": diagnose_ranking}


def sample_size(run: Run, *, users: int | None, impressions: int | None) -> int | None:
    """Size of the sample, whichever of the two is set.

    Raises `UserError` for that of the other problem.
    """
    if users is not None:
        require_problem(run, "retrieval", "give impressions, not users", code="sample-of-other-problem")
    if impressions is not None:
        require_problem(run, "ranking", "give users, not impressions", code="sample-of-other-problem")
    return users if impressions is None else impressions


class _Measurement:
    """One diagnostic of one diagnosis.

    An error of a built-in diagnostic is raised. An error of another package's ends that diagnostic
    alone: it has a single row, which says what failed.
    """

    def __init__(self, diagnostic: type[Diagnostic], context: Any):
        self.diagnostic = diagnostic
        self.failed: Row | None = None
        self.instance: Any = self._try(lambda: diagnostic(context))

    def observe(self, batch: Any) -> None:
        self._try(lambda: self.instance.observe(batch))

    def rows(self, progress: Progress = untold) -> list[Row]:
        """The rows of the diagnostic, or the single one that says why there are none."""

        def measure() -> list[Row]:
            self.instance.progress = progress
            rows: list[Row] = self.instance.rows()
            return rows if is_built_in(self.diagnostic) else _checked(rows, self.diagnostic.name)

        rows = self._try(measure)
        return rows if self.failed is None else [self.failed]

    def _try(self, step: Callable[[], Any]) -> Any:
        """Call `step`; None where it or an earlier step failed."""
        if self.failed is not None:
            return None
        try:
            return step()
        except Exception as error:
            if is_built_in(self.diagnostic):
                raise
            self.failed = not_measured(self.diagnostic.name, failure(self.diagnostic, error))


def _checked(rows: Any, name: str) -> list[Row]:
    """Rows of another package's diagnostic, as they will be written.

    Raises `TypeError` for a row that would make the file unreadable or has another diagnostic's
    name.
    """
    entries: Any = jsonable(list(rows))
    for entry in entries:
        if not is_row(entry) or entry["diagnostic"] != name:
            raise TypeError(f"{brief(entry)} is no row of {name!r}: make it by diagnosis.row")
    return list(entries)


def _part(progress: Progress, low: float, high: float) -> Progress:
    """Progress of the part of the work from `low` to `high`, in thousandths of the whole."""

    def tick(done: int, total: int) -> None:
        progress(round(1000 * (low + (high - low) * done / max(1, total))), 1000)

    return tick
