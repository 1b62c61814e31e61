"""`tests/durations.py` names a test that is too long, and a reason that nothing needs any more."""

from durations import COMMON, MOST, on_the_record, too_long


def test_long_tests_and_idle_reasons_are_named() -> None:
    seconds = {"a": MOST + 1, "b": MOST + 1, "c": 1.0}
    assert too_long(seconds, {"b": "why"}) != [] and all("b " not in fault for fault in too_long(seconds, {"b": "why"}))
    assert too_long({"c": 1.0}, {}) == []
    (idle,) = too_long({"c": 1.0}, {"gone": "why"})
    assert idle.startswith("gone ")


def test_a_slower_machine_is_no_slower_test() -> None:
    """A test that takes longer than others do there is one, and so is all that takes more than twice as long."""
    record = {str(number): 2.0 for number in range(COMMON)}
    slow = {test: value * 1.5 for test, value in record.items()} | {"0": MOST * 1.5 + 1}
    assert [fault.split()[0] for fault in too_long(on_the_record(slow, record), {})] == ["0"]
    assert on_the_record(slow, record)["1"] == 2.0
    assert on_the_record({"1": 1.0}, record) == {"1": 1.0}, "too few to tell"
    for ratio, taken in ((0.5, 1.0), (5.0, 10 / 2)):
        assert on_the_record({test: value * ratio for test, value in record.items()}, record)["1"] == taken
