"""Every verb that writes is killed at places and times spread over all of its work: nothing is lost, torn or left."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from tests.attack import kills
from tests.attack.bases import leaves
from tests.attack.frame import Case, Outcome, attacks, check
from tests.attack.kills import killed_after, killed_at
from tests.attack.verbs import VERBS

TIMES = (0.3, 0.8)
"""Shares of a verb's time after which it is killed."""
SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}


def cases() -> list[Case]:
    found = []
    for verb in VERBS:
        places = [(f"place-{n:03}", partial(killed_at, verb, n)) for n in range(verb.kills)]
        times = [(f"after-{share:.0%}", partial(killed_after, verb, share)) for share in TIMES]
        for name, number in SIGNALS.items() if verb.kind in ("train", "rows") else ():
            times.append((f"{name}-at-60%", partial(killed_after, verb, 0.6, number=number)))
        found += [Case("kills", verb.name, name, run) for name, run in (*places, *times)]
    return found


@attacks(cases(), one_in=90)
def test_a_kill_loses_nothing_and_is_made_good_by_the_next_start(case: Case) -> None:
    check(case)


def test_every_verb_that_writes_is_killed() -> None:
    """But for the demonstration, which calls others, and `scale fit`, which takes long and writes as `scale growth`."""
    writing = {verb for verb, parameters in leaves().items() if any(one.name == "--out" for one in parameters)}
    lines = {" ".join(verb.words[:2]) for verb in VERBS if isinstance(verb.words[1], str)}
    assert {verb for verb in writing if not any(f"{line} ".startswith(f"{verb} ") for line in lines)} == {
        "demo", "scale fit",
    }  # fmt: skip


def test_a_torn_output_is_noticed() -> None:
    """The judge sees what a writer in place would leave."""
    verb = kills.BY_NAME["predict-csv"]
    kills.unkilled(verb.name)

    def torn(home: Path) -> Outcome:
        out = verb.begin(home) / verb.out
        out.write_bytes(out.read_bytes()[:100])
        return Outcome("loss" if kills.fault_of(verb, home) else "ok")

    check(Case("kills", verb.name, "torn-by-hand", torn, frozenset({"loss"})))


@pytest.mark.parametrize("name", ["tmp/left", ".p.csv.99999999-1.kept"])
def test_litter_is_noticed(name: str) -> None:
    verb = kills.BY_NAME["predict-csv"]

    def littered(home: Path) -> Outcome:
        (verb.begin(home) / name).write_text("x")
        return kills.started_again(verb, home, "littered")

    check(Case("kills", verb.name, f"litter-{name}", littered, frozenset({"noise"})))
