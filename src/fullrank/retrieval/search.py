"""The search that a decoding asks for, made once for a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullrank.batch import Answer
from fullrank.errors import UserError
from fullrank.items.coded import Coded
from fullrank.items.semantic import SemanticItems
from fullrank.retrieval.beam import Beam
from fullrank.retrieval.decoding import Decoding
from fullrank.retrieval.exact import top_k
from fullrank.retrieval.graph import Graph
from fullrank.retrieval.seen import Seen

Search = Callable[[Answer, int, "Seen | None"], "tuple[Tensor, Tensor]"]
"""(answer, k, seen) -> scores and ids [B, K], best first; empty places hold -inf and -1."""


def search_of(model: Any, decoding: Decoding, block: int) -> Search:
    """Raises `UserError` for a model whose answers are no codes, where anything but `exact` is asked for."""
    if decoding.kind == "exact":
        return lambda answer, k, seen: top_k(answer, k, seen=seen, block=block)
    items = getattr(model, "items", None)
    if not isinstance(items, SemanticItems) or not getattr(getattr(model, "task", None), "generates", False):
        raise UserError(
            f"decoding.kind={decoding.kind} searches semantic ids and this model answers with vectors: leave it out, "
            "or train a recipe that generates them (rpg, fair)"
        )
    made = {"graph": Graph, "beam": Beam}[decoding.kind](items, **decoding.settings())
    return lambda answer, k, seen: made(_coded(answer), _within(k, decoding), seen)


def _coded(answer: Answer) -> Coded:
    assert isinstance(answer, Coded)
    return answer


def _within(k: int, decoding: Decoding) -> int:
    beams = decoding.settings()["beams"]
    if decoding.kind == "graph" and k > beams:
        raise UserError(f"a graph search with {beams} beams cannot fill lists of {k}: set decoding.beams={k} or more")
    return k
