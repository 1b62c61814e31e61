"""When a kernel is chosen, and the kernels themselves: in Triton's interpreter, and compiled for two kinds of GPU."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from fullrank.ops import kernels
from fullrank.ops.kernels import block_of, chosen, errors_of, product_dtype, trusted
from unwrapped import run_cases

CUDA = torch.device("cuda", 0)
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton has no wheel for this system (it has one for Linux on x86-64)"
)


@pytest.mark.process
@needs_triton
def test_parity_in_the_interpreter() -> None:
    """In a process of its own also because Triton reads TRITON_INTERPRET when it is first imported."""
    assert run_cases("tests/ops/triton_cases.py", TRITON_INTERPRET="1") >= 25


@pytest.fixture
def possible(monkeypatch: pytest.MonkeyPatch) -> list:
    """As on a machine with a GPU, whose kernels are all trusted; what was asked for."""
    asked = []
    monkeypatch.setattr(kernels, "_possible", lambda device: True)
    monkeypatch.setattr(kernels, "trusted", lambda *given: asked.append(given) or True)
    return asked


def test_a_kernel_is_chosen_on_cuda_alone(possible: list, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen("triton_log_sum_exp", CUDA, torch.bfloat16, 50, most=256)
    assert possible == [("triton_log_sum_exp", CUDA, torch.bfloat16, (64,))]
    assert not chosen("triton_log_sum_exp", torch.device("cpu"), torch.bfloat16, 50, most=256)
    assert not chosen("triton_log_sum_exp", CUDA, torch.bfloat16, 257, most=256)
    assert not chosen("triton_log_sum_exp", CUDA, torch.bfloat16, 0, most=256)
    assert not chosen("triton_log_sum_exp", CUDA, torch.float64, 50, most=256)
    monkeypatch.setenv("FULLRANK_TRITON", "0")
    assert not chosen("triton_log_sum_exp", CUDA, torch.bfloat16, 50, most=256)
    assert len(possible) == 1


def test_a_kernel_that_fails_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> dict:
        raise RuntimeError("out of shared memory")

    def wrong(*_: object) -> dict:
        return {"output 0": 0.0, "gradient 1": float("nan"), "gradient 2": 0.5}

    def right(*_: object) -> dict:
        return {"output 0": 1e-6}

    for name, found, told in (("a", broken, "shared memory"), ("b", wrong, "gradient 1"), ("c", right, None)):
        monkeypatch.setattr(kernels, "trial", lambda _, found=found: found)
        with caplog.at_level("WARNING", logger="fullrank"):
            caplog.clear()
            assert trusted(name, torch.device("cpu"), torch.float32, (16,)) == (told is None)
        assert (told is None and not caplog.records) or (told and any(told in r.getMessage() for r in caplog.records))


def test_blocks_and_dtypes() -> None:
    assert [block_of(n) for n in (1, 16, 17, 64, 65)] == [16, 16, 32, 64, 128]
    x = torch.zeros(2)
    assert product_dtype(x) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert product_dtype(x) == torch.bfloat16


def test_errors_are_those_of_values_and_gradients() -> None:
    x = torch.linspace(1, 2, 5)
    same = errors_of(lambda a: (a * a,), lambda a: (a.square(),), [x])
    assert same == {"output 0": 0.0, "gradient 0": pytest.approx(0.0, abs=1e-6)}
    shifted = errors_of(lambda a: (a * a + 0.4,), lambda a: (a.square(),), [x])
    assert shifted["output 0"] == pytest.approx(0.1) and shifted["gradient 0"] < 1e-6
    detached = errors_of(lambda a: (a * a.detach(),), lambda a: (a.square(),), [x])
    assert detached["output 0"] == 0 and detached["gradient 0"] == pytest.approx(0.5)


COMPILE = """
import json, sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fullrank.ops import triton_column_attention as columns, triton_log_sum_exp as lse, triton_silu_attention as silu

BF16 = {"x", "w", "q", "k", "v", "a", "b", "d_out", "dq", "dk", "dv"}
SCALARS = {"m": "i32", "n": "i32", "width": "i32", "part": "i32", "t": "i32", "e": "i32", "f": "i32", "heads": "i32",
           "scale": "fp32"}
SIZES = {"BLOCK_T": 64, "BLOCK_E": 32, "BLOCK_F": 32, "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_V": 64, "BLOCK_D": 64}
found = {}
for module in (lse, columns, silu):
    for name, kernel in vars(module).items():
        if not (isinstance(kernel, triton.JITFunction) and kernel.module == module.__name__):
            continue
        names = kernel.arg_names
        if not any(n.startswith("BLOCK") for n in names):
            continue  # a part of others
        fixed = {n: {"CAUSAL": True, "OF_ROWS": False, "DTYPE": tl.bfloat16, **SIZES}[n]
                 for n in names if n.isupper()}
        signature = {n: "constexpr" if n in fixed else "*i8" if n == "valid"
                     else SCALARS[n] if n in SCALARS and not (module is not lse and n in BF16)
                     else "*bf16" if n in BF16 else "*fp32" for n in names}
        if module is lse:
            signature["out"] = "*fp32"
            signature |= {n: "i32" for n in names if n == "v"}
        else:
            signature |= {"out": "*bf16" if module is columns else "*fp32"} if "out" in names else {}
        source = ASTSource(kernel, signature, {(names.index(n),): value for n, value in fixed.items()})
        made = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options={"num_warps": 8})
        found[module.__name__ + name] = made.metadata.shared
print(json.dumps(found))
"""


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(("capability", "shared"), [(80, 163 << 10), (90, 227 << 10)])
def test_they_compile_for_a_gpu_that_is_not_here(capability: int, shared: int) -> None:
    """To the machine code of Ampere and of Hopper, within the shared memory that a program may have there."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(capability)], capture_output=True, text=True, timeout=500, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(found) == 9 and max(found.values()) < shared, found
