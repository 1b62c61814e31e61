"""Token mixers: an attention turns a sequence of vectors into another of the same shape.

The room's contract: an `AttentionSpec` that builds an `Attention`, whose one abstract method `mix`
gives the attention weights. The base class does the rest with them: projections, heads, the cache
that a reasoner goes on from, what penalties capture, the reference that diagnostics read, and
FLOPs. A faster kernel overrides `attend`, and with it `attend_with_columns` and `attend_latent`;
the checks in `fullrank.testing.attention` hold it to its own `mix`.

The encoder around it owns norms, residuals and feed-forward. Rows are right-padded, and the mask of
a causal attention hides the future; a padded key is never seen by a valid query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fullrank.core.checks import divided, known_times
from fullrank.core.constraints import Parts
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, Captures, ColumnSums
from fullrank.models import Flops
from fullrank.ops.attention import Mask as Mask
from fullrank.ops.dropout import drop
from fullrank.ops.model_cost import forward_flops
from fullrank.ops.starting_values import start_small

Memory = tuple[Tensor, Tensor]
"""Keys and values by head: of a history [B, H, T, e], of latent tokens in P streams [B, H, P, S, e]."""
Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values by head, [B, H, T, e] each."""
WithColumns = tuple[Float[Tensor, "B T D"], ColumnSums]
"""The output, and how much every key received."""
Projection = tuple[Float[Tensor, "H e D"], Float[Tensor, "D De"]]
"""Value projection by head, and the output projection."""


@dataclass(frozen=True)
class Places:
    """Where queries and keys stand: positions in the row from its first event, and times where there are any."""

    queries: Int[Tensor, "#B T"]
    keys: Int[Tensor, "#B S"]
    query_times: Int[Tensor, "B T"] | None = None
    """The time that a query asks about: the next event's, or the row's last event's where none follows."""
    times: Int[Tensor, "B S"] | None = None
    """The time of each key."""

    @staticmethod
    def of(batch: Batch) -> Places:
        """Every token of a batch as query and key."""
        at = torch.arange(batch.items.shape[1], device=batch.items.device)
        if batch.times is None:
            return Places(at[None], at[None])
        following = torch.minimum(at + 1, (batch.lengths[:, None] - 1).clamp_min(0))
        return Places(at[None], at[None], batch.times.gather(1, following), batch.times)

    @staticmethod
    def ending(q: Float[Tensor, "B H T e"], k: Float[Tensor, "B H S f"]) -> Places:
        """Positions in rows of as many tokens as there are keys, of which the last are the queries; no times."""
        at = torch.arange(k.shape[2], device=k.device)[None]
        return Places(at[:, k.shape[2] - q.shape[2] :], at)

    @staticmethod
    def nowhere(asking: Tensor, seen: Tensor) -> Places:
        """Queries and keys of different sequences, which have no distance: [B, T,
        D] tokens, [B, H, S, e] keys."""
        at = torch.zeros(1, max(asking.shape[1], seen.shape[2]), dtype=torch.long, device=seen.device)
        return Places(at[:, : asking.shape[1]], at[:, : seen.shape[2]])

    @staticmethod
    def behind(batch: Batch, earlier: int, new: int) -> Places:
        """`new` latent tokens as queries, after `earlier` others, behind each row's last event.

        A latent token has no time of its own: the last event's is repeated.
        """
        prefix = torch.arange(batch.items.shape[1], device=batch.items.device).expand(batch.items.shape)
        latent = batch.lengths[:, None] + torch.arange(earlier + new, device=prefix.device)
        queries, keys = latent[:, earlier:], torch.cat([prefix, latent], 1)
        if batch.times is None:
            return Places(queries, keys)
        last = batch.times.gather(1, (batch.lengths - 1).clamp_min(0)[:, None])
        return Places(queries, keys, last.expand(-1, new), torch.cat([batch.times, last.expand_as(latent)], 1))


class AttentionSpec(Spec):
    """Settings that every attention has."""

    kind: str
    heads: Parts = 2
    """Heads; the width must divide by them."""
    causal: bool = True
    """A position sees itself and what came before it."""

    @abstractmethod
    def build(self, dim: int, max_length: int) -> Attention:
        """The module for vectors of this width, in rows of at most this length."""

    def across(self) -> AttentionSpec:
        """The same attention from a decoder's tokens to those that an encoder has read (`Attention.across`).

        It sees all of them, and where they stand is in their vectors already.
        """
        blind = {"rope": False} if "rope" in type(self).model_fields else {}
        return self.model_copy(update={"causal": False, **blind})

    def head_width(self, dim: int) -> int:
        """The width of a head. Raises `UserError` where the heads do not divide the width."""
        return divided(dim, self.heads, f"{self.kind} attention: the width", "heads")


def require_times(times: Tensor | None, without: str) -> Tensor:
    """The times of a batch.

    Raises `UserError` where it has none; `without` is a setting whose models read none.
    """
    remedy = f"give them, or train a model with model.encoder.{without}"
    return known_times(times, "this model", "the batch has no times", remedy)


class Attention(nn.Module, ABC):
    """Multi-head attention around `mix`: y = W_o concat_h(A_h V_h), with A_h = mix(Q_h, K_h)."""

    heads: int
    causal: bool
    qkv: nn.Linear
    output: nn.Linear
    weight_dropout: float = 0.0
    """Dropout on the weights in training."""
    positional: bool = False
    """`mix` compares where tokens stand: it gets `Places` as a fourth argument, as `attend` does."""
    reads_times: bool = False
    """It needs `Batch.times`: the loader and `recommend` then provide them."""
    between: bool = False
    """It is called by `across` alone: it looks from one sequence at another."""
    rows_sum_to_one: bool = False
    """Each row of weights is a distribution over all keys that its query may see."""
    sparse: bool = False
    """A distribution that may give some of these keys no weight at all."""
    linear: bool = True
    """The output is linear in the values: nothing but weights and biases stands between the two projections."""
    captures_after_dropout: bool = True
    """It can tell how much each key received after dropout (`batch.Captures`)."""
    uncounted: str = ""
    """Why its FLOPs cannot be counted on shapes (a kernel that torch's counter does not know); empty where they can."""

    def __init__(self, dim: int, max_length: int, spec: AttentionSpec, *, bias: bool = False, projections: bool = True):
        """With ``projections=False`` the subclass makes its own and
        overrides `project` and `matrices`."""
        super().__init__()
        self.heads, self.causal = spec.heads, spec.causal
        if projections:
            spec.head_width(dim)
            self.qkv, self.output = nn.Linear(dim, 3 * dim, bias=bias), nn.Linear(dim, dim, bias=bias)
            start_small(self)

    @property
    def drop_rate(self) -> float:
        """Share of the weights that is dropped now."""
        return self.weight_dropout if self.training else 0.0

    @abstractmethod
    def mix(self, q: Float[Tensor, "B H T e"], k: Float[Tensor, "B H S e"], allowed: Mask) -> Float[Tensor, "B H T S"]:
        """The weights with which each query mixes the values, after any norm; zero where `allowed` is false."""

    def project(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "B T"]) -> Heads:
        """Queries, keys and values of tokens; keys and values are what a cache holds."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Mask | None,
        places: Places | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The output from projected tokens.

        Without a mask the attention is causal over equal lengths.
        """
        allowed = causal_mask(q, k) if allowed is None else allowed
        return self._attended(q, k, v, allowed, places)[0]

    def attend_with_columns(
        self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, places: Places | None, *, after_dropout: bool
    ) -> WithColumns:
        """The output, and how much every key received."""
        y, weights = self._attended(q, k, v, mask(batch, causal=self.causal), places, after_dropout)
        counted = weights.float().abs() * batch.valid[:, None, :, None]
        rows = None if self.rows_sum_to_one else counted.sum(3)
        return y, ColumnSums(self, counted.sum(2), batch.valid, rows)

    def attend_latent(
        self, q: Float[Tensor, "B H P e"], prefix: Memory, streams: Memory, batch: Batch
    ) -> Float[Tensor, "B P D"]:
        """The output of one latent token in each stream, which sees the history and its stream's S tokens, itself too.

        Here each stream is served apart, behind a copy of the history.
        """
        steps, mixed = streams[0].shape[3], []
        places = Places.behind(batch, steps - 1, 1) if self.positional else None
        allowed = latent_mask(batch, steps)
        for p in range(q.shape[2]):
            k, v = (torch.cat([old, new[:, :, p]], 2) for old, new in zip(prefix, streams, strict=True))
            mixed.append(self.attend(q[:, :, p : p + 1], k, v, allowed, places))
        return torch.cat(mixed, 1)

    def close(self, mixed: Float[Tensor, "B H T f"], q: Tensor) -> Float[Tensor, "B T D"]:
        """The output from the mixed values of each head; `q` is there for a gate
        made of the query's own token."""
        return self.output(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B T D"]:
        """The mixed tokens. Rows past a length are unspecified."""
        q, k, v = self.project(x, batch.positions(from_end=False))
        places = Places.of(batch) if self.positional else None
        captures = batch.captures or Captures()
        if captures.memory is not None:
            captures.memory[self] = k, v
        if captures.columns is None:
            return self.attend(q, k, v, self.visible(batch), places)
        y, columns = self.attend_with_columns(q, k, v, batch, places, after_dropout=captures.after_dropout)
        captures.columns.append(columns)
        return y

    def visible(self, batch: Batch) -> Bool[Tensor, "#B 1 #T T"] | None:
        """The mask of a whole row; None where causality alone hides enough: valid queries see no padding then."""
        return None if self.causal else mask(batch, causal=False)

    def step(
        self, x: Float[Tensor, "B P D"], prefix: Memory, streams: Memory | None, batch: Batch
    ) -> tuple[Float[Tensor, "B P D"], Memory]:
        """One more latent token in each stream: its output, and the keys and values of the streams with it."""
        earlier = 0 if streams is None else streams[0].shape[3]
        q, k, v = self.project(x, (batch.lengths + earlier)[:, None].expand(-1, x.shape[1]))
        k, v = k[:, :, :, None], v[:, :, :, None]
        grown = (k, v) if streams is None else (torch.cat([streams[0], k], 3), torch.cat([streams[1], v], 3))
        return self.attend_latent(q, prefix, grown, batch), grown

    def remember(self, x: Float[Tensor, "B S D"]) -> Memory:
        """The keys and values of tokens that others will look at (`across`), [B, H, S, e] each."""
        return self.project(x, x.new_zeros(x.shape[:2], dtype=torch.long))[1:]

    def across(
        self, x: Float[Tensor, "B T D"], memory: Memory, valid: Bool[Tensor, "B S"], captures: Captures | None = None
    ) -> Float[Tensor, "B T D"]:
        """The output of tokens that look at others, which `remember` read: a decoder's at a history's.

        In a row without valid keys the first one is seen, so that no row is empty.
        """
        q = self.project(x, x.new_zeros(x.shape[:2], dtype=torch.long))[0]
        seen = valid | ((torch.arange(valid.shape[1], device=valid.device) == 0) & ~valid.any(1, keepdim=True))
        allowed = seen[:, None, None].expand(-1, -1, x.shape[1], -1)
        places = Places.nowhere(x, memory[0])
        if captures is None or captures.columns is None:
            return self.attend(q, *memory, allowed, places)
        y, weights = self._attended(q, *memory, allowed, places, captures.after_dropout)
        columns = (weights.float().abs() * valid[:, None, None]).sum(2)
        captures.columns.append(ColumnSums(self, columns, valid, queries=x.shape[1]))
        return y

    def weights(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B H T T"]:
        """The reference that diagnostics read: rows are queries, columns keys, zero where the mask hides."""
        q, k, _ = self.project(x, batch.positions(from_end=False))
        places = Places.of(batch) if self.positional else None
        return self._mix(q, k, mask(batch, causal=self.causal), places).to(x.dtype)

    def column_weights(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B H T T"]:
        """The weights that captured columns add up: the absolute ones, or a bound that they cannot exceed."""
        return self.weights(x, batch).abs()

    def apply_weights(self, weights: Float[Tensor, "B H T T"], x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Mix the values by other weights: ``apply_weights(weights(x, batch), x)`` equals the module's output."""
        q, _, v = self.project(x, torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]))
        return self.close(weights @ v, q)

    def matrices(self) -> Projection:
        """The value projection of each head and the output projection, as views of the parameters."""
        return self.qkv.weight.chunk(3)[2].unflatten(0, (self.heads, -1)), self.output.weight

    def flops(self, length: int) -> Flops:
        """FLOPs of one row of that many positions, forward: of submodules
        (projections) and between them (mixing)."""
        parts = None
        if not self.uncounted:
            x = torch.empty(1, length, self.output.out_features, device="meta")
            parts = forward_flops(self, x, Batch.shapes(1, length))
        if parts is None:
            return {"projections": None, "mixing": None}
        mixing = parts.pop("")
        return {"projections": sum(parts.values()), "mixing": mixing}

    def _attended(
        self, q: Tensor, k: Tensor, v: Tensor, allowed: Mask, places: Places | None, after_dropout: bool = False
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B H T S"]]:
        """The output, and the weights before or after dropout."""
        weights = self._mix(q, k, allowed, places)
        dropped = drop(weights, self.drop_rate)
        return self.close(dropped @ v, q), dropped if after_dropout else weights

    def _mix(self, q: Tensor, k: Tensor, allowed: Tensor, places: Places | None) -> Tensor:
        """`mix`, with the places where it compares them."""
        more: tuple[Places, ...] = (places,) if self.positional and places is not None else ()
        return self.mix(q, k, allowed, *more)


def causal_mask(q: Float[Tensor, "B H T e"], k: Float[Tensor, "B H S f"]) -> Mask:
    """The mask of queries that see what came before them and themselves."""
    return torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()


def mask(batch: Batch, *, causal: bool) -> Bool[Tensor, "B 1 T T"]:
    """True where a query may look. A padded query sees the first key, so that no row is empty."""
    t = batch.items.shape[1]
    keys = batch.valid[:, None, None, :].expand(-1, 1, t, t)
    if causal:
        keys = keys & torch.ones(t, t, dtype=torch.bool, device=keys.device).tril()
    first = torch.arange(t, device=keys.device) == 0
    return keys | (first & ~batch.valid[:, None, :, None])


def latent_mask(batch: Batch, steps: int) -> Bool[Tensor, "B 1 1 n"]:
    """Which of n = T + S keys a latent token may see: the row's events, and its stream's tokens."""
    return torch.cat([batch.valid, batch.valid.new_ones(batch.lengths.shape[0], steps)], 1)[:, None, None]


def even_width(kind: str, width: int) -> None:
    """Raise `UserError` for a width of queries and keys that `rotate` cannot halve."""
    if width % 2:
        raise UserError(f"{kind} attention: RoPE needs an even width per head, not {width}", code="width-not-even")


def rotate(
    x: Float[Tensor, "B H T e"], positions: Int[Tensor, "B T"], *, base: float = 10_000.0
) -> Float[Tensor, "B H T e"]:
    """Rotary position embedding, rotate-half form (RoFormer, arXiv:2104.09864, Eq. 34).

    The inner product of two rotated vectors depends on their distance alone.
    """
    half = x.shape[-1] // 2
    speed = base ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[:, None, :, None].float() * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
