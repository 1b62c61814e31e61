"""The graph of a trained model: a module with named inputs and outputs, and one program traced of it.

The program is what `--to torch` writes, and what ONNX is made from: a graph that ONNX
Runtime runs (extra `export`).

Sizes that may change from call to call have a letter: B rows, T events of a history, X excluded
items, L values of a bag. Every other size is fixed when the graph is made.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.export._patches import register_gru_while_loop_decomposition

from fullrank.core.errors import UserError

EXAMPLE_ROWS = 3
"""Rows of the example that a graph is traced with.

Sizes of 0 and 1 would be taken for constants, and so would sizes that happen to be equal.
"""


@dataclass(frozen=True)
class Port:
    """One input or output of a graph."""

    name: str
    dtype: Literal["int64", "float32"]
    shape: tuple[str | int, ...]
    """Numbers are fixed sizes, letters those that may change."""
    meaning: str


@dataclass(frozen=True)
class Graph:
    """A module, what goes in and comes out, and an example of it."""

    module: nn.Module
    """``forward(*given)`` takes the inputs in order."""
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    example: tuple[Tensor, ...]
    """A tensor for each input, in order."""
    most: dict[str, int]
    """The largest size that a letter may stand for, where there is one."""


@dataclass(frozen=True)
class Traced:
    """A graph as `torch.export` traced it."""

    program: torch.export.ExportedProgram
    fixed: dict[str, int]
    """Letters whose size could not be left open, with the size that every call must have."""

    def fix(self, ports: Sequence[Port]) -> list[dict[str, Any]]:
        """The ports as plain data, with what is fixed written as a number."""
        return [asdict(port) | {"shape": [self.fixed.get(str(size), size) for size in port.shape]} for port in ports]


@contextmanager
def tracing() -> Iterator[None]:
    """Trace inside the block: without warnings and gradients, and with a GRU as one operator.

    Torch would unroll a GRU, which fixes its length.

    Also needed where a program becomes ONNX, which traces it once more.
    """
    with warnings.catch_warnings(action="ignore"), torch.no_grad(), register_gru_while_loop_decomposition():
        yield


def trace(graph: Graph) -> Traced:
    """The graph with every lettered size open; a size that the model cannot leave open is fixed at its largest.

    Raises `UserError` for a model whose answer depends on numbers in a way that no graph can hold.
    """
    reason: Exception | None = None
    for fixed in ({}, {letter: most for letter, most in graph.most.items() if most > 1}):
        try:
            with tracing():
                shapes = {"given": _open(graph, fixed)}
                return Traced(torch.export.export(graph.module, _example(graph, fixed), dynamic_shapes=shapes), fixed)
        except Exception as error:  # torch tells what it cannot trace by a dozen types of its own
            reason = error
    first_line = (str(reason).splitlines() or [type(reason).__name__])[0]
    raise UserError(
        f"this model cannot be traced into a graph ({first_line[:200]}); fullrank serve and recommend run it as it is",
        code="not-exportable",
    ) from reason


def _open(graph: Graph, fixed: dict[str, int]) -> tuple[dict[int, Any], ...]:
    letters = {size for port in graph.inputs for size in port.shape if isinstance(size, str)} - set(fixed)
    dims = {letter: torch.export.Dim(letter, min=1, max=graph.most.get(letter)) for letter in sorted(letters)}
    return tuple({at: dims[str(size)] for at, size in enumerate(port.shape) if size in dims} for port in graph.inputs)


def _example(graph: Graph, fixed: dict[str, int]) -> tuple[Tensor, ...]:
    """The example, padded to what is fixed."""
    padded = []
    for port, tensor in zip(graph.inputs, graph.example, strict=True):
        pad: list[int] = []
        for letter, size in zip(reversed(port.shape), reversed(tensor.shape), strict=True):
            pad += [0, fixed.get(str(letter), size) - size]
        padded.append(nn.functional.pad(tensor, pad))
    return tuple(padded)


OPSET = 20
"""Version of the operators; ONNX Runtime reads it since 1.17."""


def require_onnx() -> None:
    """Raise `ModuleNotFoundError` for a missing package before minutes are spent on tracing."""
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401


def write_onnx(traced: Traced, graph: Graph, path: Path) -> None:
    """Write a program as model.onnx, with model.onnx.data beside it where a file of
    ONNX cannot hold the weights."""
    import onnx

    with tracing(), _silent():
        model = torch.onnx.export(
            traced.program,
            dynamo=True,
            opset_version=OPSET,
            input_names=[port.name for port in graph.inputs],
            output_names=[port.name for port in graph.outputs],
            verbose=False,
        )
        assert model is not None
        model.save(path)
        onnx.checker.check_model(path)


class OnnxGraph:
    """A graph opened by ONNX Runtime on the CPU, with `threads` for each operator. Threads may share one."""

    def __init__(self, path: Path, threads: int = 1):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3  # errors; its warnings are of what it leaves out of a graph to be faster
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = tuple(port.name for port in self.session.get_inputs())
        self.outputs = tuple(port.name for port in self.session.get_outputs())

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The outputs in order. Inputs that the graph does not read are left out."""
        outputs: Sequence[np.ndarray] = self.session.run(None, {name: inputs[name] for name in self.inputs})
        return [
            output.view(output.dtype.str) for output in outputs
        ]  # its int64 is numpy's longlong, another type by name


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep quiet what the exporter of torch prints and logs, which says nothing of this model."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
