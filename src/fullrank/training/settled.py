"""Settings left open, settled before anything is compared or written: spec.json names what was computed.

`training.precision=auto` is bf16 where the device multiplies it and the model was measured, fp32
elsewhere. A run that was begun in bf16 is not silently continued in fp32 on another machine. The
processor's flags decide, never a clock.

`evaluation.selection_seen=null` says whether validation ranks the history, by what the store's
targets repeat. Settled, it says by what the epoch was chosen, and a run that goes on compares its
validations with those that it has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from fullrank.core.log import logger
from fullrank.core.registry import kinds
from fullrank.data.histories import MANY_REPEATS
from fullrank.data.impressions.store import AnyStore
from fullrank.models.ranking.model import RankingModel
from fullrank.models.sequential.model import Recommender
from fullrank.ops.kernels import multiplies_bf16
from fullrank.run import Run, is_run
from fullrank.run.experiment import Experiment
from fullrank.training.distributed import launched

log = logger(__name__)


def settled(experiment: Experiment, device: torch.device) -> Experiment:
    """The experiment with `auto` replaced by what it means on this device."""
    if experiment.training.precision != "auto":
        return experiment
    return experiment.override(f"training.precision={best_precision(experiment, device)}")


def best_precision(experiment: Experiment, device: torch.device) -> Literal["fp32", "bf16"]:
    """bf16 on devices that multiply it (`multiplies_bf16`); on a CPU for what was measured there alone.

    A baseline is counted and not trained, so it stays the same wherever it is made.
    """
    if experiment.model.kind_of() in kinds("baselines") or not multiplies_bf16(device):
        return "fp32"
    model = experiment.model
    measured = isinstance(model, Recommender | RankingModel) and model.measured_in_bf16
    return "bf16" if device.type != "cpu" or measured else "fp32"


def usual_precision(what: object, folder: Path, *, resume: bool) -> tuple[str, ...]:
    """The setting that stands before a user's own: a recipe by its name trains in `auto`.

    Nothing where the user has written the experiment, since that says its precision; a run that is
    gone on with keeps its own.
    """
    if not isinstance(what, str) or what not in kinds("recipes"):
        return ()
    if resume and is_run(folder):
        return (f"training.precision={Run.open(folder).spec.training.precision}",)
    return ("training.precision=auto",)


def selection_settled(experiment: Experiment, store: AnyStore, resumed: Run | None = None) -> Experiment:
    """The experiment with `selection_seen=keep` where validation on this store could not hit many of its targets.

    A run that is `resumed` keeps what it began with. A line says so where it is settled.
    """
    lists = experiment.evaluation
    if store.problem == "ranking" or lists.problem == "ranking" or lists.selection_seen is not None:
        return experiment
    if experiment.model.kind_of() in kinds("baselines"):  # nothing is chosen
        return experiment
    if resumed is not None:
        begun = resumed.spec.evaluation
        settled = begun.selection_seen if begun.problem == "retrieval" else None
        return experiment if settled is None else experiment.override(f"evaluation.selection_seen={settled}")
    share = store.repeated_share("validation") if lists.hides_seen else 0.0
    if lists.hides_seen and lists.targets is not None:
        users = lists.targets.of_users(store.eval_set("validation"), store.features)
        share = users.repeated_targets() / max(1, len(users.truth.flat()))
    if share <= MANY_REPEATS:
        return experiment
    if launched().rank == 0:
        log.info(
            f"{share:.1%} of the validation targets stand in their own user's history: the best epoch is chosen with "
            "the history ranked (evaluation.selection_seen=exclude chooses without)"
        )
    return experiment.override("evaluation.selection_seen=keep")
