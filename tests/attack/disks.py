"""Verbs that find the disk full, read-only or gone, or may open no more files: refused in one sentence, nothing lost.

A disk that is full from some place on is played in the child; a limit on the size of a file stops native writers too;
a small tmpfs is full for real, where this process may mount one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.attack.forks import Done
from tests.attack.frame import Outcome, Said, outcome_of, own_place
from tests.attack.kills import fault_of, forks, server_for, started_again, unkilled
from tests.attack.verbs import Verb, listing, snapshot


@cache
def mounting() -> str | None:
    """Why this process cannot mount a tmpfs, or None."""
    with own_place("mount") as home:
        done = _mounted(home / "tmp", "size=64k")
        if done is None:
            _unmount(home / "tmp")
        return done


def full_from(verb: Verb, nth: int, of: int, home: Path) -> Outcome:
    """No room from one of its places on: the `nth` of `of`, spread over all."""
    at = 1 + nth * len(unkilled(verb.name).places) // of
    return _tried(verb, home, f"full from place {at}", at=at, then="full")


def folder_removed(verb: Verb, nth: int, of: int, home: Path) -> Outcome:
    """All of its folder is removed by somebody while it works."""
    at = 1 + nth * len(unkilled(verb.name).places) // of
    with server_for(verb) as (asked, _):
        done = forks().run(asked.begin(home) and asked.line(), home, at=at, then="remove")
        return _told(asked, done, f"its folder removed at place {at}") or Outcome("ok")


def files_limited(verb: Verb, share: float, home: Path) -> Outcome:
    """No file may be larger than a share of the largest that it writes."""
    with own_place("sizes") as other, server_for(verb) as (asked, _):
        forks().run(asked.begin(other) and asked.line(), other)
        sizes = [path.stat().st_size for path in other.rglob("*") if path.is_file()]
    limit = int(max(sizes) * share)
    return _tried(verb, home, f"files of at most {limit} bytes", limits={"RLIMIT_FSIZE": limit})


def handles_limited(verb: Verb, most: int, home: Path) -> Outcome:
    """No more than `most` open files."""
    return _tried(verb, home, f"at most {most} open files", limits={"RLIMIT_NOFILE": most})


def small_disk(verb: Verb, room: int, home: Path) -> Outcome:
    """A disk of its own with `room` pages of 4 KiB beside what is on it."""
    with _disk(home) as disk:
        verb.begin(disk)
        used = int(
            subprocess.run(["df", "--output=used", "-k", disk], capture_output=True, text=True).stdout.split()[1]
        )
        _mounted(disk, f"remount,size={used + 4 * room}k")
        return _tried(verb, disk, f"a disk with {4 * room} KiB left", begun=True, more=disk)


def read_only_disk(verb: Verb, home: Path) -> Outcome:
    """Its folder is on a disk that is mounted read-only."""
    with _disk(home) as disk:
        verb.begin(disk)
        _mounted(disk, "remount,ro")
        before = listing(disk)
        with server_for(verb) as (asked, _):
            done = forks().run(asked.line(), disk)
        told = _told(asked, done, "a read-only disk")
        if told is None and done.code == 0:
            return Outcome("silent", "exit 0 on a read-only disk")
        return told or (Outcome("refused", done.err[-200:]) if listing(disk) == before else Outcome("loss"))


@contextmanager
def _disk(home: Path) -> Iterator[Path]:
    disk = home / "disk"
    disk.mkdir()
    failed = _mounted(disk, "size=32m")
    assert failed is None, failed
    try:
        yield disk
    finally:
        _unmount(disk)


def _mounted(place: Path, options: str) -> str | None:
    """Mount a tmpfs, or say why not."""
    remount = options.startswith("remount")
    command = (
        ["mount", "-o", options, str(place)] if remount else ["mount", "-t", "tmpfs", "-o", options, "none", place]
    )
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return (done.stderr or "mount failed").strip() if done.returncode else None


def _unmount(place: Path) -> None:
    subprocess.run(["umount", "-l", str(place)], capture_output=True)


def _tried(
    verb: Verb, home: Path, what: str, *, begun: bool = False, more: Path | None = None, **given: Any
) -> Outcome:
    with server_for(verb) as (asked, _):
        if not begun:
            asked.begin(home)
        before = set(listing(home))
        done = forks().run(asked.line(), home, **given)
        wrong = _told(asked, done, what) or _kept(asked, done, home, before, what)
        if wrong is not None:
            return wrong
        if more is not None:
            _mounted(more, "remount,size=32m")
        again = started_again(asked, home, what)
        return again if again.kind != "ok" or done.code == 0 else Outcome("refused", done.err[-200:])


def sentence_fault(done: Done) -> Outcome | None:
    """What is wrong with how it ended, or None: it has to succeed, or to be refused in one sentence."""
    said = Said((), done.code or 0, done.out, done.err, done.seconds, "HANG" in done.err)
    outcome = outcome_of(said, as_json=False)
    return None if outcome.kind in ("ok", "refused") else outcome


def _told(verb: Verb, done: Done, what: str) -> Outcome | None:
    outcome = sentence_fault(done)
    if outcome is None or (verb.kind == "rows" and done.code == 1 and "Traceback" not in done.err):
        return None  # a sweep goes on with its other runs, and leaves with 1 where one of them failed
    return Outcome(outcome.kind, f"{what}: {outcome.detail or done.err[-300:]}")


def _kept(verb: Verb, done: Done, home: Path, before: set[str], what: str) -> Outcome | None:
    """What is wrong with what is there now, or None."""
    if done.code == 0:
        return None if snapshot(home, verb.out) == unkilled(verb.name).files else Outcome("silent", f"{what}: exit 0")
    fault = fault_of(verb, home)
    if fault is not None:
        return Outcome("loss", f"{what}: {fault}")
    new = [path for path in listing(home) if path not in before and path != "tmp"]
    litter = [
        p for p in new if any(part.startswith(".") and part != ".lock" for part in Path(p).parts) or p[:4] == "tmp/"
    ]
    return Outcome("noise", f"{what}: litter {', '.join(litter[:6])}") if litter else None
