"""The search that a decoding asks for, made once for a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.data.batch import DenseScorer, Scorer
from fullrank.inference.beam import Beam
from fullrank.inference.decoding import Decoding
from fullrank.inference.exact import top_k
from fullrank.inference.filters import BatchFilter
from fullrank.inference.graph import Graph
from fullrank.inference.pruned import Pruned
from fullrank.models.sequential.items.semantic import CodeScorer, SemanticItems, score_by_parts

Search = Callable[[Scorer, int, "BatchFilter | None"], "tuple[Tensor, Tensor]"]
"""(answer, k, filters) -> scores and ids [B, K], best first; empty places hold -inf and -1."""


def search_of(model: Any, decoding: Decoding, block: int) -> Search:
    """Raises `UserError` for a model whose items are not made of codes, where anything but `exact` is asked for."""
    if decoding.kind == "exact":
        return lambda answer, k, filters: top_k(answer, k, filters=filters, block=block)
    items, settings = getattr(model, "items", None), decoding.settings()
    generates = getattr(getattr(model, "task", None), "generates", False)
    if not isinstance(items, SemanticItems) or not (generates or decoding.kind == "pruned"):
        raise UserError(
            f"decoding.kind={decoding.kind} searches semantic ids and this model answers with vectors: leave it out, "
            "or train a recipe that generates them (rpg, fair)"
        )
    if decoding.kind == "pruned":
        pruned = Pruned(items, **settings)
        return lambda answer, k, filters: pruned(_in_codes(answer, model), k, filters)
    made = {"graph": Graph, "beam": Beam}[decoding.kind](items, **settings)
    return lambda answer, k, filters: made(_coded(answer), k, filters)


def _in_codes(answer: Scorer, model: Any) -> CodeScorer:
    """The answer, or one that gives the same scores code by code."""
    if isinstance(answer, DenseScorer):
        if model.cosine:
            raise UserError(
                "decoding.kind=pruned adds up the scores of codes, and a cosine divides by each item's own length: "
                "leave it out, or train with model.scoring.similarity=dot"
            )
        return score_by_parts(answer.vectors / answer.temperature, model.items)
    return _coded(answer)


def _coded(answer: Scorer) -> CodeScorer:
    assert isinstance(answer, CodeScorer)
    return answer
