"""How alike the principal directions of the attention matrices are (SPRINT, KDD 2026, Table 3 and App. B.4).

Theorem 3.2 assumes that a layer's attention matrix has nearly the same left and right principal
singular vector, and that layers share them; then stacking layers multiplies their largest singular
values. The matrix of all users is block diagonal, one block a user, so its singular vectors are
those of single users.

Differs: the paper does not say which block it measures. Here every block of the sample is measured
and the rows are means (`uv_cosine` by layer and head; `layer_cosine` between the right vectors of
two layers' head means); `largest` is the block with the largest singular value, the principal one
of the whole matrix. Histories of one event are left out: their block is a number.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis.diagnostics import Activations, Claim, Diagnostic, Figure, Row, RunResult
from fullrank.models.sequential.model.reading import weights_of

USERS = 256
"""Users whose blocks are measured: the first of the sample, whose order is random."""
SUBSPACE, ROUNDS = 4, 24
"""Vectors that are iterated together, and how often: the error falls by (sigma_5 / sigma_1)^2 each round."""


def principal(
    matrices: Float[Tensor, "*n T T"],
) -> tuple[Float[Tensor, "*n T"], Float[Tensor, "*n"], Float[Tensor, "*n T"]]:
    """u1, sigma_1 and v1 of each matrix, float64; the sum of v1 is not negative."""
    s = matrices.double()
    t = s.shape[-1]
    position, wave = torch.arange(t, device=s.device), torch.arange(min(SUBSPACE, t), device=s.device)
    # the first cosine waves [T, SUBSPACE], orthogonal and the same for every matrix
    start = torch.cos(torch.outer(position + 0.5, wave) * torch.pi / t).to(s.dtype)
    v = start.expand(*s.shape[:-2], *start.shape)
    for _ in range(ROUNDS):
        v = torch.linalg.qr(s.mT @ (s @ v)).Q
    u, sigma, rotation = torch.linalg.svd(s @ v, full_matrices=False)
    right = v @ rotation.mT[..., :1]
    sign = torch.where(right.sum(-2, keepdim=True) < 0, -1.0, 1.0)
    return (sign * u[..., :1])[..., 0], sigma[..., 0], (sign * right)[..., 0]


class Alignment(Diagnostic):
    """Cosines of u1 and v1 in each layer and head, and of v1 between layers."""

    name = "alignment"
    claim_of = Claim(
        "How alike the attention patterns of {} are",
        "A layer's attention writes one pattern best and reads one pattern best; the cosine says how alike "
        "they are, and how alike two layers read. Near 1, what one layer raises the next raises again.",
        table=True,
    )

    def begin(self) -> None:
        self.heads: dict[int, list[Tensor]] = {}
        """Layer -> cosine of u1 and v1, [b, H] each."""
        self.largest: dict[int, tuple[Tensor, Tensor]] = {}
        """Layer -> the largest sigma_1 so far and its cosine, [H] each."""
        self.between: dict[tuple[int, int], list[Tensor]] = {}
        """Pair of layers -> cosine of their v1, [b] each."""

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        chosen = torch.from_numpy(batch.users < USERS)
        vectors: dict[int, Tensor] = {}
        for attention in batch.attentions:
            parts = []
            for rows, part, weights in weights_of(attention):
                measured = chosen[rows].to(weights.device) & (part.lengths > 1)
                if bool(measured.any()):
                    u, sigma, v = (row.cpu() for row in principal(weights[measured]))
                    self._add(attention.layer, sigma, (u * v).sum(-1))
                    middle = principal(weights[measured].mean(1))[2].cpu()
                    width = int(attention.batch.items.shape[1])
                    parts.append(torch.nn.functional.pad(middle, (0, width - middle.shape[-1])))
            if parts:
                vectors[attention.layer] = torch.cat(parts)
        for a, ours in vectors.items():
            for b, theirs in vectors.items():
                if a < b:
                    self.between.setdefault((a, b), []).append((ours * theirs).sum(-1).abs())

    def _add(self, layer: int, sigma: Float[Tensor, "b H"], cosine: Float[Tensor, "b H"]) -> None:
        self.heads.setdefault(layer, []).append(cosine)
        best, at = sigma.max(0)
        best_cosine = cosine.gather(0, at[None])[0]
        if layer in self.largest:
            old, old_cosine = self.largest[layer]
            best, best_cosine = torch.maximum(old, best), torch.where(best > old, best_cosine, old_cosine)
        self.largest[layer] = (best, best_cosine)

    def rows(self) -> list[Row]:
        if not self.heads:
            return self.left_out("it has no attention over more than one event")
        rows: list[Row] = []
        for layer, parts in sorted(self.heads.items()):
            sigma, cosine = self.largest[layer]
            for head, mean in enumerate(torch.cat(parts).mean(0)):
                rows.append(self.row("uv_cosine", mean, layer=layer, head=head))
                figures = {"uv_cosine": cosine[head], "sigma_1": sigma[head]}
                rows += self.rows_of(figures, layer=layer, head=head, label="largest")
        for (a, b), cosines in sorted(self.between.items()):
            rows.append(self.row("layer_cosine", torch.cat(cosines).mean(), layer=a, index=b))
        return rows

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        """Table 3 of SPRINT: the cosines that Theorem 3.2 assumes to be near 1."""
        rows = []
        for name, words in (("uv_cosine", "layer {}, head {}"), ("layer_cosine", "layers {} and {}")):
            for row in result.diagnosis.of(cls.name, name):
                other = row["index"] if row["head"] is None else row["head"]
                rows.append((words.format(row["layer"] + 1, other + 1), row["label"] or "mean of users", row["value"]))
        return claim.figure(("where", "of", "cosine"), rows)
