"""Reasons of a list: attention to past events, the events that an item is like, and how features moved its score.

Attention is read while the encoder runs: of each layer, the mean over heads of the share that the
last place gives to each event (`reading.last_shares`, signed: focused attention may subtract).
`because` compares vectors: the events whose item vectors have the largest cosine with the
recommended item's. It names likeness, not a cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.jagged import Jagged
from fullrank.data.histories import Histories
from fullrank.inference.batches import batches, score_pairs, scorer_of
from fullrank.inference.predictor import Predictor
from fullrank.models import Budget, Model
from fullrank.models.sequential.baselines.blend import BlendModel
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.model.reading import (
    AttentionInput,
    attention_of,
    blocks_of,
    changed_feature,
    event_places,
    last_shares,
    noted_attentions,
    tokens_per_event,
    weights_of,
)

REASONS = 3
"""Most events named for one recommended item."""
Reasons = list[tuple[int, float]]
"""Item numbers of the history and their cosine, the most alike first."""


@dataclass(frozen=True)
class ListExplanation:
    """The reasons of one list."""

    attention: Float[np.ndarray, "L n"] | None = None
    """For each layer the share of each of the last n events (all that the model reads), oldest first.
    A row's absolute values add up to at most one. None for a model whose attention shows no weights,
    and for an empty history."""
    because: list[Reasons] | None = None
    """For each item of the list; None for a model without item vectors."""
    features: dict[str, Float[np.ndarray, "items"]] = field(default_factory=dict)
    """Known feature (`request.device`) -> for each item its score minus its score with the feature missing."""


def explain_lists(
    predictor: Predictor, histories: Histories, answers: Sequence[Sequence[int]]
) -> list[ListExplanation]:
    """One explanation for each history and the items that were recommended for it.

    Item numbers are those of the predictor's catalogue. Runs the encoder once more, and once for
    each known feature, on the thread that calls it: give it the requests that ask for an
    explanation, not whole batches. A part that a model cannot give is None or empty.
    """
    vectors = vectors_of(predictor)
    shares = attention_shares(predictor, histories)
    moves = feature_moves(predictor, histories, answers)
    return [
        ListExplanation(part, None if vectors is None else alike_events(vectors, history, items), moved)
        for part, history, items, moved in zip(shares, histories.items, answers, moves, strict=True)
    ]


def feature_moves(
    predictor: Predictor, histories: Histories, answers: Sequence[Sequence[int]]
) -> list[dict[str, Float[np.ndarray, "_"]]]:
    """`ListExplanation.features` for each list: none for an empty history, and where no feature is known."""
    model, moves = predictor.model, [dict[str, np.ndarray]() for _ in answers]
    (rows,) = np.nonzero(histories.items.lengths)
    if isinstance(model, BlendModel) or not model.reads_features or histories.features is None or not len(rows):
        return moves  # a blend has no scores
    lists = Jagged.from_lists([answers[row] for row in rows.tolist()])
    scores = partial(score_pairs, model, histories.take(rows), lists.row_of(), lists.values, index=predictor.index)
    whole = scores()
    for role, names in model.reads_features.items():
        for name in names:
            with changed_feature(model, role, name, lambda vectors, missing, _: missing.expand_as(vectors)):
                moved = whole - scores()
            for row, part in zip(rows, np.split(moved, lists.offsets[1:-1]), strict=True):
                if part.any():  # what is missing moves nothing
                    moves[row][f"{role}.{name}"] = part
    return moves


def attention_shares(predictor: Predictor, histories: Histories) -> list[Float[np.ndarray, "L n"] | None]:
    """`ListExplanation.attention` for each history."""
    model = predictor.model
    shares: list[np.ndarray | None] = [None] * len(histories)
    (rows,) = np.nonzero(histories.items.lengths)
    if not len(rows) or all(attention_of(block) is None for block in blocks_of(model)):
        return shares
    # What a reasoner computes after the history does not change what the history's own places
    # attend to.
    budget = None if model.reasoner is None else Budget(steps=0)
    with noted_attentions(model) as noted, torch.inference_mode():
        for at, batch in batches(model, histories.take(rows)):
            scorer_of(model, batch, predictor.index, budget)
            # reversed, so that the first attention of each layer stays: that of the history itself
            layers = {attention.layer: attention for attention in reversed(noted)}
            noted.clear()
            by_layer = [_layer_shares(model, layers[layer]) for layer in sorted(layers)]
            for position, (row, length) in enumerate(zip(rows[at], batch.lengths.tolist(), strict=True)):
                events = by_layer[0][position][0]
                # no shares for a model whose places are not its last events
                if len(events) and np.array_equal(events, batch.items[position, :length].cpu().numpy()[-len(events) :]):
                    shares[row] = np.stack([layer[position][1] for layer in by_layer])
    return shares


def alike_events(
    vectors: Float[Tensor, "V D"], history: Int[np.ndarray, "n"], items: Sequence[int], *, most: int = REASONS
) -> list[Reasons]:
    """For each item, the past events most like it by cosine; the item itself and
    events unlike it are left out."""
    events = np.unique(history)
    events = events[events < len(vectors)]
    if not len(events) or not len(items):
        return [[] for _ in items]
    # Only the rows that are compared get unit length: a million items cost nothing here.
    left, right = (
        unit(vectors[torch.as_tensor(np.asarray(rows, np.int64), device=vectors.device)].float())
        for rows in (items, events)
    )
    likeness = (left @ right.T).cpu().numpy()
    likeness[np.asarray(items)[:, None] == events[None]] = -1.0
    alike: list[Reasons] = [[] for _ in items]
    item_rows = np.arange(len(likeness))
    for _ in range(min(most, len(events))):  # a pass for each: sorting takes longer
        best = likeness.argmax(1)
        for reasons, event, value in zip(alike, events[best].tolist(), likeness[item_rows, best].tolist(), strict=True):
            if value > 0:
                reasons.append((event, round(value, 4)))
        likeness[item_rows, best] = -1.0
    return alike


def vectors_of(predictor: Predictor) -> Float[Tensor, "V D"] | None:
    """The item vectors of a model, of whatever length they are; None for a model without
    (popularity, item_to_item)."""
    whole = getattr(predictor.index, "all", None)
    with torch.inference_mode():
        vectors = whole() if callable(whole) else None
    return vectors.detach() if isinstance(vectors, Tensor) and vectors.ndim == 2 else None


def _layer_shares(model: Model, attention: AttentionInput) -> list[tuple[Int[np.ndarray, "n"], Float[np.ndarray, "n"]]]:
    """The items of each row's events, and their shares: those of all tokens of an
    event together (`event_places`)."""
    rows, tokens = [], tokens_per_event(model)
    for _, part, weights in weights_of(attention):
        window = event_places(model, part)
        shares = last_shares(weights, part, window).mean(1)
        for items, row, inside in zip(part.items, shares, window, strict=True):
            of_tokens = row[inside].cpu().numpy().astype(np.float64)
            of_events = of_tokens if len(of_tokens) % tokens else of_tokens.reshape(-1, tokens).sum(1)
            rows.append((items[inside].cpu().numpy()[::tokens], of_events))
    return rows
