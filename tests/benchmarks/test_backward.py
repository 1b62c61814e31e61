"""The check of `benchmarks.backward`: green as it is, red where a gradient is wrong."""

from __future__ import annotations

import pytest
from torch import Tensor

from benchmarks import backward
from benchmarks.harness import Wrong


def test_the_check_is_green() -> None:
    backward.check()


def test_a_wrong_gradient_is_noticed() -> None:
    def squares(*given: Tensor) -> Tensor:
        return sum((x.square().sum() for x in given), given[0].new_zeros(()))

    with pytest.raises(Wrong, match="not those of the reference"):
        backward.check(squares)
