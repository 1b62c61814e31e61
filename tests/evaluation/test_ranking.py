"""Evaluating click models: what the numbers are, how two runs are compared, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fullrank.evaluation import EvaluationResult, compare
from fullrank.evaluation.ranking import ranking_result
from fullrank.evaluation.result import PerImpression
from fullrank.evaluation.spec import RankingEvaluation
from fullrank.evaluation.statistics import resample_clicks
from fullrank.metrics.ctr import auc, losses
from refusals import refused


def rows(skill: float, count: int = 2000, groups: bool = True) -> PerImpression:
    """Predictions that know `skill` of what can be known."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=count)
    labels = (rng.random(count) < 1 / (1 + np.exp(-truth))).astype(float)
    noise = np.random.default_rng(int(100 * skill)).normal(size=count)
    p = 1 / (1 + np.exp(-(skill * truth + (1 - skill) * noise)))
    return PerImpression(np.arange(count), p, labels, rng.integers(50, size=count) if groups else None)


def judged(skill: float, spec: RankingEvaluation | None = None, **more: bool) -> EvaluationResult:
    return ranking_result(rows(skill, **more), spec or RankingEvaluation(bootstrap=100), "test", "abc")


def test_metrics_and_intervals() -> None:
    some, found = rows(0.9), judged(0.9)
    assert found.metrics["auc"] == auc(some.probabilities, some.labels)
    assert found.metrics["logloss"] == losses(some.probabilities, some.labels).mean()
    assert found.metrics["auc-logloss"] == found.metrics["auc"] - found.metrics["logloss"]
    assert {"gauc", "ece", "pcoc"} < set(found.metrics) and found.protocol["gauc_groups"] == 50
    for name, (low, high) in found.interval.items():
        assert low < found.metrics[name] < high and high - low < 0.15
    assert "gauc" not in judged(0.9, groups=False).metrics


def test_resampling_groups_is_wider_where_rows_repeat() -> None:
    some = rows(0.9, 200, groups=False)
    copies = PerImpression(
        np.arange(2000), *(np.repeat(x, 10) for x in (some.probabilities, some.labels)), np.repeat(np.arange(200), 10)
    )
    by_row, by_group = (
        resample_clicks(copies.probabilities, copies.labels, unit, samples=100, seed=0)["auc"].std()
        for unit in (None, copies.groups)
    )
    assert 2 < by_group / by_row < 5
    with refused("no-group-column"):
        judged(0.9, RankingEvaluation(unit="group"), groups=False)


def test_comparison_is_paired() -> None:
    a, b = judged(0.5), judged(0.9)
    better = compare(a, b, "auc")
    assert better.difference == b.metrics["auc"] - a.metrics["auc"] > 0
    assert better.interval[0] > 0 and better.p < 0.01 and better.users == 2000
    assert better.interval[1] - better.interval[0] < a.interval["auc"][1] - a.interval["auc"][0] + 0.02
    same = compare(a, a, "logloss", samples=50)
    assert same.difference == 0 and same.interval == (0, 0) and same.p == 1
    assert compare(b, a, "auc").difference == -better.difference


def test_different_rows_or_unknown_metrics_are_refused() -> None:
    with refused("protocols-differ"):
        compare(judged(0.5), ranking_result(rows(0.5), RankingEvaluation(bootstrap=0), "validation", "abc"), "auc")
    with refused("unknown-metric", "auc"):
        compare(judged(0.5), judged(0.9), "aux")


def test_saved_and_loaded(tmp_path: Path) -> None:
    found = judged(0.9)
    found.save(tmp_path)
    back = EvaluationResult.load(tmp_path)
    assert back.dump() == found.dump()
    assert np.array_equal(back.per_impression.probabilities, found.per_impression.probabilities)
    (tmp_path / "evaluation.json").write_text("{}")
    with refused("not-an-evaluation"):
        EvaluationResult.load(tmp_path)


def test_a_single_class_gives_no_auc_but_a_loss() -> None:
    some = rows(0.9, 50)
    found = ranking_result(
        PerImpression(some.rows, some.probabilities, np.zeros(50), some.groups),
        RankingEvaluation(bootstrap=5),
        "test",
        "abc",
    )
    assert np.isnan(found.metrics["auc"]) and found.dump()["metrics"]["auc"] is None
    assert found.metrics["logloss"] > 0 and np.isnan(found.metrics["gauc"])


@pytest.mark.parametrize("idle", [{"level": 0.9}, {"unit": "group"}])
def test_idle_settings_are_refused(idle: dict) -> None:
    with refused("setting-without-effect", "bootstrap", *idle):
        RankingEvaluation.parse({"bootstrap": 0, **idle})
