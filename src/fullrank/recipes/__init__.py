"""Complete experiments under their published names, one file each.

The room's contract: a Spec whose ``build()`` gives an `Experiment`. Its docstring says paper, command, cost and the
numbers to expect; the numbers are recorded in ``results/``.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from fullrank.experiment import Experiment


@runtime_checkable
class Recipe(Protocol):
    def build(self) -> Experiment: ...
