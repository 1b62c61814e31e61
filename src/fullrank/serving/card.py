"""The card of a model that serves: what it is, what it may be asked, and what its lists are like.

It has the model's kind and data, the fields of its requests, whether its item vectors collapsed,
and which items it shows.

Figures are those of the diagnostics, on samples: at most `VECTORS` item vectors and a few hundred
histories, so that a card costs a second or two at any size of catalogue. Each comes with a sentence
that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.features import ROLES
from fullrank.data.histories import Histories
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.schema import AnyField, BagOf, Categorical, SequenceOf
from fullrank.data.impressions.vocabulary import Vocabulary
from fullrank.evaluation.result import EvaluationResult
from fullrank.evaluation.spec import selection_sign
from fullrank.evaluation.statistics import popularity_bands
from fullrank.inference.column_filters import kind_of
from fullrank.inference.features import Reads
from fullrank.inference.list_options import ListOptions
from fullrank.inference.predictor import Predictor
from fullrank.inference.requests import RequestBatch
from fullrank.models.sequential.model.reading import attention_of, blocks_of
from fullrank.ops.singular_values import collapse_share, entropy_rank, stable_rank
from fullrank.run import Run, event_store_of
from fullrank.run.manifest import WEIGHTS
from fullrank.serving.explain import vectors_of
from fullrank.serving.messages import JsonObject

BANDS = ("head", "middle", "tail")
"""Names of `popularity_bands`: each holds a third of the training events, the most popular items first."""
VECTORS = 1 << 16
"""Most item vectors whose spectrum is computed."""
POINTS = 64
"""Most singular values that a card lists."""
HISTORIES = 256
"""Histories whose lists say which items are shown."""
SCORES = 1 << 26
"""Most scores (histories x items) that a card computes."""
PLACES = 10
"""Places of each of these lists."""
UNITS = {"retrieval": ("users", "items", "events"), "ranking": ("impressions", "fields")}
"""Problem -> units of the data of its runs."""
FEW = 50
"""Most values that a column of categories lists; with more it is text."""


def model_card(
    run: Run,
    predictor: Predictor,
    *,
    histories: Histories | None = None,
    ranker: Run | None = None,
    reads: Reads | None = None,
) -> JsonObject:
    """The card as JSON, figures included, that `GET /v1/model` answers. Call it once a version, off the model thread.

    `predictor` is as it serves, items that were added included. `histories` (item numbers of
    its catalogue) are what lists are made for; without them those of `evaluation.json` in the
    run's folder are read, where it has one. `reads` are the features that model and ranker
    read; None is the model's.
    """
    model, spec = predictor.model, run.spec
    architecture, reasoner = getattr(spec, "model", None), model.reasoner
    reasoning = of_ranker = None
    if reasoner is not None:
        reasoning = {"steps": reasoner.steps, "most_steps": 2 * reasoner.steps, "streams": reasoner.streams}
    if ranker is not None:
        of_ranker = {"recipe": ranker.spec.recipe, "parameters": ranker.manifest.get("parameters")}
    return {
        **run_facts(run),
        "items": predictor.catalog.size,
        "dim": getattr(architecture, "dim", None),
        "layers": len(blocks_of(model)) or getattr(getattr(architecture, "encoder", None), "layers", None),
        "max_length": model.max_length,
        "reads_times": model.reads_times,
        "reasoning": reasoning,
        "explains": {
            "attention": any(attention_of(block) is not None for block in blocks_of(model)),
            "because": callable(getattr(predictor.index, "all", None)),
        },
        "has_ranker": ranker is not None,
        "ranker": of_ranker,
        "columns": columns(predictor.catalog),
        "collapse": collapse(vectors_of(predictor), predictor.catalog.popularity),
        "fairness": fairness(run, predictor, histories),
        **_features(reads or predictor.reads),
    }


def run_facts(run: Run) -> JsonObject:
    """Facts of any run for its card."""
    architecture, data = getattr(run.spec, "model", None), run.manifest.get("data", {})
    return {
        "version": run.path.resolve().name,
        "recipe": run.spec.recipe,
        "kind": None if architecture is None else architecture.kind_of(),
        "parameters": run.manifest.get("parameters"),
        "data": {
            "name": Path(str(data.get("path", ""))).name or None,
            "fingerprint": data.get("split_fingerprint"),
            **{unit: data.get(unit) for unit in UNITS[run.spec.problem]},
        },
        "trained": _trained_at(run),
        "validation": _validation(run),
    }


def columns(catalog: Catalog) -> list[JsonObject]:
    """The columns that a request may filter by: name, kind (bool, category, number, text), values or bounds."""
    return [facts for name in catalog.columns if (facts := _column(catalog.frame[name])) is not None]


def collapse(vectors: Float[Tensor, "V D"] | None, popularity: Int[np.ndarray, "V"]) -> JsonObject:
    """How many directions the item vectors use: ranks, falling singular values over the first, and a reading.

    Of more than `VECTORS` items, that many evenly spaced ones are read.
    """
    if vectors is None or len(vectors) < 2:
        return {"reading": "This model has no item vectors, so there is no spectrum to look at."}
    chosen = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), VECTORS)).astype(np.int64))
    table = vectors[torch.from_numpy(chosen).to(vectors.device)].detach().cpu().double()
    # Eigenvalues of the Gram matrix: D x D, whatever the number of items.
    energies, directions = torch.linalg.eigh(table.T @ table)
    sigma = energies.clamp_min(0).sqrt().flip(0)
    width, used, stable = len(sigma), float(entropy_rank(sigma)), float(stable_rank(sigma))
    first = float(collapse_share(sigma))
    likeness = _rank_correlation((table @ directions[:, -1]).numpy(), popularity[chosen])
    shown = np.unique(np.linspace(0, width - 1, min(width, POINTS)).astype(np.int64))
    scale = max(float(sigma[0]), 1e-30)
    return {
        "vectors": len(chosen),
        "directions": width,
        "effective_rank": round(used, 2),
        "stable_rank": round(stable, 2),
        "first_share": round(first, 4),
        "popularity_correlation": None if likeness is None else round(abs(likeness), 3),
        "spectrum": [[int(at) + 1, round(float(sigma[at]) / scale, 5)] for at in shown],
        "reading": _read_collapse(used, width, first, likeness),
    }


def fairness(run: Run, predictor: Predictor, histories: Histories | None = None) -> JsonObject:
    """The share of the shown places that goes to each band of popularity, beside its
    share of events and of items."""
    popularity = predictor.catalog.popularity
    shown, source = None, "sample"
    if histories is not None and (histories.lengths > 0).any():
        most = max(min(HISTORIES, SCORES // max(predictor.catalog.size, 1)), 16)
        (rows,) = np.nonzero(histories.lengths)
        request = RequestBatch(None, histories.take(rows[:most]))
        shown = predictor.lists(request, ListOptions(k=PLACES)).ids
    elif (run.path / "evaluation.json").is_file():
        shown, source = _evaluated_lists(run), "evaluation"
    filled = np.zeros(0, np.int64) if shown is None else shown[(shown >= 0) & (shown < len(popularity))]
    if shown is None or not len(filled):
        return {"reading": "No histories were at hand, so it is not known which items this model shows."}
    band, events = popularity_bands(popularity), max(int(popularity.sum()), 1)
    bands = [
        {
            "band": name,
            "items": round(float(np.mean(band == code)), 4),
            "events": round(float(popularity[band == code].sum()) / events, 4),
            "shown": round(float(np.mean(band[filled] == code)), 4),
        }
        for code, name in enumerate(BANDS)
    ]
    different = len(np.unique(filled))
    return {
        "source": source,
        "histories": len(shown),
        "places": int(shown.shape[1]),
        "bands": bands,
        "different_items": different,
        "reading": _read_fairness(bands, different, len(filled)),
    }


def sample_histories(run: Run, count: int = HISTORIES) -> Histories | None:
    """Test histories of the store that a run was trained on, drawn at random; None
    where the store is not there."""
    try:
        users = event_store_of(run).eval_set("test").histories
    except UserError:
        return None
    if not len(users):
        return None
    return users.take(np.random.default_rng([0, len(users)]).permutation(len(users))[:count])


def _evaluated_lists(run: Run) -> Int[np.ndarray, "U k"] | None:
    """The lists of the saved evaluation; None where they cannot be read."""
    try:
        lists = getattr(EvaluationResult.load(run.path).rows, "lists", None)
    except UserError:
        return None
    return None if lists is None else np.asarray(lists)[:, :PLACES]


def _read_collapse(used: float, width: int, first: float, likeness: float | None) -> str:
    """The sentence that reads the figures of `collapse`."""
    share = used / width
    if share >= 0.6:
        reading = "the vectors are spread over most of their directions, and nothing collapsed"
    elif share >= 0.25:
        reading = "part of the width lies idle"
    else:
        reading = "most of the width lies idle, which is what collapse looks like"
    popular = likeness is not None and abs(likeness) >= 0.5
    along = f"; the strongest one carries {first:.0%} of the energy" + (" and follows popularity" if popular else "")
    return f"They count as {used:.0f} of {width} directions: {reading}{along}."


def _read_fairness(bands: list[JsonObject], different: int, places: int) -> str:
    """The sentence that reads the figures of `fairness`."""
    head, tail = bands[0], bands[-1]
    if head["shown"] > 1.25 * head["events"]:
        reading = "popular items are shown more often than people choose them"
    elif head["shown"] < 0.8 * head["events"]:
        reading = "popular items are shown less often than people choose them"
    else:
        reading = "popular items are shown about as often as people choose them"
    rest = f"the tail gets {tail['shown']:.0%} of the places and has {tail['events']:.0%} of the events"
    return f"{reading[0].upper()}{reading[1:]}; {rest}. {different:,} different items stand in {places:,} places."


def _trained_at(run: Run) -> str | None:
    """When the weights were written, as their file says (a copied folder may have a later time)."""
    try:
        return datetime.fromtimestamp((run.path / WEIGHTS).stat().st_mtime, UTC).isoformat(timespec="seconds")
    except OSError:
        return None


def _validation(run: Run) -> JsonObject | None:
    """The best value of the metric that chose the weights."""
    metric = run.spec.evaluation.selection
    try:
        rows = [row for row in run.rows() if f"validation/{metric}" in row]
    except UserError:
        return None
    if not rows:
        return None
    best = max(rows, key=lambda row: selection_sign(run.spec.evaluation) * float(row[f"validation/{metric}"]))
    return {"metric": metric, "value": round(float(best[f"validation/{metric}"]), 5), "epoch": best.get("epoch")}


def field_facts(field: AnyField, encoder: FieldEncoder) -> JsonObject:
    """A field for a form: name, `kind`, the values of a category that has few, and
    what separates those of a text."""
    facts = {"name": field.name, "kind": field.kind}
    if isinstance(field, BagOf | SequenceOf) and field.separator is not None:
        facts["separator"] = field.separator
    if isinstance(field, Categorical):
        known = encoder.lookup(field)
        if isinstance(known, Vocabulary) and len(known.values) <= FEW:
            return facts | {"values": sorted(known.values.to_list())}
    return facts


def _features(reads: Reads) -> JsonObject:
    """The features that are read, by role, for forms; those that are made of
    times have the kind `time`."""
    encoder = reads.encoder
    fields = {} if encoder is None else {field.name: field_facts(field, encoder) for field in reads.fields(*ROLES)}
    by_role = {
        role: [fields.get(name) or {"name": name, "kind": "time"} for name in names]
        for role, names in reads.names.items()
    }
    return {"features": by_role} if by_role else {}


def _column(column: pl.Series) -> JsonObject | None:
    """One column of the items; None for a type that nobody can filter by."""
    (kind, listed), facts = kind_of(column.dtype), {"name": column.name}
    if kind is None or isinstance(column.dtype, pl.Array):  # such are the library's own: vectors, codes
        return None
    if kind == "flag" and not listed:
        return facts | {"kind": "bool"}
    if kind == "number" and not listed:
        known = column.cast(pl.Float64).drop_nulls()
        known = known.filter(known.is_finite())
        bounds: Mapping[str, Any] = {"min": known.min(), "max": known.max()} if len(known) else {}
        return facts | {"kind": "number", **bounds}
    column = column.drop_nulls().explode() if listed else column
    values = column.cast(pl.String).drop_nulls().unique()
    if len(values) > FEW or column.name == "title":
        return facts | {"kind": "text"}
    return facts | {"kind": "category", "values": values.sort().to_list()}


def _rank_correlation(values: Float[np.ndarray, "n"], popularity: Int[np.ndarray, "n"]) -> float | None:
    """Spearman's correlation; None where one of them is constant. The sign
    of a singular vector is free."""
    frame = pl.DataFrame({"value": values, "events": popularity})
    correlation = frame.select(pl.corr("value", "events", method="spearman").fill_nan(None)).item()
    return None if correlation is None else float(correlation)
