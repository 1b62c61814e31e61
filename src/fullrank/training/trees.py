"""Fit boosted trees to impressions: trees are added one by one, until validation has not gained for a while."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.special import expit

from fullrank.core.constraints import changed
from fullrank.core.errors import UserError, no_effect, reason_line
from fullrank.core.log import untold
from fullrank.data.impressions.store import AnyStore, ImpressionStore
from fullrank.evaluation.ranking import no_group_column, row_batches, selection_value
from fullrank.evaluation.result import PerImpression
from fullrank.evaluation.spec import RankingEvaluation
from fullrank.models.ranking.lightgbm import BoostedTrees, LightGBM, lightgbm_package
from fullrank.models.ranking.model import checked_labels
from fullrank.run.experiment import Experiment, Training

READ = ("max_epochs", "lr", "patience", "keep")
"""Settings of training that trees read."""
ROWS = 1 << 16
"""Impressions that are read at once."""
BINS = 255
"""Most buckets of a number. Categories have one each."""


def check_trees(training: Training) -> None:
    """Raise `UserError` for a setting of training that trees do not read, and without the package."""
    lightgbm_package()
    for name in Training.model_fields:
        if name not in READ and changed(training, name):
            raise no_effect(f"training.{name}", f"on boosted trees, which read {', '.join(READ)}")


def fit_at_once(model: Any, store: AnyStore, experiment: Experiment) -> dict[str, float]:
    """Fit a baseline or boosted trees; figures of the latter."""
    if isinstance(model, BoostedTrees):
        assert isinstance(store, ImpressionStore)  # of the experiment's problem
        return fit_trees(model, store, experiment)
    model.fit(store)
    return {}


def fit_trees(model: BoostedTrees, store: ImpressionStore, experiment: Experiment) -> dict[str, float]:
    """Fit to the training rows; the figures are the number of trees and, of a store with validation rows, its metric.

    Raises `UserError` without the package, without groups where the objective ranks within them,
    and for what LightGBM refuses.
    """
    lightgbm, spec, training, how = lightgbm_package(), experiment.model, experiment.training, experiment.evaluation
    assert isinstance(spec, LightGBM) and isinstance(how, RankingEvaluation)
    ranks = spec.objective == "lambdarank"
    categories = model.categories
    params = {
        "objective": spec.objective,
        "metric": "None",
        "learning_rate": training.lr,
        "num_leaves": spec.leaves,
        "min_data_in_leaf": spec.least,
        "lambda_l2": spec.l2,
        "cat_smooth": spec.smoothing,
        "max_bin_by_feature": [max(categories.get(at, BINS), 2) for at in range(model.width)],
        "seed": experiment.seed % 2**31,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": torch.get_num_threads(),
        "verbosity": -1,
    }

    checked: _Impressions | None = None

    def measured(predicted: np.ndarray, data: Any) -> tuple[str, float, bool]:
        """The selection metric, as LightGBM asks for it: its name, its value, and whether more is better."""
        assert checked is not None
        rows = PerImpression(checked.rows, expit(predicted) if ranks else predicted, checked.labels, checked.groups)
        return how.selection, selection_value(rows, how.selection), how.selection != "logloss"

    history: dict[str, dict[str, list[float]]] = {}
    validated, callbacks = [], [lightgbm.record_evaluation(history)]
    try:
        train = _Impressions(model, store, "train", by_group=ranks)
        data = lightgbm.Dataset(train.columns, train.labels, group=train.sizes, categorical_feature=[*categories])
        if len(store.split("validation")):
            checked = _Impressions(model, store, "validation", by_group=ranks)
            validated = [data.create_valid(checked.columns, checked.labels, group=checked.sizes)]
            if training.patience is not None:
                callbacks.append(lightgbm.early_stopping(training.patience, verbose=False))
        booster = lightgbm.train(
            params,
            data,
            training.max_epochs,
            valid_sets=validated,
            valid_names=["validation"] * len(validated),
            feval=measured if validated else None,
            callbacks=callbacks,
        )
    except (lightgbm.basic.LightGBMError, ValueError) as error:
        raise UserError(f"LightGBM refuses this training: {reason_line(error)}", code="trees-not-fitted") from None
    if not validated:
        model.keep(booster.model_to_string())
        return {"trees": booster.num_trees()}
    values = np.array(history["validation"][how.selection])
    best = int(np.nanargmin(values) if how.selection == "logloss" else np.nanargmax(values))
    last = best if training.keep == "best" else len(values) - 1
    model.keep(booster.model_to_string(num_iteration=last + 1))
    return {"trees": last + 1, f"validation/{how.selection}": float(values[last])}


class _Impressions:
    """A split as LightGBM takes it: whole, and by groups where it ranks within them."""

    def __init__(self, model: BoostedTrees, store: ImpressionStore, split: str, *, by_group: bool):
        rows = np.asarray(store.split(split))
        if not len(rows):
            raise UserError(
                f"the store {store.path} has no training impressions: prepare it with another split", code="empty-split"
            )
        self.groups, self.sizes = None, None
        if "groups" in store.arrays:
            self.groups = store.arrays["groups"][rows[0] : rows[-1] + 1].astype(np.int64)
        if by_group:
            if self.groups is None:
                raise no_group_column("model.objective=lambdarank", "use model.objective=binary")
            order = np.argsort(self.groups, kind="stable")
            rows, self.groups = rows[order], self.groups[order]
            self.sizes = np.unique(self.groups, return_counts=True)[1]
        columns, labels = [], []
        for batch in row_batches(store, rows, ROWS, untold):
            columns.append(model.columns(batch))
            labels.append(checked_labels(batch.labels).double().numpy())
        self.rows, self.columns, self.labels = rows, np.concatenate(columns), np.concatenate(labels)
