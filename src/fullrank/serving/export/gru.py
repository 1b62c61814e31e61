"""A recurrence as one operator of an exported graph: ONNX has GRU, where a traced loop has nodes for each event.

The operator `fullrank::gru` keeps its weights as ONNX orders them: gates z, r, h (torch has r, z, n), and the biases of
input and state side by side.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

SCHEMA = "(Tensor x, Tensor inner, Tensor outer, Tensor bias) -> Tensor"


@torch.library.custom_op("fullrank::gru", mutates_args=(), schema=SCHEMA)
def gru(x: Tensor, inner: Tensor, outer: Tensor, bias: Tensor) -> Tensor:
    """One layer from a state of zeros: x [B, T, D], weights [3 H, D] and [3 H, H], bias [6 H] -> states [B, T, H]."""
    hidden = outer.shape[1]
    weights = [in_torch_order(part, hidden) for part in (inner, outer, *bias.chunk(2))]
    start = x.new_zeros(1, x.shape[0], hidden)
    y, _ = torch.gru(x, start, weights, True, 1, 0.0, False, False, True)
    return y.contiguous()


@gru.register_fake
def _(x: Tensor, inner: Tensor, outer: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], outer.shape[1])


def in_torch_order(gates: Tensor, hidden: int) -> Tensor:
    """z, r, h as r, z, n: the swap of the first two, which is its own inverse."""
    z, r, h = gates.split(hidden)
    return torch.cat([r, z, h])


class OneOperator(nn.Module):
    """An `nn.GRU` (one direction, batch first) of which every layer is one operator."""

    def __init__(self, made: nn.GRU):
        super().__init__()
        self.layers = made.num_layers
        for n in range(self.layers):
            inner, outer, first, second = (getattr(made, f"{name}_l{n}").detach() for name in NAMES)
            swapped = [in_torch_order(part, made.hidden_size) for part in (inner, outer, first, second)]
            self.register_buffer(f"inner_{n}", swapped[0])
            self.register_buffer(f"outer_{n}", swapped[1])
            self.register_buffer(f"bias_{n}", torch.cat(swapped[2:]))

    def forward(self, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T H"], None]:
        for n in range(self.layers):
            x = gru(x, *(getattr(self, f"{name}_{n}") for name in ("inner", "outer", "bias")))
        return x, None


NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
"""Parameters of a layer of `nn.GRU`."""


def translation() -> dict[Any, Any]:
    """What `torch.onnx.export` makes of the operator."""
    from onnxscript import opset20

    op: Any = opset20

    def gru_of_onnx(x: Any, inner: Any, outer: Any, bias: Any) -> Any:
        hidden = outer.shape[1]
        axis = op.Constant(value_ints=[0])
        y, _ = op.GRU(
            op.Transpose(x, perm=[1, 0, 2]), op.Unsqueeze(inner, axis), op.Unsqueeze(outer, axis),
            op.Unsqueeze(bias, axis), hidden_size=hidden, linear_before_reset=1,
        )  # fmt: skip
        return op.Transpose(op.Squeeze(y, op.Constant(value_ints=[1])), perm=[1, 0, 2])

    return {torch.ops.fullrank.gru.default: gru_of_onnx}


def with_operators(module: nn.Module) -> None:
    """Put `OneOperator` in the place of every GRU below a module."""
    for name, child in module.named_children():
        if isinstance(child, nn.GRU):
            setattr(module, name, OneOperator(child))
        else:
            with_operators(child)
