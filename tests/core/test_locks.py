"""One writer at a time: processes and threads are refused, killed holders are not waited for, nothing is left."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from folders import left
from fullrank.core import files, locks
from fullrank.core.files import foreign_files, whole_folder, write_text
from fullrank.core.locks import folder_lock, holds_lock
from refusals import refused

HOLDER = """
    import sys, time
    from pathlib import Path
    from fullrank.core.files import whole_folder
    from fullrank.core.locks import folder_lock
    with folder_lock(sys.argv[1], "train"), whole_folder(sys.argv[1]) as part:
        (part / "half").write_text("x")
        print("held", flush=True)
        time.sleep(120)
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Starts a process that holds a folder and has half of a new one beside it."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[2])}
        command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_nothing_is_left(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "new" / "deep" / "run", "train"):
        note = json.loads((tmp_path / "new" / "deep" / ".run.lock").read_text())
        assert note["pid"] == os.getpid() and note["what"] == "train" and note["host"] == locks.HOST
    assert left(tmp_path) == [], "a verb that wrote nothing leaves no folder either"
    with folder_lock(tmp_path / "new" / "run", "train"):
        (tmp_path / "new" / "run").mkdir()
    assert left(tmp_path / "new") == ["run"]


@pytest.mark.process
def test_another_process_is_refused_and_told_who(tmp_path: Path, holder) -> None:
    process = holder(tmp_path / "run")
    with refused("folder-locked", tmp_path / "run", "train", process.pid, locks.HOST), whole_folder(tmp_path / "run"):
        raise AssertionError("it is locked")
    assert not (tmp_path / "run").exists()
    assert foreign_files(tmp_path) == [], "the lock and the part are nobody's"


@pytest.mark.process
def test_a_killed_holder_is_no_holder(tmp_path: Path, holder) -> None:
    process = holder(tmp_path / "run")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(left(tmp_path)) == 2, "its lock file, and its half"
    with whole_folder(tmp_path / "run") as part:
        (part / "x").write_text("")
    assert left(tmp_path) == ["run"]


def test_what_another_machine_left_goes_once_its_place_is_locked(tmp_path: Path) -> None:
    """Its process id says nothing here: the lock does. Of a file, which has none, it goes after a day."""
    pid = os.getppid()
    for name in ("run", "x.txt"):
        (tmp_path / f".{name}.{pid}-1-00000000.part").mkdir()
        (tmp_path / f".{name}.{pid}-1.part").mkdir()  # of a version without locks, by a process that lives
    with whole_folder(tmp_path / "run"):
        pass
    write_text(tmp_path / "x.txt", "x")
    kept = [f".run.{pid}-1.part", f".x.txt.{pid}-1-00000000.part", f".x.txt.{pid}-1.part"]
    assert left(tmp_path) == [*kept, "run", "x.txt"]
    os.utime(tmp_path / kept[1], (0, 0))
    write_text(tmp_path / "x.txt", "x")
    assert left(tmp_path) == [kept[0], kept[2], "run", "x.txt"]
    (tmp_path / kept[1]).mkdir()
    with folder_lock(tmp_path, "sweep"):  # a process id may be another process's by now: the folder's lock says more
        write_text(tmp_path / "x.txt", "x")
    assert left(tmp_path) == [kept[0], kept[2], "run", "x.txt"]


def test_a_thread_is_another_writer_and_a_call_inside_is_not(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "a", "demo"), ThreadPoolExecutor(1) as other:
        assert holds_lock(tmp_path / "a")
        with folder_lock(tmp_path / "a" / ".." / "a", "prepare"), folder_lock(tmp_path / "b", "prepare"):
            pass
        assert left(tmp_path) == [".a.lock"], "what is inside let nothing go"
        with refused("folder-locked", tmp_path / "a", "demo", os.getpid(), locks.HOST):
            other.submit(folder_lock(tmp_path / "a", "prepare").__enter__).result()
    assert not holds_lock(tmp_path / "a") and left(tmp_path) == []


def test_threads_that_take_turns_never_share(tmp_path: Path) -> None:
    """The file is made and removed all the time: a lock on one that is gone is none."""
    inside, seen = threading.Lock(), []

    def work(_: int) -> None:
        turns = 0
        while turns < 25:
            try:
                with folder_lock(tmp_path / "run", "train"):
                    seen.append(inside.acquire(blocking=False))
                    turns += 1
                    inside.release()
            except locks.UserError as error:
                assert error.code == "folder-locked"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert all(seen) and len(seen) == 200 and left(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with caplog.at_level(logging.INFO, "fullrank"):
        for _ in range(3):
            with folder_lock(tmp_path / "run", "train"):
                assert not holds_lock(tmp_path / "run")
    assert len(caplog.records) == 1 and left(tmp_path) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused("not-written", tmp_path / "file" / "run"), folder_lock(tmp_path / "file" / "run", "train"):
        pass
    with refused("not-written"), folder_lock("/proc/run", "train"):
        pass


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("mine")
    (tmp_path / ".run.lock").symlink_to(tmp_path / "thesis")
    with refused("not-written", tmp_path / "run"), folder_lock(tmp_path / "run", "train"):
        pass
    assert (tmp_path / "thesis").read_text() == "mine"


@pytest.mark.parametrize("note", ["", "{", "[1]", '{"pid": 1}', '{"pid":1,"what":"x","host":"' + "h" * 9000 + '"}'])
def test_a_note_of_anything(tmp_path: Path, note: str) -> None:
    with folder_lock(tmp_path / "run", "train"), ThreadPoolExecutor(1) as other:
        (tmp_path / ".run.lock").write_text(note)
        with refused("folder-locked", tmp_path / "run", "another process") as told:
            other.submit(folder_lock(tmp_path / "run", "prepare").__enter__).result()
        assert len(str(told)) < 400


def test_a_place_whose_surroundings_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is mounted at the run: the lock lies in it."""
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(locks.os, "access", lambda path, mode: False)
    with folder_lock(tmp_path / "run", "train"):
        assert left(tmp_path / "run") == [".run.lock"] and foreign_files(tmp_path / "run") == []
    assert left(tmp_path / "run") == []


def test_two_starters_tidy_at_once(tmp_path: Path) -> None:
    """Without the lock, as writers of files do: both find the same litter, and nobody fails."""
    dead = 2**22 + 1
    for number in range(300):
        (tmp_path / f".x.{dead}-{number}.part").mkdir()
        (tmp_path / f".x.{dead}-{number}.part" / "whole").write_text("")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: locks.remove_leftovers(tmp_path / "x"), range(8)))
    assert left(tmp_path) == []
