"""The growth of a catalogue: the fast count against sets, the subset of each share, and laws known beforehand."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fullrank as fr
from fullrank.analysis.scaling.growth import (
    Growth,
    catalogue_growth,
    distinct_items,
    fit_heaps,
    growth_sentences,
    short_number,
)
from fullrank.data.events.store import Store
from refusals import refused
from tests import tiny

HISTORIES = st.lists(st.lists(st.integers(0, 12), max_size=6), min_size=1, max_size=12)
SKEWED = [[0, 1, 2], [0, 0, 3], [1], [0, 4, 4, 4]]
"""Item 0 has four events, 4 three, 1 two, 2 and 3 one."""


def distinct_items_reference(
    items: np.ndarray, offsets: np.ndarray, order: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`distinct_items` as it is said: a set of items that each user adds to."""
    count, known, counts = 0, set[int](), [(0, 0)]
    for user in order.tolist():
        own = items[offsets[user] : offsets[user + 1]].tolist()
        count += len(own)
        known.update(own)
        counts.append((count, len(known)))
    picked = np.array(counts, dtype=np.int64)[at]
    return picked[:, 0], picked[:, 1]


def sentences(grown: Growth) -> str:
    return " ".join(growth_sentences(grown))


@given(rows=HISTORIES, data=st.data())
def test_fast_equals_slow(rows: list[list[int]], data: st.DataObject) -> None:
    """Also where the order leaves users out: their events count nowhere."""
    order = np.array(data.draw(st.permutations(range(len(rows)))))[: data.draw(st.integers(1, len(rows)))]
    at = np.unique(data.draw(st.lists(st.integers(1, len(order)), min_size=1)))
    items = np.array([item for row in rows for item in row], dtype=np.int32)
    offsets = np.cumsum([0, *map(len, rows)])
    for fast, slow in zip(
        distinct_items(items, offsets, order, at), distinct_items_reference(items, offsets, order, at), strict=True
    ):
        assert fast.tolist() == slow.tolist()


def test_planted_fault_last_place_of_an_item() -> None:
    """Counting an item from its last user, not its first, is found by the slow twin."""
    items, offsets, order, at = np.array([0, 0, 0]), np.array([0, 1, 2, 3]), np.arange(3), np.array([1, 2, 3])
    last = np.full(1, -1)
    np.maximum.at(last, items, order)
    wrong = np.cumsum(np.bincount(last, minlength=3))[at - 1]
    assert (
        distinct_items(items, offsets, order, at)[1].tolist()
        == distinct_items_reference(items, offsets, order, at)[1].tolist()
        == [1, 1, 1]
    )
    assert wrong.tolist() == [0, 0, 1]


@pytest.mark.parametrize("seed", [0, 3])
def test_every_point_is_the_subset_of_that_share(store: Store, tmp_path: Path, seed: int) -> None:
    grown = catalogue_growth(store, seed=seed)
    assert len(grown.users) > 10 and grown.users[-1] == store.num_users
    for place in (2, 7, len(grown.users) - 2):
        share = int(grown.users[place]) / store.num_users
        part = fr.subset(store, tmp_path / str(place), share=share, seed=seed)
        counts = (grown.users[place], grown.interactions[place], grown.items[place])
        assert counts == (part.num_users, part.num_events, part.num_items)
    assert grown.interactions[-1] == store.num_events and grown.items[-1] == len(np.unique(store.items))


def test_another_seed_is_another_order_with_the_same_end(store: Store) -> None:
    a, again, b = (catalogue_growth(store, seed=seed) for seed in (0, 0, 1))
    assert a.interactions.tolist() == again.interactions.tolist() != b.interactions.tolist()
    assert (a.items[-1], a.gini, a.histogram) == (b.items[-1], b.gini, b.histogram)


@pytest.mark.parametrize(("coefficient", "exponent"), [(1.0, 1.0), (3.0, 0.5), (7.0, 0.0)])
def test_heaps_finds_the_law_that_made_the_points(coefficient: float, exponent: float) -> None:
    x = np.array([1, 16, 81, 256, 625])
    y = np.round(coefficient * x**exponent).astype(np.int64)
    law = fit_heaps(x, y)
    assert law is not None and law.points == 5
    assert (law.coefficient, law.exponent) == pytest.approx((coefficient, exponent), abs=1e-9)
    assert math.isnan(law.r_squared) if exponent == 0 else law.r_squared == pytest.approx(1)
    assert law.predict(x) == pytest.approx(y)


def test_r_squared_by_hand_and_too_few_points() -> None:
    x, y = np.array([1, 10, 100, 1000]), np.array([1, 10, 10, 100])
    law = fit_heaps(x, y)
    assert law is not None and law.r_squared == pytest.approx(np.corrcoef(np.log(x), np.log(y))[0, 1] ** 2)
    assert law.r_squared < 0.95 and fit_heaps(x[:2], y[:2]) is None
    assert fit_heaps(np.array([5, 5, 5]), np.array([1, 2, 3])) is None


def test_all_items_new_has_exponent_one() -> None:
    grown = catalogue_growth(tiny.store([[3 * u, 3 * u + 1, 3 * u + 2] for u in range(200)], items=600))
    assert grown.law is not None and grown.law.exponent == pytest.approx(1)
    assert grown.items.tolist() == grown.interactions.tolist() and grown.gini == pytest.approx(0)
    assert grown.rare == (1, 1) and grown.top == (6, 0.01)


def test_a_catalogue_that_is_soon_known_slows_down() -> None:
    grown = catalogue_growth(tiny.store([[u % 23, (7 * u) % 23] for u in range(2000)]))
    assert grown.law is not None and grown.late is not None
    assert grown.late.exponent < 0.01 < grown.law.exponent and "last tenfold" in sentences(grown)


def test_parameters_and_the_long_tail_by_hand() -> None:
    grown = catalogue_growth(tiny.store(SKEWED, items=9), dim=10, others=(0, 100))
    assert grown.catalogue == 9 and grown.per_item.tolist() == [1, 1, 2, 3, 4]
    assert grown.parameters[-1].tolist() == [50, 150]
    assert grown.histogram == [(1, 1, 2), (2, 3, 2), (4, 7, 1)]
    assert grown.rare == (1, 1) and grown.top == (1, 4 / 11)
    pairs = sum(abs(a - b) for a in grown.per_item.tolist() for b in grown.per_item.tolist())
    assert grown.gini == pytest.approx(pairs / (2 * 5 * 11))
    assert "at least" not in sentences(grown)
    found = grown.dump()
    assert found["parameters"][1]["with_table"][-1] == 150 and found["parameters"][1]["of_text"] == 100
    assert found["parameters"][1]["items_where_the_table_is_half"] == 10 and found["items"] == 5


def test_rare_is_below_five_and_filtered_tails_are_told() -> None:
    grown = catalogue_growth(tiny.store([[0] * 4, [1] * 5, [1]]))
    assert grown.rare == (0.5, 0.4) and "at least 4 events" in sentences(grown)


def test_users_without_events_are_no_users() -> None:
    grown = catalogue_growth(tiny.store([[], [1, 2], [], [3]]))
    assert grown.users.tolist() == [1, 2] and grown.interactions[-1] == 3 and grown.law is None
    assert "too few" in sentences(grown)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"dim": 0}, "dim=0"),
        ({"others": (5, -2)}, "others=-2"),
    ],
)
def test_numbers_that_are_none(settings: dict[str, int | Sequence[int]], hint: str) -> None:
    with refused("setting-out-of-range", hint):
        catalogue_growth(tiny.store(SKEWED), **settings)  # type: ignore[arg-type]


def test_stores_without_histories(tmp_path: Path) -> None:
    with refused("no-events"):
        catalogue_growth(tiny.store([[], []]))
    with refused("missing-folder", "absent"):
        fr.catalogue_growth(tmp_path / "absent")
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / "manifest.json").write_text('{"format": "fullrank.impressions"}')
    with refused("store-of-other-problem"):
        catalogue_growth(tmp_path / "clicks")


def test_short() -> None:
    assert [short_number(n) for n in (7, 33_000, 4_000_000, 1_500_000_000)] == ["7", "33K", "4M", "1.5B"]
