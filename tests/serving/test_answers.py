"""The answer log: nothing blocks, drops are counted, a kill loses the buffer alone, a forgotten user is nowhere."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from fullrank.core.errors import UserError
from fullrank.serving import answers
from fullrank.serving.answers import SCHEMA, AnswerLog, LoggedAnswer
from serving.running import until


def row(n: int, user: str | None = "ada", at: float | None = None, k: int = 3) -> LoggedAnswer:
    items = [n + place for place in range(k)]
    return LoggedAnswer(at or time.time(), f"r{n}", user, "may", "model", k, items, [0.5] * k, 4, False, True)


def read(folder: Path) -> pl.DataFrame:
    frames = [pl.read_parquet(path) for path in sorted(folder.glob("answers-*.parquet"))]
    return pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA)


def test_what_is_added_is_a_part_when_the_log_is_closed(tmp_path: Path) -> None:
    with AnswerLog(tmp_path / "log") as log:
        log.add([row(1), row(2, None)])
        log.add([row(n, f"u{n}") for n in range(3, 600)])
    found = read(tmp_path / "log")
    assert dict(found.schema) == SCHEMA
    assert found["request_id"].to_list() == [f"r{n}" for n in range(1, 600)]
    assert found.row(0, named=True)["items"] == ["1", "2", "3"] and found["user"][1] is None
    assert log.written == 599 and log.dropped == 0 == log.pending
    assert not list((tmp_path / "log").glob(".*"))


def test_parts_are_written_by_count_and_by_time(tmp_path: Path) -> None:
    with AnswerLog(tmp_path, rows=5, seconds=60) as log:
        log.add(row(n) for n in range(7))
        assert until(lambda: log.written == 7)
    with AnswerLog(tmp_path, rows=500, seconds=0.1) as log:
        log.add([row(8)])
        assert until(lambda: log.written == 1)
        assert until(lambda: len(log.parts()) == 2)
    assert len(AnswerLog(tmp_path).parts()) == 2, "an empty buffer is no part"


def test_a_full_buffer_drops_and_counts(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, most_places=10 * (3 + answers.ROW))
    log.add(row(n) for n in range(25))
    assert (log.pending, log.dropped) == (10, 15)
    log.flush()
    log.add([row(30)])
    assert log.pending == 1
    log.close()
    assert len(read(tmp_path)) == 11


def test_a_disk_that_refuses_keeps_the_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AnswerLog(tmp_path)
    log.add([row(1)])

    def full(*_: object) -> None:
        raise UserError("the disk is full", code="not-written")

    with monkeypatch.context() as patch:
        patch.setattr(answers, "write_table", full)
        with pytest.raises(UserError):
            log.flush()
    log.add([row(2)])
    assert log.pending == 2
    log.close()
    assert read(tmp_path)["request_id"].to_list() == ["r1", "r2"]


def test_old_parts_go(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, days=2)
    (tmp_path / "answers-20200101T000000000000-0a0a0a0a-1-1.parquet").write_bytes(b"old")
    (tmp_path / "notes.parquet").write_bytes(b"another's")
    log.add([row(1, at=time.time() - 3600)])
    log.flush()
    assert log.clean() == 1 and len(log.parts()) == 1 and (tmp_path / "notes.parquet").exists()


def test_a_forgotten_user_is_in_no_part_and_no_buffer(tmp_path: Path) -> None:
    log, other = AnswerLog(tmp_path), AnswerLog(tmp_path)
    for part in range(3):
        log.add([row(part, "ada"), row(10 + part, "bob"), row(20 + part, None)])
        log.flush()
    log.add([row(4, "ada"), row(14, "bob")])
    other.add([row(5, "ada"), row(15, "bob")])  # the buffer of another process
    assert log.forget("ada") == 4
    log.flush()
    other.flush()
    found = read(tmp_path)
    assert "ada" not in found["user"].to_list() and len(found) == 8 and log.pending == 0
    log.add([row(6, "ada")])  # who comes back is a new user
    log.flush()
    assert read(tmp_path)["user"].to_list().count("ada") == 1
    assert log.forget("nobody") == 0


def test_a_part_that_held_nobody_else_is_removed(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    log.add([row(1)])
    log.flush()
    assert log.forget("ada") == 1 and log.parts() == []


def test_forgetting_beside_writers(tmp_path: Path) -> None:
    """Two logs write all the time while two threads forget: in the end nobody forgotten is there, all others are."""
    logs = [AnswerLog(tmp_path, rows=20, seconds=0.02).open() for _ in range(2)]
    forgotten = [f"gone{n}" for n in range(6)]
    for n in range(60):
        for place, log in enumerate(logs):
            log.add([row(n, forgotten[n % 6]), row(n, f"kept{place}")])
        time.sleep(0.002)
    with ThreadPoolExecutor(2) as threads:
        halves = zip((forgotten[:4], forgotten[2:]), logs, strict=True)
        forgetting = [threads.submit(lambda mine=mine, log=log: [*map(log.forget, mine)]) for mine, log in halves]
        for n in range(60, 120):
            logs[0].add([row(n, "kept0")])
            time.sleep(0.001)
    for thread in forgetting:
        thread.result()
    for log in logs:
        log.close()
    users = read(tmp_path)["user"].to_list()
    assert not set(users) & set(forgotten)
    assert users.count("kept0") == 120 and users.count("kept1") == 60


KILLED = """
import sys, time
from fullrank.serving.answers import AnswerLog, LoggedAnswer
log = AnswerLog(sys.argv[1], rows=50, seconds=60).open()
for n in range(120):
    log.add([LoggedAnswer(time.time(), f"r{n}", "u", "v", "model", 1, [n], [0.0], 1, False, False)])
    while n % 50 == 49 and log.written < n + 1:
        time.sleep(0.01)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.process
def test_a_kill_loses_the_buffer_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGKILL)
    assert read(tmp_path)["request_id"].to_list() == [f"r{n}" for n in range(100)]
