"""Averaged weights: an exponential mean of the weights over optimizer steps, which is what a run validates and keeps.

    a_t = b_t a_{t-1} + (1 - b_t) w_t,   b_t = min(ema, (1 + t) / (10 + t))

so that the first steps do not hold the random start. Training itself goes on from w. The mean of the last 1 / (1 - ema)
steps takes out the noise that a learning rate which does not fall leaves in them (Polyak & Juditsky 1992).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fullrank.training.checkpoint import damaged_checkpoint

PREFIX = "average/"
"""Of the averages among the tensors of an optimizer's file."""


class AveragedWeights:
    """The averages of a model's parameters."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
        self.values = {name: one.detach().clone() for name, one in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights behind optimizer step `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, parameter in self.parameters.items():  # a device that the model has moved to since
            self.values[name] = self.values[name].to(parameter.device)
        torch._foreach_lerp_(list(self.values.values()), list(self.parameters.values()), 1 - decay)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The model has the averages for its weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self.parameters.items():
            parameter.data, self.values[name] = self.values[name], parameter.data

    def dump(self) -> dict[str, Tensor]:
        """As tensors of an optimizer's file."""
        return {f"{PREFIX}{name}": value for name, value in self.values.items()}

    def load(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        """The inverse of `dump`. Raises `UserError` where the file `where` holds others."""
        for name, value in self.values.items():
            given = tensors.get(PREFIX + name)
            if given is None or given.shape != value.shape or given.dtype != value.dtype:
                raise damaged_checkpoint(where, f"it lacks the average of {name!r}, of shape {tuple(value.shape)}")
            value.copy_(given)


def without_averages(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What an optimizer's file holds beside them."""
    return {name: value for name, value in tensors.items() if not name.startswith(PREFIX)}
