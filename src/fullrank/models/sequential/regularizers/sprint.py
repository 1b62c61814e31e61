"""SPRINT: bounds what every block may amplify, so that depth stops feeding popularity (SPRINT, Sec. 4, A.3, Eq. 4.5).

A factor C bounds how much a block may amplify its input; with a residual around it the block
multiplies a signal by at most 1 + C (A.45, A.57). The penalty is the sum of three terms, each a
function f of such factors:
- attention, per layer: f(sqrt(sum_h n_h sigma(W_V,h)^2) sigma(W_O)), with n_h the smoothed largest
  column sum of head h, n_h = (1/t) log sum_{b,j} exp(t c_hbj) over all valid keys j of the batch
  (Eqs. 4.2-4.3, A.56);
- feed-forward, per layer: f(sigma(W_up) sigma(W_down)) (Eq. 4.4);
- embedding: f(sigma(E)) of the table that the queries search: of items, or of the codes of all
  levels, one below the other, where a task predicts codes.

`outer` says which f. log1p is the residual form, of the proof (A.57) and of the authors' code,
which takes the mean over layers: a factor that is small already is hardly pulled. log is what Eq.
4.5 prints, for blocks without residual: its pull on a matrix does not fall as that shrinks, so with
it the objective has no lower bound and attention that is not defended by the loss is switched off.
hinge is ours: max(0, log(C / bound)), since a bound asks no more than C <= bound.

Which weight holds the projections is read in three ways (`projections`): A.56's formula has both in
the attention term; its text puts W_O under the feed-forward's weight; Eq. 4.4 puts both there.

Differs: A.56 prints sigma(W_V,h) without the square that its derivation needs (`value_norms`);
the columns are those of the weights before dropout, whose rows sum to one as the bound assumes
(`dropped_weights`). The log-sum-exp runs over the batch at hand: it is not gathered over
processes or micro-batches, of which each counts its own. Around a reasoner the columns are those
of the histories: its latent tokens are queries behind them and note nothing. An encoder and a
decoder are both penalised, each attention as a layer. The attention from the decoder to the
history is not, since no key there can receive more than one for each token of an answer
(`between` adds it; docs/decisions/0016-seq2seq.md).

Ours: `column_mean`, since among causal weights whose rows sum to one the identity alone has columns
that sum to one, and it is where the column term is least; `final_gain`, since a model with a final
norm is the same function when E, W_O and W_down are divided by a number that the norm's gain is
multiplied with, and only the penalty would fall.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor, nn

from fullrank.core.constraints import CountFromZero, Factor, Temperature, needs, only_with, some_of
from fullrank.core.device import device_of
from fullrank.core.errors import UserError, no_effect
from fullrank.core.spec import later
from fullrank.data.batch import ColumnSums
from fullrank.models import Step
from fullrank.models.sequential.attention import Attention
from fullrank.models.sequential.items.semantic import CodeLevel
from fullrank.models.sequential.regularizers import Needs, PenaltySpec, SpecPenalty
from fullrank.ops.singular_values import PowerIteration


class Sprint(PenaltySpec):
    """Spectral penalties on attention, feed-forward and item table."""

    kind: Literal["sprint"] = "sprint"
    attention: Annotated[Factor, some_of("feed_forward", "embedding")] = 5.0
    """Factor of the attention term; the paper searches 2.5, 5, 7.5, 10 (ML-20M: .05 to .5)."""
    feed_forward: Factor = 1e-3
    """Factor of the feed-forward term; the paper searches 0.1, 0.01, 0.001, 0.0001."""
    embedding: Factor | None = None
    """Factor of the embedding term; null is that of the feed-forward."""
    temperature: Annotated[Temperature, only_with("attention")] = 1.0
    """t: the larger, the nearer is n_h to the largest column sum."""
    outer: Literal["log1p", "log", "hinge"] = "log1p"
    """Function of every factor: log1p for blocks with a residual (A.57, the authors' code), log as Eq. 4.5 prints it
    (without a lower bound), or hinge, max(0, log(factor / bound)) (ours)."""
    bound: Annotated[Temperature, only_with("outer", "hinge")] = later(1.0)
    """Bound below which a layer's factor is not penalised (of `outer=hinge`)."""
    table_bound: Annotated[Temperature | None, only_with("outer", "hinge")] = later(None)
    """Bound of sigma(E), which is of another size (of `outer=hinge`); null is `bound`."""
    layer_reduction: Literal["mean", "sum"] = "mean"
    """Mean over layers, as in the authors' code, or their sum, as in Eq. 4.5."""
    head_reduction: Annotated[Literal["joint", "separate"], only_with("attention")] = "joint"
    """One logarithm for a layer (A.56), or the mean of one per head."""
    value_norms: Annotated[Literal["squared", "printed", "none"], only_with("attention")] = "squared"
    """sigma(W_V,h) squared as the bound needs, as A.56 prints it, or the columns without any projection (Eq. 4.5)."""
    projections: Annotated[
        Literal["attention", "output_apart", "feed_forward"],
        only_with("attention"),
        needs("value_norms", "squared", code="setting-without-effect"),
        needs("feed_forward", code="setting-without-effect"),
    ] = later("attention")
    """Term whose factor holds sigma(W_V) and sigma(W_O): attention (A.56's formula), W_O in the feed-forward's (A.56's
    text), or both there (Eqs. 3.1 and 4.4)."""
    column_mean: Annotated[bool, only_with("attention")] = later(False)
    """Divide each column sum by the number of queries that may see the key (ours): what a key receives on average. It
    is at most one, so it wants a `temperature` far above 1."""
    final_gain: bool = later(False)
    """Multiply sigma(W_O), sigma(W_down) and sigma(E) by the largest gain of the final norm (ours): scaling those three
    down and the gain up then leaves the penalty as it is."""
    between: Annotated[bool, only_with("attention")] = later(False)
    """Penalise the attention from a decoder to the history that it answers too (of `seq2seq`)."""
    exact_bound: Annotated[bool, only_with("attention"), needs("between", False, code="columns-not-captured")] = False
    """Multiply n_h by the smoothed largest row sum, where rows do not sum to one (HSTU): |A|^2 <= |A|_1 |A|_inf."""
    dropped_weights: Annotated[bool, only_with("attention")] = False
    """Column sums of the weights after dropout, as in the authors' code."""
    warmup: CountFromZero = 15
    """Steps of the power method before the first training step."""

    @model_validator(mode="after")
    def _every_setting_has_effect(self) -> Sprint:
        if self.table_bound is not None and not self.item_table:
            raise no_effect("sprint: table_bound", "with embedding=0", "leave it out, or set embedding above 0")
        if self.final_gain and self.value_norms == "none" and not (self.feed_forward or self.item_table):
            columns_alone = "where columns alone are penalised (value_norms=none, feed_forward=0 and embedding=0)"
            raise no_effect("sprint: final_gain", columns_alone)
        return self

    @property
    def item_table(self) -> float:
        """Factor of the embedding term."""
        return self.feed_forward if self.embedding is None else self.embedding

    def build(self) -> SprintPenalty:
        return SprintPenalty(self)


Norms = tuple[Tensor, Tensor]
"""Spectral norms of a layer's two matrices."""


class SprintPenalty(SpecPenalty[Sprint]):
    """Buffers: a right vector for each matrix (each head of a value projection)."""

    def __init__(self, spec: Sprint):
        super().__init__(spec)
        reads, dropped = bool(spec.attention), spec.dropped_weights
        self.needs = Needs(columns=reads and not dropped, columns_after_dropout=reads and dropped)
        self.sigmas = nn.ModuleDict()
        self._blocks: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())
        self._final: tuple[Any, ...] = ()

    def attach(self, model: Any) -> None:
        readable = [m for m in model.encoder.modules() if hasattr(m, "matrices")]
        mixers = tuple(m for m in readable if isinstance(m, Attention) and (self.spec.between or not m.between))
        mixers = mixers if self.spec.attention else ()
        if self.spec.between and not any(m.between for m in mixers):
            lacks = f"on {type(model.encoder).__name__}, which has no attention between sequences"
            raise no_effect("sprint: between", lacks, "leave it out, or set model.encoder.kind=seq2seq")
        feeds = tuple(m for m in readable if not isinstance(m, Attention)) if self.spec.feed_forward else ()
        for name, module in ((type(m).__name__, m) for m in mixers):
            if self.needs.columns_after_dropout and not module.captures_after_dropout:
                raise UserError(
                    f"sprint: {name} does not note its columns after dropout; set dropped_weights=false or choose "
                    "another attention",
                    code="columns-not-captured",
                )
            if self.spec.exact_bound and module.rows_sum_to_one:
                raise no_effect("sprint: exact_bound", f"on {name}, whose rows sum to one")
        norm = getattr(model.encoder, "norm_output", None)
        apart, no_gain = self.spec.projections != "attention", getattr(norm, "weight", None) is None
        for missing, part, remedy in (
            (self.spec.attention and not mixers, "attention to read", "set attention=0"),
            (self.spec.feed_forward and not feeds, "feed-forward to read", "set feed_forward=0 (and embedding apart)"),
            (apart and len(mixers) != len(feeds), "feed-forward beside each attention", "set projections=attention"),
            (self.spec.final_gain and no_gain, "final norm with a gain", "leave final_gain out"),
        ):
            if missing:
                raise UserError(
                    f"sprint: {type(model.encoder).__name__} has no {part}: {remedy}, or choose another encoder",
                    code="nothing-to-regularise",
                )
        self._final = (norm,) if self.spec.final_gain else ()
        self._blocks = mixers, feeds
        names = [("mixer", mixers)] if self.spec.value_norms != "none" else []
        for name, modules in [*names, ("feed", feeds)]:
            for i, module in enumerate(modules):
                first, second = module.matrices()
                self.sigmas[f"{name}_{i}_first"] = PowerIteration(first, self.spec.warmup)
                self.sigmas[f"{name}_{i}_second"] = PowerIteration(second, self.spec.warmup)
        if self.spec.item_table:
            with torch.no_grad():
                every = torch.arange(model.num_items, device=device_of(model))
                table = model.items.table if model.task.generates else model.items.embed(every)
                self.sigmas["table"] = PowerIteration(table, self.spec.warmup)

    def forward(self, step: Step) -> Float[Tensor, ""]:
        spec, (mixers, feeds) = self.spec, self._blocks
        total: Tensor | float = 0.0
        norms: list[Norms | None] = [None] * len(mixers)
        if spec.value_norms != "none":
            norms = [self._norms("mixer", i, m) for i, m in enumerate(mixers)]
        if mixers:
            noted = (step.captures.columns if step.captures else None) or []
            terms = [
                self._attention(m, [c for c in noted if c.module is m], of_layer)
                for m, of_layer in zip(mixers, norms, strict=True)
            ]
            total = total + spec.attention * self._over_layers(terms)
        if feeds:
            beside = norms if spec.projections != "attention" else [None] * len(feeds)
            terms = [
                self._feed_forward(self._norms("feed", i, m), of_layer)
                for (i, m), of_layer in zip(enumerate(feeds), beside, strict=True)
            ]
            total = total + spec.feed_forward * self._over_layers(terms)
        if spec.item_table:
            sigma = self._gained(self.sigmas["table"](_searched(step)))
            bound = spec.bound if spec.table_bound is None else spec.table_bound
            total = total + spec.item_table * self._outer(sigma, bound)
        assert isinstance(total, Tensor)
        return total

    def _attention(self, module: Any, noted: list[ColumnSums], norms: Norms | None) -> Float[Tensor, ""]:
        """The term of one layer, made of its columns and of those of its
        projections' norms that belong to it."""
        spec = self.spec
        if not any(c.valid.any() for c in noted):
            return torch.zeros((), device=device_of(module))
        mass = largest_sum([_received(c, mean=spec.column_mean) for c in noted], noted, spec.temperature)
        if spec.exact_bound:
            mass = mass * largest_sum([c.rows for c in noted if c.rows is not None], noted, spec.temperature)
        joint = spec.head_reduction == "joint"
        if norms is None:
            return self._outer(mass.sum() if joint else mass).mean()
        value, output = norms
        if spec.projections != "feed_forward":
            mass = mass * (value**2 if spec.value_norms == "squared" else value)
        factor = _floored(mass.sum() if joint else mass).sqrt()
        if spec.projections == "attention":
            factor = factor * _floored(output)
        return self._outer(factor).mean()

    def _feed_forward(self, norms: Norms, projections: Norms | None) -> Float[Tensor, ""]:
        """The term of one layer, with the norms of the attention's projections
        where the spec puts them there."""
        factors = [*norms]
        if projections is not None:
            value, output = projections
            factors.append(output)
            if self.spec.projections == "feed_forward":
                factors.append(value.norm())  # at least sigma of all heads' W_V together
        # a product of many small norms would leave the floor's precision
        if self.spec.outer == "log":
            return _floored(torch.stack(factors)).log().sum()
        return self._outer(torch.stack(factors).prod())

    def _outer(self, factor: Tensor, bound: float | None = None) -> Tensor:
        """f of a factor (`outer`)."""
        if self.spec.outer == "log1p":
            return factor.log1p()
        if self.spec.outer == "log":
            return _floored(factor).log()
        return (_floored(factor).log() - math.log(self.spec.bound if bound is None else bound)).relu()

    def _gained(self, sigma: Tensor) -> Tensor:
        """The norm of a matrix that writes to the residual stream, with the
        gain that reads the stream."""
        return sigma * self._final[0].weight.float().abs().max() if self._final else sigma

    def _norms(self, name: str, index: int, module: Any) -> Norms:
        """sigma of a layer's matrix that reads the stream (of each head's W_V), and
        of the one that writes to it."""
        first, second = module.matrices()
        sigma = self.sigmas[f"{name}_{index}_first"](first), self.sigmas[f"{name}_{index}_second"](second)
        return sigma[0], self._gained(sigma[1])

    def _over_layers(self, terms: list[Tensor]) -> Tensor:
        """The mean or the sum of the layers' terms."""
        return torch.stack(terms).mean() if self.spec.layer_reduction == "mean" else torch.stack(terms).sum()


def _searched(step: Step) -> Float[Tensor, "n D"]:
    """The vectors that the task's queries search: of all items, or of the codes of all levels."""
    tables = [q.table for q in step.queries]
    # a level that several groups of queries search counts once
    levels = {table.number: table for table in tables if isinstance(table, CodeLevel)}
    return torch.cat([level.all() for level in levels.values()]) if levels else tables[0].all()


def _floored(norm: Tensor) -> Tensor:
    """The norm, or 1e-12 below that: zeros have no logarithm, and below the
    floor nothing pulls any more."""
    return norm.clamp_min(1e-12)


def _received(noted: ColumnSums, *, mean: bool) -> Float[Tensor, "B H T"]:
    """The column sums, or what each key received on average of the
    valid queries that may see it."""
    if not mean:
        return noted.sums
    if noted.queries is not None:
        return noted.sums / noted.queries
    valid = noted.valid.float()
    total = valid.sum(1, keepdim=True)
    seen_by = total - valid.cumsum(1) + 1 if getattr(noted.module, "causal", False) else total.expand_as(valid)
    return noted.sums / seen_by.clamp_min(1)[:, None]


def largest_sum(sums: list[Tensor], noted: list[ColumnSums], temperature: float) -> Float[Tensor, "H"]:
    """n_h of one layer: the log-sum-exp over all valid tokens of the batch, of
    every time the layer was passed."""
    together = torch.cat([s.float().transpose(0, 1).flatten(1) for s in sums], 1)
    valid = torch.cat([c.valid.flatten() for c in noted])
    return (temperature * together).masked_fill(~valid, -math.inf).logsumexp(1) / temperature
