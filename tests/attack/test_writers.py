"""Every verb that writes is killed, finds the disk full, and meets another writer: nothing is lost, torn or left.

It is killed at places and times spread over all of its work. A disk that is full from some place on is played in the
child; a limit on the size of a file stops native writers too; a small tmpfs is full for real, where this process may
mount one; also where it is read-only or gone there is one sentence.

Of two writers, or a writer and a reader, of one folder, one is stopped at a place while the other works. The second
writer is refused with `folder-locked`, or both succeed one after the other. In the end there is what one writer alone
would have left. A reader beside a writer gets the old answer or the new one.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.attack import kills
from tests.attack.bases import leaves
from tests.attack.forks import Child, run
from tests.attack.frame import SURVIVED, Outcome, Said, attack, every, outcome_of, own_folder
from tests.attack.kills import fault_of, killed, started_again, unkilled
from tests.attack.verbs import BY_NAME, VERBS, Verb, listing, snapshot
from tests.attack.worlds import world


@every(VERBS, process=True)
def test_a_kill_loses_nothing_and_is_made_good_by_the_next_start(verb: Verb) -> None:
    places = st.integers(1, len(unkilled(verb.name).places))
    attack("kills", verb.name, places, partial(killed, verb), verb.kills)
    attack("kills", verb.name, st.sampled_from([0.3, 0.8]), partial(killed, verb), 2)
    for number in (signal.SIGTERM, signal.SIGINT) if verb.kind in ("train", "rows") else ():
        attack("kills", verb.name, st.just(0.6), partial(killed, verb, number=number), 1)


def test_every_verb_that_writes_is_killed() -> None:
    """But for the demonstration, which calls others, and those that write by the functions of one that is killed:
    `scale fit` as `scale growth`, what else is evaluated or studied as `evaluate`, and lists in parts, which
    tests/inference kills; tests/sweeps kills `auto`."""
    alike = ("auto", "demo", "scale fit", "evaluate-", "recommend-parts", "study ")
    writing = {verb for verb, parameters in leaves().items() if any(one.name == "--out" for one in parameters)}
    lines = [f"{verb.line} " for verb in VERBS if isinstance(verb.line, str)]
    assert not [v for v in writing if not v.startswith(alike) and not any(line.startswith(f"{v} ") for line in lines)]


@pytest.mark.process
@pytest.mark.attack
def test_what_is_torn_or_left_is_noticed(tmp_path: Path) -> None:
    """The judge sees what a writer in place would leave."""
    verb = BY_NAME["predict-csv"]
    out = verb.begin(tmp_path / "torn") / verb.out
    out.write_bytes(out.read_bytes()[:100])
    assert kills.fault_of(verb, tmp_path / "torn")
    for name in ("tmp/left", ".p.csv.99999999-1.kept"):
        (verb.begin(tmp_path / name[:3]) / name).write_text("x")
        assert kills.started_again(verb, tmp_path / name[:3], "littered").kind == "noise"


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


TAKEN = {"folder-locked", "folder-holds-a-run", "folder-not-empty"}
"""Why the second of two writers may be refused; the last two where the first has finished meanwhile."""
PAIRS = (
    "train train", "train-over train-over", "train-resume train-resume", "train-over train-baseline", "prepare prepare",
    "prepare-over prepare-over", "clicks-over clicks-over", "subset subset", "encode-over encode-over", "sweep sweep",
    "tune tune", "evaluate evaluate", "evaluate-into-run diagnose", "grow grow", "predict-parquet predict-parquet",
    "download download",
)  # fmt: skip
"""The first is stopped while the second works."""
STATES = ("run_twin", "cut_off", "run")
"""What stands at `run` while `train-over` works: the old run, the new one after an epoch, and at its end."""
READER = ("recommend", "run", "--history", "1,2,3", "-k", "5")


@every(PAIRS, name="pair", process=True)
def test_two_writers_do_not_mix(pair: str) -> None:
    one, other = (BY_NAME[name] for name in pair.split())
    places = st.integers(1, len(unkilled(one.name).places))
    attack("writers", one.name, places, partial(beside, one, other), 2)
    if one is other:
        attack("writers", one.name, st.just(3), partial(at_once, one), 1)


@every(["train-over"], process=True)
def test_a_reader_gets_the_old_answer_or_the_new_one(verb: str) -> None:
    places = st.integers(1, len(unkilled(verb).places))
    attack("writers", "recommend", places, partial(read_beside, BY_NAME[verb]), 8)


def with_stopped(one: Verb, at: int, home: Path, words: Sequence[object]) -> tuple[Said, Said]:
    """How `one`, stopped before a place, and a command line that runs meanwhile end."""
    child = Child(one.words(as_json=True), one.begin(home), at=at, then="stop")
    assert child.halted(), f"{one.name} did not come to place {at}: {child.end().err[-300:]}"
    meanwhile = run(words, home)
    child.signal(signal.SIGCONT)
    return child.end(), meanwhile


def beside(one: Verb, other: Verb, at: int, home: Path) -> Outcome:
    """`one` is stopped before a place while `other` runs from its start to its end; then it goes on."""
    first, meanwhile = with_stopped(one, at, home, other.words(as_json=True))
    return agreed(one, other, [first, meanwhile], home)


def at_once(verb: Verb, count: int, home: Path) -> Outcome:
    """As many of them are started together."""
    verb.begin(home)
    children = [Child(verb.words(as_json=True), home) for _ in range(count)]
    return agreed(verb, verb, [child.end() for child in children], home)


def read_beside(writer: Verb, at: int, home: Path) -> Outcome:
    """A reader while the writer is stopped at a place: its answer has to be that of one of `STATES`."""
    ended, done = with_stopped(writer, at, home, READER)
    if done.code != 0:
        kind = "hang" if done.hung else "loss" if done.code == 2 else "bug"
        return Outcome(kind, f"the reader ended with {done.code}: {done.err[-300:]}")
    if done.out not in answers_of_all_states():
        return Outcome("silent", f"neither the old answer nor the new one: {done.out[:300]}")
    return agreed(writer, writer, [ended], home)


@cache
def answers_of_all_states() -> frozenset[str]:
    """What `READER` says of each run of `STATES`."""
    found = set()
    for name in STATES:
        with own_folder() as home:
            (home / "run").symlink_to(world(name))
            done = run(READER, home)
            assert done.code == 0, done.err
            found.add(done.out)
    assert len(found) > 1, "the old run and the new one answer alike: the reader could not tell them apart"
    return frozenset(found)


def agreed(one: Verb, other: Verb, all_done: list[Said], home: Path) -> Outcome:
    """Whether somebody won, and left what one of them alone would have left."""
    for done in all_done:
        outcome = outcome_of(done)
        if outcome.kind not in SURVIVED:
            return outcome
        if outcome.code not in {*TAKEN, ""}:
            return Outcome("loss", f"refused as {outcome.code}: {outcome.detail}")
    if all(done.code for done in all_done):
        return Outcome("loss", f"nobody won: {all_done[0].err[-200:]}")
    now, wanted, others = snapshot(home, one.out), unkilled(one.name), unkilled(other.name)
    if now not in (wanted.files, others.files, {**others.files, **wanted.files}):  # the last: different files of a run
        names = sorted(n for n in {**now, **wanted.files} if now.get(n) != wanted.files.get(n))
        return Outcome("silent", f"what neither of them writes alone: {', '.join(names[:8])}")
    litter = sorted({*listing(home)} - {*wanted.listing} - {*others.listing})
    return Outcome("noise", f"litter {', '.join(litter[:6])}") if litter else Outcome("ok")
