"""Laws of live items: whatever is said of items in whatever order, masks, numbers and searches are what they should."""

from collections.abc import Mapping

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.cascade.rerank import EncodedFields
from fullrank.evaluation.statistics import popularity_bands
from fullrank.inference.predictor import Predictor
from fullrank.serving.catalogue import LiveItems
from fullrank.testing.inputs import ITEMS
from tests.serving.live import NOW, TINY, WORDS, bodies, opened, small, titled

KEYS = ["i0", "i1", "i5", "i22", "n0", "n1", "n2"]
FILTERS = [
    {"in_stock": True},
    {"in_stock": False},
    {"brand": ["brand-0", "brand-2"]},
    {"brand": "brand-1", "price": {"min": 1.5}},
    {"price": {"min": 3, "max": 20.5}},
    {"price": [1.5, 6]},
    {"tags": "a"},
    {"tags": ["b", "c"], "in_stock": True},
    {"colour": "red"},
    {"brand": []},
]


def features() -> st.SearchStrategy:
    return st.fixed_dictionaries(
        {},
        optional={
            "in_stock": st.sampled_from([True, False, None]),
            "price": st.sampled_from([None, 1.5, 6, 20.5, 100]),
            "brand": st.sampled_from([None, "brand-0", "brand-9"]),
            "tags": st.sampled_from([None, [], ["b"], ["c", "a"]]),
            "colour": st.sampled_from(["red", "blue", None]),
        },
    )


def said() -> st.SearchStrategy:
    body = st.fixed_dictionaries(
        {"like": st.lists(st.sampled_from(["i1", "i2", "n0"]), min_size=1, max_size=2)},
        optional={
            "title": st.sampled_from([f"{word} new" for word in WORDS]),
            "features": features(),
            "retired": st.booleans(),
            "expires_at": st.sampled_from([None, NOW - 1, NOW, NOW + 10, NOW + 20]),
        },
    )
    return st.one_of(body, body, body, st.none())


def passes(row: Mapping, filters: Mapping) -> bool:
    """A filter as it reads, for one item."""
    for name, wanted in filters.items():
        value = row.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if isinstance(wanted, dict):
            fits = any(wanted.get("min", -1e9) <= one <= wanted.get("max", 1e9) for one in values)
        else:
            fits = bool(set(values) & set(wanted if isinstance(wanted, list) else [wanted]))
        if not fits:
            return False
    return True


RUN, MODEL = opened(None, *TINY)
FIRST = LiveItems.of(RUN, MODEL, {}, NOW)


@settings(max_examples=25)
@given(
    changes=st.lists(st.dictionaries(st.sampled_from(KEYS), said(), max_size=4), min_size=1, max_size=3),
    later=st.sampled_from([NOW, NOW + 5, NOW + 15, NOW + 30]),
)
def test_masks_are_what_columns_say(changes: list, later: float) -> None:
    predictor, live = FIRST
    documents = {"i3": {"id": "i3", "features": {"colour": "red"}}}
    for change in changes:
        documents = {**documents, **bodies(change)}
        predictor, live = live.with_documents(predictor, documents, NOW)
    live = live.at(later)
    assert_sound(predictor, live, documents, later)
    # a process that starts now has the same items; an item that was taken back is only known to the older one
    _, again = LiveItems.of(RUN, MODEL, documents, later)
    known = [one for one in again.ids if one in set(live.ids)]
    places = [[one.ids.index(item) for item in known] for one in (live, again)]
    for filters in FILTERS:
        masks = [one.mask(filters)[place] for one, place in zip((live, again), places, strict=True)]
        assert np.array_equal(*masks)


def assert_sound(predictor: Predictor, live: LiveItems, documents: dict, now: float) -> None:
    base = MODEL
    assert live.size == predictor.model.num_items == len(live.ids) == len(live.bands) == len(live.barred)
    assert live.ids[:ITEMS] == base.catalog.ids.to_list()
    assert torch.equal(predictor.model.items.all()[:ITEMS], base.model.items.all())
    rows = live.catalog.frame.to_dicts()
    gone = [item for item in live.ids[ITEMS:] if documents.get(item) is None]
    for number, item in enumerate(live.ids):
        body = documents.get(item) or {}
        until = body.get("expires_at")
        assert live.barred[number] == (
            bool(body.get("retired")) or (until is not None and until <= now) or item in gone
        )
        for name, value in (body.get("features") or {}).items():
            assert rows[number].get(name) == value
    for filters in FILTERS:
        expected = [not passes(row, filters) or barred for row, barred in zip(rows, live.barred, strict=True)]
        assert live.mask(filters).tolist() == expected, filters
        assert live.mask(filters) is live.mask(dict(reversed(filters.items())))
        assert live.popular(3, live.mask(filters)).tolist() == popular(live, live.mask(filters))[:3]


def popular(live: LiveItems, refused_items: np.ndarray) -> list:
    counts = live.catalog.popularity
    return sorted(np.flatnonzero(~refused_items).tolist(), key=lambda item: (-counts[item], item))


def test_time_passes() -> None:
    _, live = small(i1={"expires_at": NOW + 10}, i2={"expires_at": NOW + 20, "retired": False}, i3={"retired": True})
    assert live.next_expiry == NOW + 10 and live.at(NOW + 9) is live and np.flatnonzero(live.barred).tolist() == [3]
    first = live.at(NOW + 10)
    assert np.flatnonzero(first.barred).tolist() == [1, 3] and live.at(NOW + 12) is first is first.at(NOW + 12)
    last = live.at(NOW + 99)
    assert np.flatnonzero(last.barred).tolist() == [1, 2, 3] and last.next_expiry == np.inf and last.any_barred
    assert not live.barred[1], "a snapshot never changes"
    assert live.mask({}) is live.barred


def test_changes_cost_no_model() -> None:
    predictor, live = small(n={"title": "rose soap"})
    documents = bodies({"n": {"title": "rose soap"}, "i1": {"features": {"in_stock": False}, "title": "anew"}})
    same, other = live.with_documents(predictor, documents, NOW)
    assert same is predictor and other.search("anew", 3).tolist() == [1] and live.search("anew", 3).tolist() == []
    assert other.changed_since(live).tolist() == [1] and live.changed_since(other).tolist() == [1]
    again, third = other.with_documents(same, documents, NOW)
    assert again is same and third is other
    same, retired = live.with_documents(predictor, bodies({"n": {"title": "rose soap", "retired": True}}), NOW)
    assert same is predictor and retired.barred[ITEMS] and not live.barred[ITEMS]
    new, _ = live.with_documents(predictor, bodies({"n": {"title": "lavender oil"}}), NOW)
    assert new is not predictor and torch.equal(new.model.items.all()[:ITEMS], predictor.model.items.all()[:ITEMS])


def test_bands_and_the_most_popular() -> None:
    _, live = small(n={"like": ["i1"]}, i0={"retired": True})
    expected = [("head", "middle", "tail")[band] for band in popularity_bands(titled().popularity)]
    assert live.bands == [*expected, "tail"]
    assert live.popular_order[0] == 0 and live.popular_order[-1] == ITEMS
    assert live.popular(2, live.barred).tolist() == [1, 2]
    assert live.popular(100, live.barred).tolist() == list(range(1, ITEMS + 1))


def test_search() -> None:
    _, live = small(n={"title": "Crème brûlée", "like": ["i1"]}, i1={"title": "soap dish"})
    assert live.search("creme", 30).tolist()[:3] == [6, 16, 4] or live.titles is not None
    assert live.search("CRÈME BRUL", 1).tolist() == [ITEMS]
    assert live.search("i7", 1).tolist() == [7] and live.search("n", 1).tolist() == [ITEMS]
    assert live.search("dish", 5).tolist() == [1]
    assert live.search("  ", 3).tolist() == [0, 1, 2] and live.search("zzz", 3).tolist() == []


def test_columns_hide_what_the_library_made() -> None:
    _, live = small()
    assert live.filterable == {
        "brand": "text", "price": "numbers", "in_stock": "true or false", "tags": "lists of text",
        # a table's own run would not have tokens and codes, so here they are anybody's columns
        "title_tokens": "lists of numbers", "brand_tokens": "lists of numbers",
    }  # fmt: skip


def test_masks_are_remembered_and_bounded() -> None:
    _, live = small()
    first = live.mask({"price": {"min": 0}})
    for low in range(600):
        live.mask({"price": {"min": low + 1}})
    assert len(live._masks) == 512 and live.mask({"price": {"min": 0}}) is not first


def test_a_rankers_items_are_encoded_where_they_changed() -> None:
    fields = EncodedFields(np.arange(6, dtype=np.int32).reshape(3, 2), [0, 1], np.zeros((3, 1), np.float32), [0], {})
    more = EncodedFields(np.full((2, 2), 9, np.int32), [0, 1], np.ones((2, 1), np.float32), [0], {})
    found = fields.updated(np.array([1, 3]), more)
    assert found.categorical.tolist() == [[0, 1], [9, 9], [4, 5], [9, 9]] and found.numeric[:, 0].tolist() == [
        0,
        1,
        0,
        1,
    ]
    assert fields.categorical.tolist() == [[0, 1], [2, 3], [4, 5]]
