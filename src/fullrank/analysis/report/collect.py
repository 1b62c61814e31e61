"""Collect the results of runs: read them from their folders, and evaluate and diagnose where they are missing."""

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
    """A result for each run, all of one problem, in their order.

    `evaluations` are by the runs' names (`run_names`). The files of a run folder
    (evaluation.json, diagnosis.jsonl) are read where they are of this split and of these weights;
    with `settings` all runs are evaluated anew, alike. Accuracy is the metric that `settings` or
    else the first run select by, where every run has it. `sample` is the size of the diagnosis,
    in users or impressions.
    """
    names = _names(runs, settings, evaluations)
    family = FAMILIES[runs[0].spec.problem]
    stores: list[Any] = [store_of(run, data) for run in runs]
    evaluated: list[EvaluationResult] = []
    for name, run, store in zip(names, runs, stores, strict=True):
        evaluation = (evaluations or {}).get(name)
        if evaluation is not None and not family.fits(evaluation, run, store, split):
            raise UserError(
                f"the evaluation given for {name} is not of {family.needed(run)} on the split {split!r} of "
                f"{store.path}; leave it out to evaluate anew",
                code="evaluation-does-not-fit",
            )
        file, weights = run.path / "evaluation.json", run.path / "weights.safetensors"
        if evaluation is None and not settings and file.is_file() and file.stat().st_mtime >= weights.stat().st_mtime:
            saved = EvaluationResult.load(run.path)
            evaluation = saved if family.fits(saved, run, store, split) else None
        if evaluation is None:
            spec, tick = family.spec(run, settings), tell(f"evaluate {run.path}")
            model: Any = run.model().to(device)
            evaluation = EVALUATE[run.spec.problem](model, store, split, spec, progress=tick)
        evaluated.append(evaluation)
    selection = family.spec(runs[0], settings).selection
    shared = all(selection in evaluation.metrics for evaluation in evaluated)
    results = []
    for number, (name, run, store, evaluation) in enumerate(zip(names, runs, stores, evaluated, strict=True)):
        accuracy = selection if shared else run.spec.evaluation.selection
        about, measure = family.diagnosis(run, store, split, sample, evaluation, accuracy)
        diagnosis = _saved_diagnosis(run, about)
        if diagnosis is None:
            diagnosis = measure(run.model().to(device), progress=tell(f"diagnose {run.path}"))
        log = tuple(run.rows())
        results.append(RunResult(run_key(number), name, run, evaluation, diagnosis, log, accuracy, store))
    return with_differences(results, tell)


Measure = tuple[JsonObject, Callable[..., Diagnosis]]
"""Values that the first rows of a diagnosis have, and a function that makes it of the model and `progress`."""


class Family:
    """Evaluation and diagnosis of the runs of one problem for a page: here of recommenders."""

    def spec(self, run: Run, settings: Settings) -> Any:
        """The protocol of a run's evaluation for the page: its own, with every metric."""
        spec = run.spec.lists.override(*settings)
        if spec.protocol == "sampled":
            raise UserError(
                f"{run.path} is evaluated on sampled items, which have no full lists: --set protocol=full",
                code="needs-full-protocol",
            )
        return spec.model_copy(update={"metrics": None})

    def needed(self, run: Run) -> str:
        """The contents that an evaluation of a run must have, in words."""
        return f"ranked items, with {run.spec.evaluation.selection}, {FAIRNESS} and full lists,"

    def shows(self, evaluation: EvaluationResult, run: Run) -> bool:
        """Whether an evaluation has everything that the page shows."""
        if "dropped" in evaluation.protocol:  # a study of hidden events is no evaluation of the run
            return False
        return {run.spec.lists.selection, FAIRNESS} <= set(evaluation.metrics) and evaluation.per_user.lists is not None

    def diagnosis(
        self, run: Run, store: Any, split: str, sample: int | None, evaluation: EvaluationResult, accuracy: str
    ) -> Measure:
        """The diagnosis that belongs beside an evaluation."""
        # ablations are evaluated by the protocol of the evaluation: both stand on one page
        protocol = evaluation.protocol
        as_evaluated = {
            "seen": protocol["seen"],
            "popularity": str(protocol.get("popularity")).removesuffix(" events"),
            "selection": accuracy,
            "decoding": Decoding.parse(protocol.get("decoding", {})),
        }
        spec = run.spec.lists.model_copy(update=as_evaluated)
        about = _about(run, store, split) | protocol_of(spec)
        if sample is not None:
            about["users"] = min(sample, len(store.eval_set(split)))
        return about, partial(
            diagnose_retrieval, store=store, split=split, users=sample, evaluation=spec, weights=about["weights"]
        )

    def fits(self, evaluation: Any, run: Run, store: AnyStore, split: str) -> bool:
        """Whether `evaluation` is one of this split that has everything that the page shows."""
        return (
            isinstance(evaluation, EvaluationResult)
            and evaluation.problem == run.spec.problem
            and self.shows(evaluation, run)
            and evaluation.protocol.get("split") == split
            and evaluation.protocol.get("fingerprint") == store.fingerprint
        )


class RankingFamily(Family):
    """Evaluation and diagnosis of ranking models."""

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
    """Name of each run. Raises `UserError` for evaluations of other runs, or beside settings."""
    if not runs:
        raise UserError("a report needs at least one run", code="no-runs")
    if settings and evaluations:
        raise no_effect("settings", "on evaluations that are given")
    names = run_names([run.path for run in runs])
    for name in evaluations or ():
        if name not in names:
            raise unknown("run of this report", name, names)
    return names


def _saved_diagnosis(run: Run, wanted: Mapping[str, Any]) -> Diagnosis | None:
    """The diagnosis in the run folder, where its first rows have the wanted values."""
    if not (run.path / NAME).is_file():
        return None
    diagnosis = Diagnosis.load(run.path / NAME)
    about = diagnosis.about()
    return diagnosis if all(about.get(key) == value for key, value in wanted.items()) else None
