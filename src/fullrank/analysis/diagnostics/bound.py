"""The bound of Theorem 4.1 (SPRINT, KDD 2026, Eqs. A.43 to A.57), beside the norms that it bounds.

Claim: ||Y||_2 <= ||X^(0)||_2 prod (1 + C) ||E||_2, where a sublayer behind its norm has

    C = (xi_gamma / xi_r) sqrt(sum_h n_h sigma(W_V,h)^2) sigma(W_O)     (attention, Eq. A.56)
    C = (xi_gamma / xi_r) L_act sqrt(d) sigma(W_1) sigma(W_2)           (MLP, Eq. A.49)

and X holds all positions of all users of the sample, so that every constant is the
sample's and the bound is rigorous for it. It is loose: it says what cannot happen, and
which factor would have to shrink.

Differs. (1) Eq. A.56 is printed without the square of sigma(W_V,h), and in that form it is no
bound. (2) xi_r is the least root mean square of a row, not its 2-norm, which lacks a factor
sqrt(d). (3) ||X^(0)||_2 is measured: ||E||_2 does not bound it where an item occurs twice. (4) n_h
is the largest column sum times the largest row sum of |S|, which is the column sum where rows sum
to 1. (5) LayerNorm and biases add an offset: a sublayer takes a norm x to at most a x + c. (6)
SwiGLU, which Eq. A.48 does not cover, has max |silu(gate)|, measured, in the place of L_act.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from math import inf, log10
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fullrank.analysis.diagnostics import Activations, Claim, Diagnostic, Figure, Row, Runs, lines
from fullrank.analysis.diagnostics.norms import feed_forward_norm, spectral_norm
from fullrank.analysis.diagnostics.spectrum import ScoreMatrix, stacked
from fullrank.models import DenseScorer, last
from fullrank.models.sequential.encoders.transformer import MLP, Block, SwiGLU
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.model.reading import AttentionInput, weights_of

LIPSCHITZ = {F.relu: 1.0, F.gelu: 1.12891, F.silu: 1.09984}
"""Largest slope of each activation of the MLP, rounded up."""


@dataclass(frozen=True)
class Affine:
    """Upper bound of the norm of a map's output, for an input of norm x: factor x + offset."""

    factor: float
    offset: float = 0.0

    def __call__(self, x: float) -> float:
        return self.factor * x + self.offset


class Bound(Diagnostic):
    """The constants of the bound, and the norms that it bounds."""

    name = "bound"
    internal = True
    claim = Claim(
        "Theoretical bound vs. measured norm",
        "How large the states can become behind each layer by Theorem 4.1 of SPRINT (dashed), from the norms of "
        "the model's matrices and its attention, and how large they are (solid), as powers of ten. The bound is "
        "far above: it is what SPRINT presses down, and it says which factors leave room for one direction to take "
        "over.",
        key="layer",
        at="layer (0: input)",
        columns={"measured": "log10_norm", "bound": "log10_bound"},
    )

    def begin(self) -> None:
        self.scores = ScoreMatrix(self.context.sample)
        self.rows_seen = 0
        self.triangles: list[Tensor] = []
        self.scale: defaultdict[nn.Module, float] = defaultdict(float)
        """1 / xi_r of each norm."""
        self.peak: defaultdict[nn.Module, float] = defaultdict(float)
        """Largest |silu(gate)| of each SwiGLU."""
        self.columns: dict[nn.Module, Tensor] = {}
        """Largest column sum of |S| by head, and below it the largest row sum: [2, H]."""
        self.drift: defaultdict[nn.Module, float] = defaultdict(float)
        """Squared Frobenius norm of each attention's output for a zero input (its biases)."""
        self.shrunk = 0.0
        """1 / the shortest answer, where answers are scaled to length one; inf where they are not the states."""
        self.blocks: tuple[Block, ...] = ()
        self.closing: nn.Module | None = None
        """The norm behind the last block, where there is one."""
        self.why: str | None = "it has no transformer blocks"
        """Why there is no bound; None where there is one."""

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        self.scores.observe(batch)
        states, inputs = batch.states, batch.inputs
        if states is None or inputs is None or not all(isinstance(block, Block) for block in states.blocks):
            return
        if not self.rows_seen:
            self.blocks = tuple(block for block in states.blocks if isinstance(block, Block))
            decodes = self.context.model.encoder.decodes
            self.why = "a decoder answers, behind its blocks" if decodes else _why_not(self.blocks, batch)
            self.closing = next((module for module, x in batch.module_inputs.items() if x is states.layers[-1]), None)
        if self.why is not None:
            return
        valid = inputs.valid
        self.rows_seen += int(valid.sum())
        self.triangles = stacked(self.triangles, [x[valid] for x in states.layers])
        for module, x in batch.module_inputs.items():
            self._input(module, x[valid].double())
        for attention in batch.attentions:
            self._attention(attention)
        self._scorer(batch)

    def _input(self, module: nn.Module, x: Tensor) -> None:
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            spread = x.var(-1, unbiased=False) if isinstance(module, nn.LayerNorm) else x.square().mean(-1)
            eps = module.eps if module.eps is not None else torch.finfo(torch.float32).eps
            self.scale[module] = max(self.scale[module], float((spread.min() + eps).rsqrt()))
        elif isinstance(module, SwiGLU):
            gate = F.silu(module.gate(x.to(module.gate.weight.dtype)))
            self.peak[module] = max(self.peak[module], float(gate.abs().max()))

    def _attention(self, attention: AttentionInput) -> None:
        module = attention.module
        for rows, batch, weights in weights_of(attention):
            size = weights.abs().double()
            sums = torch.stack([size.sum(2).amax((0, 2)), size.sum(3).amax((0, 2))]).cpu()
            self.columns[module] = torch.maximum(self.columns.get(module, sums), sums)
            at_zero = module.apply_weights(weights, torch.zeros_like(attention.x[rows, : batch.items.shape[1]]))
            self.drift[module] += float(at_zero[batch.valid].double().square().sum())

    def _scorer(self, batch: Activations) -> None:
        """Note how short an answer is before it is scaled to length one; inf where
        answers are not the last states."""
        assert batch.states is not None and batch.inputs is not None
        top, shrunk = last(batch.states.tokens, batch.inputs), inf
        if isinstance(batch.scorer, DenseScorer):
            is_answer = partial(torch.allclose, batch.scorer.vectors, rtol=1e-4, atol=1e-6)
            if is_answer(top):
                shrunk = 1.0
            elif is_answer(unit(top)):
                shrunk = 1 / max(1e-12, float(top.double().norm(dim=-1).min()))
        self.shrunk = max(self.shrunk, shrunk)

    @torch.no_grad()
    def rows(self) -> list[Row]:
        if self.why is not None or not self.rows_seen:
            return self.left_out(self.why or "the sample has no events")
        rows: list[Row] = []
        measured = [spectral_norm(factor) for factor in self.triangles]
        limit = measured[0]
        for layer, block in enumerate(self.blocks):
            rows += self._norms(measured[layer], limit, layer=layer)
            attention, feed = self._sublayers(block)
            for name, affine in (("attention", attention), ("feed_forward", feed)):
                if affine is not None:
                    rows.append(self.row("factor", affine.factor, layer=layer, label=name))
            for head, column in enumerate(self.columns[block.attention][0]):
                rows.append(self.row("column_sum", column, layer=layer, head=head))
            limit = self._through(block, attention, feed, limit)
        return rows + self._norms(measured[-1], limit, layer=len(self.blocks)) + self._scores(limit)

    def _norms(self, measured: float, limit: float, **where: Any) -> list[Row]:
        return self.rows_of({"log10_norm": _log10(measured), "log10_bound": _log10(limit)}, **where)

    def _scores(self, limit: float) -> list[Row]:
        spectrum, vectors = self.scores.spectrum(), self.scores.vectors
        if spectrum is None or vectors is None or self.scores.table is None or self.shrunk == inf:
            return self.left_out("its answers are not the last layer's states")
        if self.closing is not None:
            limit = self._norm(self.closing)(limit)
        limit *= self.shrunk / self.scores.temperature * spectral_norm(self.scores.table)
        return self._norms(float(spectrum.sigma[0]), limit, label="scores")

    def _through(self, block: Block, attention: Affine, feed: Affine | None, x: float) -> float:
        """The bound behind a block, from the bound x before it (Eq. A.45)."""
        x += attention(x)
        x = x if block.pre else self._norm(block.attention_norm)(x)
        if feed is not None:
            x += feed(x)
            x = x if block.pre else self._norm(block.feed_forward_norm)(x)
        return x

    def _sublayers(self, block: Block) -> tuple[Affine, Affine | None]:
        """Bounds of attention and feed-forward, each behind its norm where the norm comes first."""
        value, output = block.attention.matrices()
        columns, rows = self.columns[block.attention]
        sizes = torch.tensor([spectral_norm(head) for head in value], dtype=torch.float64)
        mixed = Affine(
            float((columns * rows * sizes**2).sum().sqrt()) * spectral_norm(output), self.drift[block.attention] ** 0.5
        )
        fed = None if block.feed_forward is None else self._feed(block.feed_forward)
        if not block.pre:
            return mixed, fed
        first = _chained(self._norm(block.attention_norm), mixed)
        return first, None if fed is None else _chained(self._norm(block.feed_forward_norm), fed)

    def _norm(self, module: nn.Module) -> Affine:
        gain: Any = getattr(module, "weight", None)
        bias: Any = getattr(module, "bias", None)
        offset = 0.0 if bias is None else self.rows_seen**0.5 * float(bias.double().norm())
        return Affine(self.scale[module] * (1.0 if gain is None else float(gain.abs().max())), offset)

    def _feed(self, module: nn.Module) -> Affine:
        """The bound of a feed-forward."""
        assert isinstance(module, MLP | SwiGLU)
        up, down = module.up, module.down
        root = min(up.weight.shape) ** 0.5  # |M|_F <= sqrt(rank) |M|_2
        size, many = feed_forward_norm(module.matrices()), self.rows_seen**0.5
        if isinstance(module, MLP):
            zero = module(torch.zeros_like(up.weight[:1]))
            return Affine(LIPSCHITZ[module.activation] * root * size, many * float(zero.double().norm()))
        peak = self.peak[module]
        inside = 0.0 if up.bias is None else peak * many * float(up.bias.norm()) * spectral_norm(down.weight)
        outside = 0.0 if down.bias is None else many * float(down.bias.norm())
        return Affine(peak * root * size, inside + outside)

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        """The norm behind each layer, and its bound; the table has those of the scores too."""
        headers, layers = claim.read(there, cls.name)
        rows = [*layers]
        for run in there:
            scores = run.diagnosis.values(cls.name, None, "name", label="scores")
            rows.append((run.label, "scores", *map(scores.get, ("log10_norm", "log10_bound"))))
        drawn = lines(claim.at, tuple(claim.columns), axis="norm (power of ten)", rows=layers)
        return claim.figure(headers, rows, drawn)


def _chained(first: Affine, second: Affine) -> Affine:
    return Affine(second.factor * first.factor, second(first.offset))


def _why_not(blocks: tuple[Block, ...], batch: Activations) -> str | None:
    """Why the bound does not hold for these blocks; None where it holds."""
    if not blocks:
        return "it has no transformer blocks"
    if batch.states is not None and batch.states.reasoning is not None:
        return "it answers after latent steps, which pass its blocks again"
    for block in blocks:
        feed = block.feed_forward
        known = isinstance(feed, SwiGLU | None) or (isinstance(feed, MLP) and feed.activation in LIPSCHITZ)
        if not known:
            return "its feed-forward has an activation without a known slope"
    for attention in batch.attentions:
        if not _is_weighted_sum(attention):
            return "its attention is more than a weighted sum of values and an output projection"
    return None if len(batch.attentions) == len(blocks) else "its blocks have no attention that shows its weights"


def _is_weighted_sum(attention: AttentionInput) -> bool:
    """Whether the attention is sum_h S_h x W_V,h W_O,h up to its biases, on some rows."""
    module = attention.module
    rows, batch, weights = next(weights_of(attention))
    x = attention.x[rows, : batch.items.shape[1]]
    value, output = module.matrices()
    expected = (weights @ torch.einsum("btd,hed->bhte", x, value)).transpose(1, 2).flatten(2) @ output.mT
    actual = module.apply_weights(weights, x) - module.apply_weights(weights, torch.zeros_like(x))
    size = float(actual[batch.valid].abs().max())
    return expected.shape == actual.shape and float((expected - actual)[batch.valid].abs().max()) <= 1e-3 * size + 1e-6


def _log10(value: float) -> float | None:
    return log10(value) if 0 < value < inf else None
