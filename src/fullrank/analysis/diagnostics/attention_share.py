"""Attention share: how much attention goes to popular items.

Claim (SPRINT, KDD 2026, Figure 3): popular items receive more attention than their share of the
keys. `ratio` is the mass over that share, 1 where attention is proportional; `uniform` is the mass
that attending evenly to everything visible would give (early keys are seen by more queries).
Weights that do not sum to 1 or fall below 0 (HSTU) enter by their absolute value. Positions that a
task covers are no keys of an item and are left out.

Differs: the bands divide the catalogue by rank of training popularity at 1, 5, 20 and 50 percent;
"20 %" is the complement of the items that `fair0.8` calls niche.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.analysis.diagnostics import Activations, Claim, Diagnostic, Figure, Row, RunResult, lines
from fullrank.metrics import ItemCounts
from fullrank.models.sequential.attention import mask
from fullrank.models.sequential.model.reading import event_places, weights_of

EDGES = ("0.01", "0.05", "0.2", "0.5", "1")
"""Upper ends of the bands, as shares of the catalogue by falling popularity."""
LABELS = ("top 1 %", "1-5 %", "5-20 %", "20-50 %", "50-100 %")
HEAD = 3
"""Number of bands that together are the most popular 20 percent."""


def item_bands(popularity: ItemCounts) -> Int[np.ndarray, "V"]:
    """Band of each item, as an index of `LABELS`.

    Of equal counts the higher id is the more popular (as in `metrics.exposure`).
    """
    order = np.argsort(popularity, kind="stable")[::-1]
    ends = [ceil(Fraction(edge) * len(popularity)) for edge in EDGES]
    band = np.empty(len(popularity), dtype=np.int64)
    band[order] = np.searchsorted(ends, np.arange(len(popularity)), side="right")
    return band


class AttentionShare(Diagnostic):
    """Attention mass by popularity band, layer and head."""

    name = "attention_share"
    claim_of = Claim(
        "Attention by item popularity, {}",
        "While reading a history, the model weighs its items. At 1 a group of items gets as much weight as it has "
        "places in the histories; above 1 it gets more. Lines are layers (bands hold their heads); the dotted line "
        "is what weighing everything alike would give, because early items are read more often.",
        name="attention",
    )

    def begin(self) -> None:
        self.band = torch.from_numpy(item_bands(self.context.sample.popularity))
        self.mass: defaultdict[int, Any] = defaultdict(float)
        """Layer -> attention to each band, [H, bands]."""
        self.keys = torch.zeros(len(LABELS), dtype=torch.float64)
        """Number of keys in each band."""
        self.uniform = torch.zeros_like(self.keys)
        """Attention to each band if every query attended evenly."""

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        for attention in batch.attentions:
            first = attention.layer == batch.attentions[0].layer  # what can be seen is the same in every layer
            for _, part, weights in weights_of(attention):
                real = event_places(self.context.model, part)
                bins = self.band.to(part.items.device)[part.items[real]]
                of_heads = weights.abs().sum(2).permute(1, 0, 2)  # over queries: [H, B, keys]
                self.mass[attention.layer] += _by_band(of_heads[:, real], bins)
                if first:
                    seen = mask(part, causal=attention.module.causal)[:, 0] & part.valid[:, :, None]
                    even = (seen / seen.sum(2, keepdim=True).clamp_min(1)).sum(1)
                    self.keys += _by_band(torch.ones_like(even)[None, real], bins)[0]
                    self.uniform += _by_band(even[None, real], bins)[0]

    def rows(self) -> list[Row]:
        if not self.mass:
            return self.left_out("it has no attention that shows its weights")
        rows: list[Row] = []
        keys, uniform = _shares(self.keys), _shares(self.uniform)
        bands = {label: band for band, label in enumerate(LABELS) if keys[band] > 0}
        for label, band in bands.items():
            rows += self.rows_of({"keys": keys[band], "uniform": uniform[band]}, label=label)
        share = keys[:HEAD].sum()
        for layer, sums in sorted(self.mass.items()):
            for head, mass in enumerate(_shares(sums)):
                for label, band in bands.items():
                    figures = {"mass": mass[band], "ratio": mass[band] / keys[band]}
                    rows += self.rows_of(figures, layer=layer, head=head, label=label)
                top = mass[:HEAD].sum()
                of_top = {"mass": top, "ratio": top / share if share > 0 else None}
                rows += self.rows_of(of_top, layer=layer, head=head, label="top 20 %")
        return rows

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        """Attention to each band of popularity, over its share of the events that are read."""
        keys, uniform = (result.diagnosis.values(cls.name, name, "label") for name in ("keys", "uniform"))
        ratio = result.diagnosis.values(cls.name, "ratio", "layer", "head", "label")
        heads = list(dict.fromkeys((layer, head) for layer, head, _ in ratio))
        drawn: list[tuple[Any, ...]] = [("even attention", label, uniform[label] / keys[label]) for label in keys]
        for layer in dict(heads):
            for label in keys:
                of_heads = [ratio[layer, head, label] for other, head in heads if other == layer]
                drawn.append((f"layer {layer + 1}", label, float(np.mean(of_heads)), min(of_heads), max(of_heads)))
        chart = lines(
            "items by popularity",
            "attention over share of events",
            by="layer",
            beside="even attention",
            interval="y",
            zero=True,
            level={"": 1},
            rows=drawn,
        )
        rows = [
            (f"layer {layer + 1}, head {head + 1}", *(ratio[layer, head, label] for label in keys))
            for layer, head in heads
        ]
        return claim.figure(("", *keys), (("share of events", *keys.values()), *rows), chart)


def _by_band(values: Float[Tensor, "H N"], bins: Int[Tensor, "N"]) -> Float[Tensor, "H bands"]:
    """Sum the values of each band, float64 on the CPU."""
    sums = torch.zeros(len(values), len(LABELS), dtype=torch.float64, device=values.device)
    return sums.index_add_(1, bins, values.double()).cpu()


def _shares(sums: Float[Tensor, "*n bands"]) -> Float[Tensor, "*n bands"]:
    return sums / sums.sum(-1, keepdim=True).clamp_min(1e-300)
