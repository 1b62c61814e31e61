"""`tests/durations.py` names a test that is too long, and a reason that nothing needs any more."""

from durations import MOST, too_long


def test_long_tests_and_idle_reasons_are_named() -> None:
    seconds = {"a": MOST + 1, "b": MOST + 1, "c": 1.0}
    assert too_long(seconds, {"b": "why"}) != [] and all("b " not in fault for fault in too_long(seconds, {"b": "why"}))
    assert too_long({"c": 1.0}, {}) == []
    (idle,) = too_long({"c": 1.0}, {"gone": "why"})
    assert idle.startswith("gone ")
