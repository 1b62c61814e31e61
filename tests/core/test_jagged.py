"""Ragged arrays against lists of lists, on rows of any length, order and overlap."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullrank.core.jagged import Jagged, stable_order

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8)


@st.composite
def views(draw: st.DrawFn) -> tuple:
    """Rows that overlap, repeat and skip values of one array, and the same as lists."""
    values = draw(st.lists(st.integers(0, 9), max_size=12))
    edge = st.integers(0, len(values))
    pairs = [sorted(pair) for pair in draw(st.lists(st.tuples(edge, edge), max_size=8))]
    starts, ends = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    return Jagged(np.array(values, np.int64), starts, ends), [values[a:b] for a, b in pairs]


def lists(jagged: Jagged) -> list:
    return [row.tolist() for row in jagged]


@given(views())
def test_flat_offsets_and_rows_agree_with_lists(made: tuple) -> None:
    jagged, rows = made
    assert len(jagged) == len(rows) and lists(jagged) == rows
    assert jagged.lengths.tolist() == [len(row) for row in rows]
    assert jagged.flat().tolist() == [value for row in rows for value in row]
    assert jagged.row_of().tolist() == [at for at, row in enumerate(rows) for _ in row]
    assert jagged.offsets.tolist() == [sum(map(len, rows[:n])) for n in range(len(rows) + 1)]
    assert jagged.values[jagged.places()].tolist() == jagged.flat().tolist()
    assert jagged.keys(10).tolist() == [10 * at + value for at, row in enumerate(rows) for value in row]


@given(views(), st.data())
def test_take_chooses_rows_by_number_mask_and_slice(made: tuple, data: st.DataObject) -> None:
    jagged, rows = made
    if rows:
        at = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5))
        assert lists(jagged.take(np.array(at, np.int64))) == [rows[n] for n in at]
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
        assert lists(jagged.take(mask)) == [row for row, kept in zip(rows, mask, strict=True) if kept]
    low, step = data.draw(st.integers(0, 8)), data.draw(st.integers(1, 3))
    assert lists(jagged.take(slice(low, None, step))) == rows[low::step]


@given(views(), st.integers(0, 7))
def test_parts_of_rows(made: tuple, count: int) -> None:
    jagged, rows = made
    assert lists(jagged.last(count)) == [row[max(len(row) - count, 0) :] for row in rows]
    assert lists(jagged.distinct()) == [sorted(set(row)) for row in rows]


@given(views(), st.integers(0, 7), st.integers(-1, 3))
def test_padded_is_right_padded_and_cut(made: tuple, width: int, fill: int) -> None:
    jagged, rows = made
    longest = max([1, *map(len, rows)])
    assert jagged.padded(fill=fill).tolist() == [row + [fill] * (longest - len(row)) for row in rows]
    assert jagged.padded(width, fill).tolist() == [(row + [fill] * width)[:width] for row in rows]
    own, beside = jagged.padded_with(10 + jagged.values)
    assert (own == jagged.padded()).all() and (beside == jagged.over(10 + jagged.values).padded()).all()


@given(ROWS)
def test_the_ways_to_make_one_agree(rows: list) -> None:
    made = Jagged.from_lists(rows)
    assert lists(made) == rows
    assert lists(Jagged.from_offsets(made.values, made.offsets)) == rows
    assert lists(Jagged.from_lengths(made.values, made.lengths)) == rows


@given(ROWS, st.randoms(use_true_random=False))
def test_pairs_in_any_order_keep_the_order_within_a_row(rows: list, order: object) -> None:
    pairs = [(at, value) for at, row in enumerate(rows) for value in row]
    order.shuffle(pairs)  # type: ignore[attr-defined]
    keys, values = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    wanted = [[value for key, value in pairs if key == at] for at in range(len(rows))]
    assert lists(Jagged.from_pairs(keys, values, len(rows))) == wanted


def test_values_of_more_axes_and_of_a_read_only_map() -> None:
    values = np.arange(12.0).reshape(6, 2)
    values.flags.writeable = False
    jagged = Jagged(values, np.array([4, 0, 2]), np.array([6, 1, 2]))
    assert jagged.flat().tolist() == values[[4, 5, 0]].tolist()
    assert jagged.padded(fill=-1).tolist() == [values[4:6].tolist(), [[0.0, 1.0], [-1, -1]], [[-1, -1], [-1, -1]]]
    assert jagged.over(np.arange(6)).flat().tolist() == [4, 5, 0]


def test_taking_moves_no_values() -> None:
    values = np.arange(10)
    taken = Jagged.from_offsets(values, np.array([0, 4, 10])).take(np.array([1])).last(2)
    assert taken.values is values and lists(taken) == [[8, 9]]


@pytest.mark.parametrize("count", [0, 3])
def test_rows_without_values(count: int) -> None:
    jagged = Jagged.from_lengths(np.zeros(0, np.int64), np.zeros(count, np.int64))
    assert jagged.padded().shape == (count, 1) and jagged.flat().tolist() == [] and len(jagged.distinct()) == count


def test_a_padded_row_is_a_copy() -> None:
    """Of one row, too: whoever fills the table must not write into a request's history."""
    values = np.arange(6)
    for rows in (Jagged.from_lengths(values, np.array([6])), Jagged.from_lengths(values, np.array([2, 4]))):
        rows.padded()[:] = -1
    assert values.tolist() == [0, 1, 2, 3, 4, 5]


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
