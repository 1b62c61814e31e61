"""Tasks by hand-made examples: targets of each horizon, prefixes and their cap, covered positions, long histories."""

from dataclasses import replace

import numpy as np
import torch

from fullrank.models import States
from fullrank.models.sequential.items import ItemIndex
from parts import Cloze, LastItem, NextItem, Semantic, SemanticTokens, Table
from refusals import refused
from tiny import Flat, catalog, close, padded, shaken
from twins import same

ITEMS = Table().build(4, catalog())
RANDOM = np.random.default_rng(0)


def asked(task, batch) -> tuple:
    x, inputs = task.training_inputs(ITEMS, batch)
    return task.queries(States(x), inputs, batch, Flat(ITEMS.all())), inputs


def test_horizons() -> None:
    batch = padded([[5, 6, 7, 8], [8, 9]])
    task = NextItem(horizons=4).build(4, 10)
    found, _ = asked(task, batch)
    assert [q.name for q in found] == ["ahead_1", "ahead_2", "ahead_3", "ahead_4"]
    assert [q.targets.tolist() for q in found] == [[6, 7, 8, 9], [7, 8], [8], []]
    assert [q.positions.tolist() for q in found] == [[0, 1, 2, 0], [0, 1], [0], []]
    assert task.counts(batch) == {"ahead_1": 4, "ahead_2": 2, "ahead_3": 1, "ahead_4": 0}
    assert len(list(task.parameters())) == 3, "one head for each horizon but the first"


def test_windows() -> None:
    lengths = np.array([3, 5, 100])
    users, starts, ends = NextItem().build(4, 4).segments(lengths, RANDOM)
    assert (users.tolist(), starts.tolist(), ends.tolist()) == ([0, 1, 2], [0, 0, 95], [3, 5, 100])
    random = NextItem(window="random").build(4, 4)
    seen = np.array([random.segments(lengths, np.random.default_rng(s)) for s in range(400)])
    assert (seen[:, 2] - seen[:, 1] == [3, 5, 5]).all()
    firsts = set(seen[:, 1, 2].tolist())
    assert {min(firsts), max(firsts)} == {0, 95}, "the first and the last stretch are drawn too"
    assert len(firsts) > 80


def test_last_item() -> None:
    batch = padded([[5, 6, 7], [8, 9]])
    (q,), inputs = asked(LastItem().build(4, 10), batch)
    assert (q.targets.tolist(), q.positions.tolist()) == ([7, 9], [1, 0])
    assert inputs.lengths.tolist() == [2, 1]
    assert torch.equal(q.vectors, ITEMS.embed(torch.tensor([6, 8])))


def test_prefixes() -> None:
    every = LastItem(per_user=None).build(4, 3)
    users, starts, ends = every.segments(np.array([1, 3, 0, 6]), RANDOM)
    assert users.tolist() == [1, 1, 3, 3, 3, 3, 3]
    assert ends.tolist() == [2, 3, 2, 3, 4, 5, 6]
    assert starts.tolist() == [0, 0, 0, 0, 0, 1, 2], "three events and a target at most"


def test_prefixes_are_capped_without_replacement() -> None:
    capped = LastItem(per_user=3).build(4, 50)
    lengths = np.array([2, 3, 9, 30])
    count = np.zeros(31)
    for seed in range(600):
        users, _, ends = capped.segments(lengths, np.random.default_rng(seed))
        assert np.bincount(users, minlength=4).tolist() == [1, 2, 3, 3]
        assert len(set(zip(users, ends, strict=True))) == len(users)
        count[ends[users == 3]] += 1
    expected = 600 * 3 / 29
    assert (abs(count[2:] - expected) < 5 * expected**0.5).all(), "every prefix is as likely"


def test_outputs_of_a_reasoner_are_used() -> None:
    """A reasoner's own answers go before the last token's state."""
    task = LastItem().build(4, 10)
    batch = padded([[5, 6, 7], [8, 9]])
    x, inputs = task.training_inputs(ITEMS, batch)
    trained, answered = torch.randn(2, 4), torch.randn(2, 4)
    states = States(x, outputs={"trained": trained, "answer": answered})
    assert torch.equal(task.queries(states, inputs, batch, Flat(ITEMS.all()))[0].vectors, trained)
    assert torch.equal(task.readout(states, inputs), answered)


def test_cloze_covers() -> None:
    """Chance per position, at least one in every row, and the share of rows that cover their last position alone."""
    batch = padded([[1] * 40] * 500 + [[1, 2]] * 500)
    task = Cloze(share=0.3, last=0.25).build(4, 40)
    covered = task.covered(batch)
    long, short = covered[:500], covered[500:]
    assert not short[:, 2:].any() and covered.any(1).all()
    alone = (long.sum(1) == 1) & long[:, -1]
    assert abs(alone.float().mean() - 0.25) < 5 * (0.25 * 0.75 / 500) ** 0.5
    rest = long[~alone]
    assert abs(rest.float().mean() - 0.3) < 5 * (0.21 / rest.numel()) ** 0.5
    others = task.covered(replace(batch, step=1))
    assert not torch.equal(covered, others)
    wide = padded([[1] * 40] * 500 + [[1, 2]] * 500, extra=5)
    assert torch.equal(task.covered(wide)[:, :40], covered)


def test_cloze_with_a_reasoner_asks_behind_the_last_position() -> None:
    """Every row covers its end, whose query is the reasoner's; the queries of other positions stay the encoder's."""
    batch = padded([[1] * 40] * 60 + [[1, 2]] * 60)
    plain, task = (Cloze(share=0.3, last=0.25, covers_end=ends).build(4, 40) for ends in (False, True))
    assert task.reads_outputs and not plain.reads_outputs
    end = torch.arange(40) == batch.lengths[:, None] - 1
    assert torch.equal(task.covered(batch), plain.covered(batch) | end)
    x, inputs = task.training_inputs(ITEMS, batch)
    trained, answered = torch.randn(120, 4), torch.randn(120, 4)
    states = States(x, outputs={"trained": trained, "answer": answered})
    (q,) = task.queries(states, inputs, batch, Flat(ITEMS.all()))
    at_end = end[q.rows, q.positions]
    assert torch.equal(q.vectors[at_end], trained) and torch.equal(q.vectors[~at_end], x[inputs.hidden & ~end])
    assert torch.equal(task.readout(states, inputs), answered)


def test_cloze_view() -> None:
    batch = padded([[5, 6, 7, 8, 9]] * 30)
    task = Cloze(share=0.5).build(4, 40)
    (q,), inputs = asked(task, batch)
    x, _ = task.training_inputs(ITEMS, batch)
    assert torch.equal(x[inputs.hidden], task.cover.expand(int(inputs.hidden.sum()), -1))
    assert torch.equal(x[~inputs.hidden], ITEMS.embed(batch.items)[~inputs.hidden])
    assert torch.equal(q.targets, batch.items[inputs.hidden])


def test_cloze_asks_behind_the_history() -> None:
    """A full row loses its oldest event; a shorter one only grows."""
    task = Cloze().build(4, 4)
    x, inputs = task.inference_inputs(ITEMS, padded([[5, 6, 7, 8], [5, 6, 7], [9]]))
    assert torch.equal(x[inputs.hidden], task.cover.expand(3, -1))
    assert inputs.items.shape == (3, 4) and inputs.lengths.tolist() == [4, 4, 2]
    assert [row[seen].tolist() for row, seen in zip(inputs.items, inputs.valid & ~inputs.hidden, strict=True)] == [
        [6, 7, 8], [5, 6, 7], [9]
    ]  # fmt: skip
    assert inputs.hidden.int().tolist() == [[0, 0, 0, 1], [0, 0, 0, 1], [0, 1, 0, 0]]
    _, short = task.inference_inputs(ITEMS, padded([[5, 6], [9]]))
    assert short.items.shape == (2, 3) and short.lengths.tolist() == [3, 2]


def test_refusals() -> None:
    for spec, tree in (
        (NextItem, {"horizons": 0}),
        (LastItem, {"per_user": 0}),
        (Cloze, {"share": 0}),
        (Cloze, {"last": 2}),
    ):
        with refused("invalid-setting", *tree):
            spec.parse(tree)


def test_semantic_tokens_ask_every_level() -> None:
    """K groups of queries, their targets the codes of the next item; the heads start as the identity."""
    items = shaken(Semantic().build(6, catalog()))
    task = SemanticTokens().build(6, 10, items)
    batch = padded([[1, 2, 3], [4, 5]])
    x, inputs = task.training_inputs(items, batch)
    found = task.queries(States(x), inputs, batch, ItemIndex(items, normalise=False))
    assert [q.name for q in found] == ["code_1", "code_2", "code_3"] and all(q.weight == 1 / 3 for q in found)
    assert [q.items.tolist() for q in found if q.items is not None] == [[2, 3, 5]] * 3
    assert [q.targets.tolist() for q in found] == items.codes[[2, 3, 5]].T.tolist()
    assert all(close(q.vectors, x[q.rows, q.positions]) for q in found)
    summed = SemanticTokens(reduction="sum").build(6, 10, items)
    assert all(q.weight == 1 for q in summed.queries(States(x), inputs, batch, ItemIndex(items, normalise=False)))


def test_heads_and_their_twin() -> None:
    task = shaken(SemanticTokens().build(6, 10, Semantic().build(6, catalog())))
    states = torch.randn(7, 6, requires_grad=True)
    fast, slow = task.heads_of(states), task.heads_of_reference(states)
    assert fast.shape == (7, 3, 6)
    same(fast, slow, states, task.weight, task.bias)
