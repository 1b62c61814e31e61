"""Search spaces: the points tried, and the mistakes named."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullrank.sweeps.search import KNOWN_POINT, Range, Search, halton, settings_of, tpe
from refusals import refused

SPACE = "{training.lr: {log: [3e-4, 3e-3]}, model.encoder.dropout: {choice: [0.2, 0.5]}, model.dim: {integer: [4, 40]}}"


def test_a_range_covers_its_ends_and_nothing_else() -> None:
    places = np.linspace(0, 1, 1001)[:-1]
    assert {Range(integer=(1, 3)).at(u) for u in places} == {1, 2, 3}
    assert {Range(choice=("a", None)).at(u) for u in places} == {"a", None}
    log = [Range(log=(1e-4, 1e-2)).at(u) for u in places]
    assert min(log) == 1e-4 and max(log) <= 1e-2 and log[500] == pytest.approx(1e-3)
    assert Range(uniform=(0.0, 2.0)).at(0.25) == 0.5


@pytest.mark.parametrize(
    ("tree", "code"),
    [
        ({}, "not-one-range"), ({"log": [0, 1]}, "invalid-range"), ({"log": [2, 1]}, "invalid-range"),
        ({"uniform": [1, 1]}, "invalid-range"), ({"choice": [1]}, "invalid-setting"),
        ({"uniform": [0, 1], "choice": [1, 2]}, "not-one-range"), ({"uniform": [0, float("inf")]}, "invalid-setting"),
        ({"integer": [1.5, 3]}, "invalid-setting"),
    ],
)  # fmt: skip
def test_bad_ranges_are_refused(tree: dict, code: str) -> None:
    with refused(code):
        Range.parse(tree)


def test_trials_are_counted_before_points_are_drawn() -> None:
    space = {"training.lr": {"log": [1e-3, 1e-2]}}
    with refused("too-many-runs", "5,000"):
        Search.parse({"cells": ["sasrec"], "space": space, "trials": 6000})
    with refused("too-many-runs", "6000"):
        Search.parse({"cells": ["sasrec", "gru4rec"], "space": space, "trials": 30, "seeds": list(range(100))})


@pytest.mark.parametrize("seed", range(5))
def test_points_fill_every_axis_evenly(seed: int) -> None:
    points = np.array(list(itertools.islice(halton(6, seed), 210)))
    assert points.min() >= 0 and points.max() < 1
    for axis, base in enumerate((2, 3, 5, 7, 11, 13)):
        first = points[: base * (210 // base), axis]
        assert (np.bincount((first * base).astype(int), minlength=base) == 210 // base).all()
    few = list(itertools.islice(halton(6, seed), 3))
    assert np.allclose(points[:3], few), "a point does not depend on how many follow"


def halton_reference(dimensions: int, seed: int, n: int) -> list[float]:
    """Point n: the digits of n in each prime base, permuted and mirrored at the point."""
    point = []
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)[:dimensions]:
        rng, left, value, scale = np.random.default_rng([seed, base]), n, 0.0, 1.0
        for _ in range(math.ceil(52 / math.log2(base))):
            left, digit = divmod(left, base)
            scale /= base
            value += int(rng.permutation(base)[digit]) * scale
        point.append(min(value, 1 - 2.0**-53))
    return point


@pytest.mark.parametrize(("dimensions", "seed"), [(1, 0), (2, 7), (12, 3)])
def test_points_are_a_function_of_seed_and_place_to_the_last_bit(dimensions: int, seed: int) -> None:
    points = list(itertools.islice(halton(dimensions, seed), 60))
    assert points == [halton_reference(dimensions, seed, n) for n in range(60)]
    assert [point[0] for point in points] == [point[0] for point in itertools.islice(halton(1, seed), 60)]
    assert halton_reference(3, 3, 5) == list(KNOWN_POINT)


RESULTS = Path(__file__).resolve().parents[2] / "results"
TUNED = [path for path in sorted(RESULTS.glob("*/*tuned*.json")) if '"search"' in path.read_text()]


@pytest.mark.parametrize("path", TUNED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_committed_searches_keep_their_points(path: Path) -> None:
    tree = json.loads(path.read_text())
    checked = 0
    for found in tree.get("searches", [tree]):
        search = Search.parse(found["search"])
        for cell in search.cells:
            tried = search.trial_settings(cell)
            for trial in found["trials"][cell.name]:
                assert settings_of(tried[trial["trial"]]) == trial["set"]
                checked += 1
    assert checked


def quadratic(settings: dict[str, Any]) -> float:
    """Best at a learning rate of 1e-3 and a width of 30."""
    return -abs(math.log10(settings["training.lr"]) + 3) - abs(settings["model.dim"] - 30) / 30


def asked(trials: int, seed: int = 0) -> list[dict[str, Any]]:
    """A search by TPE of `quadratic`."""
    search = Search.from_text(f"{{cells: [sasrec], space: {SPACE}, trials: 5, seed: {seed}}}")
    tried = search.trial_settings(search.cells[0])
    while len(tried) < trials:
        tried.append(tpe(search.space, tried, [None, *map(quadratic, tried[1:])], seed))
    return tried


def test_tpe_asks_the_same_of_the_same_scores_and_better_ones_as_they_grow() -> None:
    whole = asked(30)
    assert asked(30) == whole and asked(17) == whole[:17], "a search that goes on asks what an unbroken one asks"
    assert asked(8, seed=1)[5:] != whole[5:8]
    assert len({json.dumps(settings) for settings in whole}) == 30
    scores = [quadratic(settings) for settings in whole[1:]]
    assert np.mean(scores[-10:]) > np.mean(scores[:10])
    for settings in whole[1:]:
        lr = settings["training.lr"]
        assert 3e-4 <= lr <= 3e-3 and float(f"{lr:.3g}") == lr and settings["model.encoder.dropout"] in (0.2, 0.5)


def test_tpe_depends_on_the_scores_and_their_order() -> None:
    tried = asked(12)
    space = Search.from_text(f"{{cells: [sasrec], space: {SPACE}}}").space
    scores = [None, *map(quadratic, tried[1:])]
    other = [None, *(-quadratic(settings) for settings in tried[1:])]
    assert tpe(space, tried, scores, 0) != tpe(space, tried, other, 0)
    assert tpe(space, tried, [None, None, *scores[2:]], 0), "a failed trial is no score"


def test_tpe_says_when_nothing_is_left() -> None:
    space = {"model.dim": Range(choice=(8, [16, 32]))}
    assert tpe(space, [{}, {"model.dim": 8}], [None, 0.5], 0) == {"model.dim": [16, 32]}
    with refused("space-exhausted", 3):
        tpe(space, [{}, {"model.dim": 8}, {"model.dim": [16, 32]}], [None, 0.5, 0.1], 0)


def test_few_points_are_not_on_a_line() -> None:
    """In bases 11 and 13 the plain sequence's first points are (n/11, n/13): correlated to almost 1."""
    drawn = [np.array(list(itertools.islice(halton(6, seed), 8)))[:, 4:] for seed in range(20)]
    assert abs(np.mean([np.corrcoef(points.T)[0, 1] for points in drawn])) < 0.3
    plain = np.arange(8)
    assert np.corrcoef(plain / 11, plain / 13)[0, 1] > 0.99


def test_trials_differ_the_first_changes_nothing_and_all_cells_get_as_many() -> None:
    search = Search.from_text(f"{{cells: [sasrec, {{name: other, recipe: gru4rec}}], space: {SPACE}, trials: 6}}")
    for cell in search.cells:
        tried = search.trial_settings(cell)
        assert len(tried) == 6 and tried[0] == {} and len({str(t) for t in tried}) == 6
        assert {t["model.encoder.dropout"] for t in tried[1:]} == {0.2, 0.5}
    assert search.trial_settings(search.cells[0])[:3] == search.model_copy(update={"trials": 3}).trial_settings(
        search.cells[0]
    )
    assert search.trial_settings(search.cells[0]) != search.model_copy(update={"seed": 1}).trial_settings(
        search.cells[0]
    )


def test_jobs_go_trial_by_trial_with_a_share_of_the_epochs_on_validation_alone() -> None:
    text = f"{{cells: [sasrec, popularity], trials: 2, seeds: [0, 1], space: {SPACE}, set: {{training.max_epochs: 9}}}}"
    with refused("unknown-setting", "'popularity-trial1'", "model.encoder.dropout"):
        Search.from_text(text.replace("training.max_epochs: 9", "evaluation.bootstrap: 0")).jobs()
    search = Search.from_text(text.replace(", popularity", ", {name: g, recipe: gru4rec}"))
    jobs = search.jobs()
    assert [(job.group, job.folder) for job in jobs] == [
        (f"trial {t}", f"{cell}-trial{t}-seed{s}") for t in (0, 1) for cell in ("sasrec", "g") for s in (0, 1)
    ]
    assert {job.experiment.training.max_epochs for job in jobs} == {3}
    assert {job.splits for job in jobs} == {("validation",)} and all(job.selection_only for job in jobs)


def test_one_axis_may_set_several_settings() -> None:
    """PLR's p_rep = p_attn: each trial gives both the same value, and one axis is spent on them."""
    tied = "model.encoder.dropout, model.encoder.attention.dropout"
    space = f"{{training.lr: {{log: [3e-4, 3e-3]}}, '{tied}': {{uniform: [0.1, 0.6]}}}}"
    search = Search.from_text(f"{{cells: [plr], space: {space}, trials: 4}}")
    plain = Search.from_text(f"{{cells: [plr], space: {space.replace(tied, 'model.encoder.dropout')}, trials: 4}}")
    first, *others = search.jobs()
    assert first.settings == {} and len({job.experiment.model.encoder.dropout for job in others}) == 3  # type: ignore
    for job, one in zip(others, plain.jobs()[1:], strict=True):
        encoder: Any = job.experiment.model.encoder  # type: ignore[union-attr]
        assert encoder.dropout == encoder.attention.dropout == one.experiment.model.encoder.dropout  # type: ignore
        assert job.settings["training.lr"] == one.settings["training.lr"], "another axis keeps its points"
        assert set(job.settings) == {"training.lr", "model.encoder.dropout", "model.encoder.attention.dropout"}


MISTAKES = {
    "{cells: [sasrec], space: {'model.dim, ': {choice: [8, 16]}}}": ("repeated-setting", "model.dim, "),
    "{cells: [sasrec], space: {'model.dim,model.dim': {choice: [8, 16]}}}": ("repeated-setting", "model.dim"),
    "{cells: [sasrec], space: {'model.encoder.inner, model.dim': {choice: [8, 16]}, model.dim: {choice: [8, 16]}}}": (
        "repeated-setting",
        "model.dim",
    ),
    "{cells: [sasrec], space: {'model.dim,seed': {integer: [1, 5]}}}": ("setting-not-searchable", "seeds"),
    "{cells: [sasrec]}": ("no-search-space", "sasrec"),
    "{cells: []}": ("invalid-setting", "cells"),
    "{cells: [sasrec], space: {training.max_epochs: {integer: [1, 5]}}}": ("setting-not-searchable", "epochs_share"),
    "{cells: [sasrec], space: {seed: {integer: [1, 5]}}}": ("setting-not-searchable", "seeds"),
    "{cells: [{recipe: sasrec, seeds: [1]}], space: {model.dim: {choice: [8, 16]}}}": ("cell-has-seeds", "sasrec"),
    "{cells: [sasrec], space: {model.dimm: {choice: [8, 16]}}, trials: 2}": ("unknown-setting", "model.dimm", "dim"),
    "{cells: [sasrec], space: {model.dim: {choice: [8, 16]}}, trials: 4}": ("space-exhausted", 3, 4),
    "{cells: [sasrec], space: {model.dim: {choice: [8, 16]}}, trials: 1}": ("invalid-setting", "trials"),
    "{cells: [sasrec], space: {model.dim: {choice: [8, 16]}}, evaluate: [test]}": ("unknown-setting", "evaluate"),
    "{cells: [sasrec], space: {model.dim: [8, 16]}}": ("invalid-setting", "space.model.dim"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_named(text: str) -> None:
    with refused(*MISTAKES[text]):
        Search.from_text(text).jobs()
