"""A fast op against its reference: what it gives, and the gradients of that."""

from collections.abc import Callable

import torch
from torch import Tensor


def leaves(*shapes: tuple, dtype: torch.dtype = torch.float) -> list:
    """Normal numbers of these shapes, the same each time, that gradients are taken of."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw, dtype=dtype).requires_grad_() for shape in shapes]


def attention_case(b: int, h: int, t: int, e: int, f: int) -> list:
    """Queries and keys of width e, values of width f, and which of t events are no padding."""
    lengths = torch.arange(t, 0, -max(1, t // b))[:b]
    return [*leaves((b, h, t, e), (b, h, t, e), (b, h, t, f)), torch.arange(t) < lengths[:, None]]


def values_and_gradients(op, *inputs: Tensor | None, differentiated: int | None = None, **settings) -> list:
    """What `op` gives, and the inputs' gradients for drawn upstream ones of its first outputs."""
    outputs = op(*inputs, **settings)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    leaves = [x for x in inputs if x is not None and x.requires_grad]
    draw = torch.Generator().manual_seed(9)
    upstream = [torch.randn(y.shape, generator=draw).to(y) for y in outputs[:differentiated]]
    pulled = sum((y * u).sum() for y, u in zip(outputs, upstream, strict=False))
    return [*outputs, *torch.autograd.grad(pulled, leaves, allow_unused=True, materialize_grads=True)]


def assert_alike(fast, slow, *inputs: Tensor | None, rtol=None, atol=None, **settings) -> None:
    """Two ops give the same values and gradients, within these tolerances or what torch takes for rounding."""
    found, wanted = (values_and_gradients(op, *inputs, **settings) for op in (fast, slow))
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


def kept_floats(forward: Callable) -> int:
    """Numbers that a forward pass keeps for its backward pass."""
    kept = {}

    def note(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().size() // 4
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        forward()
    return sum(kept.values())
