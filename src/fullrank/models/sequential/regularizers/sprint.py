"""SPRINT: bounds what every block may amplify, so that depth stops feeding popularity (SPRINT, Sec. 4, A.3, Eq. 4.5).

Three terms, each a logarithm, so that their sum bounds the logarithm of the model's Lipschitz constant:
- attention, per layer: log sqrt(sum_h n_h sigma(W_V,h)^2) sigma(W_O), with n_h the smoothed largest column sum of
  head h, n_h = (1/t) log sum_{b,j} exp(t c_hbj) over all valid keys j of the batch (Eqs. 4.2-4.3, A.56);
- feed-forward, per layer: log sigma(W_up) + log sigma(W_down) (Eq. 4.4);
- embedding: log sigma(E) of the item table that the queries search.

Differs: A.56 prints sigma(W_V,h) without the square that its derivation needs (`value_norms`); the columns are those
of the weights before dropout, whose rows sum to one as the bound assumes (`dropped_weights`). The log-sum-exp runs over
the batch at hand: it is not gathered over processes or micro-batches, of which each counts its own. Around a reasoner
the columns are those of the histories: its latent tokens are queries behind them and note nothing.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from fullrank.core.bounds import LEAST_TEMPERATURE, MOST_COUNT, MOST_FACTOR
from fullrank.core.errors import UserError
from fullrank.data.batch import ColumnSums, Step
from fullrank.models.sequential.attention import Attention
from fullrank.models.sequential.regularizers import Needs, Penalty, PenaltySpec
from fullrank.ops.power_iteration import PowerIteration


class Sprint(PenaltySpec):
    """Spectral penalties on attention, feed-forward and item table."""

    kind: Literal["sprint"] = "sprint"
    attention: float = Field(5.0, ge=0, le=MOST_FACTOR)
    """Factor of the attention term; the paper searches 2.5, 5, 7.5, 10 (ML-20M: .05 to .5)."""
    feed_forward: float = Field(1e-3, ge=0, le=MOST_FACTOR)
    """Factor of the feed-forward term; the paper searches 0.1, 0.01, 0.001, 0.0001."""
    embedding: float | None = Field(None, ge=0, le=MOST_FACTOR)
    """Factor of the embedding term; null is that of the feed-forward."""
    temperature: float = Field(1.0, ge=LEAST_TEMPERATURE, le=MOST_FACTOR)
    """t: the larger, the nearer is n_h to the largest column sum."""
    outer: Literal["log", "log1p"] = "log"
    """Function around each layer's attention norm; log1p (the authors' code) keeps the term positive."""
    layer_reduction: Literal["sum", "mean"] = "sum"
    """Over layers; the authors' code has the mean."""
    head_reduction: Literal["joint", "separate"] = "joint"
    """One logarithm for a layer (A.56), or the mean of one per head."""
    value_norms: Literal["squared", "printed", "none"] = "squared"
    """sigma(W_V,h) squared as the bound needs, as A.56 prints it, or log n_h without any projection (Eq. 4.5)."""
    exact_bound: bool = False
    """Multiply n_h by the smoothed largest row sum, where rows do not sum to one (HSTU): |A|^2 <= |A|_1 |A|_inf."""
    normalise_count: bool = False
    """Take log(number of valid keys) / t off n_h, which then depends less on the size of the batch."""
    dropped_weights: bool = False
    """Column sums of the weights after dropout, as in the authors' code."""
    warmup: int = Field(15, ge=0, le=MOST_COUNT)
    """Steps of the power method before the first training step."""

    @model_validator(mode="after")
    def _every_setting_has_effect(self) -> Sprint:
        if not (self.attention or self.feed_forward or self.item_table):
            raise UserError(
                "sprint: attention, feed_forward and embedding are all 0; leave the penalty out",
                code="weights-all-zero",
            )
        if not self.attention:
            named = ("temperature", "outer", "head_reduction", "value_norms", "exact_bound", "normalise_count",
                     "dropped_weights")  # fmt: skip
            idle = [n for n in named if getattr(self, n) != type(self).model_fields[n].default]
            if idle:
                raise UserError(
                    f"sprint: {', '.join(idle)} have no effect with attention=0; remove them",
                    code="setting-without-effect",
                )
        return self

    @property
    def item_table(self) -> float:
        """Factor of the embedding term."""
        return self.feed_forward if self.embedding is None else self.embedding

    def build(self) -> SprintPenalty:
        return SprintPenalty(self)


class SprintPenalty(Penalty):
    """Buffers: a right vector for each matrix (each head of a value projection)."""

    def __init__(self, spec: Sprint):
        super().__init__()
        self.spec, self.searches_items = spec, bool(spec.item_table)
        reads, dropped = bool(spec.attention), spec.dropped_weights
        self.needs = Needs(columns=reads and not dropped, columns_after_dropout=reads and dropped)
        self.sigmas = nn.ModuleDict()
        self._blocks: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())

    def attach(self, model: Any) -> None:
        readable = [m for m in model.encoder.modules() if hasattr(m, "matrices")]
        mixers = tuple(m for m in readable if isinstance(m, Attention)) if self.spec.attention else ()
        feeds = tuple(m for m in readable if not isinstance(m, Attention)) if self.spec.feed_forward else ()
        encoder = type(model.encoder).__name__
        if self.spec.attention and not mixers:
            raise UserError(
                f"sprint: {encoder} has no attention to read; set attention=0 or choose another encoder",
                code="nothing-to-regularise",
            )
        if self.spec.feed_forward and not feeds:
            raise UserError(
                f"sprint: {encoder} has no feed-forward to read; set feed_forward=0 (and embedding apart)",
                code="nothing-to-regularise",
            )
        for module in mixers:
            self._check_columns(module)
        self._blocks = mixers, feeds
        names = [("mixer", mixers)] if self.spec.value_norms != "none" else []
        for name, modules in [*names, ("feed", feeds)]:
            for i, module in enumerate(modules):
                first, second = module.matrices()
                self.sigmas[f"{name}_{i}_first"] = PowerIteration(first, self.spec.warmup)
                self.sigmas[f"{name}_{i}_second"] = PowerIteration(second, self.spec.warmup)
        if self.spec.item_table:
            with torch.no_grad():
                every = torch.arange(model.num_items, device=next(model.parameters()).device)
                self.sigmas["table"] = PowerIteration(model.items.embed(every), self.spec.warmup)

    def _check_columns(self, module: Attention) -> None:
        name = type(module).__name__
        if self.needs.columns_after_dropout and not module.captures_after_dropout:
            raise UserError(
                f"sprint: {name} does not note its columns after dropout; set dropped_weights=false or choose another "
                "attention",
                code="columns-not-captured",
            )
        if self.spec.exact_bound and module.rows_sum_to_one:
            raise UserError(
                f"sprint: exact_bound has no effect on {name}, whose rows sum to one; remove it",
                code="setting-without-effect",
            )

    def forward(self, step: Step) -> Float[Tensor, ""]:
        spec, (mixers, feeds) = self.spec, self._blocks
        total: Tensor | float = 0.0
        if mixers:
            noted = (step.captures.columns if step.captures else None) or []
            terms = [self._attention(i, m, [c for c in noted if c.module is m]) for i, m in enumerate(mixers)]
            total = total + spec.attention * self._over_layers(terms)
        if feeds:
            terms = [_floored(torch.stack(self._norms("feed", i, m))).log().sum() for i, m in enumerate(feeds)]
            total = total + spec.feed_forward * self._over_layers(terms)
        if spec.item_table:
            total = total + spec.item_table * _floored(self.sigmas["table"](step.queries[0].table.all())).log()
        assert isinstance(total, Tensor)
        return total

    def _attention(self, index: int, module: Any, noted: list[ColumnSums]) -> Float[Tensor, ""]:
        if not any(c.valid.any() for c in noted):
            return torch.zeros((), device=next(module.parameters()).device)
        smooth = self.spec.temperature, self.spec.normalise_count
        mass = largest_sum([c.sums for c in noted], noted, *smooth)
        if self.spec.exact_bound:
            mass = mass * largest_sum([c.rows for c in noted if c.rows is not None], noted, *smooth)
        outer = torch.log1p if self.spec.outer == "log1p" else torch.log
        if self.spec.value_norms == "none":
            return outer(_floored(mass if self.spec.head_reduction == "separate" else mass.sum())).mean()
        value, output = self._norms("mixer", index, module)
        parts = mass * (value**2 if self.spec.value_norms == "squared" else value)
        parts = parts if self.spec.head_reduction == "separate" else parts.sum()
        return outer(_floored(parts).sqrt() * _floored(output)).mean()

    def _norms(self, name: str, index: int, module: Any) -> tuple[Tensor, Tensor]:
        first, second = module.matrices()
        return self.sigmas[f"{name}_{index}_first"](first), self.sigmas[f"{name}_{index}_second"](second)

    def _over_layers(self, terms: list[Tensor]) -> Tensor:
        return torch.stack(terms).mean() if self.spec.layer_reduction == "mean" else torch.stack(terms).sum()


def _floored(norm: Tensor) -> Tensor:
    """A matrix of zeros has no logarithm; below the floor nothing pulls any more."""
    return norm.clamp_min(1e-12)


def largest_sum(sums: list[Tensor], noted: list[ColumnSums], temperature: float, normalise: bool) -> Float[Tensor, "H"]:
    """n_h of one layer: the log-sum-exp over all valid tokens of the batch, of every time the layer was passed."""
    together = torch.cat([s.float().transpose(0, 1).flatten(1) for s in sums], 1)
    valid = torch.cat([c.valid.flatten() for c in noted])
    smooth = (temperature * together).masked_fill(~valid, -math.inf).logsumexp(1)
    if normalise:
        smooth = smooth - valid.sum().float().log()
    return smooth / temperature
