"""Every verb that writes finds the disk full, read-only or gone: one sentence, nothing lost or left.

A disk that is full from some place on is played in the child; a limit on the size of a file stops native writers too;
a small tmpfs is full for real, where this process may mount one.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.attack.forks import run
from tests.attack.frame import SURVIVED, Outcome, Said, attack, every, outcome_of, own_folder
from tests.attack.kills import fault_of, started_again, unkilled
from tests.attack.verbs import VERBS, Verb, listing, snapshot


@every(VERBS, process=True)
def test_a_disk_without_room_loses_nothing(verb: Verb) -> None:
    places = st.integers(1, len(unkilled(verb.name).places))
    for conditions, draws in (
        (places.map(lambda at: {"at": at, "then": "full"}), 3),
        (st.just({"limits": {"RLIMIT_FSIZE": half_of_largest(verb)}}), 1),
        (st.just({"limits": {"RLIMIT_NOFILE": 14}}), 1), (places.map(lambda at: {"at": at, "then": "remove"}), 1),
    ):  # fmt: skip
        attack("full disk", verb.name, conditions, partial(tried, verb), draws)


@every(VERBS, process=True)
def test_a_small_or_read_only_disk_loses_nothing(verb: Verb) -> None:
    if not mounts():
        pytest.skip("no tmpfs can be mounted here")
    for condition in (small_disk, read_only_disk):
        attack("full disk", verb.name, st.just(verb), condition, 1)


def half_of_largest(verb: Verb) -> int:
    """Half the bytes of the largest file that a verb writes."""
    with own_folder() as home:
        run(verb.words(), verb.begin(home))
        return max(path.stat().st_size for path in home.rglob("*") if path.is_file()) // 2


def tried(verb: Verb, conditions: dict[str, Any], home: Path) -> Outcome:
    """A verb under conditions that `forks` plays."""
    before = listing(verb.begin(home))
    done = run(verb.words(), home, **conditions)
    if conditions.get("then") == "remove":  # all of its folder, by somebody else
        return wrong_end(verb, done) or Outcome("ok")
    return judged(verb, done, home, before, str(conditions))


def small_disk(verb: Verb, home: Path) -> Outcome:
    """A disk of its own with three pages of 4 KiB beside what is on it."""
    with disk(home) as path:
        before, state = listing(verb.begin(path)), os.statvfs(path)
        mount(path, f"remount,size={(state.f_blocks - state.f_bfree) * state.f_frsize + 3 * 4096}")
        done = run(verb.words(), path)
        mount(path, "remount,size=32m")
        return judged(verb, done, path, before, "a small disk")


def read_only_disk(verb: Verb, home: Path) -> Outcome:
    with disk(home) as path:
        before = listing(verb.begin(path))
        mount(path, "remount,ro")
        done = run(verb.words(), path)
        if done.code == 0:
            return Outcome("silent", "exit 0 on a read-only disk")
        return wrong_end(verb, done) or Outcome("refused" if listing(path) == before else "loss", done.err[-200:])


@contextmanager
def disk(home: Path) -> Iterator[Path]:
    (home / "disk").mkdir()
    mount(home / "disk", "size=32m", "-t", "tmpfs", "none")
    try:
        yield home / "disk"
    finally:
        subprocess.run(["umount", "-l", str(home / "disk")], capture_output=True)


def mount(path: Path, options: str, *words: str) -> None:
    subprocess.run(["mount", "-o", options, *words, str(path)], capture_output=True, check=True)


@cache
def mounts() -> bool:
    """Whether this process may mount a tmpfs."""
    try:
        with own_folder() as home, disk(home):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def judged(verb: Verb, done: Said, home: Path, before: list[str], what: str) -> Outcome:
    """Refused with nothing lost or left, and then as ever."""
    wrong = wrong_end(verb, done) or wrongly_left(verb, done, home, before)
    if wrong is not None:
        return Outcome(wrong.kind, f"{what}: {wrong.detail}")
    again = started_again(verb, home, what)
    return again if again.kind != "ok" or done.code == 0 else Outcome("refused", done.err[-200:])


def wrong_end(verb: Verb, done: Said) -> Outcome | None:
    """What is wrong with how it ended, or None: it has to succeed, or to be refused in one sentence."""
    outcome = outcome_of(done)
    if outcome.kind in SURVIVED or (verb.kind == "rows" and done.code == 1 and "Traceback" not in done.err):
        return None  # a sweep goes on with its other runs, and leaves with 1 where one of them failed
    return outcome


def wrongly_left(verb: Verb, done: Said, home: Path, before: list[str]) -> Outcome | None:
    """What is wrong with what is there now, or None."""
    if done.code == 0:
        return None if snapshot(home, verb.out) == unkilled(verb.name).files else Outcome("silent", "exit 0")
    if fault := fault_of(verb, home):
        return Outcome("loss", fault)
    hidden = [path for path in {*listing(home)} - {*before, "tmp"}
              if path[:4] == "tmp/" or any(re.match(r"\.(?!lock$)", part) for part in Path(path).parts)]  # fmt: skip
    return Outcome("noise", f"litter {', '.join(hidden[:6])}") if hidden else None
