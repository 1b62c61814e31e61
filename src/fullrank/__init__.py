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
import sys
import warnings
from types import FunctionType
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_WHERE = {
    "prepare": "fullrank.data.events.prepare",
    "Prepare": "fullrank.data.events.prepare",
    "Store": "fullrank.data.events.store",
    "subset": "fullrank.data.events.subset",
    "join_stores": "fullrank.data.events.join",
    "prepare_impressions": "fullrank.data.impressions.prepare",
    "Schema": "fullrank.data.impressions.schema",
    "ImpressionStore": "fullrank.data.impressions.store",
    "check": "fullrank.data.check",
    "download": "fullrank.data.download",
    "encode": "fullrank.semantic_ids.encode",
    "grow_codes": "fullrank.semantic_ids.encode",
    "Encode": "fullrank.semantic_ids.spec",
    "Codes": "fullrank.semantic_ids.reader",
    "train": "fullrank.api",
    "load": "fullrank.api",
    "Predictor": "fullrank.inference.predictor",
    "evaluate": "fullrank.api",
    "evaluate_lists": "fullrank.api",
    "evaluate_log": "fullrank.evaluation.logged",
    "oracle_step": "fullrank.api",
    "step_curve": "fullrank.api",
    "auto": "fullrank.api",
    "blend": "fullrank.api",
    "calibrate": "fullrank.api",
    "diagnose": "fullrank.api",
    "explain": "fullrank.api",
    "report": "fullrank.api",
    "export": "fullrank.api",
    "Watch": "fullrank.analysis.watch",
    "WatchRanks": "fullrank.analysis.watch",
    "recipe": "fullrank.api",
    "recommend": "fullrank.api",
    "recommend_parts": "fullrank.api",
    "similar_items": "fullrank.api",
    "item_vectors": "fullrank.api",
    "user_vectors": "fullrank.api",
    "compare": "fullrank.evaluation.compare",
    "predict": "fullrank.api",
    "predict_file": "fullrank.api",
    "Cascade": "fullrank.cascade",
    "RankingModel": "fullrank.models.ranking.model",
    "RankingEvaluation": "fullrank.evaluation.spec",
    "sweep": "fullrank.sweeps.sweep",
    "fit_law": "fullrank.analysis.scaling.fit",
    "advise": "fullrank.analysis.scaling.frontier",
    "catalogue_growth": "fullrank.analysis.scaling.growth",
    "tune": "fullrank.sweeps.tune",
    "Grid": "fullrank.sweeps.sweep",
    "Search": "fullrank.sweeps.search",
    "Evaluation": "fullrank.evaluation",
    "Experiment": "fullrank.run.experiment",
    "Training": "fullrank.run.experiment",
    "Recommender": "fullrank.models.sequential.model",
    "Run": "fullrank.run",
    "fill_unseen": "fullrank.run.grow",
    "grow_catalog": "fullrank.run.grow",
    "finetune": "fullrank.training.finetune",
    "fisher_information": "fullrank.training.finetune",
    "verify": "fullrank.run.verification",
    "Spec": "fullrank.core.spec",
    "UserError": "fullrank.core.errors",
}

_RENAMED = {"Click": "RankingModel", "Clicks": "RankingEvaluation", "attended": "explain"}
"""Names of version 0.1 -> the names they have now."""

__all__ = [
    "Cascade", "Click", "Clicks", "Codes", "Encode", "Evaluation", "Experiment", "Grid", "ImpressionStore",
    "Predictor", "Prepare", "RankingEvaluation", "RankingModel", "Recommender", "Run", "Schema", "Search", "Spec",
    "Store", "Training", "UserError", "Watch", "WatchRanks", "attended", "auto", "blend", "calibrate",
    "catalogue_growth", "check", "compare", "diagnose", "download", "encode", "evaluate", "evaluate_lists",
    "evaluate_log", "explain", "export", "fill_unseen", "finetune", "fisher_information", "grow_catalog",
    "grow_codes", "item_vectors", "join_stores", "load", "oracle_step", "predict", "predict_file", "prepare",
    "prepare_impressions", "recipe", "recommend", "recommend_parts", "report", "similar_items", "step_curve",
    "subset", "sweep", "train", "tune", "user_vectors", "verify",
]  # fmt: skip

if TYPE_CHECKING:
    from fullrank.analysis.scaling.growth import catalogue_growth
    from fullrank.analysis.watch import Watch, WatchRanks
    from fullrank.api import (
        auto,
        blend,
        calibrate,
        diagnose,
        evaluate,
        evaluate_lists,
        explain,
        export,
        item_vectors,
        load,
        oracle_step,
        predict,
        predict_file,
        recipe,
        recommend,
        recommend_parts,
        report,
        similar_items,
        step_curve,
        train,
        user_vectors,
    )
    from fullrank.api import explain as attended
    from fullrank.cascade import Cascade
    from fullrank.core.errors import UserError
    from fullrank.core.spec import Spec
    from fullrank.data.check import check
    from fullrank.data.download import download
    from fullrank.data.events.join import join_stores
    from fullrank.data.events.prepare import Prepare, prepare
    from fullrank.data.events.store import Store
    from fullrank.data.events.subset import subset
    from fullrank.data.impressions.prepare import prepare_impressions
    from fullrank.data.impressions.schema import Schema
    from fullrank.data.impressions.store import ImpressionStore
    from fullrank.evaluation import Evaluation
    from fullrank.evaluation.compare import compare
    from fullrank.evaluation.logged import evaluate_log
    from fullrank.evaluation.spec import RankingEvaluation
    from fullrank.evaluation.spec import RankingEvaluation as Clicks
    from fullrank.inference.predictor import Predictor
    from fullrank.models.ranking.model import RankingModel
    from fullrank.models.ranking.model import RankingModel as Click
    from fullrank.models.sequential.model import Recommender
    from fullrank.run import Run
    from fullrank.run.experiment import Experiment, Training
    from fullrank.run.grow import fill_unseen, grow_catalog
    from fullrank.run.verification import verify
    from fullrank.semantic_ids.encode import encode, grow_codes
    from fullrank.semantic_ids.reader import Codes
    from fullrank.semantic_ids.spec import Encode
    from fullrank.sweeps.search import Search
    from fullrank.sweeps.sweep import Grid, sweep
    from fullrank.sweeps.tune import tune
    from fullrank.training.finetune import finetune, fisher_information


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(f"fullrank.{name} is called {_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[__name__], _RENAMED[name])
    if name not in _WHERE:
        raise AttributeError(f"module 'fullrank' has no attribute {name!r}")
    module = importlib.import_module(_WHERE[name])
    value = getattr(module, name)
    if isinstance(value, FunctionType):
        from fullrank.core.checks import keywords_checked

        value = keywords_checked(value)
        setattr(module, name, value)  # one function under both names, as pickle asks
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
