"""Every attention passes the checks of `fullrank.testing.attention`."""

from __future__ import annotations

from discover import Pair
from tests.components.cases import every_check, run_check


@every_check("attention")
def test_attention(pair: Pair, check: str, device: str) -> None:
    run_check(pair, check, device)
