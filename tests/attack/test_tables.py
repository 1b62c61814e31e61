"""Every table that is read with wrong columns and forms: an answer, or one sentence and exit code 2."""

from __future__ import annotations

from tests.attack import tables
from tests.attack.frame import Case, attacks, check


@attacks(tables.cases(), one_in=150)
def test_tables(case: Case) -> None:
    check(case)
