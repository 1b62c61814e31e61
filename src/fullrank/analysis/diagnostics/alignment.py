"""How alike the principal directions of the attention matrices are (SPRINT, KDD 2026, Table 3 and App. B.4).

Theorem 3.2 assumes that a layer's attention matrix has nearly the same left and right principal singular vector, and
that layers share them; then stacking layers multiplies their largest singular values. The matrix of all users is block
diagonal, one block a user, so its singular vectors are those of single users.

Differs: the paper does not say which block it measures. Here every block of the sample is measured and the mean is
given (`uv_cosine` by layer and head; `layer_cosine` between the right vectors of two layers' head means); `largest` is
the block with the largest singular value, the principal one of the whole matrix. Histories of one event are left out:
their block is a number.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis.diagnostics import (
    Activations,
    Claim,
    Diagnostic,
    Figure,
    Row,
    RunResult,
)
from fullrank.models.sequential.reading import weights_of

USERS = 256
"""Users whose blocks are measured: the first of the sample, whose order is random."""
SUBSPACE, ROUNDS = 4, 24
"""Vectors iterated at once and how often: the error falls by (sigma_5 / sigma_1)^2 each round."""


def principal(
    matrices: Float[Tensor, "*n T T"],
) -> tuple[Float[Tensor, "*n T"], Float[Tensor, "*n"], Float[Tensor, "*n T"]]:
    """u1, sigma_1 and v1 of each matrix, float64, by subspace iteration; the right vector's sum is not negative."""
    s = matrices.double()
    t = s.shape[-1]
    place, wave = torch.arange(t, device=s.device), torch.arange(min(SUBSPACE, t), device=s.device)
    start = torch.cos(torch.outer(place + 0.5, wave) * torch.pi / t).to(s.dtype)
    v = start.expand(*s.shape[:-2], *start.shape)
    for _ in range(ROUNDS):
        v = torch.linalg.qr(s.mT @ (s @ v)).Q
    u, sigma, rotation = torch.linalg.svd(s @ v, full_matrices=False)
    right = v @ rotation.mT[..., :1]
    sign = torch.where(right.sum(-2, keepdim=True) < 0, -1.0, 1.0)
    return (sign * u[..., :1])[..., 0], sigma[..., 0], (sign * right)[..., 0]


class Alignment(Diagnostic):
    """u1 against v1 in each layer and head, and v1 between layers."""

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

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        chosen = torch.from_numpy(batch.users < USERS)
        vectors: dict[int, Tensor] = {}
        for given in batch.attentions:
            parts = []
            for rows, some, weights in weights_of(given):
                kept = chosen[rows].to(weights.device) & (some.lengths > 1)
                if bool(kept.any()):
                    u, sigma, v = (part.cpu() for part in principal(weights[kept]))
                    self._add(given.layer, sigma, (u * v).sum(-1))
                    middle = principal(weights[kept].mean(1))[2].cpu()
                    width = int(given.batch.items.shape[1])
                    parts.append(torch.nn.functional.pad(middle, (0, width - middle.shape[-1])))
            if parts:
                vectors[given.layer] = torch.cat(parts)
        for one, ours in vectors.items():
            for two, theirs in vectors.items():
                if one < two:
                    self.between.setdefault((one, two), []).append((ours * theirs).sum(-1).abs())

    def _add(self, layer: int, sigma: Float[Tensor, "b H"], cosine: Float[Tensor, "b H"]) -> None:
        self.heads.setdefault(layer, []).append(cosine)
        best, at = sigma.max(0)
        found = cosine.gather(0, at[None])[0]
        if layer in self.largest:
            old, kept = self.largest[layer]
            best, found = torch.maximum(old, best), torch.where(best > old, found, kept)
        self.largest[layer] = (best, found)

    def rows(self) -> list[Row]:
        if not self.heads:
            return self.left_out("it has no attention over more than one event")
        found: list[Row] = []
        for layer, parts in sorted(self.heads.items()):
            mean = torch.cat(parts).mean(0)
            for head in range(len(mean)):
                sigma, cosine = (float(part[head]) for part in self.largest[layer])
                found.append(self.row("uv_cosine", float(mean[head]), layer=layer, head=head))
                figures = {"uv_cosine": cosine, "sigma_1": sigma}
                found += self.rows_of(figures, layer=layer, head=head, label="largest")
        for (one, two), cosines in sorted(self.between.items()):
            found.append(self.row("layer_cosine", float(torch.cat(cosines).mean()), layer=one, index=two))
        return found

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        """Table 3 of SPRINT: the cosines that Theorem 3.2 assumes to be near 1."""
        cosines, pairs = (result.diagnosis.of(cls.name, name) for name in ("uv_cosine", "layer_cosine"))
        rows = [
            (f"layer {row['layer'] + 1}, head {row['head'] + 1}", row["label"] or "mean of users", row["value"])
            for row in cosines
        ]
        rows += [(f"layers {row['layer'] + 1} and {row['index'] + 1}", "mean of users", row["value"]) for row in pairs]
        return claim.figure(("where", "of", "cosine"), rows)
