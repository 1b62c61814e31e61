"""`verify` finds every damaged file of a store, of codes and of a run, and says what it could not check."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import fullrank as fr
from coded import catalog, matrix, settings
from fullrank.training.fit import fit
from refusals import refused
from seals import as_format_2, flip, reseal, unsealed
from tests.training.clicks import shop
from tests.training.conftest import tiny

Copied = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder of each kind."""
    home = tmp_path_factory.mktemp("folders")
    users, steps = range(40), range(6)
    events = pl.DataFrame(
        {
            "user_id": [user for user in users for _ in steps],
            "item_id": [(user + 3 * step) % 17 for user in users for step in steps],
            "timestamp": range(240),
        }
    )
    store = fr.prepare(events, home / "store")
    fit(tiny("training.max_epochs=1"), store, home / "run", progress=False)
    pl.DataFrame({"item_id": range(240), "vector": matrix(240)}).write_parquet(home / "vectors.parquet")
    fr.encode(catalog(), home / "codes", set=settings(home / "vectors.parquet"))
    shop(home / "impressions")
    return {path.name: path for path in home.iterdir() if (path / "manifest.json").is_file()}


@pytest.fixture
def copied(folders: dict[str, Path], tmp_path: Path) -> Copied:
    return lambda name, place: Path(shutil.copytree(folders[name], tmp_path / place))


KINDS = {"store": "store", "impressions": "store of impressions", "codes": "codes", "run": "run"}


@pytest.mark.parametrize("name", KINDS)
def test_a_whole_folder_is_told_to_be_whole(name: str, folders: dict[str, Path]) -> None:
    found = fr.verify(folders[name])
    assert found.kind == KINDS[name] and found.ok and not found.notes
    assert {file.name for file in found.files} == {path.name for path in folders[name].iterdir()}
    assert {file.state for file in found.files} == {"ok"}
    found.require_ok()


@pytest.mark.parametrize("name", KINDS)
def test_one_flipped_bit_in_any_file_is_found(name: str, folders: dict[str, Path], copied: Copied) -> None:
    files = [path.name for path in folders[name].iterdir() if path.is_file() and path.name != "manifest.json"]
    assert len(files) >= 2
    for file in files:
        folder = copied(name, file)
        flip(folder / file)
        found = fr.verify(folder)
        assert {one.name: one.state for one in found.files if one.state != "ok"} == {file: "differs"}
        with refused("file-damaged", file):
            found.require_ok()


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_file_and_a_changed_manifest_are_found(name: str, copied: Copied) -> None:
    folder = copied(name, "folder")
    gone = next(path for path in sorted(folder.iterdir()) if path.is_file() and path.name != "manifest.json")
    gone.unlink()
    assert {one.name: one.state for one in fr.verify(folder).files}[gone.name] == "missing"
    folder = copied(name, "other")
    tree = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(tree | {"fullrank": "9.9"}))
    assert fr.verify(folder).files[0].state == "differs"


def test_what_the_readers_refuse_is_told_though_the_hashes_agree(copied: Copied) -> None:
    folder = copied("run", "run")
    spec = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(json.dumps(spec | {"speed": 3}))
    found = fr.verify(reseal(folder, sizes=True))
    assert not found.ok and "speed" in str(found.problem)
    with refused("file-damaged", "speed"):
        found.require_ok()


def test_a_checkpoint_is_read(copied: Copied) -> None:
    folder = copied("run", "run")
    state = next((folder / "checkpoints").glob("step-*/optimizer.safetensors"))
    flip(state)
    assert {one.name: one.state for one in fr.verify(folder).files}["checkpoints"] == "differs"


def test_what_cannot_be_checked_is_told(copied: Copied) -> None:
    old = as_format_2(copied("run", "run"))
    (old / "mine.txt").write_text("x")
    found = fr.verify(old)
    assert found.ok and {file.state for file in found.files if file.name != "checkpoints"} == {"not hashed"}
    assert len(found.notes) == 3 and "mine.txt" in found.notes[-1]
    assert len(fr.verify(unsealed(copied("store", "store"))).notes) == 1


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    with refused("wrong-folder", tmp_path):
        fr.verify(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with refused("wrong-folder", tmp_path):
        fr.verify(tmp_path)
