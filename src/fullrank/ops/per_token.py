"""A network per token: the same function with other weights on each of T tokens, as a loop or as batched products.

A loop over tokens keeps one token's activations in cache: faster on a CPU. One batched product launches T times fewer
kernels: faster on a GPU. `per_token` chooses by the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

How = Literal["loop", "batched"]
Network = Callable[..., Tensor]
"""(x[..., B, D], *weights) -> [..., B, H]; with matrices [..., D, H] and biases [..., 1, H], built from `affine`."""


def per_token(
    network: Network, x: Float[Tensor, "B T D"], weights: Sequence[Tensor], how: How | None = None
) -> Float[Tensor, "B T H"]:
    """`network` on token t with `weights[...][t]`, for every t; `how` None is the faster one on x's device."""
    if how is None:
        how = "batched" if x.is_cuda else "loop"
    if how == "batched":
        return network(x.transpose(0, 1), *weights).transpose(0, 1)
    each = zip(x.unbind(1), *(weight.unbind(0) for weight in weights), strict=True)
    return torch.stack([network(*one) for one in each], 1)


def affine(x: Float[Tensor, "*T B D"], weight: Float[Tensor, "*T D H"], bias: Tensor | None) -> Float[Tensor, "*T B H"]:
    """x W + b, of one token or of all at once."""
    if bias is None:
        return x @ weight
    return torch.addmm(bias, x, weight) if x.ndim == 2 else torch.baddbmm(bias, x, weight)


def stack_of(tokens: int, inner: int, outer: int) -> torch.nn.Parameter:
    """[T, inner, outer] with the Xavier-normal values of one token's matrix (its fans, not those of the stack)."""
    weight = torch.empty(tokens, inner, outer)
    for matrix in weight:
        torch.nn.init.xavier_normal_(matrix)
    return torch.nn.Parameter(weight)


def biases(tokens: int, outer: int) -> torch.nn.Parameter:
    """[T, 1, outer] zeros."""
    return torch.nn.Parameter(torch.zeros(tokens, 1, outer))
