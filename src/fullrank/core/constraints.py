"""Constraints between the settings of a Spec, declared on the field that they are about and read by `Spec` alone.

    norm: Annotated[Literal["layer", "rms"] | None, only_with("gate")] = None

A setting that is changed (stands elsewhere than at its default) and would have no effect is refused, and so is one
whose need is not met. The sentence names what was given, what is allowed and what to do; bounds, choices and lengths of
one field alone are pydantic's (`Field(ge=0, multiple_of=4)`, `Literal`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pydantic import BaseModel

from fullrank.core.errors import brief


@dataclass(frozen=True)
class Constraint:
    """What a field asks of the other settings: `broken` gives the sentence where it is not so, of (spec, field)."""

    code: str
    broken: Callable[[BaseModel, str], str | None]


def only_with(
    setting: str, *values: Hashable, unread: tuple[Hashable, ...] = (), code: str = "setting-without-effect"
) -> Constraint:
    """The field has no effect unless `setting` (`gate`, `deep.hidden`) has one of these values; without any, is set.

    `unread`: values that count as left out beside the default, since earlier versions wrote them.
    """

    def broken(spec: BaseModel, name: str) -> str | None:
        value, other = getattr(spec, name), attrgetter(setting)(spec)
        if _holds(other, values) or not changed(spec, name) or value in unread:
            return None
        return (
            f"{name}={typed(value)} has no effect with {setting}={typed(other)}: leave it out, or "
            f"{_remedy(setting, other, values)}"
        )

    return Constraint(code, broken)


def not_with(setting: str, *values: Hashable, code: str = "setting-without-effect") -> Constraint:
    """The field has no effect where `setting` has one of these values."""

    def broken(spec: BaseModel, name: str) -> str | None:
        other = attrgetter(setting)(spec)
        if other not in values or not changed(spec, name):
            return None
        return f"{name}={typed(getattr(spec, name))} has no effect with {setting}={typed(other)}: leave one of them out"

    return Constraint(code, broken)


def needs(setting: str, *values: Hashable, code: str = "missing-setting") -> Constraint:
    """The field, once changed, needs `setting` at one of these values; without any, it has to be set."""

    def broken(spec: BaseModel, name: str) -> str | None:
        other = attrgetter(setting)(spec)
        if _holds(other, values) or not changed(spec, name):
            return None
        return (
            f"{name}={typed(getattr(spec, name))} needs {_wanted(setting, values)}, which is {typed(other)}: "
            f"{_remedy(setting, other, values)}, or leave {name} out"
        )

    return Constraint(code, broken)


def some_of(*others: str, code: str = "weights-all-zero") -> Constraint:
    """The field or one of these is above 0, or not empty."""

    def broken(spec: BaseModel, name: str) -> str | None:
        names = [name, *others]
        if any(getattr(spec, one) for one in names):
            return None
        number = isinstance(getattr(spec, name), int | float)
        nothing = f"{'all' if len(names) > 2 else 'both'} {'0' if number else 'empty'}"
        kind = getattr(spec, "kind", "")
        return (
            f"{', '.join(names[:-1])} and {names[-1]} are {nothing}: set one of them{' above 0' if number else ''}"
            + (f", or leave {kind} out" if kind else "")
        )

    return Constraint(code, broken)


def once(what: str, of: Callable[[Any], Iterable[Any]] = iter, *, code: str = "repeated-field") -> Constraint:
    """Nothing is there twice in the list (or None); `of`: what of it is compared, `what` the name of one."""

    def broken(spec: BaseModel, name: str) -> str | None:
        elements = list(of(getattr(spec, name) or ()))
        return f"{name}: each {what} once; given {brief(elements)}" if len({*elements}) < len(elements) else None

    return Constraint(code, broken)


def changed(spec: BaseModel, name: str) -> bool:
    """Whether a field stands elsewhere than at its default."""
    default = type(spec).model_fields[name].get_default(call_default_factory=True)
    return bool(getattr(spec, name) != default)


def typed(value: Any) -> str:
    """A value as one types it in `--set`."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(typed, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) and value else brief(value)


def _holds(value: Any, values: tuple[Hashable, ...]) -> bool:
    return value in values if values else bool(value)


def _wanted(setting: str, values: tuple[Hashable, ...]) -> str:
    return " or ".join(f"{setting}={typed(value)}" for value in values) or setting


def _remedy(setting: str, other: Any, values: tuple[Hashable, ...]) -> str:
    if values or other is False:
        return f"set {_wanted(setting, values or (True,))}"
    return f"set {setting} above 0" if isinstance(other, int | float) else f"set {setting}"
