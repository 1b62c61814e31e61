"""Caser: convolutions over the last events as over an image (Tang & Wang, WSDM 2018, arXiv:1809.07426).

With E [window, D] the vectors of the last events, z = phi(W [o; v] + b) is made of two kinds of
filters:

    horizontal   o: `horizontal` filters [h, D] of each height h = 1 .. window at all places, phi_c, the largest of each
    vertical     v: `vertical` weighted sums of the window's rows, the same weights in every dimension

Differs: every position of a history is a window of its own, read in one pass, so that all of its
items are trained on (a window of the authors predicts T items, here the next one). z alone is the
state, of the width of the item vectors that it is scored with: no vector of the user beside it and
no second table of items. Events before the first are zeros.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Parts
from fullrank.models.sequential.encoders import EncoderSpec
from fullrank.models.sequential.encoders.windows import WindowEncoder
from fullrank.ops.dropout import Dropout

Activation = Literal["relu", "tanh", "sigmoid", "identity"]


class Caser(EncoderSpec):
    """Horizontal and vertical convolutions over the last events."""

    kind: Literal["caser"] = "caser"
    window: Parts = 5
    """L: events that are read. There is a convolution of each height up to it."""
    horizontal: Parts = 16
    """n: horizontal filters of each height."""
    vertical: Parts = 4
    """n~: vertical filters."""
    convolution_activation: Activation = "relu"
    """phi_c, behind the horizontal filters."""
    activation: Activation = "relu"
    """phi_a, behind the fully connected layer."""
    dropout: DropoutRate = 0.5
    """Dropout on what the filters found."""

    def build(self, dim: int, max_length: int) -> CaserEncoder:
        return CaserEncoder(dim, self)


class CaserEncoder(WindowEncoder):
    flop_parts = {"rows": "convolutions", "": "vertical", "join": "projections"}

    def __init__(self, dim: int, spec: Caser):
        super().__init__(dim, spec.window)
        self.rows = nn.ModuleList(nn.Conv1d(dim, spec.horizontal, height) for height in range(1, spec.window + 1))
        self.columns = nn.Linear(spec.window, spec.vertical)
        self.join = nn.Linear(spec.window * spec.horizontal + dim * spec.vertical, dim)
        for part in (*self.rows, self.columns, self.join):
            # item vectors start small: beside torch's biases they would hardly be seen
            nn.init.zeros_(part.bias)
        self.inner, self.outer, self.drop = spec.convolution_activation, spec.activation, Dropout(spec.dropout)

    def read(self, x: Float[Tensor, "B n D"], known: Bool[Tensor, "B n"]) -> Float[Tensor, "B T D"]:
        image, horizontal = x.transpose(1, 2), []
        for height, convolution in enumerate(self.rows, 1):
            # a place of the convolution belongs to every window that it lies in
            at_all = _activated(self.inner, convolution(image))
            horizontal.append(F.max_pool1d(at_all, self.window - height + 1, 1).transpose(1, 2))
        vertical = self.columns(x.unfold(1, self.window, 1)).flatten(2)
        return _activated(self.outer, self.join(self.drop(torch.cat([vertical, *horizontal], 2))))


def _activated(name: Activation, x: Tensor) -> Tensor:
    """x behind the activation of this name."""
    return x if name == "identity" else getattr(torch, name)(x)
