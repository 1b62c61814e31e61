"""fullrank trains, diagnoses, scales and serves transformer recommenders.

    import fullrank as fr

    data = fr.prepare(events, "data/shop")                  # a DataFrame or a file
    run = fr.train("sasrec", data, "runs/sasrec")           # a recipe, an Experiment or a YAML file
    print(fr.evaluate(run).metrics["ndcg@10"])
    predictor = fr.load(run)                                # opened once, asked often, by many threads
    print(predictor.recommend({"me": [2, 3, 5]}, k=10))     # external ids in and out
    fr.report([run], "report.html")                         # is it accurate, or merely popular?

Names load on first use, so that ``import fullrank`` is fast and loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "prepare": "fullrank.data.prepare",
    "Prepare": "fullrank.data.prepare",
    "Store": "fullrank.data.pack",
    "subset": "fullrank.data.subset",
    "prepare_impressions": "fullrank.data.prepare_impressions",
    "Schema": "fullrank.data.fields",
    "ImpressionStore": "fullrank.data.impressions",
    "download": "fullrank.data.download",
    "encode": "fullrank.items.codes.encode",
    "grow_codes": "fullrank.items.codes.grow",
    "Encode": "fullrank.items.codes.spec",
    "Codes": "fullrank.items.codes.reader",
    "train": "fullrank.api",
    "load": "fullrank.api",
    "Predictor": "fullrank.retrieval.predictor",
    "evaluate": "fullrank.api",
    "oracle_step": "fullrank.api",
    "step_curve": "fullrank.api",
    "diagnose": "fullrank.api",
    "attended": "fullrank.api",
    "report": "fullrank.api",
    "Watch": "fullrank.diagnostics.callback",
    "WatchRanks": "fullrank.diagnostics.watch_ranks",
    "recipe": "fullrank.api",
    "recommend": "fullrank.api",
    "compare": "fullrank.evaluation.compare",
    "predict": "fullrank.api",
    "predict_file": "fullrank.api",
    "Cascade": "fullrank.cascade",
    "Click": "fullrank.click",
    "Clicks": "fullrank.evaluation.clicks_spec",
    "sweep": "fullrank.scaling.sweep",
    "fit_law": "fullrank.scaling.laws.fit",
    "advise": "fullrank.scaling.laws.advise",
    "catalogue_growth": "fullrank.scaling.growth",
    "tune": "fullrank.scaling.tune",
    "Grid": "fullrank.scaling.grid",
    "Search": "fullrank.scaling.search",
    "Evaluation": "fullrank.evaluation",
    "Experiment": "fullrank.experiment",
    "Training": "fullrank.experiment",
    "Recommender": "fullrank.recommender",
    "Run": "fullrank.run",
    "fill_unseen": "fullrank.fill",
    "grow_catalog": "fullrank.grow",
    "Spec": "fullrank.spec",
    "UserError": "fullrank.errors",
}

__all__ = [
    "Cascade", "Click", "Clicks", "Codes", "Encode", "Evaluation", "Experiment", "Grid", "ImpressionStore",
    "Predictor", "Prepare", "Recommender", "Run", "Schema", "Search", "Spec", "Store", "Training", "UserError",
    "Watch", "WatchRanks", "attended", "catalogue_growth", "compare", "diagnose", "download", "encode", "evaluate",
    "fill_unseen", "grow_catalog", "grow_codes", "load", "oracle_step", "predict", "predict_file", "prepare",
    "prepare_impressions", "recipe", "recommend", "report", "step_curve", "subset", "sweep", "train", "tune",
]  # fmt: skip

if TYPE_CHECKING:
    from fullrank.api import (
        attended,
        diagnose,
        evaluate,
        load,
        oracle_step,
        predict,
        predict_file,
        recipe,
        recommend,
        report,
        step_curve,
        train,
    )
    from fullrank.cascade import Cascade
    from fullrank.click import Click
    from fullrank.data.download import download
    from fullrank.data.fields import Schema
    from fullrank.data.impressions import ImpressionStore
    from fullrank.data.pack import Store
    from fullrank.data.prepare import Prepare, prepare
    from fullrank.data.prepare_impressions import prepare_impressions
    from fullrank.data.subset import subset
    from fullrank.diagnostics.callback import Watch
    from fullrank.diagnostics.watch_ranks import WatchRanks
    from fullrank.errors import UserError
    from fullrank.evaluation import Evaluation
    from fullrank.evaluation.clicks_spec import Clicks
    from fullrank.evaluation.compare import compare
    from fullrank.experiment import Experiment, Training
    from fullrank.fill import fill_unseen
    from fullrank.grow import grow_catalog
    from fullrank.items.codes.encode import encode
    from fullrank.items.codes.grow import grow_codes
    from fullrank.items.codes.reader import Codes
    from fullrank.items.codes.spec import Encode
    from fullrank.recommender import Recommender
    from fullrank.retrieval.predictor import Predictor
    from fullrank.run import Run
    from fullrank.scaling.grid import Grid
    from fullrank.scaling.growth import catalogue_growth
    from fullrank.scaling.search import Search
    from fullrank.scaling.sweep import sweep
    from fullrank.scaling.tune import tune
    from fullrank.spec import Spec


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fullrank' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
