"""Items for a search box: titles whose words begin with those of a text, the better and more popular ones first.

An inverted list holds, word by word in alphabetical order, the items with that word. Words with the same beginning
stand side by side, so that a beginning is one stretch of the list and no title is ever read. V titles, P pairs of a
word and a title.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import polars as pl
from jaxtyping import Int

from fullrank.data.values import dense
from fullrank.serving.titles import words_of

MOST_WORDS = 8
"""Words of a query that are read."""
_LAST = "\U0010ffff"
_FOUND, _WHOLE, _FIRST = 16, 1, 2
"""What a title is given for each word that is found in it as a beginning, for each that is found whole, and for
beginning with the query's first word: a word more counts more than all else."""


class TitleSearch:
    """The words of V titles."""

    def __init__(self, titles: pl.Series, order: Int[np.ndarray, "V"]):
        """`titles` by item, null where there is none; `order` are the items, those first that win a tie."""
        self.order = order
        words = words_of(titles[order])  # everything below counts places of that order
        counts = words.list.len().to_numpy().astype(np.int64)
        flat = words.filter(words.list.len() > 0).explode() if counts.any() else pl.Series([], dtype=pl.String)
        codes, known = dense(flat.alias("words")) if len(flat) else (np.zeros(0, np.int32), flat)
        self.words: list[str] = known.to_list()
        self.first = np.full(len(titles), -1, np.int32)
        self.first[counts > 0] = codes[(np.cumsum(counts) - counts)[counts > 0]]
        pairs = codes.astype(np.int64) * max(len(titles), 1) + np.repeat(np.arange(len(titles)), counts)
        pairs.sort()
        pairs = pairs[np.flatnonzero(np.diff(pairs, prepend=-1))]  # a word that a title has twice counts once
        word, place = np.divmod(pairs, max(len(titles), 1))
        self.places = place.astype(np.int32)
        self.bounds = np.searchsorted(word, np.arange(len(self.words) + 1))
        self.place_of = np.empty(len(titles), np.int32)
        self.place_of[order] = np.arange(len(titles), dtype=np.int32)

    def find(
        self, text: str, limit: int, hidden: Int[np.ndarray, "h"] | None = None
    ) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
        """Up to `limit` items, best first, with how well they fit; those in `hidden` are left out.

        Titles with more of the words come first, then those that have them whole or begin with them, then the order
        that the search was made with. The last word, like all, may be the beginning of one.
        """
        asked = list(dict.fromkeys(words_of(pl.Series([text], dtype=pl.String))[0].to_list()))[:MOST_WORDS]
        score = np.zeros(len(self.order), np.uint8)
        for number, word in enumerate(asked):
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
            found = np.zeros(len(score), bool)
            found[places] = True
            score += found.view(np.uint8) * np.uint8(points)
