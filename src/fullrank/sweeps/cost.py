"""Cost of a job, measured before it runs by a few steps of the real training loop and the evaluation of a few users.

The estimate is for all epochs, so patience can only make a run shorter. Not in it: reading the
store, log rows and checkpoints. Only the validation split is read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fullrank.core.device import device_of, resolve_device
from fullrank.core.errors import UserError, in_context
from fullrank.data.impressions.store import AnyStore
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import RecommenderModel
from fullrank.run import build_model
from fullrank.sweeps.jobs import Job
from fullrank.training.data_module import DataModule, data_module_of
from fullrank.training.fit import profile_step
from fullrank.training.trees import fit_at_once

SECONDS = 3.0
"""Seconds of training, and at most as many of evaluation, that the cost of a job is measured in."""
SHARES = (64, 16, 4, 1)
"""One in so many users is evaluated, more while time is left."""
DIVERGED = ("nan-scores", "probabilities-not-finite")
"""Errors of a model that a few steps have spoilt."""


@dataclass(frozen=True)
class JobCost:
    """Cost of a job in seconds on this machine."""

    fit: float
    """A baseline's fit; 0 where there are epochs."""
    step: float
    """An optimizer step."""
    steps_per_epoch: int
    epochs: int
    """All epochs that the spec allows."""
    validation: float
    """A validation pass in training."""
    validations: int
    evaluation: float
    """One evaluation of one split at the end."""
    evaluations: int

    @property
    def train(self) -> float:
        """Upper bound of the training time."""
        return self.fit + self.step * self.steps_per_epoch * self.epochs + self.validation * self.validations

    @property
    def total(self) -> float:
        return self.train + self.evaluation * self.evaluations

    def remaining(self, steps_done: int) -> float:
        """Seconds that are left of the total after `steps_done` optimizer steps."""
        steps = self.steps_per_epoch * self.epochs
        left = 1.0 - min(steps_done, steps) / steps if steps else 1.0
        return self.train * left + self.evaluation * self.evaluations

    def scaled(self, train_seconds_per_epoch: float) -> JobCost:
        """The cost at the pace that another seed of the job really had, validation included."""
        step = train_seconds_per_epoch / max(1, self.steps_per_epoch)
        return replace(self, fit=0.0, step=step, validation=0.0, validations=0)


def measure_costs(
    jobs: Iterable[Job],
    store: AnyStore,
    *,
    seconds: float = SECONDS,
    on_job: Callable[[Job], None] = lambda job: None,
    device: str = "auto",
) -> dict[str, JobCost | None]:
    """The cost of every distinct job (seeds share one), by `Job.cost_key`; None where measuring it failed.

    What is fitted at once is timed whole, so the first job of a recipe stands for all of it: a
    search of a baseline would take twice its time otherwise.

    Raises `UserError` where a model cannot be built or trained on this store, so that it is
    found before any job runs.
    """
    costs: dict[str, JobCost | None] = {}
    at_once: dict[str, JobCost] = {}
    for job in jobs:
        if job.cost_key in costs:
            continue
        if job.recipe in at_once:
            costs[job.cost_key] = at_once[job.recipe]
            continue
        on_job(job)
        try:
            with in_context(f"cell {job.cell!r}: "):
                cost = costs[job.cost_key] = measure_cost(job, store, seconds=seconds, device=device)
            if cost.fit:
                at_once[job.recipe] = cost
        except UserError as error:
            if error.code not in DIVERGED:
                raise
            costs[job.cost_key] = None  # the job itself will fail alike, and leave a row
        except Exception:  # the job will fail by itself, with a row and a traceback, and the others go on
            costs[job.cost_key] = None
    return costs


def measure_cost(job: Job, store: AnyStore, *, seconds: float = SECONDS, device: str = "auto") -> JobCost:
    """Time a job's steps and evaluation for about `seconds` each.

    A baseline's fit is timed whole.
    """
    torch.manual_seed(0)
    torch_device = resolve_device(device)
    experiment = job.experiment
    data = data_module_of(experiment.model_copy(update={"seed": 0}), store)
    model: Any = build_model(experiment, data.known, torch_device)
    training, fit, step, steps, epochs = experiment.training, 0.0, 0.0, 0, 0
    if isinstance(model, RecommenderModel | RankingModule):
        loader = data.loader(model)
        step = profile_step(model, loader, experiment, seconds, torch_device)
        steps, epochs = loader.steps_per_epoch, training.max_epochs
    else:
        begun = time.perf_counter()
        fit_at_once(model, store, experiment)
        fit = time.perf_counter() - begun
    model = model.to(torch_device)
    full = not job.selection_only
    once = time_evaluation(model, data, seconds / 2, all_metrics=full) if job.evaluations else 0.0
    often = math.ceil(epochs / training.evaluate_every)
    again = time_evaluation(model, data, seconds / 2, all_metrics=False) if often else 0.0
    return JobCost(fit, step, steps, epochs, again, often, once, len(set(job.evaluations.values())))


def time_evaluation(model: nn.Module, data: DataModule, seconds: float, *, all_metrics: bool) -> float:
    """Seconds of one evaluation on validation, extrapolated from growing shares of it.

    `points` are (share, seconds); the line through the last two gives the seconds at share 1.
    """
    points: list[tuple[float, float]] = []
    for share in SHARES:
        begun = time.perf_counter()
        data.evaluate_share(model, share, all_metrics=all_metrics)
        if device_of(model).type == "cuda":  # wait until it has finished what was queued
            torch.cuda.synchronize()
        points.append((1 / share, time.perf_counter() - begun))
        if sum(spent for _, spent in points) + 4 * points[-1][1] > seconds:
            break
    (before, early), (share_done, late) = ([(0.0, 0.0), *points])[-2:]
    slope = max(0.0, (late - early) / (share_done - before))
    return late + slope * (1 - share_done)
