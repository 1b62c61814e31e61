"""FMLP-Rec's filter as one convolution of an exported graph: the transforms of a traced one fix the length of a
history, and ONNX Runtime takes their sizes for others. The product of two transforms is a convolution along the places.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.data.batch import Batch
from fullrank.models.sequential.encoders.fmlp import Filter


class Convolution(nn.Module):
    """A `Filter` whose kernel is a constant; that of a circular one reaches the events behind a place too."""

    kernel: Tensor

    def __init__(self, made: Filter):
        super().__init__()
        self.behind, self.before = 0 if made.causal else made.places - 1, made.places - 1
        ago = torch.arange(self.before, -self.behind - 1, -1)
        self.register_buffer("kernel", made.kernel().detach()[ago % made.places].T[:, None].contiguous())

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B T D"]:
        wide = x.float() * batch.valid[..., None] if self.behind else x.float()
        padded = nn.functional.pad(wide.transpose(1, 2), (self.before, self.behind))
        return nn.functional.conv1d(padded, self.kernel, groups=x.shape[2]).transpose(1, 2).to(x.dtype)
