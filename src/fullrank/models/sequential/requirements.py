"""Requirements of one part of a recommender on the others: each part declares its own, `check_parts` compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fullrank.core.errors import UserError


@dataclass(frozen=True)
class Requirement:
    """A condition on the assembled model, and the sentence for a model that does not meet it."""

    holds: Callable[[Any], bool]
    """Whether a `RecommenderModel` meets it, whose parts are built and whose penalties are not attached yet."""
    sentence: str
    """With `{part}` for the kind of the part that requires it, and `{spec}` for the settings of the model."""
    code: str


def check_parts(model: Any, spec: Any, parts: Iterable[tuple[str, Any]]) -> None:
    """Raise `UserError` for the first requirement of these (kind, part) that the model does not meet."""
    for kind, part in parts:
        for requirement in part.requires:
            if not requirement.holds(model):
                raise UserError(requirement.sentence.format(part=kind, spec=spec), code=requirement.code)
