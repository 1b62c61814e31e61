"""`evaluation.selection_seen=null`: whether validation ranks the history, by what the store's targets repeat.

Like `training.precision=auto` it is settled before anything is compared or written: spec.json says by what the epoch
was chosen, and a run that goes on compares its validations with those that it has.
"""

from __future__ import annotations

from fullrank.core.log import logger
from fullrank.core.registry import kinds
from fullrank.data.histories import MANY_REPEATS
from fullrank.data.impressions.store import AnyStore
from fullrank.experiment import Experiment
from fullrank.run import Run
from fullrank.training.distributed import launched

log = logger(__name__)


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
    if share <= MANY_REPEATS:
        return experiment
    if launched().rank == 0:
        log.info(
            f"{share:.1%} of the validation targets stand in their own user's history: the best epoch is chosen with "
            "the history ranked (evaluation.selection_seen=exclude chooses without)"
        )
    return experiment.override("evaluation.selection_seen=keep")
