"""The page of ranking models: every figure with alt text and numbers, what is missing said, kept results taken."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import fullrank as fr
from fullrank.analysis.diagnosis import NAME
from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.page import Report
from fullrank.analysis.report.report import report
from fullrank.data.impressions.store import ImpressionStore
from fullrank.run import Run
from markets import planted_store
from refusals import refused
from seals import reseal
from tests.analysis.report.conftest import Page, make, write
from tests.training.clicks import shop, tiny
from tiny import shaken

RANKERS = {
    "lr": ("model={kind: click, ranker: lr}",), "dcnv2": (), "dnn": ("model.ranker=dnn",),
    "rankmixer": ("model.ranker=rankmixer", "model.ranker.tokens=4"),
    "elastor-$x$": ("model.ranker=rankelastor", "model.ranker.tokens=4", "model.ranker.width=6"),
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> ImpressionStore:
    return shop(tmp_path_factory.mktemp("clicks") / "data")


def written(store, path, *settings, watched=True) -> Run:
    """A run folder with drawn weights and three epochs in its journal."""
    spec = tiny(*settings)
    torch.manual_seed(0)
    rows = [
        {"event": "epoch", "step": 9 * n, "epoch": n, "train/loss": 3 / n, "validation/auc": n / 9} for n in (1, 2, 3)
    ]
    if watched:
        rows = [row | {"watch/last_layer_stable_rank": 1.0 + row["epoch"]} for row in rows]
        rows.insert(0, {"event": "watch", "step": 4, "epoch": 0.5, "watch/last_layer_stable_rank": 1.5})
    return write(path, spec, store, store.encoder, shaken(spec.model.build(store.fields)), rows)


@pytest.fixture(scope="module")
def runs(store, tmp_path_factory) -> dict:
    home = tmp_path_factory.mktemp("runs")
    return {name: written(store, home / name, *settings, watched=name != "lr") for name, settings in RANKERS.items()}


@pytest.fixture(scope="module")
def whole(runs) -> Report:
    made = report(list(runs.values()), impressions=100)
    return made


def drawn(made) -> dict:
    return {figure.name: figure for figure in made.figures if isinstance(figure, Figure) and figure.panels}


def test_every_figure_is_there_with_its_numbers(whole) -> None:
    open_, folded = ["reliability", "gain", "curves"], ["trajectory", *(f"distribution-{key}" for key in "BCDE")]
    assert list(drawn(whole)) == open_ + folded and [one.name for one in whole.sections][:2] == [
        "differences",
        open_[0],
    ]
    page = Page(whole.html)
    panels = [panel for figure in drawn(whole).values() for panel in figure.panels]
    assert [picture["aria-label"] for picture in page.named("svg")] == [panel.alt for panel in panels]
    assert all(len(panel.alt) > 30 for panel in panels)
    for figure in drawn(whole).values():
        assert figure.name in page.ids() and figure.caption in page.said()
        assert figure.rows and all(len(row) == len(figure.headers) for row in figure.rows), figure.name
    assert len(set(page.ids())) == len(page.ids())
    assert {"auc", "logloss", "gauc", "ece", "pcoc"} <= set(page.said().split())


def test_the_trajectory_is_that_of_the_diagnosis(whole) -> None:
    found = drawn(whole)["trajectory"]
    ranks = {(row[0], row[2]): row[3] for row in found.rows}
    for one in whole.results:
        for row in one.diagnosis.of("token_ranks", "stable_rank"):
            assert ranks[f"{one.key} {one.name}", row["label"]] == row["value"]
    assert len(found.panels) == 2 and found.absent == (
        "Run A (lr) is not shown: it has one weight per value and no vectors, so an impression is no matrix.",
    )


@pytest.fixture(scope="module")
def ladder(runs, store, tmp_path_factory) -> Report:
    """RankMixer of two blocks and of one (whose manifest says its size, twice), DCNv2 of three crosses and of one."""
    home = tmp_path_factory.mktemp("sizes")
    small = written(store, home / "small", *RANKERS["rankmixer"], "model.ranker.blocks=1")
    path = small.path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "size": {"dense_parameters": 321}}))
    reseal(small.path)
    seed = written(store, home / "seed", *RANKERS["rankmixer"], "seed=5")
    cross = written(store, home / "cross", "model.ranker.crosses=1")
    tables = written(store, home / "tables", "model.embedding.dim=4", "model.ranker.crosses=2")
    made = report(
        [runs["rankmixer"], runs["dcnv2"], Run.open(small.path), seed, cross, tables, runs["dnn"]], impressions=60
    )
    return made


def test_rank_against_dense_parameters(ladder) -> None:
    found, by_key = drawn(ladder)["size"], {one.key: one for one in ladder.results}
    assert [row[0].split()[0] for row in found.rows] == ["C", "A", "D", "E", "B"], "by line, smallest first"
    assert [row[1] for row in found.rows] == [
        321, *(by_key[key].run.model().size().dense for key in "ADEB")  # type: ignore[operator]
    ]  # fmt: skip
    assert [row[5] for row in found.rows] == ["mixing_0", "mixing_1", "mixing_1", "cross_0", "cross_2"]
    assert [row[6] for row in found.rows] == [4, 4, 4, 4, 4]
    for row in found.rows:
        one = by_key[row[0].split()[0]]
        ranks = {(tap["name"], tap["label"]): tap["value"] for tap in one.diagnosis.of("token_ranks")}
        assert row[2:5] == (one.metric("auc"), ranks["stable_rank", row[5]], ranks["entropy_rank", row[5]])
    assert [panel.alt.split(" by ")[0] for panel in found.panels] == ["auc", "effective rank"]
    assert all("C, A, D: " in panel.svg and "E, B: " in panel.svg for panel in found.panels)


def test_a_panel_for_each_step_between_layers(whole) -> None:
    panels = {key: len(drawn(whole)[f"distribution-{key}"].panels) for key in "BCDE"}
    assert panels == {"B": 3, "C": 1, "D": 5, "E": 5}
    assert "dnn" in whole.results[2].name and "embedding" in drawn(whole)["distribution-C"].panels[0].alt
    missing = [figure for figure in whole.figures if isinstance(figure, Missing)]
    assert [one.name for one in missing] == ["size", "distribution-A"] and "one weight per value" in missing[1].why


def test_training_and_what_was_watched_inside_epochs(whole) -> None:
    found = drawn(whole)["curves"]
    assert [panel.alt.split(" by epoch")[0] for panel in found.panels] == [
        "validation auc", "training loss (without penalties)", "stable rank behind the last layer",
    ]  # fmt: skip
    assert "B from 1.5 to 4" in found.panels[2].alt and "A from" not in found.panels[2].alt


def test_theorems_are_a_table_of_runs_that_mix(whole) -> None:
    said = Page(whole.html).said()
    assert "theorems of RankElastor in run D" in said and "theorems of RankElastor in run B" not in said
    assert "transpose_within" in said


@pytest.mark.slow
def test_kept_results_are_taken_and_others_measured(runs, tmp_path) -> None:
    run = Run.open(Path(shutil.copytree(runs["rankmixer"].path, tmp_path / "run")))
    kept = fr.evaluate(run, set=["bins=3"])
    kept.save(run.path)
    fr.diagnose(run, impressions=50).save(run.path / NAME)
    told = []

    def tell(what):
        told.append(what.split()[0])
        return lambda done, total: None

    made = report([run], tell=tell)
    assert told == [] and len(drawn(made)["reliability"].rows) <= 3  # type: ignore[arg-type]
    report([run], impressions=60, tell=tell)
    assert told == ["diagnose"]
    given = report([run], evaluations={"run": fr.evaluate(run, set=["bins=2"])}, tell=tell)
    assert len(drawn(given)["reliability"].rows) == 2  # type: ignore[arg-type]


def test_what_is_refused(runs, store) -> None:
    lr = runs["lr"]
    with refused("sample-of-other-problem", lr.path, "impressions"):
        report([lr], users=5)


def test_two_kinds_have_no_page_in_common(runs, tmp_path) -> None:

    market = planted_store(tmp_path / "market")
    other = make(market, tmp_path / "popularity", recipe="popularity")
    for pair in ([runs["lr"], other], [other, runs["lr"]]):
        with refused("two-problems", runs["lr"].path, other.path):
            report(pair)
    with refused("sample-of-other-problem", other.path, "users"):
        report([other], impressions=5)
    with refused("evaluation-does-not-fit", "popularity"):
        report([other], users=20, evaluations={"popularity": fr.evaluate(runs["lr"])})
