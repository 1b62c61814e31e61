"""Every kind of a room passes the checks of its room in `fullrank.testing`; three rooms have files of their own."""

from fullrank.testing import ROOMS
from tests.components.cases import every_kind, run_checks


@every_kind(*(room for room in ROOMS if room not in ("attention", "encoders", "reasoning")))
def test_every_kind(pair) -> None:
    run_checks(pair)
