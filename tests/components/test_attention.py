"""Every attention passes the checks of `fullrank.testing.attention`."""

from tests.components.cases import every_kind, run_checks


@every_kind("attention")
def test_attention(pair) -> None:
    run_checks(pair)
