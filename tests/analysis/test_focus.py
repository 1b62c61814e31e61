"""Attention to relevant events against loops: what is relevant, the shares of many users, and one user's case."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.analysis import relevance as relevance_room
from fullrank.analysis.activations import activations
from fullrank.analysis.diagnose import diagnose_retrieval
from fullrank.analysis.diagnosis import LEFT_OUT
from fullrank.analysis.diagnostics import focus as room
from fullrank.analysis.diagnostics.explain import ExampleUser, example_user, explain_user
from fullrank.analysis.diagnostics.focus import Focus
from fullrank.analysis.relevance import Relevance
from fullrank.data.events.store import Store
from parts import Cloze, Focused, Softmax, Transformer
from refusals import refused
from tests.analysis.conftest import (
    EVERYONE,
    ITEMS,
    STORE,
    context_of,
    everyone,
    history,
    model_of,
    observed,
    recommender,
    shop,
    values,
)
from tiny import store

KINDS = {
    "softmax": recommender(),
    "focused": recommender(Transformer(layers=2, attention=Focused(heads=2))),
    "two-sided with covered places": recommender(
        Transformer(layers=2, attention=Softmax(heads=2, causal=False))
    ).model_copy(update={"task": Cloze()}),
}


def sets(on) -> list:
    """The training items of each user."""
    bounds = zip(on.offsets[:-1], on.bounds[:, 0], strict=True)
    return [set(map(int, on.items[low:high])) for low, high in bounds if high > low]


def related(on, item, target) -> bool:
    """Positive pointwise mutual information, from sets."""
    had = sets(on)
    both, one, two = (sum(1 for s in had if wanted <= s) for wanted in ({item, target}, {item}, {target}))
    return both > 0 and math.log(len(had) * both / (one * two)) > 1e-12


@given(st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=8), min_size=1, max_size=9))
@settings(max_examples=40, deadline=None)
def test_relevance_is_positive_mutual_information(rows) -> None:
    on = store(rows, 7)
    pairs = np.array([(a, b) for a in range(7) for b in range(7)])
    relevance = Relevance(on)
    found = relevance(pairs[:, 0], pairs[:, 1])
    assert found.tolist() == [related(on, int(a), int(b)) for a, b in pairs]
    together = [sum(1 for s in sets(on) if {int(a), int(b)} <= s) for a, b in pairs]
    assert relevance.together(pairs[:, 0], pairs[:, 1]).tolist() == together


def test_pairs_are_counted_in_parts(monkeypatch) -> None:
    on = shop(80)
    pairs = np.random.default_rng(0).integers(0, ITEMS, (300, 2))
    whole = Relevance(on).together(pairs[:, 0], pairs[:, 1])
    monkeypatch.setattr(relevance_room, "AT_ONCE", 7)
    assert Relevance(on).together(pairs[:, 0], pairs[:, 1]).tolist() == whole.tolist() and whole.any()


def test_alike_vectors_make_relevant() -> None:
    on, vectors = shop(), np.random.default_rng(1).normal(size=(ITEMS, 3))
    a, b = np.array([(i, j) for i in range(ITEMS) for j in range(ITEMS)]).T
    cosine = (vectors[a] * vectors[b]).sum(1) / np.linalg.norm(vectors[a], axis=1) / np.linalg.norm(vectors[b], axis=1)
    assert (Relevance(on, vectors)(a, b) == (Relevance(on)(a, b) | (cosine >= 0.6))).all()
    with refused("vectors-do-not-fit", 3, 30):
        Relevance(on, vectors[:3])


def last_looks(attended, row, keys) -> np.ndarray:
    """[H, K]: the shares of these keys in the attention of a row's last query, with their sign."""
    last = int(attended.batch.lengths[row]) - 1
    with torch.no_grad():
        weights = attended.module.weights(attended.x, attended.batch)[row, :, last, keys].double().numpy()
    return weights / np.abs(weights).sum(1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_twin_adds_up_single_weights(kind, monkeypatch) -> None:
    model = model_of(KINDS[kind])
    monkeypatch.setattr(room, "LAST", 6)
    monkeypatch.setattr("fullrank.models.sequential.model.reading.WEIGHTS", 300)
    sums, even = [], []
    for reading in activations(model, EVERYONE):
        batch = reading.attentions[0].batch
        for row, place in enumerate(reading.users):
            keys = [j for j in range(int(batch.lengths[row])) if batch.hidden is None or not batch.hidden[row, j]][-6:]
            items, target = batch.items[row, keys].tolist(), int(EVERYONE.next_items[place])
            assert items == history(EVERYONE, place)[-len(keys) :].tolist()
            marks = np.array([related(STORE, item, target) for item in items])
            if marks.any() and not marks.all():
                looks = np.stack([last_looks(attended, row, keys) for attended in reading.attentions])
                parts = (np.abs(looks[..., marks]), looks[..., marks], looks[..., ~marks])
                sums.append([part.sum(-1) for part in parts])
                even.append(marks.mean())
    (rows,) = observed(model, Focus)
    assert 3 < len(even) < len(EVERYONE) and values(rows, "even") == [pytest.approx(np.mean(even))]
    assert values(rows, "users") == [len(even)] and values(rows, "asked") == [len(EVERYONE)]
    shares = np.mean(sums, 0)
    for layer in range(2):
        for head in (None, 0, 1):
            share, kept, noise = (part[layer].mean() if head is None else part[layer, head] for part in shares)
            for name, label, expected in (
                ("relevant", None, share), ("ratio", None, share / np.mean(even)),
                ("signed", "relevant", kept), ("signed", "noise", noise),
            ):  # fmt: skip
                found = values(rows, name, layer=layer, head=head, label=label)
                assert found == [pytest.approx(expected, rel=1e-4, abs=1e-5)]
    if kind == "focused":
        assert (shares[0] > shares[1] + 0.1 / len(even)).any()
    else:
        assert shares[0] == pytest.approx(shares[1]), "softmax weights have no sign"


def planted(users=60) -> Store:
    """Two departments that nobody mixes, but for three stray events each: relevant is who is of the target's own."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(users):
        own = rng.integers(0, 10, 8) + 10 * (user % 2)
        own[rng.choice(6, 3, replace=False)] = 20 + rng.integers(0, 10, 3)
        rows.append([int(x) for x in own])
    return store(rows, ITEMS)


def test_attention_to_the_own_department_is_seen() -> None:
    """A model whose first map finds the target's department attends to what is relevant; even attention does not."""
    on = planted()
    some = everyone(on)
    model = model_of(recommender(Transformer(layers=1, attention=Softmax(heads=1), positions="none")), on)
    for strength, least, most in ((0.0, 0.95, 1.05), (30.0, 1.1, 3.0)):
        with torch.no_grad():
            table = torch.zeros(ITEMS, 8)
            table[:10, 0], table[10:20, 1], table[20:, 2] = 1, 1, 1
            model.items.embedding.weight.copy_(table)
            model.encoder.blocks[0].attention_norm.weight.fill_(1.0)
            q, k, _ = model.encoder.blocks[0].attention.qkv.weight.split(8)
            q.copy_(strength * torch.eye(8))
            k.copy_(torch.eye(8))
        (rows,) = observed(model, Focus, on=on, some=some)
        assert least < values(rows, "ratio", layer=0, head=0)[0] < most


@pytest.mark.parametrize("kind", KINDS)
def test_an_explanation_shows_each_event(kind) -> None:
    model = model_of(KINDS[kind])
    relevance = Relevance(STORE)
    for place in (0, 3, 7):
        user = int(EVERYONE.users[place])
        found = explain_user(model, STORE, user, relevance=relevance)
        read = history(EVERYONE, place, 10 if causal(kind) else 9)
        events = EVERYONE.histories.items
        assert found.items.tolist() == read.tolist() and found.target == events.values[events.ends[place]]
        assert found.relevant.tolist() == [related(STORE, int(i), found.target) for i in read]
        assert np.abs(found.shares).sum(1).max() <= 1 + 1e-5 and found.shares.shape == (2, len(read))
        (reading,) = (r for r in activations(model, EVERYONE) if place in r.users)
        wanted = last_looks(reading.attentions[1], reading.users.tolist().index(place), [*range(len(read))])
        assert np.allclose(found.shares[1], wanted.mean(0), atol=1e-4)
    with refused("no-target", 10_000, "test"):
        explain_user(model, STORE, 10_000)


def causal(kind) -> bool:
    return not kind.startswith("two-sided")


def test_the_example_user_has_both_kinds_and_is_the_same_for_every_model() -> None:
    on = planted()
    some, relevance = everyone(on), Relevance(on)
    chosen = example_user(on, some, relevance)
    rows = [ExampleUser(context_of(model_of(spec, on), some, on)).rows() for spec in KINDS.values()]
    assert [values(found, "user") for found in rows] == [[chosen]] * 3
    labels = {one["label"] for one in rows[0] if one["name"] == "item"}
    assert labels == {"relevant", "noise"}
    assert [one["index"] for one in rows[0] if one["name"] == "item"] == list(range(1, 8))
    place = some.users.tolist().index(chosen)
    assert values(rows[0], "item") == history(some, place)[::-1].tolist(), "the last event first"


def test_what_is_left_out_says_why() -> None:
    found = diagnose_retrieval(model_of(), STORE, split="train", users=25)
    assert "no targets" in found.left_out()["focus"] and not found.of("case")
    same = store([[1, 2, 3, 1, 2, 3]] * 6, ITEMS)
    model, some = model_of(recommender(), same), everyone(same)
    focus = Focus(context_of(model, some, same))
    focus.targets = np.array([3] * 6)
    (rows,) = observed(model, focus, some=some)
    assert [one["name"] for one in rows] == [LEFT_OUT] and "both relevant events and noise" in rows[0]["label"]
