"""Ranks in a trained ranker: RankElastor's theorems (KDD 2026, arXiv:2605.23191, Theorems 2.1, 2.2 and 3.2), Jacobian.

The parts that can be proved are tests (`tests/theory/test_rankelastor.py`); the rest holds or does
not, and is measured here on every impression. X is the input of a module, k its stable rank. Rows
by block (`layer`), `label` is the name of the module's output:

Theorem 2.1, of block transpose alone. Y = transpose(X), M = X + Y, mu = stable rank of Y:
    transpose_lower, transpose_upper    means of 2 k mu / (sqrt k + sqrt mu)^2 and of 2 (k + mu)
    transpose_rank, transpose_before    means of the stable rank of M, and of k
    transpose_within                    share of the impressions with M between its two bounds
    transpose_overlap                   mean of <X, Y>_F / |X|_F^2, which the theorem takes to be near 0
    transpose_coherence                 mean of |M|_2^2 / max(|X|_2^2, |Y|_2^2), which it takes to be near 1
Theorem 2.2 (a feed-forward contracts) and Theorem 3.2 (a gated one adds): the module as it was trained, with its skip:
    feed_forward_ratio, feed_forward_gain    means of rank(out) / rank(in) and of rank(out) - rank(in)
    feed_forward_rose                        share of the impressions in which it rose

The input of a feed-forward lies behind the mixing's norm, so its gain is not the
`stable_rank_change` of `token_ranks`.

The Jacobian of the last block's output by the first's input, J = d vec(Z_n) / d vec(X_0), [TD, TD],
at single impressions, says how much of its tokens a stack of blocks passes on. A head sees, and the
first block is taught, only the directions that J passes. Ranks of layers (`token_ranks.py`) do not
show it: a product of many random matrices passes few directions while the tokens behind it have any
rank. Rows, means over the first `IMPRESSIONS` of the sample, `layer` the last block:

    entropy_rank       exp of the entropy of sigma / sum sigma, of J: directions that pass (Roy and Vetterli 2007)
    directions         TD: no rank is above it
    largest, median    singular values of J; much above 1 the signal grows from block to block, below it vanishes

The smallest is left out: a norm forgets the scale of its input, so that it is 0 for any weights.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis.activations import RankingActivations, layers_of
from fullrank.analysis.diagnostics import Claim, Diagnostic, Figure, Row, RunResult, readable
from fullrank.models.ranking import LayerOutputs
from fullrank.models.ranking.blocks import BlocksRanker
from fullrank.models.ranking.mixings import BlockTransposeMixing, transposed
from fullrank.ops.singular_values import LEAST, entropy_rank

SLACK = 1e-9
"""Relative error of rounding: a rank on a bound is within it."""


def transpose_figures(x: Float[Tensor, "B T D"]) -> dict[str, Float[Tensor, "B"]]:
    """The terms of Theorem 2.1 for each matrix, float64; no matrix may be 0."""
    x = x.detach().cpu().double()
    y = transposed(x)
    top_x, top_y, top_m = (torch.linalg.matrix_norm(matrix, 2).square() for matrix in (x, y, x + y))
    energy = x.square().sum((1, 2))  # also of Y, whose entries are those of X
    k, mu = energy / top_x, energy / top_y
    rank = (x + y).square().sum((1, 2)) / top_m.clamp_min(LEAST)
    lower, upper = 2 * k * mu / (k.sqrt() + mu.sqrt()).square(), 2 * (k + mu)
    return {
        "before": k,
        "rank": rank,
        "lower": lower,
        "upper": upper,
        "within": ((rank >= lower * (1 - SLACK)) & (rank <= upper * (1 + SLACK))).double(),
        "overlap": (x * y).sum((1, 2)) / energy,
        "coherence": top_m / torch.maximum(top_x, top_y),
    }


def feed_forward_figures(
    before: Float[Tensor, "B T D"], behind: Float[Tensor, "B T D"]
) -> dict[str, Float[Tensor, "B"]]:
    """Ratio and difference of the stable ranks behind and before a feed-forward."""
    old, new = (_stable(tokens.detach().cpu().double()) for tokens in (before, behind))
    return {"ratio": new / old, "gain": new - old, "rose": (new > old).double()}


class RankTheorems(Diagnostic):
    """Terms of the theorems for the mixings and feed-forwards of a ranker."""

    name = "rank_theorems"
    problem = "ranking"
    claim_of = Claim(
        "The theorems of RankElastor in {}",
        "Means over the sample. transpose_...: Theorem 2.1, the stable rank behind block transpose between two "
        "bounds, under an overlap near 0 and a coherence near 1. feed_forward_...: Theorems 2.2 and 3.2, the "
        "rank behind a feed-forward over, and less, that of what it was given. They are promises about random "
        "weights.",
        table=True,
    )

    def begin(self) -> None:
        mixings = layers_of(self.context.model, "mixings")
        self.transposes = [n for n, mixing in enumerate(mixings) if isinstance(mixing, BlockTransposeMixing)]
        self.mixes = len(mixings)
        self.sums: dict[tuple[int, str, str], list[Tensor]] = {}
        """(block, label, figure) -> values of each batch."""

    def observe(self, batch: RankingActivations) -> None:
        for block in self.transposes:
            tokens = batch.layers["tokens" if block == 0 else f"ffn_{block - 1}"]
            nonzero = tokens[tokens.flatten(1).any(1)]
            self._add(block, f"mixing_{block}", "transpose", transpose_figures(nonzero))
        for label, tokens in batch.feed_forward_inputs.items():
            nonzero = tokens.flatten(1).any(1)
            figures = feed_forward_figures(tokens[nonzero], batch.layers[label][nonzero])
            self._add(int(label.removeprefix("ffn_")), label, "feed_forward", figures)

    def _add(self, block: int, label: str, kind: str, figures: dict[str, Tensor]) -> None:
        for name, values in figures.items():
            self.sums.setdefault((block, label, f"{kind}_{name}"), []).append(values)

    def rows(self) -> list[Row]:
        if not self.mixes:
            return self.left_out("it has no token mixing and no feed-forward per token")
        rows = []
        for (block, label, name), parts in self.sums.items():
            values = torch.cat(parts)
            rows.append(self.row(name, values.mean() if len(values) else None, layer=block, label=label))
        if not self.transposes:
            rows += self.left_out("Theorem 2.1 is of block transpose, and it mixes by another module")
        return rows

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        rows = [(readable(str(row["label"])), row["name"], row["value"]) for row in result.diagnosis.of(cls.name)]
        return claim.figure(("module", "figure", "value"), rows)


def _stable(x: Float[Tensor, "B T D"]) -> Float[Tensor, "B"]:
    return x.square().sum((1, 2)) / torch.linalg.matrix_norm(x, 2).square().clamp_min(LEAST)


IMPRESSIONS = 8
LARGEST = 2048
"""Largest TD: the time of a decomposition grows with its third power, and this one takes seconds."""
ROWS = 256
"""Rows of a Jacobian that are computed together."""


def jacobian(ranker: BlocksRanker, tokens: Float[Tensor, "T D"]) -> Float[Tensor, "N N"]:
    """J at one impression, float64 on the CPU; N = T D. The ranker is in evaluation mode.

    Each copy of the impression gives the gradient of another output, so that one
    backward pass gives many rows.
    """
    size, rows = tokens.numel(), []
    for outputs in torch.arange(size, device=tokens.device).split(ROWS):
        with torch.enable_grad():
            copies = tokens.detach().expand(len(outputs), *tokens.shape).clone().requires_grad_()
            passed, _ = ranker.pass_blocks(copies, LayerOutputs(frozenset()))
            chosen = passed.flatten(1).gather(1, outputs[:, None]).sum()
            rows.append(torch.autograd.grad(chosen, copies)[0].flatten(1))
    return torch.cat(rows).cpu().double()


class Jacobian(Diagnostic):
    """Singular values of the Jacobian of a stack of token blocks; other rankers have none."""

    name = "jacobian"
    problem = "ranking"
    claim_of = Claim(
        "What the blocks of {} pass on",
        "The Jacobian of the last block's output by the tokens that the first is given, at a few impressions: how "
        "many directions it passes (entropy rank), and its largest and median singular value. A head sees, and the "
        "first block is taught, only what passes.",
        table=True,
    )

    def begin(self) -> None:
        self.tokens: list[Tensor] = []

    def observe(self, batch: RankingActivations) -> None:
        if isinstance(self.context.model.ranker, BlocksRanker):
            self.tokens += batch.layers["tokens"][: IMPRESSIONS - len(self.tokens)].unbind()

    def rows(self) -> list[Row]:
        ranker = self.context.model.ranker
        if not isinstance(ranker, BlocksRanker):
            return self.left_out("it has no blocks of tokens, one behind the other")
        size = self.tokens[0].numel()
        if size > LARGEST:
            return self.left_out(f"its tokens hold {size:,} numbers, and {LARGEST:,} at most are decomposed")
        training = ranker.training
        ranker.eval()
        try:
            jacobians = torch.stack([jacobian(ranker, tokens) for tokens in self.tokens])
        finally:
            ranker.train(training)
        if not bool(jacobians.isfinite().all()):
            return self.left_out("derivatives of its blocks are not finite")
        sigma = torch.linalg.svdvals(jacobians)
        figures = {"entropy_rank": entropy_rank(sigma), "largest": sigma[:, 0], "median": sigma.median(1).values}
        means = {"directions": size} | {name: values.mean() for name, values in figures.items()}
        last = len(ranker.feed_forwards) - 1
        return self.rows_of(means, layer=last, label=f"ffn_{last}")

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        rows = [(row["name"].replace("_", " "), row["value"]) for row in result.diagnosis.of(cls.name)]
        return claim.figure(("figure", "value"), rows)
