"""Problem: the two families of models, and the word by which every room tells them apart.

- retrieval: a model orders a whole catalogue for each history of events (`data.events.store.Store`).
- ranking: a CTR model gives the probability that an impression is clicked (`data.impressions.store.ImpressionStore`).

Stores, evaluation specs, experiments and results have an attribute `problem`. A room that does something for both
problems states in a Protocol what that is, and registers its two in one table; callers look up by `problem`:

    evaluation.EVALUATE              metrics of a model on a split        `evaluation.Evaluate`
    evaluation.compare.COMPARE       the paired difference of two results `evaluation.compare.Compare`
    training.data_module.DATA_MODULES   a store, as training sees it      `training.data_module.DataModule`
    analysis.diagnose.DIAGNOSE       what a run looks like from inside    a function of a run, its model and a sample
    analysis.report.report.REPORT    a page about some runs               a function of their results and the split
    analysis.report.collect.FAMILIES what a page takes from a run folder  `analysis.report.collect.Family`
    serving.app.SERVICES             the service of a run, and its routes `serving.base.BaseService`
    serving.watching.TRIALS          how a new version is tried           `serving.watching.Trial`

The tables stand in their rooms because nothing here may import them: this module stands below all of them.
"""

from __future__ import annotations

from typing import Literal, get_args

Problem = Literal["retrieval", "ranking"]
PROBLEMS: tuple[Problem, ...] = get_args(Problem)
