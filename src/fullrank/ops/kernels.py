"""When a Triton kernel takes the place of an op's own code: on a CUDA device, and once it has shown that it is right.

A kernel is tried on small generated tensors the first time that a process meets its device, dtype
and width: values and gradients have to be those of the op's reference. Where they are not, or the
kernel does not compile, one warning says so and the op's own code goes on computing. The
environment variable ``FULLRANK_TRITON=0`` leaves all kernels out.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from fullrank.core.log import logger

log = logger(__name__)

NAMES = ("triton_log_sum_exp", "triton_column_attention", "triton_silu_attention")
"""Triton kernels: each a function of the module of its name, beside its trial ``NAME_errors``."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes whose products a kernel may make."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Largest distance from the reference, as a share of the reference's largest entry."""
LEAST_BLOCK = 16
"""Rows or columns of the smallest matrix product that a GPU's tensor cores take."""
MOST_HEAD = {2: 128, 4: 64}
"""Widest head that a kernel of attention takes, by the bytes of a number: blocks of them have to fit shared memory."""
AMPERE = (8, 0)
"""The oldest compute capability whose tensor cores multiply bf16."""


def chosen(name: str, device: torch.device, dtype: torch.dtype, *widths: int, most: int) -> bool:
    """Whether the kernel `name` is there for this device, dtype of products and widths (none above `most`)."""
    if device.type != "cuda" or dtype not in DTYPES or not 0 < min(widths) <= max(widths) <= most:
        return False
    if torch.compiler.is_exporting() or os.environ.get("FULLRANK_TRITON") == "0" or not _possible(device):
        return False
    return trusted(name, device, dtype, tuple(block_of(width) for width in widths))


def chosen_for_heads(name: str, q: Tensor, v: Tensor) -> bool:
    """Whether a kernel of attention is there for heads of these queries and values."""
    dtype = product_dtype(q)
    most = MOST_HEAD.get(dtype.itemsize, 0)
    return chosen(name, q.device, dtype, q.shape[3], v.shape[3], most=most) and q.numel() > 0


@cache
def kernel(name: str) -> Callable[..., Any]:
    """The kernel's function, into which torch.compile does not look."""
    return torch.compiler.disable(getattr(_module(name), name))


def trial(name: str) -> Callable[..., dict[str, float]]:
    """The function ``NAME_errors(device, dtype, blocks, sizes)``: how far the kernel is from its reference."""
    return getattr(_module(name), f"{name}_errors")


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products of this tensor: autocast's where it is on, else the tensor's own."""
    kind = x.device.type
    if kind == "meta":  # shapes alone, where FLOPs are counted: autocast does not know the device
        return x.dtype
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def multiplies_bf16(device: torch.device) -> bool:
    """Whether products of bf16 are quicker than of fp32: the tensor cores of Ampere and later, AMX tiles of a CPU.

    The environment variable ``FULLRANK_BF16=0`` says no for all devices.
    """
    if os.environ.get("FULLRANK_BF16") == "0":
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= AMPERE
    return device.type == "cpu" and bool(_processor().get("amx_bf16"))


@cache
def _processor() -> dict[str, Any]:
    """The processor's flags and caches; none from a PyTorch that cannot read them."""
    return getattr(torch.cpu, "get_capabilities", dict)()


def block_of(width: int) -> int:
    """The least power of two that holds this width and that a matrix product takes."""
    return max(LEAST_BLOCK, 1 << (width - 1).bit_length())


def interpreting() -> bool:
    """Whether Triton runs kernels in its interpreter, on the CPU
    (``TRITON_INTERPRET=1`` when it was imported)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def triton_dtype(dtype: torch.dtype) -> Any:
    """Triton's name of the dtype that matrix products read.

    The interpreter multiplies the bits of bf16 as integers, so there they are widened first.
    """
    import triton.language as tl

    names = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    return tl.float32 if interpreting() else names[dtype]


@torch.compiler.disable
@cache
def trusted(name: str, device: torch.device, dtype: torch.dtype, blocks: tuple[int, ...]) -> bool:
    """Whether the kernel gives what its reference gives, here and now; a warning says where it does not."""
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False), _full_products():
            errors = trial(name)(device, dtype, blocks)
    except Exception as error:  # whatever a compiler or a driver raises: the op has code that needs neither
        log.warning("the kernel %s does not run here, so the op's own code does: %s", name, error)
        return False
    # not `>`: a NaN is wrong too
    wrong = {output: distance for output, distance in errors.items() if not distance <= TOLERANCE[dtype]}
    for output, distance in wrong.items():
        log.warning("the kernel %s is off by %.2g in its %s: the op's own code computes", name, distance, output)
    return not wrong


def errors_of(
    ours: Callable[..., tuple[Tensor, ...]],
    reference: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    seed: int = 0,
) -> dict[str, float]:
    """Distance of each output, and of each input's gradient of a weighted sum of the outputs, from the reference's.

    The reference gets the same numbers in fp32. A distance is the largest absolute one, over the
    largest absolute entry of the reference (or over one, where that is smaller than a thousandth).
    """
    computed, expected = (
        _outputs_and_gradients(f, x, seed) for f, x in ((ours, inputs), (reference, [x.float() for x in inputs]))
    )
    errors = {}
    for at, (a, b) in enumerate(zip(computed, expected, strict=True)):
        name = f"output {at}" if at < len(computed) - len(inputs) else f"gradient {at - len(computed) + len(inputs)}"
        if b.numel():
            scale = float(b.abs().max())
            errors[name] = float((a.float() - b).abs().max()) / (scale if scale > 1e-3 else 1.0)
    return errors


def _outputs_and_gradients(
    function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], seed: int
) -> list[Tensor]:
    """The outputs of a function, then the gradients of its inputs
    under random upstream gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    generator = torch.Generator().manual_seed(seed)
    # drawn on the CPU, so that a seed means the same on every device
    upstream = [torch.randn(y.shape, generator=generator).to(y.device, y.dtype) for y in outputs]
    loss = torch.stack([(y * g).float().sum() for y, g in zip(outputs, upstream, strict=True)]).sum()
    return [*(y.detach() for y in outputs), *torch.autograd.grad(loss, leaves)]


def _module(name: str) -> Any:
    return importlib.import_module(f"fullrank.ops.{name}")


@contextmanager
def _full_products() -> Iterator[None]:
    """Let the reference multiply in fp32, whatever was allowed to be less."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@cache
def _possible(device: torch.device) -> bool:
    """Whether Triton is installed and this is a device of NVIDIA's Ampere or later."""
    return (
        find_spec("triton") is not None
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= AMPERE
    )
