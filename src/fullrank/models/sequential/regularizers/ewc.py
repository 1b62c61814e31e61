"""Elastic weight consolidation: weights that mattered stay where they were (Kirkpatrick et al., PNAS 2017).

weight * sum_k F_k (theta_k - theta*_k)^2 over all parameters that are trained (Eq. 3, without its
factor 1/2, as SRT's authors fine-tune: SIGIR 2024, Sec. 4.5, weight 100). `fullrank fisher RUN`
writes theta*, the weights of a run, and F, the mean over its training batches of the squared
gradient. Without such a file all F are 1 and theta* is where training started: L2-SP (Li et al.,
ICML 2018, Eq. 4), which asks for a smaller weight.

Differs: F is the squared gradient of a batch's mean loss, as in SRT's code, not the mean of
squared gradients of examples.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import PositiveFactor
from fullrank.core.errors import UserError
from fullrank.core.tensor_files import read_tensors
from fullrank.data.manifest import damaged_file
from fullrank.models import Step
from fullrank.models.sequential.regularizers import Penalty, PenaltySpec

FISHER, START = "fisher.", "weights."
"""Prefixes of the names of a file's tensors: F and theta* of each parameter."""


class EWC(PenaltySpec):
    """Elastic weight consolidation."""

    kind: Literal["ewc"] = "ewc"
    weight: PositiveFactor = 100.0
    """Factor of the sum."""
    fisher: str | None = None
    """A file that `fullrank fisher` wrote; null weighs all parameters alike (L2-SP)."""

    def build(self) -> EWCPenalty:
        return EWCPenalty(self)


class EWCPenalty(Penalty):
    """Reads theta* and F in `begin`: a run that only answers needs no file."""

    def __init__(self, spec: EWC):
        super().__init__()
        self.weight, self.path = spec.weight, spec.fisher
        self.reads_start = spec.fisher is None
        # no buffers: weights.safetensors of a run would hold the model three times
        self._start: dict[str, Tensor] | None = None
        self._fisher: dict[str, Tensor] = {}

    def begin(self, model: nn.Module) -> None:
        parameters = dict(model.named_parameters())
        if self.path is None:
            self._start, self._fisher = {name: p.detach().clone() for name, p in parameters.items()}, {}
            return
        path = Path(self.path)
        tensors = read_tensors(path)
        self._start = _of_model(tensors, START, parameters, path)
        self._fisher = _of_model(tensors, FISHER, parameters, path)
        if any(bool((values < 0).any()) for values in self._fisher.values()):
            raise damaged_file(path, "it holds squares below 0", "make it anew with `fullrank fisher`")

    def forward(self, step: Step) -> Float[Tensor, ""]:
        if self._start is None:
            self.begin(step.model)
        assert self._start is not None
        total = next(step.model.parameters()).new_zeros((), dtype=torch.float32)
        for name, parameter in step.model.named_parameters():
            if not parameter.requires_grad:  # it stays where it is
                continue
            for tensors in (self._start, self._fisher):
                if name in tensors:
                    tensors[name] = tensors[name].to(parameter.device)
            moved = (parameter.float() - self._start[name]).square()
            total = total + (moved * self._fisher[name] if self._fisher else moved).sum()
        return self.weight * total


def _of_model(
    tensors: dict[str, Tensor], prefix: str, parameters: dict[str, nn.Parameter], path: Path
) -> dict[str, Tensor]:
    """The file's tensors of one kind, by parameter. Raises `UserError`
    where they are another model's."""
    numbers: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        tensor = tensors.get(prefix + name)
        if tensor is None or tensor.shape != parameter.shape or not bool(tensor.isfinite().all()):
            holds = "no numbers" if tensor is None else f"numbers of shape {tuple(tensor.shape)}, or not finite ones,"
            raise UserError(
                f"{path} has {holds} for the parameter {name!r} of shape {tuple(parameter.shape)}: it has to be made "
                "by `fullrank fisher` of a run with the same model and, unless they are made of text, the same items",
                code="fisher-of-other-model",
            )
        numbers[name] = tensor.float()
    return numbers
