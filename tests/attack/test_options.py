"""Every verb and option with every nasty value: an answer, or one sentence and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack import options
from tests.attack.bases import BASES, changed, leaves, located
from tests.attack.frame import Case, attacks, call, check, outcome_of
from tests.attack.worlds import world


def test_every_verb_has_a_base() -> None:
    assert BASES.keys() == leaves().keys(), "tests/attack/bases.py needs a command that works for each verb"


@pytest.mark.parametrize("verb", [pytest.param(verb, marks=pytest.mark.attack) for verb in leaves()])
def test_bases_work(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = outcome_of(call(*located(changed(verb), world().home, tmp_path)))
    assert outcome.kind == ("ok" if BASES[verb].works else "refused"), outcome


@attacks(options.cases(), one_in=150)
def test_options(case: Case) -> None:
    check(case)
