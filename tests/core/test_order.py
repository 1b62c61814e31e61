"""Rows in order of whole numbers: as `np.lexsort` has them, whether or not key and row fit into one number."""

from itertools import product

import numpy as np
import pytest

from fullrank.core.order import stable_order

KINDS = {
    "few": (np.int32, 0, 5),
    "bytes": (np.int8, -100, 100),
    "unsigned": (np.uint64, 2**63, 2**63 + 9),
    "seconds": (np.int64, 1_600_000_000, 1_700_000_000),
    "wide": (np.int64, -(2**63), 2**63 - 1),
    "decimals": (np.float64, 0, 9),
}


def drawn(kind: str, rows: int) -> np.ndarray:
    dtype, low, high = KINDS[kind]
    draw = np.random.default_rng(rows)
    whole = np.int64 if dtype is np.float64 else dtype
    return draw.integers(low, high, rows, dtype=whole, endpoint=True).astype(dtype)


@pytest.mark.parametrize("rows", [0, 1, 2, 1000])
@pytest.mark.parametrize("first,second", list(product(KINDS, KINDS)))
def test_rows_are_in_the_order_of_lexsort(first: str, second: str, rows: int) -> None:
    one, two = drawn(first, rows), drawn(second, rows)[::-1]
    assert np.array_equal(stable_order(one), np.argsort(one, kind="stable"))
    assert np.array_equal(stable_order(one, two), np.lexsort((two, one)))


def test_three_keys_and_one_bit_too_many() -> None:
    """Ten bits of rows: 53 are left for keys."""
    draw = np.random.default_rng(0)
    few = draw.integers(0, 2, 1024)
    for bits in (51, 52, 53, 54):
        wide = np.concatenate([[0, 2**bits - 1], draw.integers(0, 2**bits, 1022)])
        assert np.array_equal(stable_order(few, wide, few), np.lexsort((few, wide, few))), bits
        assert np.array_equal(stable_order(wide), np.argsort(wide, kind="stable")), bits
