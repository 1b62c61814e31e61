"""What passes the door of a public function, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fullrank.core.checks import check_flag, check_number, check_overrides, check_path, check_type, check_whole
from refusals import refused


def test_what_is_right_comes_through() -> None:
    assert check_path("out", "a/b") == check_path("out", Path("a/b")) == Path("a/b")
    for given in (3, np.int8(3), np.uint64(3)):
        assert check_whole("k", given, 1) == 3 and type(check_whole("k", given, 1)) is int
    assert check_number("share", np.float32(0.5)) == 0.5 and check_number("share", 10**400) == float("inf")
    assert check_flag("titles", np.True_) is True and check_flag("titles", False) is False
    assert check_overrides(["seed=1"]) == check_overrides(("seed=1",)) == ("seed=1",)
    assert check_type("split", "test", str, "a name") == "test"


WRONG = [
    (check_path, ("out", None), ("not-a-path", "out=None")),
    (check_path, ("out", b"a"), ("not-a-path", "b'a'")),
    (check_path, ("out", ""), ("not-a-path", "''")),
    (check_path, ("out", "a\0b"), ("not-a-path", "null")),
    (check_whole, ("k", True, 0), ("not-a-whole-number", "k=True")),
    (check_whole, ("k", 1.0, 0), ("not-a-whole-number", "1.0")),
    (check_whole, ("k", "3", 0), ("not-a-whole-number", "'3'")),
    (check_whole, ("k", 0, 1), ("setting-out-of-range", "k=0", "at least 1")),
    (check_whole, ("k", 10**40, 1), ("setting-out-of-range", "k=1000")),
    (check_number, ("share", "0.5"), ("not-a-number", "'0.5'")),
    (check_number, ("share", False), ("not-a-number", "False")),
    (check_flag, ("titles", 1), ("not-a-flag", "titles=1")),
    (check_flag, ("titles", "yes"), ("not-a-flag", "'yes'")),
    (check_overrides, ("seed=1",), ("not-a-list", "'seed=1'")),
    (check_overrides, ([1],), ("not-a-list", "[1]")),
    (check_type, ("split", 3, str, "a name"), ("wrong-argument-type", "split=3", "a name")),
]


@pytest.mark.parametrize(("check", "given", "said"), WRONG)
def test_what_is_wrong_is_named(check: Callable, given: tuple, said: tuple) -> None:
    with refused(*said):
        check(*given)
