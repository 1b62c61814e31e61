"""Every verb that writes finds the disk full, read-only or gone: one sentence, nothing lost or left.

A disk that is full from some place on is played in the child; a limit on the size of a file stops native writers too;
a small tmpfs is full for real, where this process may mount one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.attack.forks import forks
from tests.attack.frame import SURVIVED, Outcome, Said, attack, every, outcome_of, own_folder
from tests.attack.kills import fault_of, server_for, started_again, unkilled
from tests.attack.verbs import VERBS, Verb, listing, snapshot


@cache
def mounting() -> str | None:
    """Why this process cannot mount a tmpfs, or None."""
    with own_folder() as home:
        failure = _mounted(home / "tmp", "size=64k")
        subprocess.run(["umount", "-l", str(home / "tmp")], capture_output=True)
        return failure


@every(VERBS, process=True)
def test_a_disk_without_room_loses_nothing(verb: Verb) -> None:
    places = st.integers(1, len(unkilled(verb.name).places))
    full: Any = places.map(lambda at: {"at": at, "then": "full"})
    for conditions, draws in ((full, 3), (st.just({"limits": {"RLIMIT_FSIZE": half_of_largest(verb)}}), 1),
                              (st.just({"limits": {"RLIMIT_NOFILE": 14}}), 1)):  # fmt: skip
        attack("full disk", verb.name, conditions, partial(tried, verb), draws)
    attack("full disk", verb.name, places, partial(folder_removed, verb), 1)


@every(VERBS, process=True)
def test_a_small_or_read_only_disk_loses_nothing(verb: Verb) -> None:
    if (why := mounting()) is not None:
        pytest.skip(f"no tmpfs can be mounted here: {why}")
    attack("full disk", verb.name, st.just(3), partial(small_disk, verb), 1)
    attack("full disk", verb.name, st.none(), lambda _, home: read_only_disk(verb, home), 1)


def half_of_largest(verb: Verb) -> int:
    """Half the bytes of the largest file that a verb writes."""
    with own_folder() as home, server_for(verb) as given:
        forks().run(given.words(), given.begin(home))
        return max(path.stat().st_size for path in home.rglob("*") if path.is_file()) // 2


def folder_removed(verb: Verb, at: int, home: Path) -> Outcome:
    """All of its folder is removed by somebody while it works."""
    with server_for(verb) as given:
        done = forks().run(given.words(), given.begin(home), at=at, then="remove")
        return wrong_end(given, done) or Outcome("ok")


def small_disk(verb: Verb, room: int, home: Path) -> Outcome:
    """A disk of its own with `room` pages of 4 KiB beside what is on it."""
    with _disk(home) as disk:
        verb.begin(disk)
        told = subprocess.run(["df", "--output=used", "-k", disk], capture_output=True, text=True).stdout
        _mounted(disk, f"remount,size={int(told.split()[1]) + 4 * room}k")
        return tried(verb, {}, disk, begin=lambda path: path, relieved=lambda: _mounted(disk, "remount,size=32m"))


def read_only_disk(verb: Verb, home: Path) -> Outcome:
    """Its folder is on a disk that is mounted read-only."""
    with _disk(home) as disk:
        verb.begin(disk)
        _mounted(disk, "remount,ro")
        before = listing(disk)
        with server_for(verb) as given:
            done = forks().run(given.words(), disk)
        if done.code == 0:
            return Outcome("silent", "exit 0 on a read-only disk")
        return wrong_end(given, done) or Outcome("refused" if listing(disk) == before else "loss", done.err[-200:])


@contextmanager
def _disk(home: Path) -> Iterator[Path]:
    (home / "disk").mkdir()
    failure = _mounted(home / "disk", "size=32m")
    assert failure is None, failure
    try:
        yield home / "disk"
    finally:
        subprocess.run(["umount", "-l", str(home / "disk")], capture_output=True)


def _mounted(path: Path, options: str) -> str | None:
    """Mount a tmpfs, or say why not."""
    new = [] if options.startswith("remount") else ["-t", "tmpfs", "none"]
    try:
        done = subprocess.run(["mount", "-o", options, *new, str(path)], capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return (done.stderr or "mount failed").strip() if done.returncode else None


def tried(
    verb: Verb, conditions: dict[str, Any], home: Path, begin: Callable[[Path], Path] | None = None,
    relieved: Callable[[], object] = lambda: None,
) -> Outcome:  # fmt: skip
    """A verb under conditions that `forks` plays: refused with nothing lost or left, and then as ever."""
    with server_for(verb) as given:
        (begin or given.begin)(home)
        before = set(listing(home))
        done = forks().run(given.words(), home, **conditions)
        wrong = wrong_end(given, done) or _wrongly_left(given, done, home, before)
        if wrong is not None:
            return Outcome(wrong.kind, f"{conditions}: {wrong.detail}")
        relieved()
        again = started_again(given, home, f"{conditions}")
        return again if again.kind != "ok" or done.code == 0 else Outcome("refused", done.err[-200:])


def wrong_end(verb: Verb, done: Said) -> Outcome | None:
    """What is wrong with how it ended, or None: it has to succeed, or to be refused in one sentence."""
    outcome = outcome_of(done)
    if outcome.kind in SURVIVED or (verb.kind == "rows" and done.code == 1 and "Traceback" not in done.err):
        return None  # a sweep goes on with its other runs, and leaves with 1 where one of them failed
    return outcome


def _wrongly_left(verb: Verb, done: Said, home: Path, before: set[str]) -> Outcome | None:
    """What is wrong with what is there now, or None."""
    if done.code == 0:
        return None if snapshot(home, verb.out) == unkilled(verb.name).files else Outcome("silent", "exit 0")
    fault = fault_of(verb, home)
    if fault is not None:
        return Outcome("loss", fault)
    hidden = [path for path in {*listing(home)} - before - {"tmp"}
              if path[:4] == "tmp/" or any(re.match(r"\.(?!lock$)", part) for part in Path(path).parts)]  # fmt: skip
    return Outcome("noise", f"litter {', '.join(hidden[:6])}") if hidden else None
