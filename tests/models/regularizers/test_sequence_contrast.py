"""Sequence contrast: the term written out, what is dropped, and what is refused."""

from dataclasses import replace

import pytest
import torch

from fullrank.models.sequential.items.unisrec import UniSRec
from fullrank.models.sequential.regularizers.sequence_contrast import SequenceContrast, changed_places, dropped
from fullrank.semantic_ids.vectors.text import TextVectors
from parts import (
    PLR,
    Generate,
    LastItem,
    NextItem,
    ReasoningContrast,
    RecommenderModel,
    Semantic,
    Softmax,
    Transformer,
    model_with,
)
from refusals import refused
from tests.models.regularizers.contrast import cosine_contrast
from tiny import close, histories, padded
from twins import same

ROWS = [[1, 2, 9], [4, 5, 6, 9], [5, 6, 7, 8, 1, 3], [8, 2, 7], [1, 3]]
"""The last event of each is its target: the first two have the same."""


DEFAULT = {
    "dim": 8, "task": LastItem(), "encoder": Transformer(dropout=0.0),
    "items": UniSRec(augmented=TextVectors(word_drop=0.2)),
}  # fmt: skip


def build(*penalties, **more) -> RecommenderModel:
    return model_with(*penalties, **DEFAULT | more).eval()


@pytest.mark.parametrize("task", [LastItem(), NextItem()])
@pytest.mark.parametrize("words", [0.0, 1.0])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_the_term_as_it_reads(task, words, at) -> None:
    """Row by row: histories are written without their dropped items, or read the second vectors."""
    model = build(SequenceContrast(weight=0.5, drop=0.4, words=words, temperature=0.2), task=task)
    batch = padded(ROWS, step=at)
    step = model.step(batch)
    inputs = step.inputs
    gone = changed_places(batch, int(inputs.lengths.max()), 0.4)
    first, copies = [], []
    for i, row in enumerate(ROWS):
        length = int(inputs.lengths[i])
        history = row[:length]
        alone = padded([history])
        first.append(model.encoder(model.items.embed(alone.items), alone).tokens[0, -1])
        if words:
            items = model.items
            x = items.embed_augmented(alone.items, gone[i : i + 1, :length])
            copies.append(model.encoder(x, alone).tokens[0, -1])
        else:
            rest = padded([[h for k, h in enumerate(history) if k == 0 or not gone[i, k]]])
            copies.append(model.encoder(model.items.embed(rest.items), rest).tokens[0, -1])
    slow = 0.5 * cosine_contrast(torch.stack(first), torch.stack(copies), [row[-1] for row in ROWS], 0.2)
    same(model.penalties["sequence_contrast"](step), slow, *model.parameters(), tolerance=1e-3)


def test_rows_close_up_where_events_are_dropped() -> None:
    batch = padded(ROWS, extra=1)
    x = batch.items[..., None].float()
    changed = torch.zeros_like(batch.items, dtype=torch.bool)
    changed[2, [1, 4]] = changed[3, 2] = changed[0, 4] = True  # the last one is padding
    closer, inputs = dropped(x, batch, changed)
    assert inputs.lengths.tolist() == [3, 4, 4, 2, 2] and closer.shape[1] == 4
    rows = [inputs.items[i, :n].tolist() for i, n in enumerate(inputs.lengths)]
    assert rows == [[1, 2, 9], [4, 5, 6, 9], [5, 7, 8, 3], [8, 2], [1, 3]]
    assert torch.equal(closer[..., 0][inputs.valid], inputs.items[inputs.valid].float())
    assert inputs.times[2, :4].tolist() == batch.times[2, [0, 2, 3, 5]].tolist()


def test_what_is_dropped_is_a_function_of_its_place() -> None:
    rows = histories([20, 20, 20])
    batch = padded(rows)
    found = changed_places(batch, 20, 0.2)
    assert torch.equal(found, changed_places(batch, 20, 0.2)) and torch.equal(
        found[:, :9], changed_places(batch, 9, 0.2)
    )
    assert not torch.equal(found, changed_places(replace(batch, step=1), 20, 0.2))
    turned = replace(batch, rows=torch.tensor([102, 101, 100]))
    assert torch.equal(changed_places(turned, 20, 0.2), found.flip(0))


def test_with_a_second_view_the_first_is_read() -> None:
    model = build(SequenceContrast(), ReasoningContrast(), reasoner=PLR())
    step = model.step(padded(ROWS))
    assert step.batch.views == 2 and model.penalties["sequence_contrast"](step).isfinite()
    alone = build(SequenceContrast(), reasoner=PLR())
    assert close(
        model.penalties["sequence_contrast"](step), alone.penalties["sequence_contrast"](alone.step(padded(ROWS)))
    )


def test_one_row_has_nobody_to_be_told_from() -> None:
    model = build(SequenceContrast())
    assert model.penalties["sequence_contrast"](model.step(padded(ROWS[:1]))) == 0


def test_refusals() -> None:
    with refused("items-without-vectors", "augmented", "words=0.5"):
        build(SequenceContrast(words=0.5), items=UniSRec())
    with refused("tokens-are-not-items", "last_item"):
        rope = Transformer(positions="none", attention=Softmax(rope=True))
        build(SequenceContrast(), items=Semantic(), task=Generate(), encoder=rope)
