"""Titles like a text, and titles for a search box.

`SimilarTitles`: items by the cosine of TF-IDF vectors of words and of runs of three letters.

Half of the similarity is that of the words, half that of the letters, so that "lipsticks" finds
"lipstick" and a word that two titles share counts more than its letters do. Words and letters that
more than one title in twenty has are left out (of small catalogues only what a thousand have): they
say nothing and would cost most of the time.

`TitleSearch`: titles whose words begin with those of a text, the better and more popular ones
first. An inverted list holds, word by word in alphabetical order, the items with that word. Words
with the same beginning stand side by side, so that a beginning is one stretch of the list and no
title is ever read. V titles, F hashed features, P pairs of a word and a title.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import polars as pl
from jaxtyping import Float, Int
from scipy import sparse

from fullrank.data.values import dense

LONGEST = 300
"""Characters of a title that are read."""
BITS = 20
"""Words, and runs of letters, are hashed into 2^BITS features each."""
LEAST_SIMILARITY = 0.1
"""Titles less alike than this are not alike: a letter or two in common."""
_COMMON_SHARE, _COMMON = 20, 1000
_ROWS = 1 << 16
"""Titles read at once while the matrix is built."""
_LETTERS = {"ß": "ss", "ø": "o", "đ": "d", "ł": "l", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th", "ı": "i"}
_NO_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}"
"""Scripts without spaces between words: each sign counts as a word."""
_WORD = rf"[{_NO_SPACES}]|[\p{{L}}\p{{N}}&&[^{_NO_SPACES}]]+"

MOST_WORDS = 8
"""Words of a query that are read."""
_LAST = "\U0010ffff"
_FOUND, _WHOLE, _FIRST = 16, 1, 2
"""Points of a title: for each query word that begins one of its words, for each that is one, for the first in front.

One more word that is found counts more than all the rest.
"""


def words_of(texts: pl.Series) -> pl.Series:
    """Lists of the words of each text: lower case, no accents, letters and digits
    alone; empty where there is none."""
    plain = texts.cast(pl.String).fill_null("").str.slice(0, LONGEST).str.to_lowercase().str.normalize("NFKD")
    plain = plain.str.replace_all(r"\p{M}", "").str.replace_many(list(_LETTERS), list(_LETTERS.values()))
    return plain.str.extract_all(_WORD)


class SimilarTitles:
    """The titles of V items, ready to be compared with."""

    def __init__(self, titles: pl.Series):
        """`titles` are in the order of the items; null or empty where an item has none."""
        self.size = len(titles)
        parts = [_counts(words_of(titles[low : low + _ROWS])) for low in range(0, self.size, _ROWS)]
        counts = np.zeros(2 << BITS, np.int64)
        for part in parts:
            counts += np.bincount(part.indices, minlength=2 << BITS)
        self.common = counts > max(self.size // _COMMON_SHARE, _COMMON)
        self.idf = (np.log((1 + self.size) / (1 + counts)) + 1).astype(np.float32)
        for at, part in enumerate(parts):  # one by one, so that the counts go as the weights come
            parts[at] = self._weighted(part)
        # by columns: a query reads the titles of its own features alone
        self._columns = sparse.vstack(parts, format="csc")

    def find(self, texts: Sequence[str], count: int) -> list[tuple[Int[np.ndarray, "n"], Float[np.ndarray, "n"]]]:
        """For each text the up to `count` items whose titles are most like it, best first, and how much (0 to 1).

        Of equally similar items the smaller id comes first. Empty where none is like it.
        """
        queries = self._weighted(_counts(words_of(pl.Series(list(texts), dtype=pl.String))))
        return [self._nearest(queries[row], count) for row in range(len(texts))]

    def _nearest(self, query: sparse.csr_matrix, count: int) -> tuple[np.ndarray, np.ndarray]:
        similarity = np.zeros(self.size, np.float32)
        bounds, items, weights = self._columns.indptr, self._columns.indices, self._columns.data
        for feature, weight in zip(query.indices, query.data, strict=True):
            low, high = bounds[feature], bounds[feature + 1]
            similarity[items[low:high]] += weight * weights[low:high]
        near = np.flatnonzero(similarity >= LEAST_SIMILARITY)
        best = near[np.lexsort((near, -similarity[near]))[:count]]
        return best, np.minimum(similarity[best], 1.0)

    def _weighted(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        """(1 + log count) x idf, the words and the letters of a title each of length sqrt(1/2)."""
        rows = np.repeat(np.arange(counts.shape[0], dtype=np.int32), np.diff(counts.indptr))
        telling = ~self.common[counts.indices]
        rows, features = rows[telling], counts.indices[telling]
        values = (1 + np.log(counts.data[telling])) * self.idf[features]
        half = 2 * rows + (features >> BITS)
        length = np.sqrt(2 * np.bincount(half, values.astype(np.float64) ** 2, 2 * counts.shape[0]))
        values = (values / length[half]).astype(np.float32)
        return sparse.csr_matrix((values, (rows, features)), shape=counts.shape)


def _counts(words: pl.Series) -> sparse.csr_matrix:
    """[n, 2F] counts of runs of three letters (features 0 .. F-1) and of
    words (F .. 2F-1) in each text."""
    letter_rows, letters = _runs(words)
    word_rows = np.repeat(np.arange(len(words), dtype=np.int32), words.list.len().to_numpy())
    hashed = (words.explode().drop_nulls().hash(0).to_numpy() >> np.uint64(64 - BITS)).astype(np.int32) + (1 << BITS)
    rows, features = np.concatenate([letter_rows, word_rows]), np.concatenate([letters, hashed])
    counts = sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, features)), shape=(len(words), 2 << BITS))
    counts.sum_duplicates()
    return counts


def _runs(words: pl.Series) -> tuple[Int[np.ndarray, "p"], Int[np.ndarray, "p"]]:
    """(row, feature) of each run of three bytes inside a word, its edges
    included: " li", "lip", "ip "."""
    spaced = " " + words.list.join(" ") + " "
    text = np.frombuffer(str(spaced.str.join("")[0] or "").encode(), np.uint8)
    if len(text) < 3:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    rows = np.repeat(np.arange(len(words), dtype=np.int32), spaced.str.len_bytes().to_numpy())
    # a run across two words, or two texts, has a space in its middle
    inside = np.flatnonzero(text[1:-1] != ord(" "))
    code = text[inside].astype(np.uint32)
    for shift in (1, 2):
        code = (code << np.uint32(8)) | text[inside + shift]
    mixed = (code * np.uint32(2654435761)) >> np.uint32(32 - BITS)
    return rows[inside], mixed.astype(np.int32)


class TitleSearch:
    """The words of V titles."""

    def __init__(self, titles: pl.Series, order: Int[np.ndarray, "V"]):
        """`titles` by item, null where there is none; `order` are the items,
        those first that win a tie."""
        self.order = order
        words = words_of(titles[order])  # everything below counts places of that order
        counts = words.list.len().to_numpy().astype(np.int64)
        flat = words.explode().drop_nulls()
        codes, known = dense(flat.alias("words"))
        self.words: list[str] = known.to_list()
        self.first = np.full(len(titles), -1, np.int32)
        self.first[counts > 0] = codes[(np.cumsum(counts) - counts)[counts > 0]]
        pairs = codes.astype(np.int64) * max(len(titles), 1) + np.repeat(np.arange(len(titles)), counts)
        pairs.sort()
        pairs = pairs[np.flatnonzero(np.diff(pairs, prepend=-1))]  # a word that a title has twice counts once
        word, position = np.divmod(pairs, max(len(titles), 1))
        self.places = position.astype(np.int32)
        self.bounds = np.searchsorted(word, np.arange(len(self.words) + 1))
        self.place_of = np.empty(len(titles), np.int32)
        self.place_of[order] = np.arange(len(titles), dtype=np.int32)

    def find(
        self, text: str, limit: int, hidden: Int[np.ndarray, "h"] | None = None
    ) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
        """Up to `limit` items, best first, with how well they fit; those in `hidden` are left out.

        Titles with more of the words come first, then those that have them whole or begin with
        them, then the order that the search was made with. The last word, like all, may be the
        beginning of one.
        """
        query_words = list(dict.fromkeys(words_of(pl.Series([text], dtype=pl.String))[0].to_list()))[:MOST_WORDS]
        score = np.zeros(len(self.order), np.uint8)
        for number, word in enumerate(query_words):
            low, high = bisect_left(self.words, word), bisect_left(self.words, word + _LAST)
            if low == high:
                continue
            self._add(score, low, high, _FOUND)
            if self.words[low] == word:
                self._add(score, low, low + 1, _WHOLE)
            if number == 0:
                score[(self.first >= low) & (self.first < high)] += _FIRST
        if hidden is not None:
            score[self.place_of[hidden]] = 0
        parts: list[np.ndarray] = []
        for level in np.flatnonzero(np.bincount(score, minlength=1))[::-1]:
            if level == 0 or sum(map(len, parts)) >= limit:
                break
            parts.append(np.flatnonzero(score == level)[:limit])
        best = np.concatenate([np.zeros(0, np.int64), *parts])[:limit]
        return self.order[best], score[best].astype(np.int64)

    def _add(self, score: np.ndarray, low: int, high: int, points: int) -> None:
        """Give points to the titles with one of the words low .. high - 1, once each."""
        places = self.places[self.bounds[low] : self.bounds[high]]
        if high - low == 1:  # each title once already
            score[places] += np.uint8(points)
        else:
            hit = np.zeros(len(score), bool)
            hit[places] = True
            score += hit.view(np.uint8) * np.uint8(points)
