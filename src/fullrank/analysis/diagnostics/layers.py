"""Spectral collapse layer by layer: how many directions the outputs of each layer use (SPRINT, KDD 2026, Figure 2).

Claim: the share sigma_1^2 / sum sigma_k^2 grows with depth. Measured at each user's last position, whose output becomes
the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullrank.analysis.activations import Activations, RetrievalContext
from fullrank.analysis.diagnosis import Row, not_measured, row
from fullrank.analysis.diagnostics import Diagnostic
from fullrank.analysis.diagnostics.spectrum import triangle
from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.draw import from_zero, integer_ticks, legend, logarithmic, look, panel
from fullrank.analysis.report.results import RunResult, legend_label, measured
from fullrank.models.contracts import last
from fullrank.ops.effective_rank import collapse_share, entropy_rank, stable_rank


class Layers(Diagnostic):
    """The outputs of every layer at each user's last position, as one users x width matrix a layer.

    Layer 0 is what the first block is given, layer L what the last one returns.
    """

    name = "layers"
    internal = True

    def __init__(self, context: RetrievalContext):
        super().__init__(context)
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
            figures = {
                "sigma_1": sigma[0],
                "collapse_share": collapse_share(sigma),
                "stable_rank": stable_rank(sigma),
                "entropy_rank": entropy_rank(sigma),
            }
            found += [row("layers", name, float(value), layer=layer) for name, value in figures.items()]
        return found

    @classmethod
    def figure(cls, results: Sequence[RunResult]) -> Figure | Missing | None:
        """Collapse share, entropy rank and largest singular value of the outputs, layer by layer."""
        name, title = "layers", "Effective rank of the states by layer"
        there, absent = measured(results, "layers")
        if not there:
            return Missing(name, title, " ".join(absent))
        figures = {
            "collapse_share": ("collapse share", "share of the strongest direction"),
            "entropy_rank": ("effective rank", "effective rank (entropy rank)"),
            "sigma_1": ("largest singular value", "largest singular value"),
        }
        panels = []
        for figure, (word, label) in figures.items():

            def paint(axes: Any, figure: str = figure) -> None:
                for one in there:
                    values = one.diagnosis.by_layer("layers", figure)
                    axes.plot(
                        list(values),
                        list(values.values()),
                        label=legend_label(one, results),
                        **look(results.index(one)),
                    )
                if figure == "sigma_1":
                    logarithmic(axes)
                else:
                    from_zero(axes)
                integer_ticks(axes)
                legend(axes)

            alt = f"{word} by layer: " + "; ".join(
                f"{one.key} from {values[0]:.3g} to {values[max(values)]:.3g}"
                for one in there if (values := one.diagnosis.by_layer("layers", figure))
            )  # fmt: skip
            panels.append(panel(f"{name}-{figure}", paint, alt, x="layer (0: input)", y=label))
        caption = (
            "After each layer every user is a point; these curves say how those points spread. A falling rank and "
            "a rising share mean that users are squeezed towards one line: the model tells them apart less and less."
        )
        rows = tuple(
            (one.label, layer, *(one.diagnosis.by_layer("layers", figure).get(layer) for figure in figures))
            for one in there for layer in one.diagnosis.by_layer("layers", "sigma_1")
        )  # fmt: skip
        headers = ("run", "layer", *(word for word, _ in figures.values()))
        return Figure(name, title, caption, tuple(panels), headers, rows, absent)
