"""Two writers, or a writer and a reader, of one folder: one of them is stopped at a place while the other works.

The second writer is refused with `folder-locked`, or both succeed one after the other. In the end there is what one
writer alone would have left. A reader beside a writer gets the old answer or the new one.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.attack.disks import sentence_fault
from tests.attack.forks import Done
from tests.attack.frame import Outcome, own_place
from tests.attack.kills import forks, server_for, unkilled
from tests.attack.verbs import BY_NAME, Verb, listing, snapshot, world

TAKEN = frozenset({"folder-locked", "folder-holds-a-run", "folder-not-empty"})
"""Why the second of two writers may be refused; the last two where the first has finished meanwhile."""
RUNS_OF_ALL_STATES = ("run-old", "run-cut", "run")
"""What stands at `run` while `train-over` works: the old run, the new one after an epoch, and at its end."""


def both(one: Verb, other: Verb, nth: int, of: int, home: Path) -> Outcome:
    """`one` is stopped before a place while `other` runs from its start to its end; then it goes on."""
    at = 1 + nth * len(unkilled(one.name).places) // of
    with server_for(one) as (first, url):
        second = first if other is one else other
        child = forks().start(first.begin(home) and first.line(), home, at=at, then="stop")
        if not child.halted():
            return Outcome("bug", f"{one.name} did not come to place {at}: {child.end().err[-300:]}")
        meanwhile = forks().run([*second.line(), "--json"] if _is_line(second) else second.line(), home)
        child.signal(signal.SIGCONT)
        return _agreed(one, other, [child.end(), meanwhile], home, f"stopped at place {at}")


def at_once(verb: Verb, count: int, home: Path) -> Outcome:
    """As many of them are started together."""
    with server_for(verb) as (asked, _):
        asked.begin(home)
        words = [*asked.line(), "--json"] if _is_line(verb) else asked.line()
        children = [forks().start(words, home) for _ in range(count)]
        return _agreed(verb, verb, [child.end() for child in children], home, f"{count} at once")


def read_beside(reader: Sequence[Any], writer: Verb, answers: frozenset[str], nth: int, of: int, home: Path) -> Outcome:
    """A reader while the writer is stopped at a place: its answer has to be one of `answers`."""
    at = 1 + nth * len(unkilled(writer.name).places) // of
    child = forks().start(writer.begin(home) and writer.line(), home, at=at, then="stop")
    if not child.halted():
        return Outcome("bug", f"{writer.name} did not come to place {at}: {child.end().err[-300:]}")
    done = forks().run(reader, home)
    child.signal(signal.SIGCONT)
    ended = child.end()
    if done.code != 0:
        kind = "hang" if "HANG" in done.err else "loss" if done.code == 2 else "bug"
        return Outcome(kind, f"stopped at place {at}: the reader ended with {done.code}: {done.err[-300:]}")
    if done.out not in answers:
        return Outcome("silent", f"stopped at place {at}: neither the old answer nor the new one: {done.out[:300]}")
    return _agreed(writer, writer, [ended], home, f"read beside, stopped at place {at}")


READER = ("recommend", "run", "--history", "1,2,3", "-k", "5")


@cache
def answers_of_all_states() -> frozenset[str]:
    """What `READER` says of each run of `RUNS_OF_ALL_STATES`."""
    found = set()
    for name in RUNS_OF_ALL_STATES:
        with own_place("answers") as home:
            (home / "run").symlink_to(world() / name)
            done = forks().run(READER, home)
            assert done.code == 0, done.err
            found.add(done.out)
    assert len(found) > 1, "the old run and the new one answer alike: the reader could not tell them apart"
    return frozenset(found)


def _is_line(verb: Verb) -> bool:
    return not isinstance(verb.words[-1], dict)


def _agreed(one: Verb, other: Verb, all_done: list[Done], home: Path, what: str) -> Outcome:
    for done in all_done:
        if "HANG" in done.err:
            return Outcome("hang", f"{what}: {done.err[-200:]}")
        if done.code == 2 and done.refusal not in {*TAKEN, None}:
            return Outcome("loss", f"{what}: refused as {done.refusal}: {done.err[-300:]}")
        if done.code == 2 and done.refusal is None and not sentence_fault(done):
            continue  # asked without --json
        if done.code not in (0, 2):
            return Outcome("bug", f"{what}: exit {done.code}: {done.err[-300:]}")
    if all(done.code for done in all_done):
        return Outcome("loss", f"{what}: nobody won: {all_done[0].err[-200:]}")
    now = snapshot(home, one.out)
    wanted, others = unkilled(one.name).files, unkilled(other.name).files
    if now not in (wanted, others, {**others, **wanted}):  # the last: verbs that write different files into a run
        names = sorted(n for n in {**now, **wanted} if now.get(n) != wanted.get(n))
        return Outcome("silent", f"{what}: what neither of them writes alone: {', '.join(names[:8])}")
    litter = set(listing(home)) - set(unkilled(one.name).listing) - set(unkilled(other.name).listing)
    if litter:
        return Outcome("noise", f"{what}: litter {', '.join(sorted(litter)[:6])}")
    return Outcome("ok", what)


PAIRS = tuple(
    (BY_NAME[one], BY_NAME[other])
    for one, other in (
        ("train", "train"), ("train-over", "train-over"), ("train-resume", "train-resume"),
        ("train-over", "train-baseline"), ("prepare", "prepare"), ("prepare-over", "prepare-over"),
        ("clicks-over", "clicks-over"), ("subset", "subset"), ("encode-over", "encode-over"), ("sweep", "sweep"),
        ("tune", "tune"), ("evaluate", "evaluate"), ("evaluate-into-run", "diagnose"), ("grow-run", "grow-run"),
        ("predict-parquet", "predict-parquet"), ("download", "download"),
    )
)  # fmt: skip
"""The first is stopped while the second works."""
