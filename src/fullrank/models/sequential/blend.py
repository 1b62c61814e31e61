"""Blend: the lists of several recommenders as one list, by weights of the members.

A member m gives a history u the `depth` best items that it may be shown. What it says of item i there is

    ranks     r_m(u, i) = (offset + 1) / (offset + place), place 1 is the best (reciprocal ranks: Cormack et al. 2009)
    scores    r_m(u, i) = (s - s_last) / (s_best - s_last) of its scores s in that list (CombSUM: Fox and Shaw 1994)

and 0 of an item that is not there. The list has the items with the largest sum over m of w_m(u) r_m(u, i), equal ones
by item id, with w_m(u) = exp(b_m + a_m x(u)) and, with a gate, x(u) what is known of the history: its length, the
training events of its newest item, and the share of its items that have none. U histories, M members, L = M x depth.
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
"""What a gate reads of a history."""
MEMBER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""The name of a member, which is that of its folder."""
MOST_MEMBERS = 32
OFFSET = 60.0
"""Of reciprocal ranks where nobody says another (Cormack et al. 2009)."""


class Blend(Spec):
    """Joins the lists of runs; `fullrank blend` makes one and learns its weights on validation."""

    kind: Literal["blend"] = "blend"
    members: tuple[Annotated[str, Field(pattern=f"^{MEMBER_NAME}$")], ...] = Field((), max_length=MOST_MEMBERS)
    """Names of the runs, whose folders lie in the run's folder `members`."""
    join: Literal["ranks", "scores"] = "ranks"
    """What of a member's list is added up: reciprocal places, or its scores between its last and its best."""
    offset: Annotated[float | None, only_with("join", "ranks")] = Field(None, ge=0, le=1e6)
    """Added to each place; null is 60, the larger the less the first places stand out."""
    depth: int = Field(100, ge=1, le=MOST_LIST)
    """Items of each member's list."""
    gate: bool = False
    """Whether the weights depend on what is known of the history."""

    def build(self, catalog: Catalog, members: Sequence[Member] = ()) -> BlendModel:
        """Raises `UserError` without members."""
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
    """Keywords of `inference.recommend.rank` that its lists are made with, such as the budget of its reasoner."""


@dataclass(frozen=True)
class MemberLists:
    """The best items of one member for each history; -1 and -inf in places that are empty."""

    ids: Int[np.ndarray, "U d"]
    scores: Float[np.ndarray, "U d"]


class BlendModel(nn.Module, Model):
    """Its lists come from `inference.recommend.rank`: it has no score of a single item."""

    bias: Tensor
    """[M] b_m"""
    slopes: Tensor
    """[M, 3] a_m"""
    center: Tensor
    """[3] subtracted from what is known of a history"""
    scale: Tensor
    """[3] what it is divided by then"""

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
            names = {role: [name for one in roles for name in one.get(role, ())] for one in roles for role in one}
            self.reads_features = {role: tuple(dict.fromkeys(some)) for role, some in names.items()}
        self._events = catalog.popularity
        for name, value in {"bias": torch.zeros(len(members)), "slopes": torch.zeros(len(members), len(KNOWN)),
                            "center": torch.zeros(len(KNOWN)), "scale": torch.ones(len(KNOWN))}.items():  # fmt: skip
            self.register_buffer(name, value)

    def _apply(self, function: Any, recurse: bool = True) -> BlendModel:
        """Members go to a device with the blend; their weights are not among its own, they have folders."""
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
        """What each member keeps of its items."""
        return [member.model.index_items() for member in self.members]

    def known(self, histories: Jagged) -> Float64[np.ndarray, "U 3"]:
        """What is known of histories of item numbers (`KNOWN`), in logarithms where it is a count."""
        lengths = histories.lengths
        events = self._events[histories.flat()]
        ends = lengths.cumsum()
        there, newest = lengths > 0, np.zeros(len(lengths))
        newest[there] = np.log1p(events[ends[there] - 1])
        cold = np.zeros(len(events) + 1)
        np.cumsum(events == 0, out=cold[1:])
        share = (cold[ends] - cold[ends - lengths]) / np.maximum(lengths, 1)
        return np.stack([np.log1p(lengths), newest, share], 1)

    def weights_of(self, histories: Jagged) -> Float64[np.ndarray, "U M"]:
        """w_m(u)."""
        bias, slopes, center, scale = (
            one.double().cpu().numpy() for one in (self.bias, self.slopes, self.center, self.scale)
        )
        if not self.spec.gate:
            return np.broadcast_to(np.exp(bias), (len(histories), len(bias)))
        x = (self.known(histories) - center) / scale
        found: np.ndarray = np.exp(bias + x @ slopes.T)
        return found

    def joined(
        self, lists: Sequence[MemberLists], weights: Float[np.ndarray, "U M"], k: int
    ) -> tuple[Float32[np.ndarray, "U k"], Int[np.ndarray, "U k"]]:
        """Scores and items of the k best of each history, best first; -inf and -1 where there are fewer."""
        said = said_of(lists, self.spec.join, self.spec.offset)
        values = np.concatenate([one * weights[:, at, None] for at, one in enumerate(said)], 1)
        return best_sums(np.concatenate([one.ids for one in lists], 1), values, k)


def said_of(lists: Sequence[MemberLists], join: str, offset: float | None) -> list[Float64[np.ndarray, "U d"]]:
    """r_m of each place of each member's lists; 0 in empty ones."""
    found, shift = [], 1 + (OFFSET if offset is None else offset)
    for one in lists:
        there = one.ids >= 0
        if join == "ranks":
            said = np.broadcast_to(shift / (shift + np.arange(one.ids.shape[1])), one.ids.shape)
        else:
            scores = one.scores.astype(np.float64)
            low = np.where(there, scores, np.inf).min(1, keepdims=True, initial=np.inf)
            with np.errstate(invalid="ignore", divide="ignore"):
                said = (scores - low) / (scores[:, :1] - low)
            said = np.where(np.isfinite(said), said, 1.0)  # of equal scores
        found.append(np.where(there, said, 0.0))
    return found


def best_sums(
    ids: Int[np.ndarray, "U L"], values: Float64[np.ndarray, "U L"], k: int
) -> tuple[Float32[np.ndarray, "U k"], Int[np.ndarray, "U k"]]:
    """The k items of each row with the largest sums of their values; equal sums by id, empty places (-1) left out.

    Values of an item are added in the order of the columns.
    """
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
