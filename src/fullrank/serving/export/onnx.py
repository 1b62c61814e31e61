"""ONNX graphs: written from a traced program, run by ONNX Runtime. Needs the extra `export`."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from fullrank.serving.export.graph import Graph, Traced, tracing

OPSET = 20
"""Version of the operators; ONNX Runtime reads it since 1.17."""


def require_onnx() -> None:
    """Name what is missing of the extra before minutes are spent on tracing."""
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401


def write_onnx(traced: Traced, graph: Graph, path: Path) -> None:
    """Write a program as model.onnx, with model.onnx.data beside it where a file of ONNX cannot hold the weights."""
    import onnx

    with tracing(), _silent():
        model = torch.onnx.export(
            traced.program, dynamo=True, opset_version=OPSET, input_names=[port.name for port in graph.inputs],
            output_names=[port.name for port in graph.outputs], verbose=False,
        )  # fmt: skip
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
        self.inputs = tuple(one.name for one in self.session.get_inputs())
        self.outputs = tuple(one.name for one in self.session.get_outputs())

    def __call__(self, given: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The outputs in order. An input that the graph does not read is left out."""
        found: Sequence[np.ndarray] = self.session.run(None, {name: given[name] for name in self.inputs})
        return [one.view(one.dtype.str) for one in found]  # its int64 is numpy's longlong, another type by name


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without what the exporter of torch prints and logs, which says nothing of this model."""
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
