"""Every number that a Spec or an option takes, at its ends: an answer, or one sentence, within 20 s and 2 GiB."""

from __future__ import annotations

from tests.attack import numbers
from tests.attack.frame import Case, attacks, check


@attacks(numbers.cases(), one_in=199)
def test_numbers(case: Case) -> None:
    check(case)
