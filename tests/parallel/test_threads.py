"""Work in threads: results in order, few at a time, and the first error."""

import threading
import time
from collections.abc import Iterator

import pytest

from fullrank.parallel import in_order


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_what_was_given(threads: int) -> None:
    def late_first(number: int) -> int:
        time.sleep(0.002 * (5 - number % 5))
        return number * number

    assert list(in_order(late_first, range(23), threads)) == [number * number for number in range(23)]
    assert list(in_order(late_first, [], threads)) == []


def test_several_run_at_once_and_few_wait() -> None:
    together, taken = threading.Barrier(2, timeout=20), []

    def given() -> Iterator[int]:
        for number in range(20):
            taken.append(number)
            yield number

    def meet(number: int) -> int:
        together.wait()  # nobody passes alone
        return number

    results = in_order(meet, given(), 2)
    assert next(results) == 0 and len(taken) == 3
    assert list(results) == list(range(1, 20))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_error_is_raised_and_nothing_is_begun_after_it(threads: int) -> None:
    begun, seen = [], []

    def work(number: int) -> int:
        begun.append(number)
        if number >= 5:
            time.sleep(0.01 * (7 - min(number, 7)))  # a later one fails earlier
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match="5"):
        for number in in_order(work, range(1000), threads):
            seen.append(number)
    assert seen == [0, 1, 2, 3, 4] and len(begun) < 15
