"""A store replaces another only when it is complete: kills, full disks and other people's files."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import polars as pl
import pytest

from fullrank.core import files
from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from refusals import refused

SMALL = pl.DataFrame({"user_id": [1, 1, 1], "item_id": [1, 2, 3], "timestamp": [1, 2, 3]})
OTHER = pl.DataFrame({"user_id": [1, 1, 1, 2], "item_id": [1, 2, 3, 4], "timestamp": [1, 2, 3, 4]})


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
def test_a_store_is_replaced_whole(tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange:
        monkeypatch.setattr(files, "exchange", lambda new, out: False)
    old = prepare(SMALL, tmp_path / "store")
    events = old.items
    assert prepare(OTHER, tmp_path / "store", overwrite=True).num_users == 2
    assert events.tolist() == [0, 1, 2], "an open store keeps its data"
    assert left(tmp_path) == ["store"]


def test_two_renames_roll_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(SMALL, tmp_path / "store")
    monkeypatch.setattr(files, "exchange", lambda new, out: False)
    rename = Path.rename

    def once(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", once)
    with refused("not-written", "Input/output error", tmp_path / "store"):
        prepare(OTHER, tmp_path / "store", overwrite=True)
    assert Store.open(tmp_path / "store", verify=True).num_users == 1 and left(tmp_path) == ["store"]


def run(code: str, folder: Path, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    def cap() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    source = "import sys; sys.path.insert(0, sys.argv[2])\n" + textwrap.dedent(code)
    root = str(Path(files.__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", source, str(folder), root], capture_output=True, text=True, preexec_fn=cap, timeout=120
    )


KILLED = """
    import os, signal, polars as pl
    import importlib
    module = importlib.import_module('fullrank.{module}')
    from fullrank.data.events.prepare import prepare
    module.{function} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    frame = pl.DataFrame({{"user_id": [1, 1, 1, 2], "item_id": [1, 2, 3, 4], "timestamp": [1, 2, 3, 4]}})
    prepare(frame, sys.argv[1] + "/store", overwrite=True)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "function"), [("data.manifest", "describe_files"), ("core.files", "flush"), ("core.files", "_swap")]
)
@pytest.mark.parametrize("existing", [True, False])
def test_a_killed_writer_loses_nothing(tmp_path: Path, module: str, function: str, existing: bool) -> None:
    if existing:
        prepare(SMALL, tmp_path / "store")
    done = run(KILLED.format(module=module, function=function), tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if existing:
        assert Store.open(tmp_path / "store", verify=True).num_users == 1
    else:
        assert not (tmp_path / "store").exists()
    assert any(name.endswith(".part") for name in left(tmp_path))
    assert prepare(OTHER, tmp_path / "store", overwrite=True).num_users == 2
    assert left(tmp_path) == ["store"], "what the killed writer left is swept away"


def test_another_writer_at_work_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / f".store.{os.getppid()}.part").mkdir()
    prepare(SMALL, tmp_path / "store")
    assert left(tmp_path) == [f".store.{os.getppid()}.part", "store"]


@pytest.mark.process
@pytest.mark.parametrize("limit", [200, 1500, 3000])
def test_a_full_disk_loses_nothing(tmp_path: Path, limit: int) -> None:
    """A limit on the size of a file stands for a full disk: the same OSError at the same places."""
    prepare(SMALL, tmp_path / "store")
    code = """
        import polars as pl, numpy as np
        from fullrank.data.events.prepare import prepare
        from fullrank.core.errors import UserError
        row = np.arange(3000)
        frame = pl.DataFrame({"user_id": row % 500, "item_id": row % 7, "timestamp": row})
        try:
            prepare(frame, sys.argv[1] + "/store", overwrite=True)
        except UserError as error:
            print("refused:", error)
    """
    done = run(code, tmp_path, limit)
    assert done.stdout.startswith("refused:") and "\n" not in done.stdout.strip(), done.stdout + done.stderr
    assert Store.open(tmp_path / "store", verify=True).num_users == 1 and left(tmp_path) == ["store"]


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    assert prepare(SMALL, tmp_path / "store").num_users == 1
    assert prepare(SMALL, tmp_path / "deep" / "er" / "store").num_users == 1


def test_other_files_are_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("x")
    with refused("folder-not-empty", tmp_path / "work"):
        prepare(SMALL, tmp_path / "work")
    with refused("not-a-folder", "thesis.tex"):
        prepare(SMALL, tmp_path / "work" / "thesis.tex")
    prepare(SMALL, tmp_path / "store")
    (tmp_path / "store" / "codes.parquet").write_text("x")
    with refused("foreign-files", "codes.parquet"):
        prepare(OTHER, tmp_path / "store", overwrite=True)
    assert (tmp_path / "work" / "thesis.tex").read_text() == "x" and Store.open(tmp_path / "store").num_users == 1


def test_a_damaged_or_newer_store_may_be_replaced(tmp_path: Path) -> None:
    prepare(SMALL, tmp_path / "store")
    (tmp_path / "store" / "items.npy").unlink()
    assert prepare(OTHER, tmp_path / "store", overwrite=True).num_users == 2


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with refused("not-written", tmp_path / "file" / "store"):
        prepare(SMALL, tmp_path / "file" / "store")
