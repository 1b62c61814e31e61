"""Every verb that writes is killed at places and times spread over all of its work: nothing is lost, torn or left."""

import signal
from functools import partial
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.attack import kills
from tests.attack.bases import leaves
from tests.attack.frame import attack, every
from tests.attack.kills import killed, unkilled
from tests.attack.verbs import BY_NAME, VERBS, Verb


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
    tests/inference kills."""
    alike = ("demo", "scale fit", "evaluate-", "recommend-parts", "study ")
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
