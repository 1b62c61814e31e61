"""Spectral collapse layer by layer: how many directions the outputs of each layer use (SPRINT, KDD 2026, Figure 2).

Claim: the share sigma_1^2 / sum sigma_k^2 grows with depth. Measured at each user's last position, whose output becomes
the scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullrank.analysis.diagnostics import (
    Activations,
    Claim,
    Diagnostic,
    Row,
    lines,
)
from fullrank.analysis.diagnostics.spectrum import rank_figures, stacked
from fullrank.models import last

DEPTH = "layer (0: input)"


class Layers(Diagnostic):
    """The outputs of every layer at each user's last position, as one users x width matrix a layer.

    Layer 0 is what the first block is given, layer L what the last one returns.
    """

    name = "layers"
    internal = True
    claim = Claim(
        "Effective rank of the states by layer",
        "After each layer every user is a point; these curves say how those points spread. A falling rank and "
        "a rising share mean that users are squeezed towards one line: the model tells them apart less and less.",
        (
            lines(DEPTH, "collapse share", zero=True),
            lines(DEPTH, "effective rank", zero=True),
            lines(DEPTH, "largest singular value", log="y"),
        ),
        key="layer",
        at=DEPTH,
        columns={
            "collapse share": "collapse_share", "effective rank": "entropy_rank", "largest singular value": "sigma_1"
        },
    )  # fmt: skip

    def begin(self) -> None:
        self.triangles: list[Tensor] = []

    def observe(self, batch: Activations) -> None:
        if batch.states is None or batch.inputs is None:
            return
        tops = [last(layer, batch.inputs) for layer in batch.states.layers]
        self.triangles = stacked(self.triangles, tops)

    def rows(self) -> list[Row]:
        if not self.triangles:
            return self.left_out("it has no layers")
        found = []
        for layer, factor in enumerate(self.triangles):
            sigma = torch.linalg.svdvals(factor)
            found += self.rows_of({"sigma_1": sigma[0]} | rank_figures(sigma), layer=layer)
        return found
