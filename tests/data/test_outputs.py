"""Where folders of data may be written: not into each other, by one process at a time, whatever the path looks like."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from fullrank.core.files import scratch_folder, without_dots
from fullrank.core.locks import folder_lock
from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.events.subset import subset
from fullrank.data.impressions.prepare import prepare_impressions
from fullrank.data.sources.planted import Planted
from fullrank.semantic_ids.encode import encode
from refusals import refused


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    return Planted(users=60, items=40, events_per_user=8).read().events


@pytest.fixture
def store(events: pl.DataFrame, tmp_path: Path) -> Store:
    return prepare(events, tmp_path / "shop")


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_path_with_dots_in_it(events: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point 18 of the review: it was written, and then there was no store."""
    made = prepare(events, tmp_path / "a" / "missing" / ".." / "z")
    assert made.path == tmp_path / "a" / "z" and Store.open(made.path, verify=True).num_users == 60
    assert left(tmp_path / "a") == ["z"]
    monkeypatch.chdir(tmp_path)
    assert without_dots("runs/x") == Path("runs/x"), "a plain path is told as it was given"


def test_nothing_is_written_into_a_store(events: pl.DataFrame, store: Store) -> None:
    before = left(store.path)
    inside = store.path / "half"
    clicks = pl.DataFrame({"label": [0, 1], "a": ["x", "y"]})
    for write in (
        lambda: subset(store, inside, share=0.5),
        lambda: prepare(events, inside / "deeper"),
        lambda: prepare_impressions(clicks, inside),
        lambda: encode(store, inside),
    ):
        with refused("inside-a-store", inside, store.path):
            write()
    assert left(store.path) == before
    prepare(events, store.path, overwrite=True)


@pytest.mark.parametrize("verb", ["prepare", "prepare-impressions", "subset", "encode"])
def test_a_folder_that_is_being_written_is_refused_before_the_work(
    verb: str, events: pl.DataFrame, store: Store, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    calls = {
        "prepare": lambda: prepare(events, out),
        "prepare-impressions": lambda: prepare_impressions(tmp_path / "not there.csv", out),
        "subset": lambda: subset(store, out, share=0.5),
        "encode": lambda: encode(store, out),
    }
    with folder_lock(out, "prepare"), ThreadPoolExecutor(1) as other, refused("folder-locked", out):
        other.submit(calls[verb]).result()


BESIDE = """
    import sys
    from fullrank.core.errors import UserError
    from fullrank.data.events.prepare import prepare
    from fullrank.data.sources.planted import Planted
    events = Planted(users=60, items=40, events_per_user=8, seed=int(sys.argv[2])).read().events
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(10):
        try:
            prepare(events, sys.argv[1], overwrite=True)
        except UserError as error:
            if error.code != "folder-locked":
                raise
"""


@pytest.mark.process
def test_two_prepares_leave_one_whole_store(tmp_path: Path) -> None:
    from textwrap import dedent

    out = tmp_path / "shop"
    command = [sys.executable, "-c", dedent(BESIDE), str(out)]
    both = [
        subprocess.Popen([*command, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for seed in (1, 2)
    ]
    for process in both:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.wait(timeout=100) for process in both] == [0, 0]
    assert Store.open(out, verify=True).num_users == 60 and left(tmp_path) == ["shop"]


@pytest.mark.process
def test_scratch_of_a_killed_process_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed = "import os, signal; from fullrank.core.files import scratch_folder\n" + (
        "with scratch_folder() as folder: (folder / 'x').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", killed], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert len(left(tmp_path)) == 1
    with scratch_folder() as folder:
        assert left(tmp_path) == [folder.name] and folder.stat().st_mode & 0o777 == 0o700
    assert left(tmp_path) == []
