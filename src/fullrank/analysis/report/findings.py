"""What is known of each run: its metrics, its diagnosis and the rows of its training; measured where it is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fullrank.analysis.ablation import FAIRNESS, protocol_of
from fullrank.analysis.diagnose import USERS, Diagnosis, diagnose
from fullrank.analysis.report.known import Known, has_evaluation, kept_diagnosis, key_of, names_of
from fullrank.core.errors import UserError
from fullrank.core.progress import Tell
from fullrank.data.batch import Model
from fullrank.data.events.store import Store
from fullrank.evaluation import EvaluationResult, evaluate
from fullrank.evaluation.compare import MAY_DIFFER
from fullrank.evaluation.result import protocol_difference, setting_to_align
from fullrank.evaluation.spec import Evaluation
from fullrank.run import Run, store_of, weights_hash


@dataclass(frozen=True)
class Finding(Known):
    """Everything a page shows of a run that ranks items."""

    evaluated: EvaluationResult
    accuracy: str
    """The metric that the page calls accuracy: the same for all runs, where all have it."""

    @property
    def layers(self) -> int | None:
        """Blocks of its encoder; None for a model without them."""
        return getattr(getattr(self.run.spec.model, "encoder", None), "layers", None)


def collect(
    runs: Sequence[Run],
    *,
    data: Store | Path | None = None,
    split: str = "test",
    users: int | None = None,
    settings: Sequence[str] = (),
    evaluations: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
    device: torch.device | str = "cpu",
) -> list[Finding]:
    """A finding per run, in the order given.

    `evaluations` are by the runs' names (`named`). What stands in a run folder (evaluation.json, diagnosis.jsonl) is
    taken where it is of this split and of these weights; with `settings` everything is evaluated anew, alike.
    Accuracy is the metric that `settings` or else the first run select by.
    """
    names = names_of(runs, settings, evaluations)
    evaluated: list[tuple[Store, EvaluationResult]] = []
    for name, run in zip(names, runs, strict=True):
        store = _store(run, data)
        given = (evaluations or {}).get(name)
        if given is not None and not _fits(given, run, store, split):
            raise UserError(
                f"the evaluation given for {name} is not of the split {split!r} of {store.path}, with "
                f"{run.spec.evaluation.selection}, {FAIRNESS} and full lists; leave it out to evaluate anew"
            )
        evaluated.append((store, given or _evaluated(run, store, split, settings, tell, device)))
    wanted = _spec(runs[0], settings).selection
    shared = all(wanted in one.metrics for _, one in evaluated)
    found = []
    for place, (name, run, (store, one)) in enumerate(zip(names, runs, evaluated, strict=True)):
        accuracy = wanted if shared else run.spec.evaluation.selection
        diagnosis = _diagnosed(run, store, split, users, _as_measured(run, one, accuracy), tell, device)
        found.append(Finding(key_of(place), name, run, one, diagnosis, tuple(run.rows()), accuracy))
    return found


def comparable(findings: Sequence[Finding]) -> str | None:
    """Why the metrics of these runs cannot be compared; None where they can."""
    if len({one.accuracy for one in findings}) > 1:
        metrics = ", ".join(sorted({one.accuracy for one in findings}))
        return f"the runs were selected by different metrics ({metrics}), and not every run has the first one's"
    first = _protocol(findings[0])
    for other in findings[1:]:
        if _protocol(other) != first:
            return (
                f"runs {findings[0].key} and {other.key} were evaluated differently: "
                f"{protocol_difference(first, _protocol(other))}{setting_to_align(first, _protocol(other))}"
            )
    return None


def _protocol(finding: Finding) -> dict[str, Any]:
    return {key: value for key, value in finding.evaluated.protocol.items() if key not in MAY_DIFFER}


def _store(run: Run, data: Store | Path | None) -> Store:
    found = store_of(run, data, how="with --data")
    if found.problem != "retrieval":
        raise UserError(f"{found.path} holds impressions, and {run.path} reads histories; name its store")
    return found


def _spec(run: Run, settings: Sequence[str]) -> Evaluation:
    """The run's protocol with every metric, so that the page has what it shows."""
    spec = run.spec.lists.override(*settings)
    if spec.protocol == "sampled":
        raise UserError(f"{run.path} is evaluated on sampled items, which have no full lists: --set protocol=full")
    return spec.model_copy(update={"metrics": None}) if spec.metrics is not None else spec


def _evaluated(
    run: Run, store: Store, split: str, settings: Sequence[str], tell: Tell | None, device: torch.device | str
) -> EvaluationResult:
    if not settings and has_evaluation(run):
        kept = EvaluationResult.load(run.path)
        if _fits(kept, run, store, split):
            return kept
    model: Model = run.model().to(device)  # type: ignore[assignment]
    tick = None if tell is None else tell(f"evaluate {run.path}")
    return evaluate(model, store, split, _spec(run, settings), device=device, progress=tick)


def _fits(found: Any, run: Run, store: Store, split: str) -> bool:
    """Whether an evaluation is of this split and has what the page shows."""
    if not isinstance(found, EvaluationResult) or found.problem != "retrieval":
        return False
    there = {run.spec.lists.selection, FAIRNESS} <= set(found.metrics) and found.per_user.lists is not None
    there = there and "dropped" not in found.protocol  # a study of hidden events is no evaluation of the run
    return there and found.protocol.get("split") == split and found.protocol.get("fingerprint") == store.fingerprint


def _as_measured(run: Run, found: EvaluationResult, accuracy: str) -> Evaluation:
    """The protocol of an evaluation, for the model without its parts: both stand on one page."""
    popularity = str(found.protocol.get("popularity")).removesuffix(" events")
    kept = {"seen": found.protocol["seen"], "popularity": popularity, "selection": accuracy}
    return run.spec.lists.model_copy(update=kept)


def _diagnosed(
    run: Run,
    store: Store,
    split: str,
    users: int | None,
    spec: Evaluation,
    tell: Tell | None,
    device: torch.device | str,
) -> Diagnosis:
    digest = weights_hash(run.path)
    asked: dict[str, Any] = {"weights": digest, "split": split, "fingerprint": store.fingerprint, **protocol_of(spec)}
    asked |= {} if users is None else {"users": min(users, len(store.eval_set(split)))}
    kept = kept_diagnosis(run, asked)
    if kept is not None:
        return kept
    model: Model = run.model().to(device)  # type: ignore[assignment]
    tick = None if tell is None else tell(f"diagnose {run.path}")
    many = USERS if users is None else users
    return diagnose(model, store, split=split, users=many, evaluation=spec, weights=digest, progress=tick)
