"""Blend: the lists of several recommenders as one list, by weights of the members.

A member m lists for a history u the `depth` best items that it may be shown. Its
score of item i there is

    ranks     r_m(u, i) = (offset + 1) / (offset + rank), rank 1 is the best (reciprocal ranks: Cormack et al. 2009)
    scores    r_m(u, i) = (s - s_last) / (s_best - s_last) of its scores s in that list (CombSUM: Fox and Shaw 1994)

and 0 for an item that is not in it. The blended list has the items with the largest sum over
m of w_m(u) r_m(u, i), equal ones in the order of their ids. The weights are w_m(u) =
exp(b_m), or with a gate exp(b_m + a_m x(u)), where x(u) is what is known of the history: its
length, the training events of its newest item, and the share of its items that have none. U
histories, M members, L = M x depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.constraints import MOST_LIST, only_with
from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.models import Model, Scorer

KNOWN = ("history_length", "events_of_newest_item", "share_of_cold_items")
"""Features of a history that a gate reads."""
MEMBER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""The name of a member, which is that of its folder."""
MOST_MEMBERS = 32
"""Most runs of a blend."""
OFFSET = 60.0
"""Default offset of reciprocal ranks (Cormack et al. 2009)."""


class Blend(Spec):
    """Joins the lists of runs; `fullrank blend` makes one and learns its weights on validation."""

    kind: Literal["blend"] = "blend"
    members: tuple[Annotated[str, Field(pattern=f"^{MEMBER_NAME}$")], ...] = Field((), max_length=MOST_MEMBERS)
    """Names of the runs, whose folders lie in the run's folder `members`."""
    join: Literal["ranks", "scores"] = "ranks"
    """The numbers of a member's list that are added up: reciprocal ranks, or scores between its last and its best."""
    offset: Annotated[float | None, only_with("join", "ranks")] = Field(None, ge=0, le=1e6)
    """Added to each rank; null is 60, the larger the less the first ranks stand out."""
    depth: int = Field(100, ge=1, le=MOST_LIST)
    """Items of each member's list."""
    gate: bool = False
    """Whether the weights depend on what is known of the history."""

    def build(self, catalog: Catalog, members: Sequence[Member] = ()) -> BlendModel:
        """The model that joins these members. Raises `UserError` without any."""
        if not members:
            raise UserError(
                "a blend is made of runs, not trained: `fullrank blend RUN RUN ... --out RUN`, or fr.blend([...])",
                code="blend-without-members",
            )
        return BlendModel(self, catalog, members)


@dataclass(frozen=True)
class Member:
    """A recommender whose lists are joined."""

    name: str
    model: Any
    how: Mapping[str, Any]
    """Keywords of `inference.recommend.rank` for its lists, such as its reasoner's budget."""


@dataclass(frozen=True)
class MemberLists:
    """The best items of one member for each history; -1 and -inf where a list is shorter."""

    ids: Int[np.ndarray, "U d"]
    scores: Float[np.ndarray, "U d"]


class BlendModel(nn.Module, Model):
    """Its lists come from `inference.recommend.rank`: it has no score of a single item."""

    bias: Tensor
    """[M] b_m of the weights"""
    slopes: Tensor
    """[M, 3] a_m of the weights"""
    center: Tensor
    """[3] subtracted from what is known of a history"""
    scale: Tensor
    """[3] divides that difference"""

    def __init__(self, spec: Blend, catalog: Catalog, members: Sequence[Member]):
        super().__init__()
        self.spec, self.num_items, self.members = spec, catalog.size, tuple(members)
        models = [member.model for member in members]
        self.max_length = max(model.max_length for model in models)
        self.allows_empty = all(model.allows_empty for model in models)
        self.reads_times = any(model.reads_times for model in models)
        self.reads_users = any(model.reads_users for model in models)
        roles = [model.reads_features for model in models if model.reads_features is not None]
        if roles:
            by_role = {
                role: [name for names in roles for name in names.get(role, ())] for names in roles for role in names
            }
            self.reads_features = {role: tuple(dict.fromkeys(names)) for role, names in by_role.items()}
        self._events = catalog.popularity
        self.register_buffer("bias", torch.zeros(len(members)))
        self.register_buffer("slopes", torch.zeros(len(members), len(KNOWN)))
        self.register_buffer("center", torch.zeros(len(KNOWN)))
        self.register_buffer("scale", torch.ones(len(KNOWN)))

    def _apply(self, function: Any, recurse: bool = True) -> BlendModel:
        """Members go to a device with the blend; their weights are not among
        its own, they have folders."""
        for member in self.members:
            member.model._apply(function)
        super()._apply(function, recurse)
        return self

    def answer(self, batch: Batch, *, index: Any = None, budget: Any = None) -> Scorer:
        raise UserError(
            "a blend joins lists and has no scores of single items: take recommend or evaluate with full lists, or a "
            "member of it (RUN/members/NAME)",
            code="blend-without-scores",
            public=True,
        )

    def index_items(self) -> list[Any]:
        """The item index of each member."""
        return [member.model.index_items() for member in self.members]

    def known(self, histories: Jagged) -> Float64[np.ndarray, "U 3"]:
        """The features `KNOWN` of histories of item numbers, in logarithms where they are counts."""
        lengths = histories.lengths
        events = self._events[histories.flat()]  # training events of the items of all histories, one behind the other
        ends = lengths.cumsum()
        there, newest = lengths > 0, np.zeros(len(lengths))
        newest[there] = np.log1p(events[ends[there] - 1])
        cold = np.zeros(len(events) + 1)  # cold items up to each position, so that differences count them
        np.cumsum(events == 0, out=cold[1:])
        share = (cold[ends] - cold[ends - lengths]) / np.maximum(lengths, 1)
        return np.stack([np.log1p(lengths), newest, share], 1)

    def weights_of(self, histories: Jagged) -> Float64[np.ndarray, "U M"]:
        """The weights w_m(u) of the members for each history."""
        tensors = self.bias, self.slopes, self.center, self.scale
        bias, slopes, center, scale = (x.double().cpu().numpy() for x in tensors)
        if not self.spec.gate:
            return np.broadcast_to(np.exp(bias), (len(histories), len(bias)))
        x = (self.known(histories) - center) / scale
        return np.exp(bias + x @ slopes.T)

    def joined(
        self, lists: Sequence[MemberLists], weights: Float[np.ndarray, "U M"], k: int
    ) -> tuple[Float32[np.ndarray, "U k"], Int[np.ndarray, "U k"]]:
        """Scores and items of the k best of each history, best first; -inf and -1 where there are fewer."""
        terms = joined_scores(lists, self.spec.join, self.spec.offset)
        weighted = np.concatenate([scores * weights[:, m, None] for m, scores in enumerate(terms)], 1)
        return best_sums(np.concatenate([member.ids for member in lists], 1), weighted, k)


def joined_scores(lists: Sequence[MemberLists], join: str, offset: float | None) -> list[Float64[np.ndarray, "U d"]]:
    """r_m of each entry of each member's lists; 0 in empty ones."""
    terms, shift = [], 1 + (OFFSET if offset is None else offset)
    for member in lists:
        there = member.ids >= 0
        if join == "ranks":
            r = np.broadcast_to(shift / (shift + np.arange(member.ids.shape[1])), member.ids.shape)
        else:
            scores = member.scores.astype(np.float64)
            low = np.where(there, scores, np.inf).min(1, keepdims=True, initial=np.inf)
            with np.errstate(invalid="ignore", divide="ignore"):
                r = (scores - low) / (scores[:, :1] - low)
            r = np.where(np.isfinite(r), r, 1.0)  # all scores of this list are equal
        terms.append(np.where(there, r, 0.0))
    return terms


def best_sums(
    ids: Int[np.ndarray, "U L"], values: Float64[np.ndarray, "U L"], k: int
) -> tuple[Float32[np.ndarray, "U k"], Int[np.ndarray, "U k"]]:
    """The k items of each row with the largest sums of their values; equal sums by id, empty entries (-1) left out.

    Values of an item are added in the order of the columns.
    """
    # sorted by id, an item's values stand side by side; its sum stands where it
    # begins, -inf at the others
    order = ids.argsort(1, kind="stable")
    ids, values = np.take_along_axis(ids, order, 1), np.take_along_axis(values, order, 1)
    begins = np.ones(ids.shape, bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    at = np.flatnonzero(begins)
    sums = np.full(ids.size, -np.inf)
    sums[at] = np.add.reduceat(values.ravel(), at) if len(at) else 0.0
    sums = np.where(ids < 0, -np.inf, sums.reshape(ids.shape))
    best = (-sums).argsort(1, kind="stable")[:, :k]
    scores, items = np.take_along_axis(sums, best, 1), np.take_along_axis(ids, best, 1)
    items = np.where(scores > -np.inf, items, -1)
    missing = ((0, 0), (0, k - best.shape[1]))
    return (
        np.pad(scores.astype(np.float32), missing, constant_values=-np.inf),
        np.pad(items, missing, constant_values=-1),
    )
