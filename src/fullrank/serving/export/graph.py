"""The graph of a trained model: a module with named inputs and outputs, and one program traced of it.

The program is what `--to torch` writes, and what ONNX is made from.

Sizes that may change from call to call have a letter: B rows, T events of a history, X excluded items, L values of a
bag. Every other size is fixed when the graph is made.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export._patches import register_gru_while_loop_decomposition

from fullrank.core.errors import UserError

EXAMPLE_ROWS = 3
"""Rows of the example that a graph is traced with. Sizes of 0 and 1 would be taken for constants, and so would sizes
that happen to be equal."""


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
    """One for each input, in order."""
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
    """Quiet, without gradients, and with a GRU as one operator: torch would unroll it, which fixes its length.

    For all that traces: what makes ONNX of a program does it again.
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
    found = []
    for port, tensor in zip(graph.inputs, graph.example, strict=True):
        pad: list[int] = []
        for letter, size in zip(reversed(port.shape), reversed(tensor.shape), strict=True):
            pad += [0, fixed.get(str(letter), size) - size]
        found.append(nn.functional.pad(tensor, pad))
    return tuple(found)
