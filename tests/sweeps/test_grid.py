"""Grids: what they expand to, in which order, and which mistakes they name."""

import re
from pathlib import Path

import pytest

from fullrank.sweeps.jobs import as_settings, from_settings
from fullrank.sweeps.sweep import Grid
from refusals import refused


def names(text: str) -> list[str]:
    return [cell.name for cell in Grid.from_text(text).expand()]


def test_axes_are_multiplied_the_last_one_fastest() -> None:
    grid = Grid.from_text("{base: sasrec, axes: {model.dim: [32, 64], training.lr: [1e-3, 2e-3]}}")
    settings = [cell.set for cell in grid.expand()]
    assert [(s["model.dim"], s["training.lr"]) for s in settings] == [
        (32, "1e-3"), (32, "2e-3"), (64, "1e-3"), (64, "2e-3"),
    ]  # fmt: skip
    assert [cell.name for cell in grid.expand()][0] == "sasrec-dim32-lr1e-3"


def test_a_list_of_mappings_is_one_axis_whose_settings_change_together() -> None:
    text = """
    base: sasrec
    axes:
      - - {name: small, model.dim: 32, model.encoder.layers: 1}
        - {name: large, model.dim: 64, model.encoder.layers: 3}
      - {model.encoder.dropout: [0.1, 0.2]}
    """
    grid = Grid.from_text(text)
    assert names(text) == [f"sasrec-{size}-dropout{p}" for size in ("small", "large") for p in (0.1, 0.2)]
    assert grid.expand()[3].set == {"model.dim": 64, "model.encoder.layers": 3, "model.encoder.dropout": 0.2}


def test_a_component_on_an_axis_is_named_by_its_kind_and_equal_names_are_numbered() -> None:
    text = "{base: sasrec, axes: {model.loss: [bce, {kind: gbce, negatives: 4}]}}"
    assert names(text) == ["sasrec-bce", "sasrec-gbce-negatives4"]
    assert names("{base: sasrec, axes: {model.encoder.norm: [a/b, a b]}}") == ["sasrec-a_b", "sasrec-a_b-2"]


def test_a_cell_wins_over_the_grid_and_the_command_line_over_both() -> None:
    grid = Grid.from_text("{set: {model.dim: 8, training.lr: 0.1}, cells: [{recipe: sasrec, set: {model.dim: 16}}]}")
    assert grid.expand()[0].set == {"model.dim": 16, "training.lr": 0.1}
    last = grid.with_settings(from_settings(["model.dim=32", "model.loss={kind: bce}"]))
    assert last.expand()[0].set == {"model.dim": 32, "training.lr": 0.1, "model.loss": {"kind": "bce"}}
    assert last.jobs()[0].experiment.model.dump()["dim"] == 32


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("cells", ["a-seed0", "a-seed1", "b-seed5", "popularity-seed0"]),
        ("seeds", ["a-seed0", "b-seed5", "popularity-seed0", "a-seed1"]),
    ],
)
def test_jobs_keep_the_order_asked_for(order: str, expected: list[str]) -> None:
    cells = "[{name: a, recipe: sasrec}, {name: b, recipe: gru4rec, seeds: [5]}, popularity]"
    jobs = Grid.from_text(f"{{cells: {cells}, seeds: [0, 1], order: {order}}}").jobs()
    assert [job.folder for job in jobs] == expected, "a baseline draws nothing: one seed is enough"
    assert all(job.experiment.seed == job.seed for job in jobs)


def test_numbers_that_yaml_reads_as_text_arrive_as_numbers() -> None:
    job = Grid.from_text("{cells: [{recipe: sasrec, set: {training.lr: 1e-4}}]}").jobs()[0]
    assert job.settings == {"training.lr": 1e-4} and job.experiment.training.lr == 1e-4


def test_seeds_share_a_cost_and_settings_do_not() -> None:
    one, two, other = Grid.from_text(
        "{cells: [sasrec, {name: b, recipe: sasrec, set: {model.dim: 32}, seeds: [0]}], seeds: [0, 1]}"
    ).jobs()
    assert one.cost_key == two.cost_key != other.cost_key
    assert len({one.spec_hash, two.spec_hash, other.spec_hash}) == 3


def test_an_experiment_file_can_be_a_recipe(tmp_path: Path) -> None:
    from fullrank.run.experiment import find_experiment

    path = tmp_path / "mine.yaml"
    path.write_text(find_experiment("sasrec").override("model.dim=24").to_yaml(), encoding="utf-8")
    jobs = Grid.from_text(f"cells: ['{path}']").jobs()
    assert jobs[0].cell == "mine" and jobs[0].experiment.model.dump()["dim"] == 24


MISTAKES = {
    "{}": ("no-cells",),
    "{cells: [sasrec], axes: {model.dim: [1]}}": ("axes-without-base",),
    "{base: sasrec, axes: {model.dim: []}}": ("empty-axis",),
    "{cells: [sasrek]}": ("unknown-recipe", "sasrek", "sasrec"),
    "{cells: [{recipe: sasrec, set: {training.lrr: 1}}]}": ("unknown-setting", "cell 'sasrec'", "training.lrr"),
    "{base: sasrec, axes: {model.dim: [64, wide]}}": ("invalid-setting", "sasrec-wide", "model.dim"),
    "{cells: [{recipe: sasrec, set: {seed: 3}}]}": ("seed-in-settings", "sasrec"),
    "{cells: [sasrec], seeds: [1, 1]}": ("invalid-seeds", 1),
    "{cells: [sasrec], seeds: []}": ("invalid-setting", "seeds"),
    "{cells: [sasrec, {recipe: gru4rec, name: SASRec}]}": ("same-run-folder", "SASRec"),
    "{cells: [{recipe: sasrec, name: ../up}]}": ("not-a-folder-name", "../up"),
    "{cells: [sasrec], sed: [1]}": ("unknown-setting", "sed", "seeds"),
    "{cells: [sasrec], evaluate: [training]}": ("invalid-setting", "evaluate"),
    "{cells: [sasrec], evaluate_also: [{}]}": ("repeated-evaluation", "{seen: keep}"),
    "{cells: [sasrec], evaluate_also: [{seen: keep}, {seen: keep}]}": ("repeated-evaluation",),
    "{cells: [sasrec], evaluate_also: [{sen: keep}]}": ("unknown-setting", "'sasrec'", "seen"),
    "{cells: [sasrec], evaluate_also: [{seen: hide}]}": ("invalid-setting", "'sasrec'", "seen"),
    "{cells: [sasrec], evaluate_also: [{evaluation.seen: keep}]}": ("unknown-setting", "{seen: keep}"),
    "{cells: [sasrec], evaluate: [], evaluate_also: [{seen: keep}]}": ("setting-without-effect", "evaluate=[]"),
    "{cells: [missing.yaml]}": ("file-unreadable", "missing.yaml"),
    "cells: [": ("neither-yaml-nor-json",),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(text, encoding="utf-8")
    with refused(*MISTAKES[text]):
        Grid.read(path).jobs()


def test_a_grid_is_counted_before_it_is_multiplied_out() -> None:
    axes = {f"a.b{n}": list(range(10)) for n in range(60)}
    with refused("too-many-runs", "5,000"):
        Grid.parse({"base": "sasrec", "axes": axes})
    cells = [{"recipe": "sasrec", "name": f"c{n}", "seeds": list(range(1000))} for n in range(6)]
    with refused("too-many-runs", "6000"):
        Grid.parse({"cells": cells})
    Grid.parse({"cells": cells[:5]})
    Grid.parse({"base": "sasrec", "axes": {"training.lr": list(range(1, 51))}, "seeds": list(range(100))})


def test_settings_survive_the_way_to_text_and_back() -> None:
    given = {"a.b": 1e-5, "c": {"kind": "x", "n": 2}, "d": None, "e": "word", "f": [1, 2], "g": True}
    back = from_settings(as_settings(given))
    assert float(back.pop("a.b")) == given.pop("a.b") and back == given
    with refused("unreadable-setting", "model.dim"):
        from_settings(["model.dim"])


def test_a_grid_is_written_and_read_back_unchanged() -> None:
    grid = Grid.from_text(
        "{base: sasrec, axes: [[{model.dim: 8}, {model.dim: 16}]], seeds: [3], evaluate: [validation]}"
    )
    assert Grid.from_text(grid.to_yaml()) == grid == Grid.from_text(grid.to_json())


def test_the_examples_of_the_guide_can_be_run() -> None:
    from fullrank.sweeps.search import Search

    text = (Path(__file__).parents[2] / "docs" / "guide" / "sweeps.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, flags=re.S)
    grids = [block for block in blocks if "seeds:" in block and "space:" not in block]
    spaces = [block for block in blocks if "space:" in block]
    assert len(grids) == len(spaces) == 1
    assert len(Grid.from_text(grids[0]).jobs()) == 3 + 3 + 1 + 1 + 4 * 3
    assert len(Search.from_text(spaces[0]).jobs()) == 8
    zipped = next(block for block in blocks if block not in grids + spaces)
    assert len(Grid.from_text(f"base: sasrec\n{zipped}").jobs()) == 4


def test_further_evaluations_have_names_and_change_no_hash() -> None:
    plain = Grid.from_text("{cells: [sasrec], evaluate: [validation, test]}").jobs()[0]
    also = "evaluate_also: [{seen: keep}, {drop: 0.2, reasoning: {steps: 1}}, {ks: [5, 50]}]"
    job = Grid.from_text(f"{{cells: [sasrec], evaluate: [validation, test], {also}}}").jobs()[0]
    names = ("seen_keep", "drop_0.2_reasoning.steps_1", "ks_5+50")
    assert list(job.evaluations) == ["validation", "test", *(f"{s}_{n}" for n in names for s in ("validation", "test"))]
    assert list(plain.evaluations) == ["validation", "test"]
    assert (job.spec_hash, job.cost_key) == (plain.spec_hash, plain.cost_key)
    split, found = job.evaluations["test_seen_keep"]
    assert split == "test" and found.seen == "keep" and job.experiment.evaluation.seen == "exclude"
    assert job.evaluations["test_drop_0.2_reasoning.steps_1"][1].reasoning.steps == 1


def test_a_further_evaluation_may_be_the_first_of_some_cells_but_not_of_all() -> None:
    """So that one grid may ask both of cells whose recipes rank the history and of those that exclude it."""
    kept = "{name: kept, recipe: sasrec, set: {evaluation.seen: keep}}"
    jobs = Grid.from_text(f"{{cells: [sasrec, {kept}], evaluate_also: [{{seen: keep}}]}}").jobs()
    assert [job.evaluations["test_seen_keep"][1].seen for job in jobs] == ["keep", "keep"]
    with refused("setting-without-effect", "seen_keep"):
        Grid.from_text(f"{{cells: [{kept}], evaluate_also: [{{seen: keep}}]}}").jobs()
