"""Spectral norms of every matrix that a model multiplies by, and the log of their products.

SPRINT (KDD 2026, Section 4.1) penalises these: of each block the value projection of each head, the
output projection, the up- and the down-projection, and the item table. The log of the product of a
layer's attention is the weights' part of Eq. A.56 in its squared form:

    attention       log(sqrt(sum_h sigma(W_V,h)^2) sigma(W_O))
    feed-forward    log(sigma(W_1) sigma(W_2))

Exact, by singular values; of an encoder without such blocks every matrix is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, log
from typing import Any

import torch
from torch import Tensor, nn

from fullrank.analysis.diagnostics import Claim, Diagnostic, Figure, Row, RunResult, readable
from fullrank.analysis.diagnostics.spectrum import triangle
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.model.reading import attention_of, blocks_of, decoder_blocks_of


def spectral_norm(matrix: Tensor) -> float:
    """The largest singular value of a matrix, in float64."""
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
    return float(torch.linalg.matrix_norm(triangle(tall), 2)) if matrix.numel() else 0.0


def attention_norm(matrices: tuple[Tensor, Tensor]) -> float:
    """sqrt(sum_h sigma(W_V,h)^2) sigma(W_O): how far an attention can stretch a
    vector, apart from its weights."""
    value, output = matrices
    return sum(spectral_norm(head) ** 2 for head in value) ** 0.5 * spectral_norm(output)


def feed_forward_norm(matrices: tuple[Tensor, Tensor]) -> float:
    """sigma(W_1) sigma(W_2): how far a feed-forward can stretch a vector, apart from its activation."""
    return spectral_norm(matrices[0]) * spectral_norm(matrices[1])


class Norms(Diagnostic):
    """Spectral norms of a model's matrices, by layer and head."""

    name = "norms"
    claim_of = Claim(
        "Norms of the matrices of {}",
        "Largest singular values, and the logs of their products; SPRINT's regulariser keeps these low.",
        table=True,
    )

    @torch.no_grad()
    def rows(self) -> list[Row]:
        model = self.context.model
        if not isinstance(model, RecommenderModel):
            return self.left_out("it has no matrices that were trained")
        sigma = spectral_norm(model.items.all())
        table = self.rows_of({"sigma": sigma, "log_product": _log(sigma)}, label="embedding")
        blocks = [row for layer, block in enumerate(blocks_of(model)) for row in self._block(layer, block)]
        for layer, block in enumerate(decoder_blocks_of(model)):
            blocks += [
                *self._block(layer, block, "decoder_"),
                *self._attention(layer, getattr(block, "cross", None), "cross_"),
            ]
        if blocks:
            logs = [row["value"] for row in table + blocks if row["name"] == "log_product"]
            total = None if None in logs else sum(logs)
            return [*table, *blocks, self.row("log_product", total, label="total")]
        matrices = [(name, p) for name, p in model.encoder.named_parameters() if p.ndim == 2]
        return table + [self.row("sigma", spectral_norm(p), label=name) for name, p in matrices]

    def _block(self, layer: int, block: nn.Module, kind: str = "") -> Iterator[Row]:
        """Rows of one block: its attention, its feed-forward, and the
        log of the product of each."""
        yield from self._attention(layer, attention_of(block), kind)
        feed = getattr(block, "feed_forward", None)
        if feed is not None and callable(getattr(feed, "matrices", None)):
            up, down = feed.matrices()
            yield self.row("sigma", spectral_norm(up), layer=layer, label=f"{kind}up")
            yield self.row("sigma", spectral_norm(down), layer=layer, label=f"{kind}down")
            product = feed_forward_norm((up, down))
            yield self.row("log_product", _log(product), layer=layer, label=f"{kind}feed_forward")

    def _attention(self, layer: int, attention: Any, kind: str) -> Iterator[Row]:
        """Rows of one attention: each head's value projection, the output projection,
        and the log of their product."""
        if attention is None:
            return
        value, output = attention.matrices()
        for head, matrix in enumerate(value):
            yield self.row("sigma", spectral_norm(matrix), layer=layer, head=head, label=f"{kind}value")
        yield self.row("sigma", spectral_norm(output), layer=layer, label=f"{kind}output")
        product = attention_norm((value, output))
        yield self.row("log_product", _log(product), layer=layer, label=f"{kind}attention")

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        rows = [
            (_matrix(row), *(None if row[key] is None else row[key] + 1 for key in ("layer", "head")), row["value"])
            for row in result.diagnosis.of(cls.name)
        ]
        return claim.figure(("matrix", "layer", "head", "value"), rows)


def _log(value: float) -> float | None:
    return log(value) if 0 < value < inf else None


def _matrix(row: Mapping[str, Any]) -> str:
    label = readable(str(row["label"])).replace("_", "-")
    return label if row["name"] == "sigma" else f"log of the product: {label}"
