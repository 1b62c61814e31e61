"""Every setting with nasty values: an answer, or one sentence and exit code 2."""

from __future__ import annotations

from tests.attack import settings
from tests.attack.frame import Case, attacks, check


@attacks(settings.cases(), one_in=150)
def test_settings(case: Case) -> None:
    check(case)
