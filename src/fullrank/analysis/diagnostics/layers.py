"""Spectral collapse layer by layer: how many directions the outputs of each layer use (SPRINT, KDD 2026, Figure 2).

Claim: the share sigma_1^2 / sum sigma_k^2 grows with depth. Measured at each user's last position, whose output becomes
the scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullrank.analysis.activations import Activations
from fullrank.analysis.diagnosis import Row, not_measured, rows_of
from fullrank.analysis.diagnostics import RunsFigure
from fullrank.analysis.diagnostics.spectrum import rank_figures, triangle
from fullrank.analysis.report import Figure
from fullrank.analysis.report.draw import from_zero, integer_ticks, logarithmic
from fullrank.analysis.report.lines import ends, line_panel
from fullrank.analysis.report.results import Runs
from fullrank.models.contracts import last


class Layers(RunsFigure):
    """The outputs of every layer at each user's last position, as one users x width matrix a layer.

    Layer 0 is what the first block is given, layer L what the last one returns.
    """

    name = "layers"
    title = "Effective rank of the states by layer"
    internal = True

    def begin(self) -> None:
        self.triangles: list[Tensor] = []

    def observe(self, batch: Activations) -> None:
        if batch.states is None or batch.inputs is None:
            return
        tops = [last(layer, batch.inputs) for layer in batch.states.layers]
        above: list[Tensor] | list[None] = self.triangles or [None] * len(tops)
        self.triangles = [triangle(top, old) for top, old in zip(tops, above, strict=True)]

    def rows(self) -> list[Row]:
        if not self.triangles:
            return [not_measured("layers", "it has no layers")]
        found = []
        for layer, factor in enumerate(self.triangles):
            sigma = torch.linalg.svdvals(factor)
            found += rows_of(self.name, {"sigma_1": sigma[0]} | rank_figures(sigma), layer=layer)
        return found

    @classmethod
    def draw(cls, there: Runs, results: Runs) -> Figure:
        """Collapse share, entropy rank and largest singular value of the outputs, layer by layer."""
        figures = {
            "collapse_share": ("collapse share", "share of the strongest direction"),
            "entropy_rank": ("effective rank", "effective rank (entropy rank)"),
            "sigma_1": ("largest singular value", "largest singular value"),
        }
        lines = {
            figure: {one.key: one.diagnosis.values(cls.name, figure, "layer") for one in there} for figure in figures
        }
        panels = [
            line_panel(
                f"{cls.name}-{figure}", results, lines[figure], f"{word} by layer: {ends(lines[figure])}",
                x="layer (0: input)", y=label,
                finish=(logarithmic if figure == "sigma_1" else from_zero, integer_ticks),
            )
            for figure, (word, label) in figures.items()
        ]  # fmt: skip
        caption = (
            "After each layer every user is a point; these curves say how those points spread. A falling rank and "
            "a rising share mean that users are squeezed towards one line: the model tells them apart less and less."
        )
        rows = tuple(
            (one.label, layer, *(lines[figure][one.key].get(layer) for figure in figures))
            for one in there for layer in lines["sigma_1"][one.key]
        )  # fmt: skip
        headers = ("run", "layer", *(word for word, _ in figures.values()))
        return Figure(cls.name, cls.title, caption, tuple(panels), headers, rows)
