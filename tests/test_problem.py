"""The seam between the two problems: every room has one of each, and no third thing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fullrank.analysis.diagnose import DIAGNOSE
from fullrank.analysis.report.report import REPORT
from fullrank.cli import diagnose as cli_diagnose
from fullrank.cli import evaluate as cli_evaluate
from fullrank.cli import print_evaluation
from fullrank.cli import report as cli_report
from fullrank.core.registry import PROBLEMS, kinds
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import ImpressionStore, open_store
from fullrank.data.manifest import FORMATS, is_store
from fullrank.evaluation import EVALUATE, Evaluation, PerImpression, PerUser
from fullrank.evaluation.compare import COMPARE
from fullrank.evaluation.spec import RankingEvaluation
from fullrank.run.experiment import find_experiment
from fullrank.training.data_module import DATA_MODULES
from markets import planted_store
from tests.training.clicks import shop

TABLES: dict[str, Mapping[Any, Any]] = {
    "evaluation": EVALUATE, "comparison": COMPARE, "training": DATA_MODULES, "diagnostics": DIAGNOSE, "reports": REPORT,
    "store formats": FORMATS, "fullrank evaluate": cli_evaluate.EVALUATE, "its tables": print_evaluation.SINGLE,
    "fullrank diagnose": cli_diagnose.TABLES, "fullrank report": cli_report.SUMMARY,
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_every_room_has_exactly_the_two_problems(table: str) -> None:
    assert tuple(TABLES[table]) == PROBLEMS == ("retrieval", "ranking")
    assert len({id(one) for one in TABLES[table].values()}) == 2


@pytest.mark.parametrize(
    "pair",
    [(Store, ImpressionStore), (Evaluation, RankingEvaluation), (PerUser, PerImpression)],
)
def test_classes_say_which_problem_they_are_of(pair: tuple[Any, Any]) -> None:
    assert tuple(one.problem for one in pair) == PROBLEMS


def test_an_experiment_has_the_problem_of_its_model() -> None:
    found = {name: find_experiment(name) for name in kinds("recipes")}
    clicks = {name for name, one in found.items() if one.model.kind_of() in ("click", "lightgbm")}
    assert clicks and clicks == {name for name, one in found.items() if one.problem == "ranking"}


def test_a_folder_is_opened_as_the_store_that_its_manifest_names(tmp_path: Path) -> None:
    shop(tmp_path / "ranking")
    planted_store(tmp_path / "retrieval")
    for problem in PROBLEMS:
        folder = tmp_path / problem
        assert open_store(folder).problem == problem and is_store(folder)
        assert [one for one in PROBLEMS if is_store(folder, one)] == [problem]
    assert not is_store(tmp_path)
