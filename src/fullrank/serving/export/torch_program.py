"""Torch programs (.pt2): the graph as `torch.export` saves it, for torch alone, in Python or by AOTInductor in C++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from fullrank.core.files import open_whole
from fullrank.serving.export.graph import Graph, Traced, trace

FILE = "model.pt2"


def write_program(graph: Graph, folder: Path) -> Traced:
    """Write model.pt2. Raises `UserError` where the model cannot be traced."""
    traced = trace(graph)
    traced.program.example_inputs = None  # the archive would hold it as a pickle, and nothing reads it
    with open_whole(folder / FILE) as file:
        torch.export.save(traced.program, file)
    return traced


class TorchGraph:
    """A program that was written by `write_program`, loaded again."""

    def __init__(self, path: Path, inputs: Sequence[str]):
        self.module = torch.export.load(path).module()
        self.inputs = tuple(inputs)

    def __call__(self, given: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The outputs in order."""
        with torch.inference_mode():
            return [one.numpy() for one in self.module(*(torch.from_numpy(given[name]) for name in self.inputs))]
