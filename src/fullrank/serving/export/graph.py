"""The graph of a trained model: one module with named inputs and outputs, which ONNX and torch programs are made of.

Sizes that may change from call to call have a letter: B rows, T events of a history, X excluded items, L values of a
bag. Every other size is fixed when the graph is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

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
        return [asdict(port) | {"shape": [self.fixed.get(str(one), one) for one in port.shape]} for port in ports]


def trace(graph: Graph) -> Traced:
    """The graph with every lettered size open; a size that the model cannot leave open is fixed at its largest.

    Raises `UserError` for a model whose answer depends on numbers in a way that no graph can hold.
    """
    bounded = {letter: most for letter, most in graph.most.items() if most > 1}
    attempts = [bounded, dict[str, int]()] if bounded else [{}]
    while True:
        fixed = attempts.pop()
        try:
            with torch.no_grad():
                program = torch.export.export(
                    graph.module, _example(graph, fixed), dynamic_shapes={"given": _open(graph, fixed)}
                )
            return Traced(program, fixed)
        except Exception as error:  # torch tells what it cannot trace by a dozen types of its own
            if attempts:
                continue
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"this model cannot be traced into a graph ({reason[:200]}); fullrank serve and recommend run it "
                "as it is",
                code="not-exportable",
            ) from error


def _open(graph: Graph, fixed: dict[str, int]) -> tuple[dict[int, Any], ...]:
    letters = {one for port in graph.inputs for one in port.shape if isinstance(one, str)} - set(fixed)
    dims = {letter: torch.export.Dim(letter, min=1, max=graph.most.get(letter)) for letter in sorted(letters)}
    return tuple({at: dims[str(one)] for at, one in enumerate(port.shape) if one in dims} for port in graph.inputs)


def _example(graph: Graph, fixed: dict[str, int]) -> tuple[Tensor, ...]:
    """The example, padded to what is fixed."""
    found = []
    for port, tensor in zip(graph.inputs, graph.example, strict=True):
        pad: list[int] = []
        for letter, size in zip(reversed(port.shape), reversed(tensor.shape), strict=True):
            pad += [0, fixed.get(str(letter), size) - size]
        found.append(nn.functional.pad(tensor, pad))
    return tuple(found)
