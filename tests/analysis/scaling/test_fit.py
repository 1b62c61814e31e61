"""Laws find what is known, say what is not, and refuse what cannot be fitted."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullrank.analysis.scaling.fit import Law, condition, fit_law, srt_distance, srt_value
from fullrank.analysis.scaling.forms import FORMS
from fullrank.analysis.scaling.holdout import hold_out
from fullrank.analysis.scaling.ladder import Ladder, Trace
from refusals import refused
from tests.analysis.scaling.conftest import S_TRUTH, TRUTH, power_ladder, sigmoid_ladder

RUNS = {"power": power_ladder(), "loss": power_ladder(-1.0), "sigmoid": sigmoid_ladder(), "linear": sigmoid_ladder()}
TRUTHS = {"power": TRUTH, "loss": TRUTH, "sigmoid": S_TRUTH}


@cache
def law(form: str) -> Law:
    return fit_law(RUNS[form], form, resamples=60)


@pytest.mark.parametrize("form", TRUTHS)
def test_a_known_law_is_recovered(form: str) -> None:
    for name, value in TRUTHS[form].items():
        low, high = law(form).intervals[name]
        assert low <= value <= high, f"{name}: {value} is not in {low} .. {high}"
        assert form == "sigmoid" or abs(law(form).parameters[name] / value - 1) < 0.1, name
    if form != "sigmoid":
        assert law(form).rmse < 4e-4 and not law(form).at_bound
        assert not [d for d in law(form).unidentified if d.ground == "interval"]


def test_the_end_of_a_sigmoid_and_its_middle() -> None:
    sigmoid = law("sigmoid")
    assert abs(sigmoid.derived["asymptote"] - S_TRUTH["a"] - S_TRUTH["c"]) < 3e-3
    low, high = sigmoid.interval(flops=1e13)
    assert low[0] < sigmoid.predict(flops=1e13)[0] < high[0] and high[0] - low[0] < 0.01


def test_a_line_is_its_closed_form() -> None:
    traces = RUNS["linear"].traces
    held = np.maximum.accumulate([t.metric[0] for t in traces])
    kept = np.concatenate([[True], np.diff(held) > 0])
    x = np.log([t.flops[0] for t in traces])  # type: ignore[index]
    assert np.allclose(law("linear").theta, np.polyfit(x[kept], held[kept], 1))


@pytest.mark.parametrize("form", list(FORMS))
def test_derivatives_are_those_of_the_value(form: str) -> None:
    shape, draw = FORMS[form], np.random.default_rng(0)
    x, u = draw.normal(size=(9, len(shape.axes))), draw.uniform(0.2, 0.9, len(shape.parameters))
    for place in range(len(u)):
        step = np.zeros(len(u))
        step[place] = 1e-6
        slope = (shape.local(u + step, x) - shape.local(u - step, x)) / 2e-6
        assert np.allclose(shape.jacobian(u, x)[:, place], slope, atol=1e-7)
    centre = draw.normal(size=x.shape[1])
    assert np.allclose(shape.value(shape.reported(u, centre), x + centre), shape.local(u, x))


def test_the_same_runs_give_the_same_law() -> None:
    few = power_ladder(sizes=4, datas=5)
    first, again, other = (fit_law(few, "power", resamples=20, seed=seed) for seed in (3, 3, 4))
    assert first.dump() == again.dump() and not np.array_equal(first.draws, other.draws)


def test_the_range_of_the_end_is_where_it_fits_as_well() -> None:
    for form, truth in (("power", 0.2), ("sigmoid", 0.32)):
        low, high = law(form).end_range or (0, 0)
        assert 0.95 * truth < low <= truth * 1.02 and truth * 0.98 <= high < 1.05 * truth, "these runs determine it"
    low, high = law("loss").end_range or (1, 0)
    assert low < 0.21 and high > 0.18
    assert law("linear").end_range is None


@pytest.mark.slow
def test_five_data_sizes_and_a_bound_are_said() -> None:
    few = fit_law(power_ladder(datas=4, noise=1e-2), "power", resamples=40)
    assert {d.ground for d in few.unidentified} >= {"levels", "interval"}
    assert set(few.dump()["not_determined"]) >= {"E", "B", "beta"}
    flat = power_ladder()
    risen = Ladder(tuple(replace(t, metric=0.02 * np.log(t.metric * 0 + t.data)) for t in flat.traces), "ndcg")  # type: ignore[arg-type,operator]
    bound = [d for d in fit_law(risen, "power", resamples=20).unidentified if d.ground == "bound"]
    assert ("E",) in [d.parameters for d in bound]


def test_a_law_that_was_recovered_is_not_called_undetermined() -> None:
    """Five values of each axis: without noise that is enough, and three of one axis never are."""
    for form, datas, noise in (("power", 5, 0.0), ("loss", 5, 0.0), ("power", 5, 1e-4), ("power", 3, 0.0)):
        sign = 1.0 if form == "power" else -1.0
        law = fit_law(power_ladder(sign, datas=datas, noise=noise, sizes=6), form, resamples=20)
        determined = datas == 5 and not noise
        assert set(law.dump()["not_determined"]) >= (set() if determined else {"E", "B", "beta"}), (form, datas, noise)
        assert not (determined and law.unidentified) and (noise or law.rmse < 1e-13)


def test_a_direction_without_effect_is_named() -> None:
    """With beta next to 0, E and B are one constant."""
    x = np.log(np.array(np.meshgrid([1e5, 1e6, 1e7], [1e5, 1e6, 1e7])).reshape(2, -1).T)
    number, together = condition(FORMS["power"], np.array([1.0, 3.0, 0.3, 1.0, 0.005]), x)
    assert number > 1000 and {"E", "B"} <= set(together)
    assert condition(FORMS["power"], np.array([0.2, 30.0, 0.45, 4.0, 0.4]), x)[0] < 1000


def test_held_out_runs_are_predicted_from_the_rest_and_are_not_in_the_fit() -> None:
    ladder = RUNS["power"]
    for by in ("data", "size"):
        held = hold_out(ladder, "power", by, resamples=20)  # type: ignore[arg-type]
        assert held.runs in (7, 8) and np.abs(held.error).max() < 2e-3
        assert held.dump()["rmse"] < 0.2 * held.dump()["rmse_of_nearest"]
        assert held.inside > 0.6 and held.law.runs == len(ladder) - held.runs
    top = max(float(t.size or 0) for t in ladder.traces)
    spoiled = tuple(replace(t, metric=t.metric * 0.5) if t.size == top else t for t in ladder.traces)
    other = hold_out(Ladder(spoiled, "ndcg"), "power", "size", resamples=20)
    assert held.law.parameters == other.law.parameters and np.abs(other.error).max() > 0.01


def run(name: str = "a", metric: Any = (0.1, 0.2), flops: Any = (1e9, 2e9), **others: Any) -> Trace:
    return Trace(name, np.array(metric, float), None if flops is None else np.array(flops, float), **others)


@pytest.mark.parametrize(
    ("trace", "code", "names"),
    [
        ({"metric": (0.1, float("nan"))}, "not-finite", ["nan"]),
        ({"flops": (-1e9, 2e9)}, "not-positive", ["flops", "-1e+09"]),
        ({"flops": (0.0, 2e9)}, "not-positive", ["flops is 0"]),
        ({"flops": (2e9, 1e9)}, "not-rising", ["flops"]),
        ({"flops": (1e9,)}, "wrong-length", [1, 2]),
        ({"parameters": -3.0}, "not-positive", ["parameters", -3]),
        ({"data": float("nan")}, "not-positive", ["data", "nan"]),
        ({"metric": (), "flops": ()}, "no-values", ["ndcg"]),
    ],
)
def test_a_run_that_cannot_be_used_is_refused(trace: dict[str, Any], code: str, names: list[Any]) -> None:
    with refused(code, "'bad'", *names):
        Ladder((run(), run("bad", **trace)), "ndcg")


@pytest.mark.parametrize("form", list(FORMS))
def test_fewer_runs_than_parameters_are_refused(form: str) -> None:
    least = len(FORMS[form].parameters)
    ladder = Ladder(tuple(run(str(i), parameters=1.0 + i, data=2.0 + i) for i in range(least - 1)), "ndcg")
    with refused("too-few-runs", f"{least - 1} runs", f"'{form}'", f"{least} parameters"):
        fit_law(ladder, form)


def with_metric(change: Callable[[np.ndarray], np.ndarray]) -> Ladder:
    return Ladder(tuple(replace(t, metric=change(t.metric)) for t in RUNS["power"].traces), "ndcg")


def without(**axes: Any) -> Ladder:
    return Ladder(tuple(replace(t, **axes) for t in RUNS["power"].traces), "ndcg")


@pytest.mark.parametrize(
    ("ladder", "form", "code", "names"),
    [
        (with_metric(lambda metric: metric * 0 + 0.1), "sigmoid", "constant-metric", ["ndcg", 0.1]),
        (with_metric(lambda metric: metric * 100), "power", "metric-above-one", [100]),
        (power_ladder(datas=1), "power", "too-few-levels", ["data", 1]),
        (without(data=None), "power", "missing-sizes", ["data"]),
        (without(flops=None), "sigmoid", "missing-sizes", ["flops"]),
        (RUNS["power"], "sigmiod", "unknown-form", ["sigmoid"]),
    ],
)
def test_other_runs_that_cannot_be_fitted_are_refused(ladder: Ladder, form: str, code: str, names: list[Any]) -> None:
    with refused(code, *names):
        fit_law(ladder, form)


def test_what_cannot_be_asked_is_refused() -> None:
    with refused("setting-out-of-range", 3):
        fit_law(RUNS["power"], "power", resamples=3)
    with refused("wrong-axes", "parameters", "data", "flops"):
        law("power").predict(flops=1e9)
    with refused("nothing-held-out"):
        hold_out(without(data=5.0), "sigmoid", "data")


@pytest.mark.slow
def test_the_published_runs_give_the_published_curve(srt_csv: Path) -> None:
    law = fit_law(srt_csv, "sigmoid", resamples=40)
    assert len(law.residuals) == 945 and law.runs == 119
    assert srt_distance(law) < 0.006
    low, high = law.intervals["asymptote"]
    assert low <= 0.149 <= high
    assert {"a", "c"} <= set(law.dump()["not_determined"]), "the constants themselves are open, and it is said"
    assert np.allclose(law.theta, [0.390, 0.177, 24.433, -0.240], atol=1e-3)


def test_the_published_runs_do_not_determine_size_and_data(srt_csv: Path) -> None:
    law = fit_law(srt_csv, "power", resamples=40)
    assert law.at_bound == ("E",) and {"E", "B", "beta"} <= set(law.dump()["not_determined"])
    assert law.rmse < 0.004 and law.end_range is not None
    assert law.end_range[0] < 0.163 < 0.9 < law.end_range[1], (
        "the paper's E fits about as well as one six times as large"
    )


def test_the_papers_constants() -> None:
    assert srt_value("sigmoid", flops=np.exp(24.44))[0] == pytest.approx(0.396 / 2 - 0.247)
    assert srt_value("power", parameters=1e7, data=1e6)[0] == pytest.approx(
        0.163 - 18.56 / 1e7**0.376 - 2.9 / 1e6**0.364
    )
    with refused("unknown-form", "linear", "sigmoid", "power"):
        srt_value("linear", flops=1e9)
