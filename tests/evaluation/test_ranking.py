"""Evaluating click models: what the numbers are, how two runs are compared, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.data.impressions.vocabulary import hash_bucket
from fullrank.evaluation import EvaluationResult, compare
from fullrank.evaluation.ranking import evaluate_ranking, ranking_result
from fullrank.evaluation.result import PerImpression
from fullrank.evaluation.spec import RankingEvaluation
from fullrank.evaluation.statistics import bounds, draws, resample_clicks
from fullrank.metrics.ctr import auc, group_aucs, losses
from fullrank.models.ranking.model import RankingModel
from refusals import refused
from tests.training.clicks import table


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


def test_gauc_is_resampled_by_groups() -> None:
    """Against a loop over the groups, with one of a single class; errors agree with the jackknife of the groups."""
    some = rows(0.8, 600)
    assert some.groups is not None
    labels = np.where(some.groups == 7, 0.0, some.labels)
    value, sizes = group_aucs(some.probabilities, labels, some.groups)
    kept = [g for g in np.unique(some.groups) if g != 7]
    assert np.allclose(value, [auc(some.probabilities[some.groups == g], labels[some.groups == g]) for g in kept])
    drawn = resample_clicks(some.probabilities, labels, some.groups, samples=400, seed=3)["gauc"]
    for sample, counts in zip(drawn[:5], draws(len(kept), 400, 3), strict=False):
        chosen = np.repeat(np.arange(len(kept)), counts.astype(int))
        assert sample == pytest.approx((value * sizes)[chosen].sum() / sizes[chosen].sum())
    without = [np.average(np.delete(value, g), weights=np.delete(sizes, g)) for g in range(len(kept))]
    jackknife = np.sqrt((len(kept) - 1) * np.var(without))
    assert 0.85 < drawn.std(ddof=1) / jackknife < 1.15
    found = ranking_result(replace(some, labels=labels), RankingEvaluation(), "test", "abc")
    low, high = found.interval["gauc"]
    assert low < found.metrics["gauc"] < high and found.stderr["gauc"] == pytest.approx(jackknife, rel=0.2)


def test_gauc_of_two_runs_is_paired_by_group() -> None:
    """Two runs that differ by the same in each group differ without doubt, however much groups differ."""
    a, b = judged(0.7), judged(0.9)
    apart = compare(a, b, "gauc")
    assert apart.difference == b.metrics["gauc"] - a.metrics["gauc"] and apart.test.startswith("paired bootstrap of gr")
    assert apart.interval[0] < apart.difference < apart.interval[1]
    sides = [resample_clicks(s.probabilities, s.labels, s.groups, samples=1000, seed=0)["gauc"] for s in
             (a.per_impression, b.per_impression)]  # fmt: skip
    assert apart.interval == bounds(sides[1] - sides[0], 0.95)
    assert compare(a, a, "gauc").interval == (0, 0) and compare(a, a, "gauc").p == 1
    with refused("unknown-metric", "gauc"):
        compare(judged(0.7, groups=False), judged(0.9, groups=False), "gauc")


def test_metrics_are_chosen_by_name() -> None:
    found = judged(0.9, RankingEvaluation(metrics=("gauc", "ece"), bootstrap=20))
    assert list(found.metrics) == ["gauc", "ece"] and list(found.interval) == ["gauc"]
    assert found.metrics["ece"] == judged(0.9).metrics["ece"]
    with refused("unknown-metric", "did you mean 'gauc'"):
        RankingEvaluation.parse({"metrics": ["gaucc"]})
    with refused("no-group-column", "gauc"):
        judged(0.9, RankingEvaluation(metrics=("gauc",)), groups=False)
    with refused("unknown-metric", "auc"):
        compare(found, found, "auc")


def test_slices_are_the_metrics_of_the_rows_of_each_value(tmp_path: Path) -> None:
    """Of every kind of field that has slices, against the rows of the table that hold the value."""
    frame = table(1500).with_columns(country=pl.Series([None, "de", "fr"] * 500), year=pl.int_range(1500) % 9)
    fields = ["country", {"name": "user", "hash_buckets": 6}, {"name": "tags", "kind": "bag"}, {"name": "item"},
              {"name": "year", "kind": "numeric", "transform": "bucket", "buckets": 3},
              {"name": "age", "kind": "numeric"}]  # fmt: skip
    store = fr.prepare_impressions(frame, tmp_path / "store", schema={"fields": fields, "group": "user"})
    model = RankingModel().build(store.fields).eval()
    names = ("country", "user", "tags", "item", "year")
    spec = RankingEvaluation(slices=names, bootstrap=5)
    found = evaluate_ranking(model, store, "test", spec)
    assert found.metrics == evaluate_ranking(model, store, "test", RankingEvaluation(bootstrap=5)).metrics
    some = found.per_impression
    shown = frame[store.external(some.rows)["input_row"].to_numpy()].with_row_index()
    low, high = store.encoder.fitted["year"]["edges"]
    holds = {
        "country": {"(missing)": pl.col("country").is_null(), "de": pl.col("country") == "de"},
        "tags": {"(missing)": pl.col("tags").list.len() == 0, "t3": pl.col("tags").list.contains("t3")},
        "item": {"7": pl.col("item") == 7},
        "user": {
            f"hash bucket {n}": pl.col("user").is_in([u for u in range(20) if hash_bucket(str(u), 6) == n])
            for n in range(6)
        },
        "year": {
            f"year < {low:g}": pl.col("year") < low,
            f"{low:g} <= year < {high:g}": (pl.col("year") >= low) & (pl.col("year") < high),
        },
    }
    for name, labels in holds.items():
        whole = sum(one["count"] for one in found.slices[name].values())
        assert whole == len(some.rows) or name == "tags"
        for label, rule in labels.items():
            if label not in found.slices[name] and name in ("item", "user"):
                continue
            part = some.take(shown.filter(rule)["index"].to_numpy())
            expected = ranking_result(part, RankingEvaluation(bootstrap=0), "test", "abc").metrics
            numbers = found.slices[name][label]
            assert (numbers["count"], numbers["clicks"]) == (len(part.rows), part.labels.sum())
            assert {key: numbers[key] for key in expected} == pytest.approx(expected, nan_ok=True), (name, label)
    assert list(found.slices["item"])[-1] == "(10 other values)" and len(found.slices["item"]) == 21
    found.save(tmp_path / "saved")
    back = EvaluationResult.load(tmp_path / "saved")
    assert back.dump() == found.dump()
    assert np.array_equal(back.per_impression.probabilities, found.per_impression.probabilities)
    for code, name in {"field-without-slices": "age", "unknown-field": "countri"}.items():
        with refused(code, name):
            evaluate_ranking(model, store, "test", RankingEvaluation(slices=(name,)))


def test_resampling_groups_is_wider_where_rows_repeat() -> None:
    some = rows(0.9, 200, groups=False)
    copies = [np.repeat(x, 10) for x in (some.probabilities, some.labels, np.arange(200))]
    by_row, by_group = (
        resample_clicks(*copies, by_group=by_group, samples=100, seed=0)["auc"].std() for by_group in (False, True)
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


def test_a_single_class_gives_no_auc_but_a_loss() -> None:
    some = rows(0.9, 50)
    found = ranking_result(replace(some, labels=np.zeros(50)), RankingEvaluation(bootstrap=5), "test", "abc")
    assert np.isnan(found.metrics["auc"]) and found.dump()["metrics"]["auc"] is None
    assert found.metrics["logloss"] > 0 and np.isnan(found.metrics["gauc"])


@pytest.mark.parametrize("idle", [{"level": 0.9}, {"unit": "group"}])
def test_idle_settings_are_refused(idle: dict) -> None:
    with refused("setting-without-effect", "bootstrap", *idle):
        RankingEvaluation.parse({"bootstrap": 0, **idle})
