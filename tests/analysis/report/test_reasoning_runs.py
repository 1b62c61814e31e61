"""Figures of runs that reason: their numbers are the diagnosis', and without such runs a page is silent about them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fullrank.analysis.diagnostics.diversity import Diversity, reasons
from fullrank.analysis.diagnostics.latent_attention import OWN, LatentAttention
from fullrank.analysis.diagnostics.reasoning_steps import OracleStep, StepCurve
from fullrank.analysis.diagnostics.robustness import Robustness
from fullrank.analysis.diagnostics.streams import Streams
from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.collect import collect
from fullrank.analysis.report.page import Report
from fullrank.analysis.report.report import blocks_of_runs, joint_figures, report
from fullrank.api import evaluate
from fullrank.run import Run
from tests.analysis.report.conftest import Page, make
from tests.analysis.report.test_figures import figure

SETTINGS = ("model.task=last_item",)


@pytest.fixture(scope="module")
def thinkers(store, tmp_path_factory) -> list:
    """PLR of three streams, ReaRec, and their base."""
    home = tmp_path_factory.mktemp("thinkers")
    plr = make(store, home / "plr", *SETTINGS, "model.reasoner=plr", "model.reasoner.streams=3")
    rearec = make(store, home / "rearec", *SETTINGS, "model.reasoner=rearec")
    return [plr, rearec, make(store, home / "base", *SETTINGS)]


@pytest.fixture(scope="module")
def found(thinkers) -> list:
    return collect(thinkers, sample=40)


@pytest.fixture(scope="module")
def whole(thinkers) -> Report:
    return report(thinkers, users=40)


def test_distances_and_rate_are_the_diagnosis(found) -> None:
    made = figure(Diversity.figure(found))
    rows = found[0].diagnosis.of("diversity", "distance")
    assert [row[1:3] for row in made.rows] == [(row["index"], row["value"]) for row in rows]
    assert {row[3] for row in made.rows} == {found[0].diagnosis.value("diversity", "gamma")}
    assert made.absent == ("Run B (rearec) is not shown: it reasons in one stream, which has no other to differ from.",)


def test_the_curve_has_every_step_and_the_star(found) -> None:
    made = figure(StepCurve.figure(found))
    own = [row for row in made.rows if row[0] == "A plr"]
    assert [row[2] for row in own if row[1] == "fixed"] == [0, 1, 2, 3, 4]
    assert len([row for row in own if row[1] == "adaptive"]) == 1 and all(row[4] > 0 for row in own)
    accuracy = found[0].diagnosis.of("step_curve", "ndcg@10")
    assert [row[3] for row in own] == [row["value"] for row in accuracy]
    assert len(made.panels) == 2 and not made.absent, "the base does not reason, which is no news"


def test_the_ceiling_is_labelled_as_an_oracle(found) -> None:
    made = figure(OracleStep.figure(found))
    assert [row[0] for row in made.rows] == ["A plr", "B rearec"]
    for row in made.rows:
        assert row[2] == pytest.approx(row[1] + row[3]) and row[4] <= row[3] <= row[5]
    assert "oracle" in made.headers[2] and "reads the truth" in made.caption and "no result" in made.caption


def test_streams_show_matrix_and_gate(found) -> None:
    made = figure(Streams.figure_of(found[0]))
    table = np.array([row[1:4] for row in made.rows])
    kl = [row["value"] for row in found[0].diagnosis.of("streams", "kl")]
    assert table.ravel().tolist() == kl and np.diag(table).max() == 0
    assert sum(row[4] for row in made.rows) == pytest.approx(1) and sum(row[5] for row in made.rows) == pytest.approx(1)
    assert "With equal weights instead, ndcg@10 would be" in made.caption
    gone = Streams.figure_of(found[1])
    assert isinstance(gone, Missing) and "one stream" in gone.why


def test_looks_add_up_to_all_attention(found) -> None:
    made = figure(LatentAttention.figure_of(found[0]))
    assert made.headers[-1] == OWN and made.rows[0][0] == "even attention"
    assert sum(made.rows[0][1:-1]) == pytest.approx(1) and made.rows[0][-1] is None
    assert len(made.rows) == 1 + 2 * 3 * 2 and all(sum(row[1:]) == pytest.approx(1) for row in made.rows[1:])
    assert figure(LatentAttention.figure_of(found[1])).rows[1][0] == "layer 1, stream 1, step 1"


def test_robustness_has_every_run(found) -> None:
    made = figure(Robustness.figure(found))
    assert [row[:2] for row in made.rows[:5]] == [("A plr", n) for n in (0, 10, 20, 30)] + [("B rearec", 0)]
    assert len(made.rows) == 12
    without = [one.__class__(**{**vars(one), "diagnosis": type(one.diagnosis)(())}) for one in found]
    assert isinstance(Robustness.figure(without), Missing)
    assert Diversity.figure(without) is None, "without rows it is not known whether a run reasons"


def test_an_evaluation_with_hidden_events_is_not_taken(thinkers, store, tmp_path) -> None:
    path = Path(shutil.copytree(thinkers[2].path, tmp_path / "base"))
    evaluate(thinkers[2], set=["drop=0.9"]).save(path)
    (one,) = collect([Run.open(path)], sample=40)
    assert "dropped" not in one.evaluation.protocol


@pytest.mark.slow
def test_a_page_without_reasoners_does_not_mention_them(found) -> None:
    (block,) = blocks_of_runs("retrieval", found[2:])
    names = {one.name for one in [*joint_figures("retrieval", found[2:]), *block.figures]}
    assert not names & {"diversity", "step_curve", "oracle_step", "streams-C", "looks-C"} and not reasons(found[2])
    assert {"diversity", "step_curve", "oracle_step"} <= {one.name for one in joint_figures("retrieval", found)}


def test_the_page_shows_them(whole) -> None:
    page = Page(whole.html)
    drawn = [one for one in whole.figures if isinstance(one, Figure) and one.panels]
    assert {"streams-A", "looks-A", "looks-B", "oracle_step", "step_curve", "diversity"} <= {one.name for one in drawn}
    assert len(set(page.ids())) == len(page.ids())
    assert len(page.named("svg")) == sum(len(one.panels) for one in drawn)
    assert "reasoning steps" in page.said()
