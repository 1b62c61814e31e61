"""Collect the results of runs: what their folders hold is taken, what is missing is evaluated and diagnosed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fullrank.analysis.activations import FAIRNESS
from fullrank.analysis.diagnose import diagnose_ranking, diagnose_retrieval, protocol_of
from fullrank.analysis.diagnosis import NAME, Diagnosis
from fullrank.analysis.report.results import RunResult, run_key, run_names, with_differences
from fullrank.core.errors import UserError, no_effect, unknown
from fullrank.core.files import JsonObject
from fullrank.core.log import Tell, quiet
from fullrank.core.registry import Problem
from fullrank.data.impressions.store import AnyStore
from fullrank.evaluation import EVALUATE, EvaluationResult
from fullrank.inference.search import Decoding
from fullrank.run import Run, store_of, weights_hash

Settings = Sequence[str]


def collect(
    runs: Sequence[Run],
    *,
    data: AnyStore | Path | None = None,
    split: str = "test",
    sample: int | None = None,
    settings: Settings = (),
    evaluations: Mapping[str, Any] | None = None,
    tell: Tell = quiet,
    device: torch.device | str = "cpu",
) -> list[RunResult]:
    """A result per run, all of one problem, in the order given.

    `evaluations` are by the runs' names (`run_names`). What stands in a run folder (evaluation.json, diagnosis.jsonl)
    is taken where it is of this split and of these weights; with `settings` everything is evaluated anew, alike.
    Accuracy is the metric that `settings` or else the first run select by, where every run has it. `sample` is the size
    of the diagnosis, in users or impressions.
    """
    names = _names(runs, settings, evaluations)
    family = FAMILIES[runs[0].spec.problem]
    stores: list[Any] = [store_of(run, data) for run in runs]
    evaluated: list[EvaluationResult] = []
    for name, run, store in zip(names, runs, stores, strict=True):
        found = (evaluations or {}).get(name)
        if found is not None and not family.fits(found, run, store, split):
            raise UserError(
                f"the evaluation given for {name} is not of {family.needed(run)} on the split {split!r} of "
                f"{store.path}; leave it out to evaluate anew",
                code="evaluation-does-not-fit",
            )
        page, weights = run.path / "evaluation.json", run.path / "weights.safetensors"
        if found is None and not settings and page.is_file() and page.stat().st_mtime >= weights.stat().st_mtime:
            kept = EvaluationResult.load(run.path)
            found = kept if family.fits(kept, run, store, split) else None
        if found is None:
            spec, tick = family.spec(run, settings), tell(f"evaluate {run.path}")
            model: Any = run.model().to(device)
            found = EVALUATE[run.spec.problem](model, store, split, spec, progress=tick)
        evaluated.append(found)
    wanted = family.spec(runs[0], settings).selection
    shared = all(wanted in one.metrics for one in evaluated)
    results = []
    for place, (name, run, store, one) in enumerate(zip(names, runs, stores, evaluated, strict=True)):
        accuracy = wanted if shared else run.spec.evaluation.selection
        about, measure = family.diagnosis(run, store, split, sample, one, accuracy)
        diagnosis = _kept_diagnosis(run, about)
        if diagnosis is None:
            diagnosis = measure(run.model().to(device), progress=tell(f"diagnose {run.path}"))
        results.append(RunResult(run_key(place), name, run, one, diagnosis, tuple(run.rows()), accuracy, store))
    return with_differences(results, tell)


Measure = tuple[JsonObject, Callable[..., Diagnosis]]
"""Values that the first rows of a diagnosis would have, and how it is made of the model and `progress`."""


class Family:
    """What collecting the results of runs of one problem needs to know: here of those that recommend."""

    def spec(self, run: Run, settings: Settings) -> Any:
        """How a run is evaluated for the page: by its protocol with every metric."""
        spec = run.spec.lists.override(*settings)
        if spec.protocol == "sampled":
            raise UserError(
                f"{run.path} is evaluated on sampled items, which have no full lists: --set protocol=full",
                code="needs-full-protocol",
            )
        return spec.model_copy(update={"metrics": None})

    def needed(self, run: Run) -> str:
        """What an evaluation of a run has to be of."""
        return f"ranked items, with {run.spec.evaluation.selection}, {FAIRNESS} and full lists,"

    def shows(self, evaluation: EvaluationResult, run: Run) -> bool:
        """Whether an evaluation has what the page shows."""
        there = {run.spec.lists.selection, FAIRNESS} <= set(
            evaluation.metrics
        ) and evaluation.per_user.lists is not None
        return there and "dropped" not in evaluation.protocol  # a study of hidden events is no evaluation of the run

    def diagnosis(
        self, run: Run, store: Any, split: str, sample: int | None, evaluation: EvaluationResult, accuracy: str
    ) -> Measure:
        """The diagnosis that belongs beside an evaluation."""
        # The protocol of the evaluation, for the model without its parts too: both stand on one page.
        popularity = str(evaluation.protocol.get("popularity")).removesuffix(" events")
        as_evaluated: dict[str, Any] = {
            "seen": evaluation.protocol["seen"],
            "popularity": popularity,
            "selection": accuracy,
        }
        as_evaluated["decoding"] = Decoding.parse(evaluation.protocol.get("decoding", {}))
        spec = run.spec.lists.model_copy(update=as_evaluated)
        about = _about(run, store, split) | protocol_of(spec)
        if sample is not None:
            about["users"] = min(sample, len(store.eval_set(split)))
        return about, partial(
            diagnose_retrieval, store=store, split=split, users=sample, evaluation=spec, weights=about["weights"]
        )

    def fits(self, evaluation: Any, run: Run, store: AnyStore, split: str) -> bool:
        """Whether something is an evaluation of this split that has what the page shows."""
        if (
            not isinstance(evaluation, EvaluationResult)
            or evaluation.problem != run.spec.problem
            or not self.shows(evaluation, run)
        ):
            return False
        return evaluation.protocol.get("split") == split and evaluation.protocol.get("fingerprint") == store.fingerprint


class RankingFamily(Family):
    """The same of ranking models."""

    def spec(self, run: Run, settings: Settings) -> Any:
        return run.spec.evaluation.override(*settings).model_copy(update={"metrics": None})

    def needed(self, run: Run) -> str:
        return "clicks with every metric"

    def shows(self, evaluation: EvaluationResult, run: Run) -> bool:
        return "metrics" not in evaluation.protocol

    def diagnosis(
        self, run: Run, store: Any, split: str, sample: int | None, evaluation: EvaluationResult, accuracy: str
    ) -> Measure:
        about = _about(run, store, split)
        if sample is not None:
            about["impressions"] = min(sample, len(store.split(split)))
        return about, partial(diagnose_ranking, store=store, split=split, impressions=sample, weights=about["weights"])


def _about(run: Run, store: AnyStore, split: str) -> JsonObject:
    return {"weights": weights_hash(run.path), "split": split, "fingerprint": store.fingerprint}


FAMILIES: Mapping[Problem, Family] = {"retrieval": Family(), "ranking": RankingFamily()}


def _names(runs: Sequence[Run], settings: Settings, evaluations: Mapping[str, Any] | None) -> list[str]:
    """A name for each run. Raises `UserError` where evaluations are given for others, or beside settings."""
    if not runs:
        raise UserError("a report needs at least one run", code="no-runs")
    if settings and evaluations:
        raise no_effect("settings", "on evaluations that are given")
    names = run_names([run.path for run in runs])
    for name in evaluations or ():
        if name not in names:
            raise unknown("run of this report", name, names)
    return names


def _kept_diagnosis(run: Run, wanted: Mapping[str, Any]) -> Diagnosis | None:
    """The diagnosis in the folder, where its first rows say what is wanted."""
    if not (run.path / NAME).is_file():
        return None
    diagnosis = Diagnosis.load(run.path / NAME)
    about = diagnosis.about()
    return diagnosis if all(about.get(key) == value for key, value in wanted.items()) else None
