"""Checkpoints at a URL: a start on an empty disk goes on from there, and no kill or damage gives half a run."""

import shutil
from pathlib import Path

import fsspec
import pytest

from fullrank.api import train
from fullrank.core.readers import read_json
from fullrank.data.events.store import Store
from fullrank.training.mirror import Mirror
from refusals import refused
from tests.training.conftest import Runs, Stop, Stopped, column, content, same_weights, tiny


@pytest.mark.parametrize("kind", ["file", pytest.param("memory", marks=pytest.mark.slow)])
def test_a_run_goes_on_from_there_on_an_empty_disk(kind: str, market: Store, tmp_path: Path, runs: Runs) -> None:
    url = f"file://{tmp_path}/elsewhere" if kind == "file" else "memory://elsewhere"
    whole = runs("whole", "training.max_epochs=4")
    with pytest.raises(Stopped):
        runs("lost", "training.max_epochs=4", checkpoints=url, callbacks=[Stop(3)])  # fmt: skip
    shutil.rmtree(tmp_path / "lost")
    run = train(out=tmp_path / "other", data=market, resume=True, checkpoints=url, progress=False)
    assert same_weights(whole, run) and all(column(run, n) == column(whole, n) for n in ("epoch", "train/loss"))

    files, root = fsspec.core.url_to_fs(url)
    assert read_json(run.path / "manifest.json")["finished"] is True
    Mirror(url).restore(tmp_path / "copy")
    assert content(tmp_path / "copy") == content(run.path), "the finished run is there too"
    assert len(files.ls(f"{root}/files")) == len(set(content(run.path).values())), "and nothing else"
    with refused("folder-holds-a-run", url, "resume=True"):
        runs("new", checkpoints=url)
    again = runs("new", "training.max_epochs=1", overwrite=True, checkpoints=url)
    Mirror(url).restore(tmp_path / "second")
    assert content(tmp_path / "second") == content(again.path)
    files.rm(root, recursive=True)


def test_the_folder_counts_where_it_is_further(tmp_path: Path) -> None:
    folder, mirror = tmp_path / "run", Mirror(str(tmp_path / "copy"))
    (folder / "checkpoints" / "step-000000002").mkdir(parents=True)
    pointer, spec = folder / "checkpoints" / "last.json", folder / "spec.json"
    spec.write_text("at 2")
    pointer.write_text('{"folder": "step-000000002"}')
    mirror.push(folder)
    spec.write_text("at 3")
    pointer.write_text('{"folder": "step-000000003"}')
    mirror.restore(folder, unless_behind=True)
    assert spec.read_text() == "at 3"
    mirror.restore(folder)
    assert spec.read_text() == "at 2" and "step-000000002" in pointer.read_text()


def test_a_kill_before_the_pointer_leaves_the_run_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, mirror = tmp_path / "run", Mirror(f"file://{tmp_path}/copy")
    folder.mkdir()
    (folder / "manifest.json").write_text("first")
    mirror.push(folder)
    (folder / "manifest.json").write_text("second")
    (folder / "more").write_text("more")
    with monkeypatch.context() as cut, pytest.raises(Exception, match="cut off"):

        def lost(*_: object, **__: object) -> None:
            raise OSError("cut off")

        cut.setattr(type(mirror._files), "pipe_file", lost)
        mirror.push(folder)
    Mirror(f"file://{tmp_path}/copy").restore(tmp_path / "back")
    assert content(tmp_path / "back") == {"manifest.json": b"first"}
    mirror.push(folder)
    assert len(list((tmp_path / "copy" / "files").iterdir())) == 2, "what was cut off is no longer there"


def test_damage_and_strange_places_are_told(tmp_path: Path) -> None:
    folder, mirror = tmp_path / "run", Mirror(str(tmp_path / "copy"))
    folder.mkdir()
    (folder / "manifest.json").write_text("first")
    mirror.push(folder)
    kept = next((tmp_path / "copy" / "files").iterdir())
    kept.write_text("other")
    with refused("file-damaged", kept.name):
        mirror.restore(tmp_path / "back")
    assert not (tmp_path / "back" / "manifest.json").exists()
    (tmp_path / "copy" / "last.json").write_text('{"step": 1, "files": {"../escape": "x"}}')
    with refused("file-damaged", "last.json"):
        mirror.restore(tmp_path / "back")
    with refused("unknown-file-system", "nowhere://"):
        Mirror("nowhere://run")
    (tmp_path / "plain").write_text("a file")
    with refused("checkpoints-not-reached", "plain"):
        Mirror(str(tmp_path / "plain")).push(folder)


def test_what_is_about_ray_alone_is_refused_without_it(market: Store, tmp_path: Path) -> None:
    with refused("setting-without-effect", "workers=2", "ray="):
        train(tiny(), market, tmp_path / "run", workers=2)
    with refused("unknown-device", "'gpu'"):
        train(tiny(), market, tmp_path / "run", ray="local", device="gpu")
    with refused("setting-out-of-range", "min_workers=3"):
        train(tiny(), market, tmp_path / "run", ray="local", workers=2, min_workers=3)
    assert not (tmp_path / "run").exists()
