"""Titles like a text, and titles that a search box finds, against what the two say in plain Python."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.serving.title_search import TitleSearch
from fullrank.serving.titles import LEAST_SIMILARITY, SimilarTitles, words_of

PIECES = ["rose", "Rosé", "soap", "soaps", "lav", "Lavender", "oil", "50ml", "eau", "de"]
TITLES = st.lists(st.one_of(st.none(), st.lists(st.sampled_from(PIECES), max_size=4).map(" ".join)), min_size=1)


def split(text: str | None) -> list:
    return words_of(pl.Series([text], dtype=pl.String))[0].to_list()


def test_words() -> None:
    assert split("L'Oréal CRÈME, Straße — 50 ml!") == ["l", "oreal", "creme", "strasse", "50", "ml"]
    assert split("化粧水 abc") == ["化", "粧", "水", "abc"] and split(None) == split("") == split("—!") == []
    assert split("Ёлка") == split("елка")


@given(titles=TITLES, text=st.lists(st.sampled_from([*PIECES, "ro", "s", "x"]), max_size=3).map(" ".join))
def test_search_is_what_it_says(titles: list, text: str) -> None:
    order = np.random.default_rng(len(titles)).permutation(len(titles))
    found, scores = TitleSearch(pl.Series(titles, dtype=pl.String), order).find(text, 4)
    asked, expected = list(dict.fromkeys(split(text))), []
    for place, item in enumerate(order.tolist()):
        words = split(titles[item])
        begun = [one for one in asked if any(word.startswith(one) for word in words)]
        if begun:
            whole, first = len(set(asked) & set(words)), words[0].startswith(asked[0])
            expected.append((-(16 * len(begun) + whole + 2 * first), place, item))
    best = sorted(expected)[:4]
    assert found.tolist() == [item for *_, item in best] and scores.tolist() == [-score for score, *_ in best]


def test_search_leaves_out_what_is_hidden() -> None:
    search = TitleSearch(pl.Series(["rose", "rose oil", "soap"]), np.array([2, 1, 0]))
    assert search.find("rose", 5)[0].tolist() == [1, 0]
    assert search.find("rose", 5, np.array([1]))[0].tolist() == [0]
    empty = TitleSearch(pl.Series([None, ""], dtype=pl.String), np.arange(2))
    assert empty.find("rose", 5)[0].tolist() == []


@settings(max_examples=12)
@given(titles=TITLES, text=st.lists(st.sampled_from([*PIECES, "candle"]), min_size=1, max_size=3).map(" ".join))
def test_similarity_is_a_cosine(titles: list, text: str) -> None:
    similar = SimilarTitles(pl.Series(titles, dtype=pl.String))
    items, alike = similar.find([text], len(titles))[0]
    assert ((alike >= LEAST_SIMILARITY) & (alike <= 1)).all() and (np.diff(alike) <= 1e-6).all()
    same = [item for item, title in enumerate(titles) if title and sorted(split(title)) == sorted(split(text))]
    assert set(items[alike > 0.9999].tolist()) == set(same), "the same words in any order, and nothing else"
    apart = {item for item, title in enumerate(titles) if not set("".join(split(title))) & set("".join(split(text)))}
    assert not apart & set(items.tolist())


def test_like_titles_come_first() -> None:
    titles = pl.Series(["red lipstick", "lipstick brush", "garden hose", None, "lip balm", "lipsticks red"])
    similar = SimilarTitles(titles)
    assert similar.find(["lipsticks, red"], 3)[0][0].tolist() == [5, 0, 1]
    assert [one[0].tolist() for one in similar.find(["xyzzy", "", "garden"], 3)] == [[], [], [2]]


@pytest.mark.parametrize("size", [1, 3])
def test_no_titles(size: int) -> None:
    similar = SimilarTitles(pl.Series([None] * size, dtype=pl.String))
    assert similar.find(["rose"], 2)[0][0].tolist() == []
