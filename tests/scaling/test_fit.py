"""Laws find what is known, say what is not, and refuse what cannot be fitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullrank.scaling.fit import fit_law, srt_distance, srt_value
from fullrank.scaling.forms import FORMS
from fullrank.scaling.holdout import hold_out
from fullrank.scaling.identifiability import condition
from fullrank.scaling.ladder import Ladder, Trace
from refusals import refused
from tests.scaling.conftest import S_TRUTH, TRUTH

Make = Callable[..., Ladder]


@pytest.mark.parametrize(("form", "sign"), [("power", 1.0), ("loss", -1.0)])
def test_a_known_law_of_size_and_data_is_recovered(form: str, sign: float, power_ladder: Make) -> None:
    law = fit_law(power_ladder(sign), form, resamples=60)
    for name, value in TRUTH.items():
        low, high = law.intervals[name]
        assert low <= value <= high, f"{name}: {value} is not in {low} .. {high}"
        assert abs(law.parameters[name] / value - 1) < 0.1, name
    assert law.rmse < 4e-4 and not law.at_bound and not [d for d in law.unidentified if d.ground == "interval"]


def test_a_known_sigmoid_is_recovered(sigmoid_ladder: Ladder) -> None:
    law = fit_law(sigmoid_ladder, "sigmoid", resamples=60)
    truth = {**S_TRUTH, "c": S_TRUTH["c"] + 0.12}
    for name, value in truth.items():
        low, high = law.intervals[name]
        assert low <= value <= high, f"{name}: {value} is not in {low} .. {high}"
    assert abs(law.derived["asymptote"] - truth["a"] - truth["c"]) < 3e-3
    low, high = law.interval(flops=1e13)
    assert low[0] < law.predict(flops=1e13)[0] < high[0] and high[0] - low[0] < 0.01


def test_a_line_is_its_closed_form(sigmoid_ladder: Ladder) -> None:
    law = fit_law(sigmoid_ladder, "linear", resamples=20)
    held = np.maximum.accumulate([t.metric[0] for t in sigmoid_ladder.traces])
    kept = np.concatenate([[True], np.diff(held) > 0])
    x = np.log([t.flops[0] for t in sigmoid_ladder.traces])  # type: ignore[index]
    assert np.allclose(law.theta, np.polyfit(x[kept], held[kept], 1))


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


def test_the_same_runs_give_the_same_law(power_ladder: Make) -> None:
    first, again = (fit_law(power_ladder(), "power", resamples=20, seed=3) for _ in range(2))
    other = fit_law(power_ladder(), "power", resamples=20, seed=4)
    assert first.dump() == again.dump() and not np.array_equal(first.draws, other.draws)


def test_the_range_of_the_end_is_where_it_fits_as_well(power_ladder: Make, sigmoid_ladder: Ladder) -> None:
    for ladder, form, truth in ((power_ladder(), "power", 0.2), (sigmoid_ladder, "sigmoid", 0.32)):
        law = fit_law(ladder, form, resamples=20)
        assert law.end_range is not None
        low, high = law.end_range
        assert 0.95 * truth < low <= truth * 1.02 and truth * 0.98 <= high < 1.05 * truth, "these runs determine it"
    losses = fit_law(power_ladder(-1.0), "loss", resamples=20)
    assert losses.end_range is not None and losses.end_range[0] < 0.21 and losses.end_range[1] > 0.18
    assert fit_law(sigmoid_ladder, "linear", resamples=20).end_range is None


@pytest.mark.slow
def test_five_data_sizes_and_a_bound_are_said(power_ladder: Make) -> None:
    few = fit_law(power_ladder(datas=4, noise=1e-2), "power", resamples=40)
    assert {d.ground for d in few.unidentified} >= {"levels", "interval"}
    assert set(few.dump()["not_determined"]) >= {"E", "B", "beta"}
    flat = power_ladder()
    risen = Ladder(tuple(replace(t, metric=0.02 * np.log(t.metric * 0 + t.data)) for t in flat.traces), "ndcg")  # type: ignore[arg-type,operator]
    bound = [d for d in fit_law(risen, "power", resamples=20).unidentified if d.ground == "bound"]
    assert ("E",) in [d.parameters for d in bound]


def test_a_law_that_was_recovered_is_not_called_undetermined(power_ladder: Make) -> None:
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


def test_held_out_runs_are_predicted_from_the_rest(power_ladder: Make) -> None:
    ladder = power_ladder()
    for by in ("data", "size"):
        held = hold_out(ladder, "power", by, resamples=30)  # type: ignore[arg-type]
        assert held.runs in (7, 8) and np.abs(held.error).max() < 2e-3
        assert held.dump()["rmse"] < 0.2 * held.dump()["rmse_of_nearest"]
        assert held.inside > 0.6 and held.law.runs == len(ladder) - held.runs


def test_a_held_out_run_is_not_in_the_fit(power_ladder: Make) -> None:
    ladder = power_ladder()
    top = max(float(t.data or 0) for t in ladder.traces)
    spoiled = Ladder(tuple(replace(t, metric=t.metric * 0.5) if t.data == top else t for t in ladder.traces), "ndcg")
    one, other = (hold_out(x, "power", "data", resamples=20) for x in (ladder, spoiled))
    assert one.law.parameters == other.law.parameters and np.abs(other.error).max() > 0.01


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


def test_other_runs_that_cannot_be_fitted_are_refused(power_ladder: Make) -> None:
    ladder = power_ladder()
    flat = Ladder(tuple(replace(t, metric=t.metric * 0 + 0.1) for t in ladder.traces), "ndcg")
    with refused("constant-metric", "ndcg", 0.1):
        fit_law(flat, "sigmoid")
    percent = Ladder(tuple(replace(t, metric=t.metric * 100) for t in ladder.traces), "ndcg")
    with refused("metric-above-one", 100):
        fit_law(percent, "power")
    with refused("too-few-levels", "data", 1):
        fit_law(power_ladder(datas=1), "power")
    with refused("missing-sizes", "data"):
        fit_law(Ladder(tuple(replace(t, data=None) for t in ladder.traces), "ndcg"), "power")
    with refused("missing-sizes", "flops"):
        fit_law(Ladder(tuple(replace(t, flops=None) for t in ladder.traces), "ndcg"), "sigmoid")
    with refused("unknown-form", "sigmoid"):
        fit_law(ladder, "sigmiod")
    with refused("too-few-resamples", 3):
        fit_law(ladder, "power", resamples=3)
    law = fit_law(ladder, "power", resamples=20)
    with refused("wrong-axes", "parameters", "data", "flops"):
        law.predict(flops=1e9)
    one = Ladder(tuple(replace(t, data=5.0) for t in ladder.traces), "ndcg")
    with refused("nothing-held-out"):
        hold_out(one, "sigmoid", "data")


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
