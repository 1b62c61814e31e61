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

from fullrank.serving.export.graph import Graph, Traced, trace
from fullrank.serving.export.gru import translation, with_operators

OPSET = 20
"""Version of the operators; ONNX Runtime reads it since 1.17."""
FILE, WEIGHTS = "model.onnx", "model.onnx.data"
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
