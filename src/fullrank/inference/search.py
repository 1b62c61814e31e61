"""Search: how the best items are found from a model's scores, and the settings (`Decoding`) that choose it.

`exact` scores every item (the default, and all that most models can do). The others are for items
made of semantic ids. `graph` is RPG's (Sec. 3.4): from `beams` items, `steps` times to the `edges`
most similar items of each. `beam` keeps the `beams` best tuples of codes, level by level, and looks
up the items that exist. The two need `beams` at least as large as the list. `pruned` gives the
exact list without scoring every item, `codes` codes at a time (RecJPQPrune), also for items that
are sums of codes (`items.kind=semantic`) under another task. Of a model that predicts codes one
after the other, `beam` goes down the trie of existing tuples, and `exact` scores all tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from fullrank.core.constraints import MOST_ROUNDS, ListLength, Parts, only_with
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.core.spec import Spec
from fullrank.inference.batches import WrappedModel
from fullrank.inference.code_search import BeamSearch, GraphSearch, PrunedSearch
from fullrank.inference.exact import TopK, exact
from fullrank.inference.filters import BatchFilter
from fullrank.inference.trie_beam import TrieBeam
from fullrank.models import DenseScorer, Scorer
from fullrank.models.sequential.items.semantic import CodeScorer, SemanticItems, score_by_parts
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.objectives.tasks.generate import GeneratedScorer

DEFAULTS = {"graph": {"beams": 100, "edges": 50, "steps": 3}, "beam": {"beams": 200}, "pruned": {"codes": 8}}

S = TypeVar("S")

Search = Callable[[Scorer, int, "BatchFilter | None"], TopK]
"""(scorer, k, filters) -> the best items, best first."""


class Decoding(Spec):
    """The search among items that are made of codes."""

    kind: Literal["exact", "graph", "beam", "pruned"] = "exact"
    """Score every item; walk a graph of similar items; put tuples together level by level; or score
    the items of the best codes until no other can be in the list."""
    beams: Annotated[ListLength | None, only_with("kind", "graph", "beam")] = None
    """Items (graph; null is 100) or tuples of codes (beam; null is 200) kept from step to step."""
    edges: Annotated[int | None, only_with("kind", "graph")] = Field(None, ge=1, le=MOST_ROUNDS)
    """Graph: neighbours of an item, itself among them; null is 50."""
    steps: Annotated[Parts | None, only_with("kind", "graph")] = None
    """Graph: how often the kept items are replaced by the best of their neighbours; null is 3."""
    codes: Annotated[int | None, only_with("kind", "pruned")] = Field(None, ge=1, le=65536)
    """Pruned: codes whose items are scored before the bound is looked at again; null is 8."""

    def settings(self) -> JsonObject:
        """The settings of this kind, with the defaults of those that were not given."""
        defaults = DEFAULTS.get(self.kind, {})
        return {name: getattr(self, name) or default for name, default in defaults.items()}

    def described(self) -> JsonObject:
        """The settings as the protocol of a result names them."""
        return {"kind": self.kind, **self.settings()}


def search_of(model: Any, decoding: Decoding, block: int) -> Search:
    """The search of a decoding over a model's items; what it needs (a graph of items) is made here, once.

    `block` is items scored at once by the exact search. Raises `UserError` for a model whose items
    are not made of codes, where anything but `exact` is asked for.
    """
    if decoding.kind == "exact":
        return lambda scorer, k, filters: exact(scorer, k, filters, block)
    while isinstance(model, WrappedModel):  # a wrapper changes what is read or scored, not the items
        model = model.model
    items, settings = model.items if isinstance(model, RecommenderModel) else None, decoding.settings()
    if not isinstance(items, SemanticItems) or not (model.task.generates or decoding.kind == "pruned"):
        raise UserError(
            f"decoding.kind={decoding.kind} searches semantic ids and this model scores items by vectors: leave it "
            "out, or train a recipe that generates them (rpg, fair, tiger)",
            code="decoding-needs-codes",
        )
    if model.task.code_by_code:
        if decoding.kind != "beam":
            raise UserError(
                f"decoding.kind={decoding.kind} needs codes that do not depend on each other, and this model predicts "
                "each from those before it: use beam, or exact on a small catalogue",
                code="decoding-needs-independent-codes",
            )
        beam = TrieBeam(items, **settings)
        return lambda scorer, k, filters: beam(_own(scorer, GeneratedScorer), k, filters)
    if decoding.kind == "pruned":
        pruned = PrunedSearch(items, **settings)
        return lambda scorer, k, filters: pruned(_by_codes(scorer, model), k, filters)
    search = {"graph": GraphSearch, "beam": BeamSearch}[decoding.kind](items, **settings)
    return lambda scorer, k, filters: search(_own(scorer, CodeScorer), k, filters)


def _by_codes(scorer: Scorer, model: Any) -> CodeScorer:
    """The scorer's scores as sums over codes: an inner product with an item is the
    sum of those with its codes."""
    if isinstance(scorer, DenseScorer):
        if model.cosine:
            raise UserError(
                "decoding.kind=pruned adds up the scores of codes, and a cosine divides by each item's own length: "
                "leave it out, or train with model.scoring.similarity=dot",
                code="decoding-needs-inner-products",
            )
        return score_by_parts(scorer.vectors / scorer.temperature, model.items)
    return _own(scorer, CodeScorer)


def _own(scorer: Scorer, kind: type[S]) -> S:
    """The model's own answer. Raises `UserError` where its scores were changed item by item."""
    if not isinstance(scorer, kind):
        raise UserError(
            "a search among semantic ids reads the model's own scores of codes, and these were changed item by item "
            "(popularity_discount): set decoding.kind=exact",
            code="decoding-needs-own-scores",
        )
    return scorer
