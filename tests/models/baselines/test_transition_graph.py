"""Transition graph: links by hand, against a twin that walks through every pair of events, and what settings do."""

from __future__ import annotations

from collections import Counter
from math import log, log1p
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines.item_features import cosines, feature_vectors, most_alike
from fullrank.models.sequential.baselines.transition_graph import TransitionGraph, TransitionGraphModel
from refusals import refused
from tiny import ITEMS, histories, padded, store


def fitted(data: Store, **settings: Any) -> TransitionGraphModel:
    model = TransitionGraph(**settings).build(data.catalog)
    model.fit(data)
    return model


def described(titles: list[str | None], tags: list[list[str] | None] | None = None) -> Catalog:
    size = len(titles)
    columns: dict[str, Any] = {"item": np.arange(size), "item_id": np.arange(size), "train_count": [1] * size}
    columns["title"] = pl.Series(titles, dtype=pl.String)
    if tags is not None:
        columns["tags"] = pl.Series(tags, dtype=pl.List(pl.String))
    return Catalog(pl.DataFrame(columns))


def twin(rows: list[list[int]], catalog: Catalog, spec: TransitionGraph, history: list[int]) -> np.ndarray:
    """Scores of one history, from training events row[:-2] of each row."""
    counts: Counter[tuple[int, int]] = Counter()
    popularity = np.zeros(ITEMS)
    for row in (row[:-2] for row in rows):
        np.add.at(popularity, row, 1)
        for i, a in enumerate(row):
            for d, b in enumerate(row[i + 1 : i + 1 + spec.window]):
                if a != b:
                    counts[a, b] += spec.window_decay**d
                    counts[b, a] += spec.backward * spec.window_decay**d
    vectors = feature_vectors(catalog)
    assert vectors is not None
    alike = (vectors @ vectors.T).toarray()
    np.fill_diagonal(alike, 0)
    scores = np.zeros(ITEMS)
    for age, item in enumerate(reversed(history[-spec.history :])):
        own = np.array([counts[item, b] for b in range(ITEMS)])
        alike[item] = alike[item].round(9)
        near = np.where(alike[item] >= np.sort(alike[item])[-spec.neighbours :].min(), alike[item], 0)
        link = np.log1p(own) / max(log1p(own.max()), 1e-12) + spec.similarity * near
        best = np.lexsort((np.arange(ITEMS), -np.round(link, 12)))[: spec.neighbours]
        scores[best] += spec.decay**age * link[best]
    return np.where(scores > 0, scores, -1 / (1 + popularity))


def test_by_hand() -> None:
    """Trained on 0 1 2, 0 1, 1 0: from 0 to 1 twice, the direct successor alone."""
    data = store([[0, 1, 2, 3, 3], [0, 1, 4, 4], [1, 0, 4, 4]], 5)
    plain = {"window": 1, "backward": 0.0, "similarity": 0.0}
    found = fitted(data, **plain).answer(padded([[0]])).block(0, 5)[0]
    torch.testing.assert_close(found, torch.tensor([-1 / 4, 1.0, -1 / 2, -1, -1]))
    found = fitted(data, **plain).answer(padded([[1]])).block(0, 5)[0]
    torch.testing.assert_close(found, torch.tensor([1.0, -1 / 4, 1.0, -1, -1]))
    both = fitted(data, **plain, decay=0.5).answer(padded([[2, 1, 0]])).block(0, 5)[0]
    torch.testing.assert_close(both, torch.tensor([0.5, 1.0, 0.5, -1, -1]))
    one = fitted(data, **plain, history=1).answer(padded([[1]])).block(0, 5)[0]
    torch.testing.assert_close(one, found)
    two = fitted(data, **plain | {"window": 2}, window_decay=0.25).answer(padded([[0]])).block(0, 5)[0]
    torch.testing.assert_close(two, torch.tensor([-1 / 4, 1.0, log1p(0.25) / log1p(2), -1, -1]))
    back = fitted(data, **plain | {"backward": 0.5}).answer(padded([[2]])).block(0, 5)[0]
    torch.testing.assert_close(back, torch.tensor([-1 / 4, 1.0, -1 / 2, -1, -1]))


@pytest.mark.parametrize(
    "spec",
    [TransitionGraph(), TransitionGraph(history=4, decay=1, window=1, backward=1), TransitionGraph(neighbours=3)],
    ids=["defaults", "long", "few"],
)
def test_equals_its_twin(spec: TransitionGraph) -> None:
    rows = histories((30, 3, 12, 2, 25, 8), seed=2)
    data = store(rows)
    model = fitted(data, **spec.dump())
    asked = histories((1, 4, 10), seed=3)
    found = model.answer(padded([row[-spec.history :] for row in asked])).block(0, ITEMS)
    for history, scores in zip(asked, found, strict=True):
        np.testing.assert_allclose(scores.numpy(), twin(rows, data.catalog, spec, history), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{"decay": 0.1}, {"window": 1}, {"window_decay": 0.1}, {"backward": 1.0}, {"similarity": 0.0},
     {"similarity": 3.0}, {"neighbours": 2}, {"columns": ("title_text",)}],
    ids=str,
)  # fmt: skip
def test_every_setting_has_an_effect(settings: dict[str, Any]) -> None:
    data = store(histories((30, 3, 12, 2, 25, 8), seed=2))
    data.catalog = data.catalog.with_columns({"title_text": pl.Series([f"thing {i % 4}" for i in range(ITEMS)])})
    asked = padded(histories((2, 2, 2), seed=3))
    plain, other = (fitted(data, **given).answer(asked).block(0, ITEMS) for given in ({}, settings))
    assert not torch.equal(plain, other)
    assert fitted(data, history=5).max_length == 5


def test_an_item_without_events_is_reached_by_its_features() -> None:
    data = store([[0, 1, 4, 4], [1, 0, 4, 4]], 5)
    data.catalog = described(["red nail polish", "brush", "red nail polish new", "soap", "comb"])
    found = fitted(data).answer(padded([[0]])).block(0, 5)[0]
    assert found[2] > 0 and (found[[3, 4]] < 0).all()
    without = fitted(data, similarity=0.0).answer(padded([[0]])).block(0, 5)[0]
    assert without[2] < 0


def test_without_features_and_transitions_popularity_is_left() -> None:
    data = store([[0, 2, 2], [1, 2, 2], [1, 2, 2]], 3)
    data.catalog = Catalog(data.catalog.frame.select("item", "item_id", "train_count"))
    order = fitted(data).answer(padded([[0]])).block(0, 3)[0].argsort(descending=True, stable=True).tolist()
    assert order == [1, 0, 2]


def test_features_by_hand() -> None:
    """Words of titles and whole entries of lists; `red` is in two of four items, the others in one."""
    catalog = described(["Red, red polish", "red", None, ""], [["Nail Care"], None, None, ["Soap"]])
    vectors = feature_vectors(catalog)
    assert vectors is not None
    red, once = log(5 / 3), log(5 / 2)
    first = np.array([(1 + log(2)) * red, once, once])
    wanted = np.array([first[0] / np.linalg.norm(first), 0.0, 0.0])
    np.testing.assert_allclose(cosines(vectors, np.array([0, 0, 2]), np.array([1, 3, 0])), wanted)
    near = most_alike(vectors, 2).toarray()
    np.testing.assert_allclose(near[0], [0, wanted[0], 0, 0])
    assert feature_vectors(catalog, ["tags"]).shape == (4, 2)  # type: ignore[union-attr]


def test_of_equal_neighbours_all_are_kept() -> None:
    vectors = feature_vectors(described(["a b", "a", "a", "a", "c"]))
    assert vectors is not None
    assert (most_alike(vectors, 2).toarray()[0] > 0).tolist() == [False, True, True, True, False]


def test_a_column_that_is_no_text_is_refused() -> None:
    with refused("unknown-column", "'colour'", "title"):
        feature_vectors(described(["a"]), ["colour"])
    with refused("unknown-column", "prepare the store with --items"):
        feature_vectors(Catalog(described(["a"]).frame.drop("title")), ["title"])


def test_columns_that_are_not_read_are_refused() -> None:
    with refused("setting-without-effect", "columns", "similarity"):
        TransitionGraph().override("columns=[title]", "similarity=0")
