"""`train` and `grow`: recipes by name and by file, going on, starting from a run, new items, and mistakes."""

import shutil
from pathlib import Path

import pytest

from fullrank import api
from fullrank.run import Run
from tests.cli.conftest import Ask, Call, Refuses

TINY = "--set model.dim=8 --set training.max_epochs=1"


def test_what_a_program_learns_from_a_run(ask: Ask) -> None:
    found = ask(f"train gru4rec --data @data --out run {TINY} --set seed=3")
    assert found["recipe"] == "gru4rec" and found["seed"] == 3 and found["epochs"] == 1
    assert found["best"]["epoch"] == 1 and 0 <= found["best"]["value"] <= 1
    assert Run.open(found["run"]).spec.seed == 3


def test_a_file_trains_like_the_recipe_it_was_printed_from(ask: Ask, call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(call(f"show sasrec {TINY}").out)
    first = ask("train mine.yaml --data @data --out a")
    second = ask(f"train sasrec {TINY} --data @data --out b")
    assert first["best"]["value"] == second["best"]["value"]


def test_from_a_run_takes_its_settings(shop: Path, ask: Ask) -> None:
    said = ask("train --from @sasrec --data @data --out more")
    run = Run.open(said["run"])
    assert run.spec.dump() == Run.open(shop / "sasrec").spec.dump()
    assert run.manifest["init_from"] == str(shop / "sasrec")


def test_a_baseline_is_not_started_from_nor_does_it_start_from_a_run(refuses: Refuses, tmp_path: Path) -> None:
    for given, what in (
        ("--from @popularity", ("popularity", "--from")),
        ("popularity --from @sasrec", ("popularity", "--from")),
        ("sasrec --from @popularity", ("popularity", "--from")),
        ("popularity --logger csv", ("loggers",)),
        ("popularity --watch --from @sasrec", ("callbacks", "--from")),
    ):
        told = refuses("baseline-without-training", f"train {given} --data @data --out run", *what)
        absent = {"loggers", "callbacks", "--from"} - set(what)
        assert not any(word in told for word in absent), told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "code", "names"),
    [
        ("--set model.dim=131072 --set model.encoder.layers=1024", "model-too-large", ["parameters", "GiB"]),
        ("--set model.dim=131072 --set model.max_length=1048576", "model-too-large", ["parameters", "GiB"]),
        ("--set model.encoder.layers=10000000", "invalid-setting", ["model.encoder.layers", 1024]),
        (f"--set seed={10**40}", "invalid-setting", ["seed", 2**63 - 1]),
    ],
)
def test_what_no_machine_can_take_is_refused_before_anything_is_lost(
    settings: str, code: str, names: list[object], refuses: Refuses, shop: Path, tmp_path: Path
) -> None:
    """With --overwrite: the run that is there stays as it is."""
    out = shutil.copytree(shop / "sasrec", tmp_path / "run")
    before = {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()}
    refuses(code, f"train sasrec --data @data --out run --overwrite {settings}", *names)
    assert {file.name: file.read_bytes() for file in out.iterdir() if file.is_file()} == before


def test_grow(ask: Ask, refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("sku\n900001\n900002\n")
    words = "grow @sasrec --items new.csv --item-col sku --out grown"
    refuses("no-item-features", words)
    found = ask(f"{words} --start mean")
    assert found["new"] == 2 and found["items"] == Run.open(tmp_path / "grown").catalog.size
    assert len(api.recommend(tmp_path / "grown", [[900001]], k=2, unknown="error")) == 2
    refuses("unknown-value", f"{words} --start meen", "mean")
