"""How much of its tokens a stack of blocks passes on: the Jacobian of the last block's output by the first's input.

J = d vec(Z_n) / d vec(X_0), [TD, TD], at single impressions. A head sees, and the first block is taught, only what J
passes. Ranks of layers (`token_ranks.py`) do not show it: a product of many random matrices passes few directions while
the tokens behind it have any rank. Rows, means over the first `IMPRESSIONS` of the sample, `layer` the last block:

    entropy_rank       exp of the entropy of sigma / sum sigma, of J: directions that pass (Roy and Vetterli 2007)
    directions         TD: no rank is above it
    largest, median    singular values of J; much above 1 the signal grows from block to block, below it vanishes

The smallest is left out: a norm forgets the scale of what it reads, so that it is 0 whatever was trained.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis.diagnostics import Claim, Diagnostic, Figure, Row, RunResult
from fullrank.analysis.ranking_activations import RankingActivations
from fullrank.models.ranking import LayerOutputs
from fullrank.models.ranking.blocks import BlocksRanker
from fullrank.ops.singular_values import entropy_rank

IMPRESSIONS = 8
LARGEST = 2048
"""TD: the time of a decomposition grows with its third power, and this one takes seconds."""
ROWS = 256
"""Of a Jacobian, computed together."""


def jacobian(ranker: BlocksRanker, tokens: Float[Tensor, "T D"]) -> Float[Tensor, "N N"]:
    """J at one impression, float64 on the CPU; N = T D. The ranker is in evaluation mode.

    Copy i of the impression is asked for the gradient of output i, so that one backward pass gives many rows.
    """
    size, found = tokens.numel(), []
    for outputs in torch.arange(size, device=tokens.device).split(ROWS):
        with torch.enable_grad():
            copies = tokens.detach().expand(len(outputs), *tokens.shape).clone().requires_grad_()
            passed, _ = ranker.pass_blocks(copies, LayerOutputs(frozenset()))
            chosen = passed.flatten(1).gather(1, outputs[:, None]).sum()
            found.append(torch.autograd.grad(chosen, copies)[0].flatten(1))
    return torch.cat(found).cpu().double()


class Jacobian(Diagnostic):
    """The directions that a stack of token blocks passes. Other rankers have none."""

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
            found = torch.stack([jacobian(ranker, one) for one in self.tokens])
        finally:
            ranker.train(training)
        if not bool(found.isfinite().all()):
            return self.left_out("derivatives of its blocks are not finite")
        sigma = torch.linalg.svdvals(found)
        figures = {"entropy_rank": entropy_rank(sigma), "largest": sigma[:, 0], "median": sigma.median(1).values}
        means = {"directions": size} | {name: values.mean() for name, values in figures.items()}
        last = len(ranker.feed_forwards) - 1
        return self.rows_of(means, layer=last, label=f"ffn_{last}")

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        rows = [(one["name"].replace("_", " "), one["value"]) for one in result.diagnosis.of(cls.name)]
        return claim.figure(("figure", "value"), rows)
