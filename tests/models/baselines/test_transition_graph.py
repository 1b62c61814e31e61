"""Transition graph: links by hand, against a twin that walks through every pair of events, and what settings do."""

from collections import Counter
from math import log, log1p

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines.transition_graph import TransitionGraph, cosines, feature_vectors, most_alike
from fullrank.testing.baselines import fitted
from refusals import refused
from tiny import ITEMS, histories, padded, store


def scores(data: Store, history: list, /, **settings) -> Tensor:
    """What a model that is fitted to a store says of one history."""
    model = fitted(TransitionGraph(**settings), data)
    return model.answer(padded([history])).block(0, model.num_items)[0]


def described(titles, tags=None) -> Catalog:
    size = len(titles)
    columns = {"item": np.arange(size), "item_id": np.arange(size), "train_count": [1] * size}
    columns["title"] = pl.Series(titles, dtype=pl.String)
    if tags is not None:
        columns["tags"] = pl.Series(tags, dtype=pl.List(pl.String))
    return Catalog(pl.DataFrame(columns))


def twin(rows, catalog, spec, history) -> np.ndarray:
    """Scores of one history, from training events row[:-2] of each row."""
    counts = Counter()
    popularity = np.zeros(ITEMS)
    for row in (row[:-2] for row in rows):
        np.add.at(popularity, row, 1)
        for i, a in enumerate(row):
            for d, b in enumerate(row[i + 1 : i + 1 + spec.window]):
                if a != b:
                    counts[a, b] += spec.window_decay**d
                    counts[b, a] += spec.backward * spec.window_decay**d
    vectors = feature_vectors(catalog)
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
    for history, settings, wanted in (
        ([0], {}, [-1 / 4, 1.0, -1 / 2]),
        ([1], {}, [1.0, -1 / 4, 1.0]),
        ([2, 1, 0], {"decay": 0.5}, [0.5, 1.0, 0.5]),
        ([1], {"history": 1}, [1.0, -1 / 4, 1.0]),
        ([0], {"window": 2, "window_decay": 0.25}, [-1 / 4, 1.0, log1p(0.25) / log1p(2)]),
        ([2], {"backward": 0.5}, [-1 / 4, 1.0, -1 / 2]),
    ):
        found = scores(data, history, **{"window": 1, "backward": 0.0, "similarity": 0.0} | settings)
        torch.testing.assert_close(found, torch.tensor([*wanted, -1, -1]))


@pytest.mark.parametrize(
    "spec",
    [TransitionGraph(), TransitionGraph(history=4, decay=1, window=1, backward=1), TransitionGraph(neighbours=3)],
    ids=["defaults", "long", "few"],
)
def test_equals_its_twin(spec) -> None:
    rows, asked = histories((30, 3, 12, 2, 25, 8), seed=2), histories((1, 4, 10), seed=3)
    data = store(rows)
    found = fitted(spec, data).answer(padded([row[-spec.history :] for row in asked])).block(0, ITEMS)
    for history, row in zip(asked, found, strict=True):
        np.testing.assert_allclose(row.numpy(), twin(rows, data.catalog, spec, history), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{"decay": 0.1}, {"window": 1}, {"window_decay": 0.1}, {"backward": 1.0}, {"similarity": 0.0},
     {"similarity": 3.0}, {"neighbours": 2}, {"columns": ("title_text",)}],
    ids=str,
)  # fmt: skip
def test_every_setting_has_an_effect(settings) -> None:
    data = store(histories((30, 3, 12, 2, 25, 8), seed=2))
    data.catalog = data.catalog.with_columns({"title_text": pl.Series([f"thing {i % 4}" for i in range(ITEMS)])})
    asked = histories((2, 2, 2), seed=3)
    plain, other = ([scores(data, row, **given) for row in asked] for given in ({}, settings))
    assert not torch.equal(torch.stack(plain), torch.stack(other))
    assert fitted(TransitionGraph(history=5), data).max_length == 5


def test_an_item_without_events_is_reached_by_its_features() -> None:
    data = store([[0, 1, 4, 4], [1, 0, 4, 4]], 5)
    data.catalog = described(["red nail polish", "brush", "red nail polish new", "soap", "comb"])
    found = scores(data, [0])
    assert found[2] > 0 and (found[[3, 4]] < 0).all() and scores(data, [0], similarity=0.0)[2] < 0


def test_without_features_and_transitions_popularity_is_left() -> None:
    data = store([[0, 2, 2], [1, 2, 2], [1, 2, 2]], 3)
    data.catalog = Catalog(data.catalog.frame.select("item", "item_id", "train_count"))
    assert scores(data, [0]).argsort(descending=True, stable=True).tolist() == [1, 0, 2]


def test_features_by_hand() -> None:
    """Words of titles and whole entries of lists; `red` is in two of four items, the others in one."""
    catalog = described(["Red, red polish", "red", None, ""], [["Nail Care"], None, None, ["Soap"]])
    vectors = feature_vectors(catalog)
    red, once = log(5 / 3), log(5 / 2)
    first = np.array([(1 + log(2)) * red, once, once])
    wanted = np.array([first[0] / np.linalg.norm(first), 0.0, 0.0])
    np.testing.assert_allclose(cosines(vectors, np.array([0, 0, 2]), np.array([1, 3, 0])), wanted)
    near = most_alike(vectors, 2).toarray()
    np.testing.assert_allclose(near[0], [0, wanted[0], 0, 0])
    assert feature_vectors(catalog, ["tags"]).shape == (4, 2)  # type: ignore[union-attr]


def test_of_equal_neighbours_all_are_kept() -> None:
    vectors = feature_vectors(described(["a b", "a", "a", "a", "c"]))
    assert (most_alike(vectors, 2).toarray()[0] > 0).tolist() == [False, True, True, True, False]


def test_a_column_that_is_no_text_is_refused() -> None:
    with refused("unknown-column", "'colour'", "title"):
        feature_vectors(described(["a"]), ["colour"])
    with refused("unknown-column", "prepare the store with --items"):
        feature_vectors(Catalog(described(["a"]).frame.drop("title")), ["title"])


def test_columns_that_are_not_read_are_refused() -> None:
    with refused("setting-without-effect", "columns", "similarity"):
        TransitionGraph().override("columns=[title]", "similarity=0")
