"""The numbers behind the figures, against loops; and what each figure asks for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullrank.analysis.diagnostics.ablation import Ablation
from fullrank.analysis.diagnostics.attention_share import AttentionShare, item_bands
from fullrank.analysis.diagnostics.bound import Bound
from fullrank.analysis.diagnostics.curves import RetrievalCurves
from fullrank.analysis.diagnostics.evaluation import Pareto, PopularityBands, pareto_front
from fullrank.analysis.diagnostics.feature_worth import FeatureWorth
from fullrank.analysis.diagnostics.size import Depth
from fullrank.analysis.diagnostics.spectrum import Layers, SpectralCollapse
from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.collect import collect
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.results import RunResult
from tests.analysis.report.conftest import make


@pytest.fixture(scope="module")
def found(runs) -> list:
    return collect(list(runs.values()), sample=40)


def figure(made) -> Figure:
    assert isinstance(made, Figure), made
    return made


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_the_front_holds_who_is_not_beaten(points) -> None:
    best = pareto_front([(float(x), float(y)) for x, y in points])
    for place, (x, y) in enumerate(points):
        beaten = any((a > x and b >= y) or (a >= x and b > y) for a, b in points)
        assert (place in best) is not beaten
    assert [points[i][0] for i in best] == sorted(points[i][0] for i in best)


def test_pareto_rows_are_metrics_with_intervals(found) -> None:
    made = figure(Pareto.figure(found))
    for row, one in zip(made.rows, found, strict=True):
        assert row[:2] == (f"{one.key} {one.name}", one.metric("ndcg@10")) and row[4] == one.metric("fair0.8@1")
        assert (row[2], row[3]) == one.interval("ndcg@10")
    assert isinstance(Pareto.figure(found[:1]), Missing)


def test_bands_count_recommended_places(found) -> None:
    made = figure(PopularityBands.figure(found[:1]))
    one = found[0]
    popularity = one.run.catalog.popularity
    band, counts, events = item_bands(popularity), np.zeros(5), np.zeros(5)
    for row in one.evaluation.per_user.lists[:, :10]:
        for item in row:
            counts[band[item]] += 1
    for item, many in enumerate(popularity):
        events[band[item]] += many
    assert [row[1] for row in made.rows] == pytest.approx((events / events.sum()).tolist())
    assert [row[2] for row in made.rows] == pytest.approx((counts / counts.sum()).tolist())


def test_depth_compares_what_differs_in_layers_alone(found, store, tmp_path_factory) -> None:
    made = figure(Depth.figure(found))
    assert [row[1] for row in made.rows] == [1, 2, 3], "neither the recurrent run nor the baseline"
    assert [row[2] for row in made.rows] == [one.metric("ndcg@10") for one in found[:3]]
    home = tmp_path_factory.mktemp("wide")
    wide = collect([make(store, home / "wide", "model.encoder.layers=4", "model.dim=12")], sample=20)
    assert isinstance(Depth.figure([found[0], *wide]), Missing), "the width differs too"
    seeds = collect([make(store, home / "seed", "model.encoder.layers=2", "seed=1")], sample=20)
    (seed,) = (replace(one, key="Z") for one in seeds)
    assert [row[1] for row in figure(Depth.figure([*found[:2], seed])).rows] == [1, 2, 2]


def test_spectra_layers_and_bounds_leave_out_who_has_none(found) -> None:
    spectra = figure(SpectralCollapse.figure(found))
    assert len(spectra.rows) == 5 and not spectra.absent
    made = figure(Layers.figure(found))
    assert len(made.rows) == 2 + 3 + 4 + 2 and len(made.panels) == 3 and "popularity" in made.absent[0]
    assert len(figure(Bound.figure(found)).absent) == 2
    one = found[0]
    share = one.diagnosis.value("spectrum", "collapse_share")
    assert spectra.rows[0][1] == share and "by falling strength: A from 1 to" in spectra.panels[0].alt
    assert isinstance(Layers.figure(found[4:]), Missing) and isinstance(Bound.figure(found[3:]), Missing)


def test_rows_of_single_runs(found) -> None:
    made = figure(Ablation.figure_of(found[1]))
    assert [row[0] for row in made.rows] == [
        "whole model", "no attention 1", "no attention 2", "no attention",
        "no feed-forward 1", "no feed-forward 2", "no feed-forward", "every event alone",
    ]  # fmt: skip
    assert len(made.panels) == 3
    ratios = figure(AttentionShare.figure_of(found[1]))
    assert [row[0] for row in ratios.rows[:2]] == ["share of events", "layer 1, head 1"]
    assert sum(ratios.rows[0][1:]) == pytest.approx(1)


def test_curves_show_what_was_journalled(found) -> None:
    made = figure(RetrievalCurves.figure(found))
    assert made.headers == ("run", "epoch", "validation ndcg@10", "training loss (without penalties)", "collapse share")
    assert made.rows[0] == ("A deep-1", 1, 1 / 9, 3.0, 0.1)
    gru = [row for row in made.rows if row[0] == "D gru"]
    assert len(gru) == 3 and gru[0][-1] is None
    assert "train with --watch" in figure(RetrievalCurves.figure(found[3:])).caption
    assert isinstance(RetrievalCurves.figure(found[4:]), Missing)


def test_a_journal_with_odd_values_is_read_around(found) -> None:
    one = found[0]
    odd = ({"event": "epoch", "step": 1, "epoch": "x", "train/loss": 1}, {"event": "epoch", "step": 2, "epoch": 2,
            "train/loss": float("nan"), "validation/ndcg@10": "high"}, *one.epochs)  # fmt: skip
    made = figure(
        RetrievalCurves.figure(
            [RunResult(one.key, one.name, one.run, one.evaluation, one.diagnosis, odd, one.accuracy)]
        )
    )
    assert made.rows[0][1:] == (2, None, None, None)


def test_each_run_looks_different() -> None:
    looks = {tuple(look(place).values()) for place in range(28)}
    assert len(looks) == 28


def test_what_features_are_worth(store, runs, tmp_path) -> None:
    """A bar for each feature that a run reads, by what is lost; of a run that reads none, nothing is said."""
    two = make(store, tmp_path / "two", "model.features={event: [gap], request: [hour]}")
    one = make(store, tmp_path / "one", "model.features={request: [hour]}")
    made = figure(FeatureWorth.figure(collect([two, runs["deep-1"], one], sample=40)))
    assert [row[0] for row in made.rows] == ["A two"] * 2 + ["C one"] and made.absent == ()
    assert {row[1] for row in made.rows[:2]} == {"event.gap", "request.hour"} and made.rows[2][1] == "request.hour"
    assert made.rows[0][2] >= made.rows[1][2]
    for _, _, lost, low, high, *recall in made.rows:
        assert low <= lost <= high and low < high and len(recall) == 3
    (panel,) = made.panels
    assert "request.hour" in panel.alt and "C" in panel.alt
