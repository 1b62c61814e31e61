"""The cost of a model before it is paid: FLOPs of its matrix products, and the memory that it takes.

FLOPs are counted as torch's counter finds them, of shapes alone before anything runs, or of a real
run. Two operations for each multiplication with its addition; element-wise work, norms, softmax
and look-ups count nothing.

    forward_flops(module, x)    # {"": 0, "up": 512, "down": 512}: nothing is computed, x is on the meta device
    counted(lambda: module(x))  # 1024, while it runs

Models that are larger than the memory are refused before memory is taken for them. Counted
are weights, and to train them gradients and the moments of the optimiser: by shapes alone,
on torch's meta device. Activations come on top; they grow with the batch, and are not
known before a step has run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.core.memory import available_bytes, gibibytes

log = logger(__name__)

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""Called by `F.scaled_dot_product_attention` on a CPU."""
PICKED = torch.ops.aten._embedding_bag_per_sample_weights_backward
"""Called by `ops.picked_rows`."""


def counted(run: Callable[[], object]) -> int:
    """The operations of everything that `run` computes."""
    with _counter() as counter:
        run()
    return int(counter.get_total_flops())


def forward_flops(module: nn.Module, *inputs: object) -> dict[str, int] | None:
    """FLOPs of `module(*inputs)` by the path of the submodule that computes them, "" for the module's own.

    Tensors of `inputs` are on the meta device; parameters and buffers take part as shapes, so
    nothing is copied or computed. Every submodule that runs has an entry, in the order of entering,
    perhaps 0. None, with a warning, where the module cannot run on shapes: it looks at values, or
    keeps tensors that are neither parameters nor buffers.
    """
    # one dtype for all, since the count does not depend on it and a meta tensor of another
    # does not multiply with it
    state = {
        name: torch.empty_like(x, device="meta", dtype=torch.float32 if x.is_floating_point() else None)
        for name, x in [*module.named_parameters(), *module.named_buffers()]
    }
    paths = {part: path for path, part in module.named_modules()}
    flops: dict[str, int] = {}
    running: list[str] = []
    before = 0

    def charge() -> None:
        """Give what was counted since the last call to the innermost module that runs."""
        nonlocal before
        now = int(counter.get_total_flops())
        if running:
            flops[running[-1]] += now - before
        before = now

    def enter(part: nn.Module, _: object) -> None:
        charge()
        running.append(paths[part])
        flops.setdefault(paths[part], 0)

    def leave(*_: object) -> None:
        charge()
        running.pop()

    counter = _counter()
    handles = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
    try:
        with counter, torch.no_grad():
            functional_call(module, state, inputs)
    except RuntimeError as error:  # torch's for an operation that needs numbers; NotImplementedError is one
        log.warning("the FLOPs of %s are not counted, it does not run on shapes: %s", type(module).__name__, error)
        return None
    finally:
        for handle in handles:
            handle.remove()
    return flops


def by_part(flops: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    """FLOPs by path, summed by the part that `names` gives the module or the nearest one around it.

    A `*` stands for one element of a path, and in the name for what it is: `{"blocks.*":
    "block_*"}`. The name of `""` (`other` without one) is for all other modules; it
    comes last, where it has any.
    """
    totals: dict[str, int] = {}
    rest = 0
    for path, count in flops.items():
        part = _part_of(path, names)
        if part is None:
            rest += count
        else:
            totals[part] = totals.get(part, 0) + count
    if rest:
        name = names.get("", "other")
        totals[name] = totals.get(name, 0) + rest
    return totals


def _part_of(path: str, names: Mapping[str, str]) -> str | None:
    """The part that the nearest pattern up this path names; None where no pattern is there."""
    steps = path.split(".")
    for depth in range(len(steps), 0, -1):
        for pattern, part in names.items():
            keys = pattern.split(".")
            if pattern and len(keys) == depth and all(k in ("*", at) for k, at in zip(keys, steps, strict=False)):
                return part.replace("*", steps[keys.index("*")]) if "*" in part else part
    return None


def _counter() -> FlopCounterMode:
    """Torch's counter, with two operations of ours that it does not know."""
    return FlopCounterMode(display=False, custom_mapping={FUSED: _fused_flops, PICKED: _picked_flops})


def _fused_flops(q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """The fused attention of the CPU, which torch's counter does not know, in its
    convention: the whole square."""
    return int(sdpa_flop_count(q, k, v))


def _picked_flops(queries: Any, table: Any, places: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """`fullrank.ops.picked_rows`: the product of a query with each row that was picked for it."""
    return 2 * int(places[0]) * int(table[1])


CODE = "model-too-large"
REMEDY = "make its width, its layers or its longest history smaller, or the catalogue"
TRAINED = 4
"""Copies of a weight in training: itself, its gradient, and AdamW's two moments."""
M = TypeVar("M")
_MAKERS = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn})
"""Functions of torch that take memory for a new tensor."""


def build_to_train(
    build: Callable[[], M], device: torch.device | str = "cpu", by_row: Callable[[M], list[nn.Parameter]] | None = None
) -> M:
    """Call `build`. Raises `UserError` where training its model needs more than the free memory of `device`.

    `by_row` are its tables of which a step touches some rows, so that no gradient has their size. A
    model that `build` makes by looking at values cannot be counted in advance: its weights alone
    are watched while they are made.
    """
    device = torch.device(device)
    free = int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else available_bytes()
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
        needed = sum(map(_bytes, shapes.buffers()))
        for p in shapes.parameters():
            needed += _bytes(p) * (TRAINED - (id(p) in rows) if p.requires_grad else 1)
        if needed > free:
            count = sum(p.numel() for p in shapes.parameters())
            raise UserError(
                f"the model has {count:,} parameters: its weights, gradients and the moments of the optimiser take "
                f"{gibibytes(needed)} (activations come on top), and {gibibytes(free)} of memory are free; {REMEDY}",
                code=CODE,
            )
    return build()


def build_within(build: Callable[[], M], most: int, what: str = "the model") -> M:
    """Call `build`. Raises `UserError` before its tensors take more than `most` bytes."""
    with _MemoryLimit(most, what):
        return build()


class _MemoryLimit(TorchFunctionMode):
    """Adds up the bytes of each tensor before torch makes it."""

    def __init__(self, most: int, what: str):
        super().__init__()
        self.most, self.left, self.what = most, most, what

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _MAKERS:
            sizes = kwargs.get("size", args[0] if args and isinstance(args[0], list | tuple) else args)
            width = kwargs.get("dtype") or torch.get_default_dtype()
            self.left -= math.prod(int(size) for size in sizes) * width.itemsize
            if self.left < 0:
                raise UserError(
                    f"{self.what} takes more than {gibibytes(self.most)} of memory, which is all that it may; {REMEDY}",
                    code=CODE,
                )
        return func(*args, **kwargs)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
