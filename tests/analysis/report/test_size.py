"""Which runs make one line of the figures of size, what stands across, and what is drawn of several seeds."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fullrank.analysis.diagnosis import Diagnosis
from fullrank.analysis.diagnostics.size import (
    PARTS,
    RANKER_SIZES,
    SIZES,
    RetrievalSize,
    line_label,
    same_but_for,
    seed_means,
)
from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.collect import collect
from fullrank.analysis.report.results import RunResult
from fullrank.run import Run
from fullrank.run.experiment import find_experiment
from markets import planted_store
from tests.analysis.report.conftest import make
from tests.analysis.report.test_figures import figure
from tests.training.clicks import shop
from tiny import catalog

GROWN = {
    "dim": ("sasrec", (), 8, 16),
    "encoder.layers": ("sasrec", (), 1, 3),
    "encoder.hidden": ("gru4rec", (), "null", 512),
    "encoder.inner": ("sasrec", (), "null", 800),
    "encoder.attention.qk_width": ("hstu", (), 8, 64),
    "encoder.attention.value_width": ("hstu", (), 8, 64),
    "ranker.tokens": ("rankelastor", ("model.ranker.width=8",), 4, 8),
    "ranker.width": ("rankelastor", (), 16, 32),
    "ranker.blocks": ("rankelastor", (), 1, 2),
    "ranker.tokeniser.hidden": ("rankelastor", (), "null", 900),
    "ranker.feed_forward.expansion": ("rankmixer", (), "null", 4),
    "ranker.feed_forward.hidden": ("rankmixer", (), "[]", "[50]"),
    "ranker.feed_forward.experts": ("rankmixer", ("model.ranker.feed_forward=experts",), 2, 4),
    "ranker.layers": ("autoint", (), 1, 2),
    "ranker.crosses": ("dcnv2", (), 1, 2),
    "ranker.rank": ("dcnv2", (), 2, 4),
    "ranker.experts": ("dcnv2", ("model.ranker.rank=2",), 2, 4),
    "ranker.cin": ("xdeepfm", (), "[4]", "[4, 4]"),
    "ranker.deep.hidden": ("dnn", (), "[16]", "[16, 16]"),
    "ranker.first.hidden": ("finalmlp", (), "[20]", "[20, 20]"),
    "ranker.second.hidden": ("finalmlp", (), "[20]", "[20, 20]"),
    "ranker.gate_hidden": ("finalmlp", (), "[8]", "[16]"),
}
"""Each setting of size but the heads: a recipe that has it, and a smaller and a larger value."""
HEADS = {"encoder.attention.heads", "ranker.heads"}
"""They split a width that they do not widen, and grow with it."""


def known(*specs) -> list:
    return [
        RunResult("ABCDEFG"[n], "", Run(Path("run"), spec, {}), None, Diagnosis(()), (), "")
        for n, spec in enumerate(specs)
    ]


def count(spec, fields) -> int:
    """Parameters without tables, by their names and not by their modules."""
    torch.manual_seed(0)
    if spec.clicks is None:
        model = spec.model.build(catalog())  # type: ignore[attr-defined]
        return sum(p.numel() for name, p in model.named_parameters() if not name.startswith("items."))
    found = spec.model.build(fields).size().dense  # type: ignore[attr-defined]
    return found


@pytest.fixture(scope="module")
def fields(tmp_path_factory) -> tuple:
    return tuple(shop(tmp_path_factory.mktemp("clicks") / "data").fields)


def test_every_setting_of_size_is_tried() -> None:
    assert set(GROWN) | HEADS == {*SIZES, *RANKER_SIZES} and set(PARTS) < set(RANKER_SIZES)


@pytest.mark.parametrize("name", GROWN)
def test_a_setting_of_size_adds_parameters_and_stays_in_line(name, fields) -> None:
    recipe, settings, less, more = GROWN[name]
    free = RANKER_SIZES if name.startswith("ranker.") else SIZES
    one, other = (find_experiment(recipe).override(*settings, f"model.{name}={value}") for value in (less, more))
    assert count(one, fields) < count(other, fields)
    assert len(same_but_for(known(one, other), free)) == 1 and len(same_but_for(known(one, other))) == 2
    assert len(same_but_for(known(one, other.override("seed=7")), free)) == 1
    assert len(same_but_for(known(one, other.override("training.lr=0.5")), free)) == 2


@pytest.mark.parametrize(
    ("recipe", "setting", "free"),
    [
        ("dcnv2", "ranker.rank=4", RANKER_SIZES), ("autoint", "ranker.deep.hidden=[]", RANKER_SIZES),
        ("autoint", "embedding.dim=8", RANKER_SIZES), ("sasrec", "max_length=20", SIZES),
    ],
)  # fmt: skip
def test_what_is_no_matter_of_size_is_another_line(recipe, setting, free) -> None:
    """Of an embedding's width, tables would grow."""
    spec = find_experiment(recipe)
    assert len(same_but_for(known(spec, spec.override(f"model.{setting}")), free)) == 2


def test_the_label_of_a_line() -> None:
    spec = find_experiment("autoint")
    assert line_label(known(spec, spec)) == "A, B: autoint"
    assert line_label(known(*[spec] * 7)) == "A, B, C, ... G: autoint"


@pytest.fixture(scope="module")
def ladder(runs, store, tmp_path_factory) -> list:
    """Three layers to one, a wider run of two seeds, and two runs without any relative."""
    home = tmp_path_factory.mktemp("sizes")
    wide = [make(store, home / f"wide-{n}", "model.dim=12", "model.encoder.layers=2", f"seed={n}") for n in (0, 1)]
    deep = [runs[f"deep-{n}"] for n in (3, 2, 1)]
    return collect([*deep, runs["gru"], *wide, runs["popularity"]], sample=40)


def test_runs_of_other_sizes_by_their_parameters(ladder) -> None:
    made = figure(RetrievalSize.figure(ladder))
    assert [row[0] for row in made.rows] == ["C deep-1", "B deep-2", "A deep-3", "E wide-0", "F wide-1"]
    by_key = {one.key: one for one in ladder}
    for row in made.rows:
        one = by_key[row[0].split()[0]]
        tensors = one.run.model().named_parameters()
        assert row[1] == sum(p.numel() for name, p in tensors if name != "items.embedding.weight")
        assert row[6:] == (one.layers, one.run.spec.model.dim)  # type: ignore[attr-defined]
        ranks = {found["layer"]: found["value"] for found in one.diagnosis.of("layers", "entropy_rank")}
        share = one.diagnosis.value("spectrum", "collapse_share")
        assert row[2:6] == (one.metric("ndcg@10"), one.metric("fair0.8@1"), share, ranks[one.layers])
    words = ["accuracy (ndcg@10)", "long-tail share (fair0.8@1)", "collapse share", "effective rank"]
    assert [panel.alt.split(" by ")[0] for panel in made.panels] == words and not made.absent
    assert f"C, B, A, E, F: sasrec from {made.rows[0][5]:.4g} to " in made.panels[3].alt
    assert all("C, B, A, E, F: sasrec" in panel.svg for panel in made.panels)


def test_the_mean_of_the_seeds_is_drawn(ladder) -> None:
    line = [ladder[2], ladder[4], ladder[5]]
    sizes, values = {"C": 10, "E": 20, "F": 20}, {"C": 0.5, "E": 0.1, "F": 0.4}
    assert seed_means(line, sizes, lambda one: values[one.key]) == [(10, 0.5), (20, pytest.approx(0.25))]
    assert seed_means(line, sizes, lambda one: 0.3 if one.key == "F" else None) == [(20, 0.3)]


def test_what_is_not_compared(ladder, store, tmp_path) -> None:
    small, large, *_ = [one for one in ladder if one.name.startswith("deep")]
    alone = RetrievalSize.figure([small, ladder[3], ladder[6]])
    assert isinstance(alone, Missing) and "no two runs differ in the size of their model alone" in alone.why
    assert isinstance(RetrievalSize.figure(ladder[4:6]), Missing), "two seeds of one size"
    heads = make(store, tmp_path / "heads", "model.encoder.layers=3", "model.encoder.attention.heads=4")
    assert isinstance(RetrievalSize.figure([small, *collect([heads], sample=20)]), Missing), "as many parameters"
    elsewhere = planted_store(tmp_path / "store", users=90, items=60, events_per_user=10)
    (other,) = collect([make(elsewhere, tmp_path / "other", "model.encoder.layers=1")], sample=20)
    made = RetrievalSize.figure([small, replace(other, key="Z")])
    assert isinstance(made, Missing) and "were evaluated differently" in made.why and "fingerprint" in made.why
    assert isinstance(RetrievalSize.figure([small, large]), Figure)


def test_a_figure_that_no_run_has_is_named(ladder) -> None:
    bare = [
        replace(one, diagnosis=Diagnosis(tuple(row for row in one.diagnosis.rows if row["diagnostic"] != "spectrum")))
        for one in ladder[:2]
    ]
    made = figure(RetrievalSize.figure(bare))
    assert len(made.panels) == 3 and made.absent == ("No panel shows the collapse share: none of these runs has it.",)
    assert {row[4] for row in made.rows} == {None}
