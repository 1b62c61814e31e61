"""Complete experiments under their published names: one file per paper, or for a family of baselines.

The room's contract: a function marked by `@recipe` that gives an `Experiment`. The docstring of a
file says paper, command, cost and the numbers to expect; the numbers are recorded in
``results/``. Where a file has several recipes, the first line of each function says which one it
is (`fullrank list recipes`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

from fullrank.core.spec import Spec
from fullrank.run.experiment import Experiment

F = TypeVar("F", bound=Callable[..., Experiment])


def recipe(*, needs: str, kind: str | None = None) -> Callable[[F], F]:
    """Mark a function as the recipe of its name, or of `kind`.

    `needs`: data that it is trained on, events (a recommender) or impressions (a ranker) first, for
    `fullrank list`, which reads it from the source.
    """

    def mark(function: F) -> F:
        vars(function).update(needs=needs, kind=kind or function.__name__)
        return function

    return mark


class RecipeSpec(Spec):
    """A recipe as a class, for the entry point of another package: a Spec without settings."""

    needs: ClassVar[str] = ""
    """Data that it is trained on, as in `recipe`."""

    @abstractmethod
    def build(self) -> Experiment: ...
