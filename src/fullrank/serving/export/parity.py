"""Parity: whether an exported graph answers as the run that it was made of, measured before it is kept.

Histories are drawn by popularity, of one event and of as many as the model reads, with items
excluded, in batches of one row and of many, with drawn features, some of them missing, where the
model reads these. A graph passes where every score is within `TOLERANCE` of the run's (relative to
it, above 1) and the lists are the same but for items whose scores are closer than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Bag, BatchFeatures
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.features import FeatureEncoder, Role, encoder_of
from fullrank.data.features import NO_TIME, Encoded, FeatureRows, FeatureTable, HistoryFeatures
from fullrank.data.histories import Histories
from fullrank.data.impressions.schema import FieldInfo
from fullrank.inference.batches import BLOCK, pair_scores, score_batches
from fullrank.inference.filters import Filters
from fullrank.inference.recommend import rank
from fullrank.models import Budget
from fullrank.models.ranking.model import RankingModule
from fullrank.serving.export.model_graphs import by_input, feature_inputs, impressions_of

TOLERANCE = 1e-4
ROWS = (1, 1, 4, 16, 64)
"""Rows of the batches; the first has one event a row."""
NOW, GAP = 1_700_000_000, 86_400.0
"""Time of the newest event, and mean seconds between two."""
MOST_VALUES = 5
"""Values of a bag."""

Arrays = dict[str, np.ndarray]
Answer = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]
"""Inputs by name -> outputs in order."""


def history_batches(catalog: Catalog, most: int, length: int | None = None) -> list[Arrays]:
    """Inputs of the graph of a model that reads `most` events, padded to `length` where that is fixed."""
    draw = np.random.default_rng(0)
    counts = np.asarray(catalog.popularity, np.float64).clip(1.0)
    shares = counts / counts.sum()
    batches = []
    for number, rows in enumerate(ROWS):
        lengths = draw.integers(1, most + 1, rows) if number else np.ones(rows, np.int64)
        lengths[:1] = most if number else 1
        width = int(lengths.max()) if length is None else length
        items = draw.choice(len(shares), (rows, width), p=shares)
        gaps = np.where(draw.random((rows, width)) < 0.2, 0, draw.exponential(GAP, (rows, width))).astype(np.int64)
        excluded = np.where(draw.random((rows, 1 + number)) < 0.3, -1, draw.choice(len(shares), (rows, 1 + number)))
        inside = np.arange(width) < lengths[:, None]
        times = np.where(inside, NOW - gaps[:, ::-1].cumsum(1)[:, ::-1], 0)
        batch = {"items": np.where(inside, items, 0), "lengths": lengths.astype(np.int64), "excluded": excluded}
        batches.append(batch | {"times": times})
    return batches


def histories_of(batch: Arrays) -> Histories:
    """The histories of a batch without their padding."""
    lengths = batch["lengths"]
    inside = np.arange(batch["items"].shape[1]) < lengths[:, None]
    return Histories(Jagged.from_lengths(batch["items"][inside], lengths), batch["times"][inside])


def with_features(histories: Histories, known: FeatureEncoder) -> Histories:
    """Histories with drawn features of every role, and requests a while after the last
    event or at an unknown time."""
    draw, users, events = np.random.default_rng(0), len(histories), len(histories.items.values)

    def table(role: Role, rows: int) -> FeatureTable:
        fields = encoder_of(known, role).fields
        inputs = _drawn_fields(draw, fields, rows)
        bags = [(inputs[f"bag_{n}"], inputs[f"bag_lengths_{n}"]) for n in range(len(by_input(fields)[2]))]
        lists = (Jagged.from_lengths(ids[np.arange(MOST_VALUES) < n[:, None]], n) for ids, n in bags)
        return FeatureTable.of(Encoded(inputs["categorical"].astype(np.int32), inputs["numeric"], tuple(lists)))

    user, answered = (FeatureRows(table(role, users), np.arange(users)) for role in ("user", "request"))
    at = np.where(draw.random(users) < 0.1, NO_TIME, NOW + draw.exponential(GAP, users).astype(np.int64))
    drawn = HistoryFeatures(table("event", events), table("request", events), user, answered, at)
    return replace(histories, features=drawn)


def compare_lists(answer: Answer, model: Any, batches: Sequence[Arrays], *, k: int, seen: str, budget: Budget) -> Any:
    """The figures of a recommender's graph, for the manifest. Raises `UserError`
    where it differs from the model."""
    model_budget = budget if model.reasoner is not None else None
    figures = []
    for batch in batches:
        histories = histories_of(batch)
        if model.features is not None:
            histories = with_features(histories, model.features.known)
            features = BatchFeatures.of(histories.features, histories.items, model.reads_features)
            batch = batch | feature_inputs(features, batch["items"].shape[1])
        scores, ids = answer(batch)
        filled = batch["excluded"] >= 0
        filters = Filters(Jagged.from_lengths(batch["excluded"][filled], filled.sum(1)))
        expected = rank(model, histories, k=k, seen=seen, filters=filters, budget=model_budget)
        _require(scores.shape == ids.shape == expected.ids.shape, "its lists have another length")
        _require(np.array_equal(ids < 0, expected.ids < 0), "it leaves other places empty")
        hidden = filters.of_batch(histories.items if seen == "exclude" else None)
        refused = hidden is not None and bool((hidden.refuses(torch.from_numpy(ids)).numpy() & (ids >= 0)).any())
        _require(not refused, "it lists items that were seen or excluded")
        full = ids >= 0
        true = _true_scores(model, histories, ids, model_budget)
        distance = np.maximum(_distance(scores[full], expected.scores[full]), _distance(scores[full], true[full]))
        worst = float(distance.max(initial=0.0))
        _require(worst <= TOLERANCE, f"a score is {worst:.3g} away")
        length, same = int(batch["lengths"].max()), float((ids == expected.ids).mean())
        figures.append({"rows": len(ids), "length": length, "largest_difference": worst, "same_places": same})
    return summary_of(figures)


def _true_scores(
    model: Any, histories: Histories, ids: Int[np.ndarray, "B k"], budget: Budget | None
) -> Float[np.ndarray, "B k"]:
    """The model's own scores of the items that a graph listed; 0 in empty places."""
    scores = np.zeros(ids.shape, np.float32)
    for at, scorer in score_batches(model, histories, budget=budget):
        rows, columns = (ids[at] >= 0).nonzero()
        scores[at[rows], columns] = pair_scores(scorer, rows, ids[at[rows], columns], block=BLOCK)
    return scores


def impression_batches(fields: Sequence[FieldInfo], equally_long: Sequence[Sequence[int]] = ()) -> list[Arrays]:
    """Inputs of a ranking model's graph: ids evenly from each vocabulary, a tenth of the numbers missing.

    Bags whose numbers stand together in `equally_long` are equally long.
    """
    draw = np.random.default_rng(0)
    batches = []
    for rows in ROWS:
        batch = _drawn_fields(draw, fields, rows)
        for group in equally_long:
            batch |= {f"bag_lengths_{n}": batch[f"bag_lengths_{group[0]}"] for n in group}
        batches.append(batch)
    return batches


def _drawn_fields(draw: np.random.Generator, fields: Sequence[FieldInfo], rows: int) -> Arrays:
    """Drawn inputs of some fields: ids, numbers (a tenth of them missing) and bags."""
    categorical, numeric, bags = by_input(fields)
    ids = [draw.integers(0, max(field.size, 1), rows) for field in categorical]
    numbers = draw.normal(size=(rows, len(numeric)))
    inputs: Arrays = {
        "categorical": np.stack(ids, 1) if ids else np.zeros((rows, 0), np.int64),
        "numeric": np.where(draw.random(numbers.shape) < 0.1, np.nan, numbers).astype(np.float32),
    }
    for n, bag in enumerate(bags):
        inputs[f"bag_{n}"] = draw.integers(0, max(bag.size, 1), (rows, MOST_VALUES))
        inputs[f"bag_lengths_{n}"] = draw.integers(0, MOST_VALUES + 1, rows)
    return inputs


def compare_probabilities(answer: Answer, model: RankingModule, batches: Sequence[Arrays]) -> Any:
    """The figures of a ranking model's graph. Raises `UserError` where it differs from the model."""
    figures = []
    for batch in batches:
        probability, logit = answer(batch)
        tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
        bags = tuple(Bag(tensors[f"bag_{n}"], tensors[f"bag_lengths_{n}"]) for n in range(len(tensors) // 2 - 1))
        with torch.inference_mode():
            logits = model.logits(impressions_of(tensors["categorical"], tensors["numeric"], bags))
        expected = logits.sigmoid().numpy()
        _require(probability.shape == expected.shape, "it gives another number of probabilities")
        worst = float(max(_distance(probability, expected).max(), _distance(logit, logits.numpy()).max()))
        _require(worst <= TOLERANCE, f"a probability or logit is {worst:.3g} away")
        figures.append({"rows": len(expected), "largest_difference": worst})
    return summary_of(figures)


def summary_of(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The entry of the manifest: figures of all batches, and of each."""
    largest = max(batch["largest_difference"] for batch in figures)
    summary = {"tolerance": TOLERANCE, "rows": sum(batch["rows"] for batch in figures), "largest_difference": largest}
    if "same_places" in figures[0]:
        summary["same_places"] = sum(batch["same_places"] * batch["rows"] for batch in figures) / summary["rows"]
    return summary | {"batches": figures}


def _distance(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Distance of each number from the expected one, relative to it where it is
    above 1. NaN is infinitely far."""
    wide = expected.astype(np.float64)
    return np.nan_to_num(np.abs(actual - wide) / np.maximum(np.abs(wide), 1.0), nan=np.inf)


def _require(met: bool, what: str) -> None:
    if not met:
        raise UserError(
            f"the exported graph does not answer as the run does: {what} (allowed: {TOLERANCE:g}); nothing was "
            "written. Please report it with the run's spec.json",
            code="export-differs",
        )
