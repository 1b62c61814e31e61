"""Models that are larger than the memory are refused before memory is taken for them.

Counted are weights, and to train them gradients and the moments of the optimiser: by shapes alone, on torch's meta
device. Activations come on top; they grow with the batch, and are not known before a step has run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fullrank.core.errors import UserError
from fullrank.core.memory import available_bytes, gibibytes

CODE = "model-too-large"
REMEDY = "make its width, its layers or its longest history smaller, or the catalogue"
TRAINED = 4
"""Copies of a weight in training: itself, its gradient, and AdamW's two moments."""
M = TypeVar("M")
_MAKERS = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn})


def build_to_train(
    build: Callable[[], M], device: torch.device | str = "cpu", by_row: Callable[[M], list[nn.Parameter]] | None = None
) -> M:
    """What `build` makes. Raises `UserError` with the size where training it needs more memory than `device` has free.

    `by_row` are its tables of which a step touches some rows, so that no gradient has their size. What `build` makes by
    looking at values cannot be counted in advance: its weights alone are watched while they are made.
    """
    free = _free(torch.device(device))
    if free is None:
        return build()
    try:
        with torch.device("meta"):
            shapes = build()
    except UserError:
        raise
    except (RuntimeError, TypeError, ValueError):
        return build_within(build, free // TRAINED)
    if isinstance(shapes, nn.Module):
        rows = {id(p) for p in (by_row(shapes) if by_row is not None else [])}
        needed = sum(_bytes(p) * _copies(p, rows) for p in shapes.parameters()) + sum(map(_bytes, shapes.buffers()))
        if needed > free:
            count = sum(p.numel() for p in shapes.parameters())
            raise UserError(
                f"the model has {count:,} parameters: its weights, gradients and the moments of the optimiser take "
                f"{gibibytes(needed)} (activations come on top), and {gibibytes(free)} of memory are free; {REMEDY}",
                code=CODE,
            )
    return build()


def build_within(build: Callable[[], M], most: int, what: str = "the model") -> M:
    """What `build` makes. Raises `UserError` before its tensors take more than `most` bytes."""
    with _Within(most, what):
        return build()


class _Within(TorchFunctionMode):
    """Adds up what is asked for, before it is made."""

    def __init__(self, most: int, what: str):
        super().__init__()
        self.most, self.left, self.what = most, most, what

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _MAKERS:
            sizes = kwargs.get("size", args[0] if args and isinstance(args[0], list | tuple) else args)
            width = kwargs.get("dtype") or torch.get_default_dtype()
            self.left -= math.prod(int(one) for one in sizes) * width.itemsize
            if self.left < 0:
                raise UserError(
                    f"{self.what} takes more than {gibibytes(self.most)} of memory, which is all that it may; {REMEDY}",
                    code=CODE,
                )
        return func(*args, **kwargs)


def _copies(parameter: nn.Parameter, rows: set[int]) -> int:
    return (TRAINED - (id(parameter) in rows)) if parameter.requires_grad else 1


def _free(device: torch.device) -> int | None:
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else available_bytes()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
