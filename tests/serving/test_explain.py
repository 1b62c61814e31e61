"""Explanations: the attention that diagnostics measure, likeness by cosine, and nothing where a model has neither.

And titles: their search and their likeness.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from featured import NAMES, FeaturedStore, shop_predictor, some_tables
from fullrank.core.jagged import Jagged
from fullrank.data.events.features import FeatureEncoder, encoder_of
from fullrank.data.features import FeatureRows, FeatureTable
from fullrank.data.histories import Histories
from fullrank.inference.batches import batches, score_pairs
from fullrank.inference.predictor import Predictor
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.baselines.item_to_item import ItemToItem
from fullrank.models.sequential.baselines.popularity import Popularity
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.seq2seq import Seq2Seq
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.models.sequential.objectives.tasks.generate import Generate
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.objectives.tasks.semantic_tokens import SemanticTokens
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.run.experiment import Experiment
from fullrank.serving.explain import alike_events, explain_lists
from fullrank.serving.titles import LEAST_SIMILARITY, SimilarTitles, TitleSearch, words_of
from predictors import predictor_of
from tiny import store

TWO = Transformer(layers=2, attention=Softmax(heads=2))
MASKED = Transformer(layers=2, attention=Softmax(heads=2, causal=False))
ROTARY = Transformer(layers=2, attention=Softmax(heads=2, rope=True), positions="none")
LAST = Generate(targets="last", user_tokens=5)
SPECS = {
    "sasrec": {"encoder": TWO},
    "bert4rec": {"encoder": MASKED, "task": Cloze()},
    "plr": {"encoder": TWO, "reasoner": PLR(steps=2, streams=2), "task": LastItem()},
    "codes": {"items": Semantic(), "encoder": TWO, "task": SemanticTokens()},
    "generate": {"items": Semantic(), "encoder": ROTARY, "task": Generate()},
    "seq2seq": {"items": Semantic(), "encoder": Seq2Seq(), "task": LAST},
    "gru4rec": {"encoder": GRU()},
}
"""Settings of small models that learn vectors."""
BASELINES = {"item_to_item": ItemToItem(), "popularity": Popularity()}
ATTENTIVE = [kind for kind in SPECS if kind != "gru4rec"]
ROWS = [[3, 1, 4], [], [5], [9, 2, 6, 5, 3, 8, 7, 11]]
ANSWERS = [[2, 7], [1], [5, 4, 3], [0]]


def predictor(kind: str) -> Predictor:
    spec = BASELINES[kind] if kind in BASELINES else Recommender(dim=8, max_length=6, **SPECS[kind])
    return predictor_of(spec, [[1, 2, 3, 4], [2, 3, 4, 5]])


def histories(rows: list) -> Histories:
    return Histories(Jagged.from_lists(rows))


@pytest.mark.parametrize("kind", ATTENTIVE)
def test_every_event_that_is_read_has_a_share_alone_as_among_others(kind: str) -> None:
    model = predictor(kind)
    for explained, row, answer in zip(explain_lists(model, histories(ROWS), ANSWERS), ROWS, ANSWERS, strict=True):
        (alone,) = explain_lists(model, histories([row]), [answer])
        assert alone.because == explained.because
        if not row:
            assert explained.attention is None, "an empty history has no events"
            continue
        read = 5 if kind == "bert4rec" else 6  # the mask takes a place
        assert explained.attention.shape[0] == 2 and explained.attention.shape[1] in (len(row), read)
        np.testing.assert_allclose(np.abs(explained.attention).sum(1), 1, atol=1e-5)
        np.testing.assert_allclose(alone.attention, explained.attention, atol=1e-5)


def test_the_shares_are_those_of_the_last_place() -> None:
    made = predictor("sasrec")
    model = made.model
    with torch.inference_mode():
        ((_, batch),) = batches(model, histories([[3, 1, 4]]))
        x, inputs = model.task.inference_inputs(model.items, batch)
        first = model.encoder.blocks[0]
        states = model.encoder(x, inputs)
        weights = first.attention.weights(first.attention_norm(states.layers[0]), inputs)
    found = explain_lists(made, histories([[3, 1, 4]]), [[2]])[0].attention
    assert found is not None
    np.testing.assert_allclose(found[0], weights[0, :, -1].mean(0).numpy(), atol=1e-5)


def test_because_names_the_most_alike_events_by_cosine() -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0], [-1.0, 0.0], [0.0, 0.0]])
    found = alike_events(vectors, np.array([0, 1, 3, 4, 0]), [2, 0, 4], most=2)
    assert found[0] == [(0, 0.7071), (1, 0.7071)]
    assert found[1] == [], "an item is no reason for itself, and what is not like it is none"
    assert found[2] == [], "a vector of zeros is like nothing"
    assert alike_events(vectors, np.zeros(0, np.int64), [2]) == [[]] and alike_events(vectors, np.array([1]), []) == []


@pytest.mark.parametrize("kind", SPECS)
def test_models_with_vectors_say_what_an_item_is_like(kind: str) -> None:
    for one, row, answer in zip(explain_lists(predictor(kind), histories(ROWS), ANSWERS), ROWS, ANSWERS, strict=True):
        assert one.because is not None and len(one.because) == len(answer)
        for item, why in zip(answer, one.because, strict=True):
            assert {event for event, _ in why} <= set(row) - {item}
            assert [score for _, score in why] == sorted((score for _, score in why), reverse=True)
            assert all(0 < score <= 1 for _, score in why) and len(why) <= 3


@pytest.mark.parametrize(("kind", "vectors"), [("item_to_item", False), ("popularity", False), ("gru4rec", True)])
def test_models_give_what_they_have(kind: str, vectors: bool) -> None:
    for explained in explain_lists(predictor(kind), histories(ROWS), ANSWERS):
        assert explained.attention is None and (explained.because is not None) == vectors


def test_other_threads_may_answer_meanwhile() -> None:
    model, rows, answers = predictor("sasrec"), [[3, 1, 4], [9, 2, 6, 5]], [[0], [0]]
    expected, stop = explain_lists(model, histories(rows), answers), threading.Event()

    def busy() -> None:
        while not stop.is_set():
            model.recommend([["i1", "i2", "i3", "i4", "i5"]], k=3)

    with ThreadPoolExecutor(1) as other:
        asking = other.submit(busy)
        try:
            for _ in range(20):
                for explained, wanted in zip(explain_lists(model, histories(rows), answers), expected, strict=True):
                    np.testing.assert_allclose(explained.attention, wanted.attention, atol=1e-6)
        finally:
            stop.set()
    asking.result()
    assert all(not module._forward_pre_hooks for module in model.model.modules())


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


@pytest.mark.parametrize("task", ["next_item", "last_item"])
def test_features_move_a_score_by_what_it_is_without_them(task: str) -> None:
    """As histories whose column is missing score; a feature that nobody knows of a list is not named."""
    plain = store([[1, 2, 3, 4], [2, 5], [0, 1, 4], [3, 3, 2, 1, 5]], 6)
    rich = FeaturedStore.of(plain, **some_tables(plain.num_events, plain.num_users))
    spec = Experiment(model=Recommender(dim=8, max_length=6, encoder=TWO)).override(
        "model.features=auto", f"model.task={task}"
    )
    asked, answers = shop_predictor(rich, spec), [[2, 4], [1], [5, 4, 3], [0]]
    histories = rich.eval_set("test").histories
    told = [one.features for one in explain_lists(asked, histories, answers)]
    pairs = np.repeat(np.arange(4), [2, 1, 3, 1]), np.concatenate(answers)
    whole = score_pairs(asked.model, histories, *pairs)
    for role, names in NAMES.items():
        own = encoder_of(rich.features, role)
        for name in names:
            known = {part: _without(getattr(histories.features, part), own, name)
                     for part in (("request", "asked") if role == "request" else (role,))}  # fmt: skip
            less = score_pairs(asked.model, replace(histories, features=replace(histories.features, **known)), *pairs)
            for row, moved in enumerate(np.split(whole - less, [2, 3, 6])):
                if moved.any():
                    np.testing.assert_allclose(told[row].pop(f"{role}.{name}"), moved, atol=1e-5)
    assert not any(told) and not explain_lists(asked, replace(histories, features=None), answers)[0].features


def _without(known: FeatureTable | FeatureRows, own: FeatureEncoder, name: str) -> FeatureTable | FeatureRows:
    """The table, of which a column is missing."""
    if isinstance(known, FeatureRows):
        return replace(known, table=_without(known.table, own, name))
    ids, numbers = np.array(known.categorical), np.array(known.numeric)
    ids[:, [one.name == name for one in own.categorical]] = 0
    numbers[:, [one.name == name for one in own.numeric]] = np.nan
    bags = tuple(
        Jagged(bag.values, bag.starts, bag.starts if one.name == name else bag.ends)
        for one, bag in zip(own.multivalued, known.bags, strict=True)
    )
    return replace(known, categorical=ids, numeric=numbers, bags=bags)
