"""Starting values: N(0, 0.02) for matrices and tables, zero biases (BERT, arXiv:1810.04805; all of our papers)."""

from __future__ import annotations

from torch import nn

STD = 0.02


def start_small(module: nn.Module) -> None:
    """Draw the linear layers and tables directly in this module."""
    for part in module.children():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=STD)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
