"""Every verb and option with every nasty value: an answer, or one sentence and exit code 2."""

from __future__ import annotations

from tests.attack import options
from tests.attack.bases import BASES, leaves
from tests.attack.frame import Case, attacks, check


def test_every_verb_has_a_base() -> None:
    assert BASES.keys() == leaves().keys(), "tests/attack/bases.py needs a command that works for each verb"


@attacks(options.cases(), one_in=150)
def test_options(case: Case) -> None:
    check(case)
