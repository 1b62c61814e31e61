"""Two writers, or a writer and a reader, of one folder: one of them is stopped at a place while the other works.

The second writer is refused with `folder-locked`, or both succeed one after the other. In the end there is what one
writer alone would have left. A reader beside a writer gets the old answer or the new one.
"""

import signal
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from hypothesis import strategies as st

from tests.attack.forks import Child, run
from tests.attack.frame import SURVIVED, Outcome, Said, attack, every, outcome_of, own_folder
from tests.attack.kills import unkilled
from tests.attack.verbs import BY_NAME, Verb, listing, snapshot
from tests.attack.worlds import world

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
