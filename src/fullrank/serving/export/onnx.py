"""ONNX graphs: written from a traced module, run by ONNX Runtime. Needs the extra `export`."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.serving.export.graph import Graph, Traced, trace

OPSET = 20
"""Version of the operators; ONNX Runtime reads it since 1.17."""
FILE = "model.onnx"
LARGEST = 1 << 30
"""Bytes of weights above which they lie in a file of their own: a file of ONNX cannot have 2 GiB."""


def write_onnx(graph: Graph, folder: Path) -> Traced:
    """Write model.onnx (and model.onnx.data of a large model). Raises `UserError` where the model cannot be traced."""
    import onnx
    import onnxruntime  # noqa: F401  # what is missing is named before minutes are spent on tracing
    import onnxscript  # noqa: F401

    with_operators(graph.module)
    traced = trace(graph)
    with _silent():
        made = torch.onnx.export(
            traced.program, dynamo=True, opset_version=OPSET, input_names=[port.name for port in graph.inputs],
            output_names=[port.name for port in graph.outputs], custom_translation_table=translation(), verbose=False,
        )  # fmt: skip
        assert made is not None
        weights = sum(tensor.nbytes for tensor in graph.module.state_dict().values())
        made.save(folder / FILE, external_data=weights > LARGEST)
        onnx.checker.check_model(folder / FILE)
    return traced


class OnnxGraph:
    """A graph opened by ONNX Runtime on the CPU, with `threads` for each operator. Threads may share one."""

    def __init__(self, path: Path, threads: int = 1):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3  # errors; its warnings are of what it leaves out of a graph to be faster
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = tuple(one.name for one in self.session.get_inputs())
        self.outputs = tuple(one.name for one in self.session.get_outputs())

    def __call__(self, given: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The outputs in order. An input that the graph does not read is left out."""
        found: Sequence[np.ndarray] = self.session.run(None, {name: given[name] for name in self.inputs})
        return [one.view(one.dtype.str) for one in found]  # its int64 is numpy's longlong, another type by name


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without what the exporter of torch prints and warns of, which says nothing of this model."""
    loggers: list[Any] = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [one.level for one in loggers]
    try:
        for one in loggers:
            one.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


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
