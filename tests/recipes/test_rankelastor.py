"""The recipes of RankElastor: equally many dense parameters where they say so, and ladders that are ladders."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.data.impressions.schema import FieldInfo
from fullrank.recipes import rankelastor as recipes
from fullrank.run.experiment import Experiment, find_experiment
from fullrank.sweeps.sweep import Grid

GRID = Path(__file__).parents[2] / "experiments" / "rankelastor" / "ladder.yaml"
ML1M = tuple(FieldInfo(f"field{n}", "categorical", 20) for n in range(11))
FRAPPE = ML1M[:10]


def dense(made: Experiment, fields: tuple[FieldInfo, ...] = ML1M) -> int:
    with torch.device("meta"):
        model: Any = made.model.build(fields)  # type: ignore[attr-defined]
    return int(model.size().dense)


def test_every_function_has_its_name() -> None:
    for name, function in vars(recipes).items():
        if name.startswith(("matched_", "ladder_", "mixing_")):
            assert function().recipe == name


@pytest.mark.parametrize("fields", [ML1M, FRAPPE], ids=["ml-1m", "frappe"])
@pytest.mark.parametrize("kind", ["matched", "ladder"])
def test_the_pair_has_equally_many_dense_parameters(kind: str, fields: tuple[FieldInfo, ...]) -> None:
    one, other = (
        dense(find_experiment(f"fullrank.recipes.rankelastor:{kind}_{r}"), fields) for r in ("rankelastor", "rankmixer")
    )
    assert max(one, other) / min(one, other) <= 1.05
    wider = find_experiment(f"fullrank.recipes.rankelastor:{kind}_rankmixer").override("model.ranker.width=160")
    assert dense(wider, fields) / one > 1.05


@pytest.mark.parametrize("prefix", ["fullrank.recipes.rankelastor:matched_", ""])
def test_the_pair_differs_in_mixing_ffn_and_width_alone(prefix: str) -> None:
    one, other = (find_experiment(prefix + name).dump() for name in ("rankelastor", "rankmixer"))
    assert prefix or one["model"]["ranker"]["head"] == "flatten"
    for tree in (one, other):
        del tree["recipe"]
        for key in ("kind", "width", "mixing", "feed_forward"):
            del tree["model"]["ranker"][key]
    assert one == other


def test_the_authors_block_and_equation_4() -> None:
    """One is the recipe, the other its FFN alone without what the code adds."""
    recipe, letter = find_experiment("rankelastor").dump(), recipes.equation_4().dump()
    added = {"inner_skip", "outer_skip", "closing", "norm"}
    (ours, theirs) = (tree["model"]["ranker"].pop("feed_forward") for tree in (recipe, letter))
    assert all(ours[name] and not theirs[name] for name in added)
    assert {k: v for k, v in ours.items() if k not in added} == {k: v for k, v in theirs.items() if k not in added}
    assert recipe.pop("recipe") != letter.pop("recipe") and recipe == letter
    deep = recipes.deep()
    assert deep.model.ranker.initial == "identity" and deep.training.warmup > 0  # type: ignore[attr-defined]


@pytest.mark.slow
def test_rungs_rise_and_meet_their_twins() -> None:
    cells = {cell.name: cell for cell in Grid.read(GRID).expand()}
    sizes = {
        name: dense(find_experiment(cell.recipe).override(*(f"{k}={v}" for k, v in cell.set.items())))
        for name, cell in cells.items()
    }
    for ladder in ("width", "depth", "joint", "hidden"):
        rungs = {
            method: [size for name, size in sizes.items() if name.startswith(f"{method}-{ladder}-")]
            for method in ("rankelastor", "rankmixer")
        }
        assert all(len(some) == 4 and some == sorted(some) for some in rungs.values())
        assert all(abs(a / b - 1) < 0.09 for a, b in zip(*rungs.values(), strict=True)), rungs
        assert rungs["rankelastor"][-1] > 7 * sizes["rankelastor-base"]
    assert min(sizes.values()) < 15_000 and 9e5 < max(sizes.values()) < 1.1e6


FINAL = {cell.name: cell for cell in Grid.read(GRID.parent / "final_frappe.yaml").expand()}


@pytest.mark.parametrize(
    ("cell", "function"),
    [
        ("rankelastor", "fullrank.recipes.rankelastor:frappe"),
        ("rankmixer", "fullrank.recipes.rankelastor:frappe_rankmixer"),
        ("dcnv2", "fullrank.recipes.ranking_baselines:dcnv2_frappe"),
    ],
)
def test_recipes_of_frappe_are_what_was_chosen_there(cell: str, function: str) -> None:
    """`final_frappe.yaml` ran what `search_frappe.yaml` chose."""
    one = FINAL[cell]
    settings = (f"{key}={'null' if value is None else value}" for key, value in one.set.items())
    ran = find_experiment(one.recipe).override(*settings)
    assert ran.override("recipe=x", "training.max_epochs=1") == find_experiment(function).override(
        "recipe=x", "training.max_epochs=1"
    )
