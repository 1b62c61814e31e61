"""FLOPs of matrix products, as torch's counter finds them: of shapes alone before anything runs, or of a real run.

Two operations for each multiplication with its addition; element-wise work, norms, softmax and look-ups count nothing.

    forward_flops(module, x)    # {"": 0, "up": 512, "down": 512}: nothing is computed, x is on the meta device
    counted(lambda: module(x))  # 1024, while it runs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from fullrank.core.log import logger

log = logger(__name__)

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
PICKED = torch.ops.aten._embedding_bag_per_sample_weights_backward


def counted(run: Callable[[], object]) -> int:
    """The operations of everything that `run` computes."""
    with _counter() as counter:
        run()
    return int(counter.get_total_flops())


def forward_flops(module: nn.Module, *inputs: object) -> dict[str, int] | None:
    """FLOPs of `module(*inputs)` by the path of the submodule that computes them, "" for the module's own.

    Tensors of `inputs` are on the meta device; parameters and buffers take part as shapes, so nothing is copied or
    computed. Every submodule that runs has an entry, in the order of entering, perhaps 0.
    None, with a warning, where the module cannot run on shapes: it looks at values, or keeps tensors that are neither
    parameters nor buffers.
    """
    # one dtype for all, since the count does not depend on it and a meta tensor of another does not multiply with it
    state = {
        name: torch.empty_like(x, device="meta", dtype=torch.float32 if x.is_floating_point() else None)
        for name, x in [*module.named_parameters(), *module.named_buffers()]
    }
    paths = {part: path for path, part in module.named_modules()}
    found: dict[str, int] = {}
    running: list[str] = []
    before = 0

    def charge() -> None:
        """Give what was counted since the last call to the innermost module that runs."""
        nonlocal before
        now = int(counter.get_total_flops())
        if running:
            found[running[-1]] += now - before
        before = now

    def enter(part: nn.Module, _: object) -> None:
        charge()
        running.append(paths[part])
        found.setdefault(paths[part], 0)

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
    return found


def by_part(flops: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    """FLOPs by path, summed by the part that `names` gives the module or the nearest one around it.

    A `*` stands for one element of a path, and in the name for what it is: `{"blocks.*": "block_*"}`. The name of `""`
    (`other` without one) is for all other modules; it comes last, where it has any.
    """
    found: dict[str, int] = {}
    rest = 0
    for path, count in flops.items():
        part = _part_of(path, names)
        if part is None:
            rest += count
        else:
            found[part] = found.get(part, 0) + count
    if rest:
        name = names.get("", "other")
        found[name] = found.get(name, 0) + rest
    return found


def _part_of(path: str, names: Mapping[str, str]) -> str | None:
    place = path.split(".")
    for depth in range(len(place), 0, -1):
        for pattern, part in names.items():
            keys = pattern.split(".")
            if pattern and len(keys) == depth and all(k in ("*", at) for k, at in zip(keys, place, strict=False)):
                return part.replace("*", place[keys.index("*")]) if "*" in part else part
    return None


def _counter() -> FlopCounterMode:
    return FlopCounterMode(display=False, custom_mapping={FUSED: _fused, PICKED: _picked})


def _fused(q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """The fused attention of the CPU, which torch's counter does not know, in its convention: the whole square."""
    return int(sdpa_flop_count(q, k, v))


def _picked(queries: Any, table: Any, places: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """`fullrank.ops.picked_dots`: the product of a query with each row that was picked for it."""
    return 2 * int(places[0]) * int(table[1])
