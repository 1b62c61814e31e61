"""Attention to relevant events against loops: what is relevant, the shares of many users, and one user's case."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

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
from fullrank.models.sequential.attention.focused import Focused
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from refusals import refused
from tests.analysis.conftest import ITEMS, context_of, everyone, history, model_of, observed, recommender, shop, values
from tiny import store

KINDS = {
    "softmax": recommender(),
    "focused": recommender(Transformer(layers=2, attention=Focused(heads=2))),
    "two-sided with covered places": recommender(
        Transformer(layers=2, attention=Softmax(heads=2, causal=False))
    ).model_copy(update={"task": Cloze()}),
}


def sets(on: Store) -> list[set[int]]:
    """The training items of each user."""
    bounds = zip(on.offsets[:-1], on.bounds[:, 0], strict=True)
    return [set(map(int, on.items[low:high])) for low, high in bounds if high > low]


def related(on: Store, item: int, target: int) -> bool:
    """Positive pointwise mutual information, from sets."""
    had = sets(on)
    both, one, two = (sum(1 for s in had if wanted <= s) for wanted in ({item, target}, {item}, {target}))
    return both > 0 and math.log(len(had) * both / (one * two)) > 1e-12


@given(st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=8), min_size=1, max_size=9))
@settings(max_examples=40, deadline=None)
def test_relevance_is_positive_mutual_information(rows: list[list[int]]) -> None:
    on = store(rows, 7)
    pairs = np.array([(a, b) for a in range(7) for b in range(7)])
    relevance = Relevance(on)
    found = relevance(pairs[:, 0], pairs[:, 1])
    assert found.tolist() == [related(on, int(a), int(b)) for a, b in pairs]
    together = [sum(1 for s in sets(on) if {int(a), int(b)} <= s) for a, b in pairs]
    assert relevance.together(pairs[:, 0], pairs[:, 1]).tolist() == together


def test_pairs_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("kind", KINDS)
def test_the_twin_adds_up_single_weights(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on = shop()
    model, some = model_of(KINDS[kind], on), everyone(on)
    targets = some.next_items
    monkeypatch.setattr(room, "LAST", 6)
    sums, even, users = np.zeros((3, 2, 2)), 0.0, 0
    for reading in activations(model, some):
        for row, place in enumerate(reading.users):
            batch = reading.attentions[0].batch
            length = int(batch.lengths[row])
            real = [j for j in range(length) if batch.hidden is None or not batch.hidden[row, j]]
            keys = real[-6:]
            assert [int(batch.items[row, j]) for j in real] == history(some, place)[-len(real) :].tolist()
            marks = np.array([related(on, int(batch.items[row, j]), int(targets[place])) for j in keys])
            if marks.all() or not marks.any():
                continue
            users, even = users + 1, even + marks.mean()
            for attended in reading.attentions:
                with torch.no_grad():
                    weights = attended.module.weights(attended.x, batch)[row, :, length - 1, keys].double().numpy()
                shares = weights / np.abs(weights).sum(1, keepdims=True)
                sums[0, attended.layer] += np.abs(shares[:, marks]).sum(1)
                sums[1, attended.layer] += shares[:, marks].sum(1)
                sums[2, attended.layer] += shares[:, ~marks].sum(1)
    (rows,) = observed(model, some, Focus, on=on)
    assert 3 < users < len(some) and values(rows, "users") == [users] and values(rows, "asked") == [len(some)]
    assert values(rows, "even")[0] == pytest.approx(even / users)
    for layer in range(2):
        for head in (None, 0, 1):
            share, kept, noise = (s[layer].mean() if head is None else s[layer, head] for s in sums / users)
            where: dict[str, Any] = {"layer": layer, "head": head}
            assert values(rows, "relevant", **where)[0] == pytest.approx(share, abs=1e-5)
            assert values(rows, "ratio", **where)[0] == pytest.approx(share * users / even, rel=1e-4)
            assert values(rows, "signed", label="relevant", **where)[0] == pytest.approx(kept, abs=1e-5)
            assert values(rows, "signed", label="noise", **where)[0] == pytest.approx(noise, abs=1e-5)
    if kind != "focused":
        assert sums[0] == pytest.approx(sums[1]), "softmax weights have no sign"
    else:
        assert (sums[0] > sums[1] + 0.1).any()


def planted(users: int = 60) -> Store:
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
        (rows,) = observed(model, some, Focus, on=on)
        assert least < values(rows, "ratio", layer=0, head=0)[0] < most


@pytest.mark.parametrize("kind", KINDS)
def test_an_explanation_shows_each_event(kind: str) -> None:
    on = shop()
    model, some = model_of(KINDS[kind], on), everyone(on)
    relevance = Relevance(on)
    for place in (0, 3, 7):
        user = int(some.users[place])
        found = explain_user(model, on, user, relevance=relevance)
        read = history(some, place, 10 if causal(kind) else 9)
        events = some.histories.items
        assert found.items.tolist() == read.tolist() and found.target == events.values[events.ends[place]]
        assert found.relevant.tolist() == [related(on, int(i), found.target) for i in read]
        assert np.abs(found.shares).sum(1).max() <= 1 + 1e-5 and found.shares.shape == (2, len(read))
        (reading,) = (r for r in activations(model, some) if place in r.users)
        row = reading.users.tolist().index(place)
        batch, attended = reading.attentions[1].batch, reading.attentions[1]
        with torch.no_grad():
            last = int(batch.lengths[row]) - 1
            weights = attended.module.weights(attended.x, batch)[row, :, last, : len(read)].double()
        wanted = (weights / weights.abs().sum(-1, keepdim=True)).mean(0).numpy()
        assert np.allclose(found.shares[1], wanted, atol=1e-4)
    with refused("no-target", 10_000, "test"):
        explain_user(model, on, 10_000)


def causal(kind: str) -> bool:
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
    on = shop()
    found = diagnose_retrieval(model_of(recommender(GRU()), on), on, users=25)
    assert "no attention" in found.left_out()["focus"] and "no attention" in found.left_out()["case"]
    found = diagnose_retrieval(model_of(recommender(), on), on, split="train", users=25)
    assert "no targets" in found.left_out()["focus"] and not found.of("case")
    same = store([[1, 2, 3, 1, 2, 3]] * 6, ITEMS)
    model, some = model_of(recommender(), same), everyone(same)
    focus = Focus(context_of(model, some, same))
    focus.targets = np.array([3] * 6)
    (rows,) = observed(model, some, focus)
    assert [one["name"] for one in rows] == [LEFT_OUT] and "both relevant events and noise" in rows[0]["label"]


def test_rows_of_the_sample_do_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    on = shop()
    model, some = model_of(KINDS["focused"], on), everyone(on)
    (whole,) = observed(model, some, Focus, on=on)
    monkeypatch.setattr("fullrank.inference.attention.WEIGHTS", 300)
    (parts,) = observed(model, some, Focus, on=on)
    for a, b in pairwise([whole, parts]):
        assert [one["value"] for one in a] == pytest.approx([one["value"] for one in b], abs=1e-6)
