"""The settings of BARS: as many parameters as its logs say, and a fit on impressions with the fields of frappe."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.data.impressions.schema import FieldInfo
from fullrank.recipes import ranking_baselines
from fullrank.run.experiment import Experiment, find_experiment

SIZES = {
    "user": 956, "item": 4084, "daytime": 9, "weekday": 9, "isweekend": 4, "homework": 5, "cost": 4, "weather": 11,
    "country": 82, "city": 235,
}  # fmt: skip
"""Rows of the tables in BARS's log of FinalMLP; those of its older logs are ten less, one a field."""
FIELDS = tuple(FieldInfo(name, "categorical", size) for name, size in SIZES.items())
OLDER = tuple(FieldInfo(name, "categorical", size - 1) for name, size in SIZES.items())
FUNCTIONS = [name for name in vars(ranking_baselines) if name.endswith("_frappe")]


def recipe(name: str) -> Experiment:
    return find_experiment(f"fullrank.recipes.ranking_baselines:{name}")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_every_function_shares(name: str) -> None:
    made = recipe(name)
    assert made.recipe == name.replace("_", "-")
    assert (made.training.schedule, made.training.patience, made.training.max_epochs) == ("plateau", 2, 100)
    model: Any = made.model
    assert (model.embedding.dim, model.embedding.l2_on) == (10, "table")


@pytest.mark.parametrize(
    ("name", "fields", "parameters", "biases"),
    [
        ("dcnv2_frappe", OLDER, 458_391, 0),
        ("xdeepfm_frappe", OLDER, 429_809, 64),  # one a feature map
        ("autoint_frappe", OLDER, 622_180, 1),  # of the perceptron's output, beside that of the attention's
        ("finalmlp_frappe", FIELDS, 253_392, 1),  # of the second perceptron's part of the logit
    ],
)
def test_as_many_parameters_as_in_the_log(
    name: str, fields: tuple[FieldInfo, ...], parameters: int, biases: int
) -> None:
    """But for biases that a sum has twice."""
    with torch.device("meta"):
        model: Any = recipe(name).model.build(fields)  # type: ignore[attr-defined]
    size = model.size()
    assert size.embedding + size.dense == parameters - biases


def test_finalmlp_trains_on_the_fields_of_frappe(tmp_path: Path) -> None:
    rows = 200
    table = pl.DataFrame({name: [n * k % 7 for n in range(rows)] for k, name in enumerate(SIZES, 1)})
    table = table.with_columns(label=pl.Series([n % 3 == 0 for n in range(rows)]).cast(pl.Int64))
    store = fr.prepare_impressions(table, tmp_path / "store", schema={"fields": list(SIZES), "group": "user"})
    spec = recipe("finalmlp_frappe").override("training.max_epochs=2")
    run = fr.train(spec, store, tmp_path / "run", device="cpu", progress=False)
    assert fr.predict(run, table.drop("label"))["probability"].is_between(0, 1).all()
