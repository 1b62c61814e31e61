"""What the laws run on: every Spec that a room ships, found by looking, so that a new file is tested at once."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

from fullrank.core.errors import UserError
from fullrank.core.registry import ROOMS, find, kinds
from fullrank.core.spec import Spec

Pair = tuple[str, str]
"""(room, kind)"""


def everything(*rooms: str) -> list[Pair]:
    """Every (room, kind) of these rooms, by default of all; nothing is imported, so one broken file fails alone."""
    return [(room, kind) for room in rooms or ROOMS for kind in kinds(room)]


def name(pair: object) -> str:
    """The test id of a pair: `attention.softmax`."""
    return ".".join(pair) if isinstance(pair, tuple) else str(pair)


def load(pair: Pair) -> type[Spec]:
    """The Spec class of a pair."""
    return find(pair[1], pair[0])


EXAMPLES: dict[str, dict[str, Any]] = {"features": {"categorical": ("brand",), "numeric": ("price",)}}
"""Settings for the kinds that have to be told something."""


def example(found: type[Spec]) -> Spec:
    """The spec at its defaults; where a setting has no default, the plainest value of its type."""
    if found.kind_of() in EXAMPLES:
        return found.model_validate(EXAMPLES[found.kind_of()])
    required = {n: _plain(field.annotation) for n, field in found.model_fields.items() if field.is_required()}
    return found.model_validate(required)


def variations(spec: Spec) -> Iterator[Spec]:
    """Specs that differ from this one in a single setting, for every setting where the room allows another value."""
    for key in type(spec).model_fields:
        for value in _others(getattr(spec, key), type(spec).model_fields[key].annotation):
            try:
                other = spec.override(f"{key}={value}")
            except UserError:
                continue  # out of range, or sound only together with another setting
            if other != spec:
                yield other


def _plain(annotation: Any) -> Any:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return inner[0]
    if origin in (typing.Union, types.UnionType):
        return _plain(inner[0])
    return {str: "x", int: 1, float: 0.5, bool: True}.get(annotation, ())


def _others(value: Any, annotation: Any) -> Iterator[Any]:
    for choice in _choices(annotation):
        if choice != value:
            yield choice
    if isinstance(value, bool):
        yield "false" if value else "true"
    elif isinstance(value, int | float):
        yield from (value + 1, value / 3 + 1e-7, value * 1e-9)


def _choices(annotation: Any) -> Iterator[Any]:
    if typing.get_origin(annotation) is Literal:
        yield from typing.get_args(annotation)
    for inner in typing.get_args(annotation):
        if typing.get_origin(inner) is not None:
            yield from _choices(inner)
        elif inner is type(None):
            yield "null"
