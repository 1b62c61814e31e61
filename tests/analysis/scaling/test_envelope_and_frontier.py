"""The envelope by hand, and the best split of a budget against its closed form."""

from dataclasses import replace

import numpy as np
import pytest

from fullrank.analysis.scaling.fit import fit_law
from fullrank.analysis.scaling.forms import FORMS
from fullrank.analysis.scaling.frontier import advise, compute_frontier, epoch_cost, optimum
from fullrank.analysis.scaling.ladder import Ladder, Trace, envelope
from refusals import refused
from tests.analysis.scaling.conftest import TRUTH, power_ladder


def trace(name: str, flops: list[float], metric: list[float]) -> Trace:
    return Trace(name, np.array(metric), np.array(flops, float), np.arange(1.0, len(flops) + 1), 5.0, 7.0)


def test_by_hand() -> None:
    """Moments 1 2 3 4 6: run a has .1 .2 .2 .2 -, run b - - .1 .25 .55 of which .1 and the repeats are no records."""
    found = envelope(Ladder((trace("a", [1, 2, 4], [0.1, 0.2, 0.2]), trace("b", [3, 6], [0.1, 0.55])), "m"))
    assert found.flops.tolist() == [1, 2, 4, 6] and np.allclose(found.metric, [0.1, 0.2, 0.25, 0.55])
    assert found.run.tolist() == [0, 0, 1, 1]
    assert found.epochs is not None and np.allclose(found.epochs, [1, 2, 1 + 1 / 3, 2])


def test_a_run_says_nothing_outside_of_its_moments() -> None:
    found = envelope(Ladder((trace("a", [4, 8], [0.5, 0.9]), trace("b", [1, 2], [0.1, 0.2])), "m"))
    assert found.flops.tolist() == [1, 2, 4, 8]


def test_of_losses_the_smallest_counts() -> None:
    found = envelope(Ladder((trace("a", [1, 2], [3.0, 2.0]), trace("b", [1, 2], [2.5, 2.4])), "m"), lower=True)
    assert found.metric.tolist() == [2.5, 2.0] and found.run.tolist() == [1, 0]


@pytest.mark.parametrize("form", ["power", "loss"])
@pytest.mark.parametrize("flops", [1e12, 1e16])
def test_the_best_split_is_the_closed_form(form: str, flops: float) -> None:
    """For C = k N T: N^(alpha + beta) = alpha A / (beta B) (C / k)^beta."""
    theta, k = np.array(list(TRUTH.values())), 6.0
    n, t, metric = optimum(FORMS[form], theta, flops, lambda n, t: k * n * t)
    _, a, alpha, b, beta = theta
    expected = (alpha * a / (beta * b) * (flops / k) ** beta) ** (1 / (alpha + beta))
    assert n == pytest.approx(expected, rel=1e-3) and k * n * t == pytest.approx(flops, rel=1e-6)
    lost = a * n**-alpha + b * t**-beta
    assert metric == pytest.approx(0.2 + lost if form == "loss" else 0.2 - lost)


def test_data_that_end_leave_the_rest_to_the_size() -> None:
    theta = np.array(list(TRUTH.values()))
    n, t, _ = optimum(FORMS["power"], theta, 1e16, lambda n, t: 6 * n * t, data=1e5)
    assert t == pytest.approx(1e5, rel=1e-6) and n == pytest.approx(1e16 / 6e5, rel=0.01)


def test_cost_is_read_from_the_runs() -> None:
    cost = epoch_cost(power_ladder())
    assert cost.factor == pytest.approx(6, rel=1e-6) and cost.power == pytest.approx(1) and cost.scatter < 1.0001


def test_the_line_through_the_best_runs() -> None:
    lines, points = compute_frontier(power_ladder())
    assert np.allclose(points["seen"] / points["data"], points["flops"] / (6 * points["parameters"] * points["data"]))
    slope, level = np.polyfit(np.log(points["flops"]), np.log(points["parameters"]), 1)
    assert lines["parameters"](1e12)[0] == pytest.approx(np.exp(level + slope * np.log(1e12)))


@pytest.mark.slow
def test_advice_holds_its_budget_and_its_intervals() -> None:
    ladder = power_ladder()
    found = advise(ladder, 1e13, resamples=20)
    for value, low, high in (found.parameters, found.data, found.metric, *found.by_law.values()):
        assert low <= high and low * 0.9 <= value <= high * 1.1
    assert 6 * found.parameters[0] * found.data[0] * found.epochs[0] == pytest.approx(1e13, rel=1e-3)
    assert not any("extrapolation" in note for note in found.notes)
    far = advise(ladder, 1e25, resamples=20)
    assert any("extrapolation" in note for note in far.notes) and any("epochs are more" in note for note in far.notes)
    short = advise(ladder, 1e15, data=1e5, resamples=20)
    assert short.data[0] == 1e5 and any("had more data" in note for note in short.notes)
    law = fit_law(ladder, "power", resamples=20)
    assert short.metric[0] == pytest.approx(float(law.predict(parameters=short.parameters[0], data=1e5)[0]))
    assert optimum(law.form, law.theta, 1e13, lambda n, t: 6 * n * t)[2] == pytest.approx(
        found.by_law["metric"][0], abs=0.02
    )


def test_advice_on_losses() -> None:
    found = advise(power_ladder(-1.0), 1e13, form="loss", resamples=20)
    assert found.metric[0] == pytest.approx(found.by_law["metric"][0], abs=0.02)


@pytest.mark.slow
def test_advice_that_cannot_be_given() -> None:
    ladder = power_ladder()
    endless = Ladder(tuple(replace(t, epochs=None) for t in ladder.traces), "ndcg")
    for runs, flops, how, code, names in (
        (ladder, -1.0, {}, "setting-out-of-range", ("flops", -1)),
        (ladder, 1e12, {"form": "sigmoid"}, "unknown-form", ("power", "loss", "sigmoid")),
        (ladder, 1e12, {"data": 0.5}, "setting-out-of-range", ("data",)),
        (ladder, 1e-3, {"resamples": 20}, "budget-too-small", ()),
        (endless, 1e12, {}, "missing-sizes", ("epochs",)),
    ):
        with refused(code, *names):
            advise(runs, flops, **how)  # type: ignore[arg-type]
