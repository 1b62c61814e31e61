"""`train`: recipes by name and by file, going on, starting from a run, and its mistakes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fullrank.core.registry import kinds
from fullrank.run import Run

if TYPE_CHECKING:
    from conftest import Call, Refuses

TINY = ("--set", "model.dim=8", "--set", "training.max_epochs=1")


def test_what_a_program_learns_from_a_run(call: Call, shop: Path, tmp_path: Path) -> None:
    said = call(
        "train", "gru4rec", "--data", shop / "data", "--out", tmp_path / "run", *TINY, "--set", "seed=3", "--json"
    )
    found = said.json
    assert said.code == 0 and found["recipe"] == "gru4rec" and found["seed"] == 3 and found["epochs"] == 1
    assert found["best"]["epoch"] == 1 and 0 <= found["best"]["value"] <= 1
    assert Run.open(found["run"]).spec.seed == 3


@pytest.mark.parametrize("recipe", kinds("recipes"))
def test_seed_and_epochs_can_be_set_on_every_recipe(recipe: str, call: Call) -> None:
    said = call("show", recipe, "--set", "seed=7", "--set", "training.max_epochs=2", "--json")
    assert said.json["spec"]["seed"] == 7 and said.json["spec"]["training"]["max_epochs"] == 2


def test_a_file_trains_like_the_recipe_it_was_printed_from(call: Call, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(call("show", "sasrec", *TINY).out)
    words = ("--data", shop / "data", "--json")
    first = call("train", tmp_path / "mine.yaml", *words, "--out", tmp_path / "a").json
    second = call("train", "sasrec", *TINY, *words, "--out", tmp_path / "b").json
    assert first["best"]["value"] == second["best"]["value"]


def test_from_a_run_takes_its_settings(call: Call, shop: Path, tmp_path: Path) -> None:
    said = call("train", "--from", shop / "sasrec", "--data", shop / "data", "--out", tmp_path / "more", "--json")
    assert said.code == 0, said.err
    run = Run.open(said.json["run"])
    assert run.spec.dump() == Run.open(shop / "sasrec").spec.dump()
    assert run.manifest["init_from"] == str(shop / "sasrec")


def test_a_baseline_is_not_started_from_nor_does_it_start_from_a_run(
    refuses: Refuses, shop: Path, tmp_path: Path
) -> None:
    words = ("--data", shop / "data", "--out", tmp_path / "run")
    for given, what in (
        (["--from", shop / "popularity"], ("popularity", "--from")),
        (["popularity", "--from", shop / "sasrec"], ("popularity", "--from")),
        (["sasrec", "--from", shop / "popularity"], ("popularity", "--from")),
        (["popularity", "--logger", "csv"], ("loggers",)),
        (["popularity", "--watch", "--from", shop / "sasrec"], ("callbacks", "--from")),
    ):
        told = refuses("baseline-without-training", ["train", *given, *words], *what)
        absent = {"loggers", "callbacks", "--from"} - set(what)
        assert not any(word in told for word in absent), told
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_neither_lost_nor_repeated(call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    words = ("train", "popularity", "--data", shop / "data", "--out", tmp_path / "run")
    assert call(*words).code == 0
    refuses("folder-holds-a-run", words, tmp_path / "run", "--resume", "--overwrite")
    assert call(*words, "--overwrite").code == 0
    refuses("options-exclude-each", [*words, "--resume", "--overwrite"], "--resume", "--overwrite")


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["sasrek"], "unknown-recipe", "did you mean 'sasrec'"),
        ([], "missing-argument", "--from"),
        (["nothing.yaml"], "file-unreadable", "nothing.yaml"),
        (["sasrec", "--set", "training.max_epoch=2"], "unknown-setting", "'max_epochs'"),
        (["sasrec", "--set", "training.max_epochs"], "unreadable-setting", "a.b=value"),
        (["sasrec", "--set", "model.loss=bcee"], "unknown-kind", "did you mean 'bce'"),
        (["--from", "nowhere"], "not-a-run", "nowhere"),
        (["sasrec", "--set", "model.dim=8", "--logger", "tensorbord"], "unknown-logger", "tensorboard"),
    ],
)
def test_mistakes(words: list[str], code: str, name: str, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    refuses(code, ["train", *words, "--data", shop / "data", "--out", tmp_path / "run"], name)


def test_a_missing_store(refuses: Refuses, tmp_path: Path) -> None:
    words = ["train", "sasrec", "--data", tmp_path / "nothing", "--out", tmp_path / "run"]
    refuses("missing-folder", words, tmp_path / "nothing", "fullrank prepare")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "code", "names"),
    [
        (["model.dim=131072", "model.encoder.layers=1024"], "model-too-large", ["parameters", "GiB"]),
        (["model.dim=131072", "model.max_length=1048576"], "model-too-large", ["parameters", "GiB"]),
        (["model.encoder.layers=10000000"], "invalid-setting", ["model.encoder.layers", 1024]),
        (["model.dim=100000000"], "invalid-setting", ["model.dim", 131072]),
        (["training.betas=[2, 3]"], "invalid-setting", ["training.betas.0", 1]),
        (["training.lr=.inf"], "invalid-setting", ["training.lr", "finite"]),
        ([f"seed={10**40}"], "invalid-setting", ["seed", 2**63 - 1]),
    ],
)
def test_what_no_machine_can_take_is_refused_before_anything_is_lost(
    settings: list[str], code: str, names: list[object], refuses: Refuses, shop: Path, tmp_path: Path
) -> None:
    """With --overwrite: the run that is there stays as it is."""
    out = tmp_path / "run"
    shutil.copytree(shop / "sasrec", out)
    before = {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()}
    given = [word for setting in settings for word in ("--set", setting)]
    refuses(code, ["train", "sasrec", "--data", shop / "data", "--out", out, "--overwrite", *given], *names)
    assert {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()} == before
