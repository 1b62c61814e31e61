"""Complete experiments under their published names: one file per paper, and the plain baselines together.

The room's contract: a `RecipeSpec` whose ``build()`` gives an `Experiment`. The docstring of a file says paper,
command, cost and the numbers to expect; the numbers are recorded in ``results/``. Where a file has several recipes, the
first line of each class says which one it is (`fullrank list recipes`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment


class RecipeSpec(Spec):
    """A published experiment by its name: a Spec without settings, because the experiment has them all."""

    needs: ClassVar[str] = ""
    """Data that it is trained on, events (a recommender) or impressions (a ranker) first; `fullrank list` reads it."""

    @abstractmethod
    def build(self) -> Experiment: ...
