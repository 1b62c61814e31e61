"""Who is attended to: attention mass by the popularity of the key, and how alike the layers' patterns are.

Claim (SPRINT, KDD 2026, Figure 3): popular items receive more attention than their share of the keys. `ratio` is the
mass over that share, 1 where attention is proportional; `uniform` is the mass that attending evenly to everything
visible would give (early keys are seen by more queries). Weights that do not sum to 1 or fall below 0 (HSTU) enter by
their absolute value. Places that a task covers are no keys of an item and are left out.

Differs: the bands divide the catalogue by rank of training popularity at 1, 5, 20 and 50 percent; "20 %" is the
complement of the items that `fair0.8` calls niche.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.analysis import Row, left_out, row
from fullrank.analysis.reading import Reading, weights_of
from fullrank.models.sequential.attention import mask

EDGES = ("0.01", "0.05", "0.2", "0.5", "1")
"""Upper ends of the bands, as shares of the catalogue by falling popularity."""
LABELS = ("top 1 %", "1-5 %", "5-20 %", "20-50 %", "50-100 %")
HEAD = 3
"""The first bands, which together are the most popular 20 percent."""


def bands(popularity: Int[np.ndarray, "V"]) -> Int[np.ndarray, "V"]:
    """Each item's place in `LABELS`. Of equal counts the higher id is the more popular (as in `metrics.fairness`)."""
    order = np.argsort(popularity, kind="stable")[::-1]
    ends = [ceil(Fraction(edge) * len(popularity)) for edge in EDGES]
    band = np.empty(len(popularity), dtype=np.int64)
    band[order] = np.searchsorted(ends, np.arange(len(popularity)), side="right")
    return band


class AttentionShare:
    """Observer: attention mass by popularity band, layer and head."""

    def __init__(self, popularity: Int[np.ndarray, "V"]):
        self.band = torch.from_numpy(bands(popularity))
        self.mass: dict[int, Tensor] = {}
        """Layer -> [H, bands]."""
        self.keys = torch.zeros(len(LABELS), dtype=torch.float64)
        self.uniform = torch.zeros(len(LABELS), dtype=torch.float64)

    @torch.no_grad()
    def see(self, reading: Reading) -> None:
        for attended in reading.attended:
            first = attended.layer == reading.attended[0].layer  # what can be seen is the same in every layer
            for _, batch, weights in weights_of(attended):
                real = batch.valid if batch.hidden is None else batch.valid & ~batch.hidden
                bins = self.band.to(batch.items.device)[batch.items[real]]
                sums = _by_band(weights.abs().sum(2).permute(1, 0, 2)[:, real], bins)
                self.mass[attended.layer] = self.mass.get(attended.layer, torch.zeros_like(sums)) + sums
                if first:
                    seen = mask(batch, causal=attended.module.causal)[:, 0] & batch.valid[:, :, None]
                    even = (seen / seen.sum(2, keepdim=True).clamp_min(1)).sum(1)
                    self.keys += _by_band(torch.ones_like(even)[None, real], bins)[0]
                    self.uniform += _by_band(even[None, real], bins)[0]

    def rows(self) -> list[Row]:
        if not self.mass:
            return [left_out("attention_share", "it has no attention that shows its weights")]
        name, found = "attention_share", []
        keys, uniform = _shares(self.keys), _shares(self.uniform)
        for band, label in enumerate(LABELS):
            if keys[band] > 0:
                found.append(row(name, "keys", float(keys[band]), label=label))
                found.append(row(name, "uniform", float(uniform[band]), label=label))
        for layer, sums in sorted(self.mass.items()):
            for head, mass in enumerate(_shares(sums)):
                found += self._head(layer, head, mass, keys)
        return found

    def _head(self, layer: int, head: int, mass: Tensor, keys: Tensor) -> list[Row]:
        name, found = "attention_share", []
        for band, label in enumerate(LABELS):
            if keys[band] > 0:
                found.append(row(name, "mass", float(mass[band]), layer=layer, head=head, label=label))
                found.append(row(name, "ratio", float(mass[band] / keys[band]), layer=layer, head=head, label=label))
        top, share = float(mass[:HEAD].sum()), float(keys[:HEAD].sum())
        found.append(row(name, "mass", top, layer=layer, head=head, label="top 20 %"))
        ratio = top / share if share > 0 else None
        return [*found, row(name, "ratio", ratio, layer=layer, head=head, label="top 20 %")]


def _by_band(values: Float[Tensor, "H N"], bins: Int[Tensor, "N"]) -> Float[Tensor, "H bands"]:
    sums = torch.zeros(len(values), len(LABELS), dtype=torch.float64, device=values.device)
    return sums.index_add_(1, bins, values.double()).cpu()


def _shares(sums: Float[Tensor, "*n bands"]) -> Float[Tensor, "*n bands"]:
    return sums / sums.sum(-1, keepdim=True).clamp_min(1e-300)
