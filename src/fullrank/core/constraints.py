"""Bounds of a Spec's settings, and constraints between them, declared on the fields themselves.

    norm: Annotated[Literal["layer", "rms"] | None, only_with("gate")] = None
    dropout: DropoutRate = 0.1

Bounds lie far above what anybody published, and below what a tensor or a loop cannot take. Every
number of a Spec has both (`fullrank.testing.settings.check_bounds` looks), and a list of numbers a
largest length: what a file says reaches memory, loops and optimisers as a number that they can
take, or it is refused with a sentence. They are for each number alone; what a model needs in all is
counted before it is built (`core/memory.py`).

Constraints are declared on the field that they are about and read by `Spec` alone. A setting that
is changed (stands elsewhere than at its default) and would have no effect is refused, and so is one
whose need is not met. The sentence names what was given, what is allowed and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any

from pydantic import BaseModel, Field

from fullrank.core.errors import brief

MOST_SEED = 2**63 - 1
"""The largest seed that torch and numpy both take."""
MOST_COUNT = 2**31 - 1
"""Rows, users, items, events, steps of training, buckets of a hash."""
MOST_PARTS = 1024
"""Parts of a model that run one by one: layers, heads, experts, reasoning or search steps."""
MOST_WIDTH = 2**17
"""Numbers in a vector."""
MOST_LENGTH = 2**20
"""Events of a history, tokens of a text, values of a bag."""
MOST_LIST = 10**6
"""Places of a ranked list, items kept by a search, negatives of a query."""
MOST_BINS = 10**5
"""Buckets of a number, bins of a curve, and resamplings behind an interval."""
MOST_EPOCHS = 10**6
"""Passes over the data."""
MOST_ROUNDS = 10**4
"""Rounds of an algorithm that repeats itself until it settles, such as k-means."""
MOST_FACTOR = 1e9
"""Weights of losses, temperatures, norms: squares of it stay finite in float32."""
LEAST_TEMPERATURE = 1e-6
"""Scores are divided by it: above this they stay finite in float32."""
LEAST_PROBABILITY = 1e-15
"""Probabilities are kept this far from 0 and 1 before their logarithm is taken."""
MOST_VALUE = 1e18
"""Values of a column that are compared, either sign."""
MOST_TIME = 10**12
"""Seconds since 1970, either sign: 31,000 years."""
MOST_ENTRIES = 1000
"""Numbers in a list of settings, and settings in a mapping."""

SeedNumber = Annotated[int, Field(ge=0, le=MOST_SEED)]
Parts = Annotated[int, Field(ge=1, le=MOST_PARTS)]
Width = Annotated[int, Field(ge=1, le=MOST_WIDTH)]
Several = Annotated[int, Field(ge=2, le=MOST_PARTS)]
Expansion = Annotated[float, Field(gt=0, le=MOST_PARTS)]
"""Width of a hidden layer as a multiple of another."""
Widths = Annotated[tuple[Width, ...], Field(max_length=MOST_PARTS)]
Names = Annotated[tuple[str, ...], Field(max_length=MOST_ENTRIES)]
Length = Annotated[int, Field(ge=1, le=MOST_LENGTH)]
ListLength = Annotated[int, Field(ge=1, le=MOST_LIST)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
CountFromZero = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
DropoutRate = Annotated[float, Field(ge=0, lt=1)]
Factor = Annotated[float, Field(ge=0, le=MOST_FACTOR)]
"""Weight of a term that 0 leaves out."""
PositiveFactor = Annotated[float, Field(gt=0, le=MOST_FACTOR)]
Temperature = Annotated[float, Field(ge=LEAST_TEMPERATURE, le=MOST_FACTOR)]
Value = Annotated[float, Field(ge=-MOST_VALUE, le=MOST_VALUE)]
"""A number of a table's column, a threshold on one, a logit."""
Seconds = Annotated[int, Field(ge=-MOST_TIME, le=MOST_TIME)]


@dataclass(frozen=True)
class Constraint:
    """A demand of a field on other settings: `broken(spec, field)` gives a sentence, or None."""

    code: str
    broken: Callable[[BaseModel, str], str | None]


def only_with(setting: str, *values: Hashable, unread: tuple[Hashable, ...] = ()) -> Constraint:
    """The field has no effect unless `setting` (`gate`, `deep.hidden`) has one of these values, or is set at all where
    no values are given.

    `unread`: values that count as left out beside the default, since earlier versions wrote them.
    """

    def wrong(name: str, value: Any, other: Any) -> str | None:
        if _holds(other, values) or value in unread:
            return None
        return f" has no effect with {setting}={typed(other)}: leave it out, or {_remedy(setting, other, values)}"

    return _between(setting, wrong, "setting-without-effect")


def not_with(setting: str, *values: Hashable) -> Constraint:
    """The field has no effect where `setting` has one of these values."""

    def wrong(name: str, value: Any, other: Any) -> str | None:
        return f" has no effect with {setting}={typed(other)}: leave one of them out" if other in values else None

    return _between(setting, wrong, "setting-without-effect")


def needs(setting: str, *values: Hashable, code: str = "missing-setting") -> Constraint:
    """A changed field needs `setting` at one of these values, or set at all where no values are given."""

    def wrong(name: str, value: Any, other: Any) -> str | None:
        if _holds(other, values):
            return None
        remedy = f"{_remedy(setting, other, values)}, or leave {name} out"
        return f" needs {_wanted(setting, values)}, which is {typed(other)}: {remedy}"

    return _between(setting, wrong, code)


def _between(setting: str, wrong: Callable[[str, Any, Any], str | None], code: str) -> Constraint:
    """A demand on `setting` by a field that was changed: `wrong(name, value, other)`
    ends the sentence, or is None."""

    def broken(spec: BaseModel, name: str) -> str | None:
        if not changed(spec, name):
            return None
        value = getattr(spec, name)
        end = wrong(name, value, attrgetter(setting)(spec))
        return None if end is None else f"{name}={typed(value)}{end}"

    return Constraint(code, broken)


def some_of(*others: str, code: str = "weights-all-zero") -> Constraint:
    """The field or one of these is above 0, or not empty."""

    def broken(spec: BaseModel, name: str) -> str | None:
        names = [name, *others]
        if any(getattr(spec, setting) for setting in names):
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
    """No element twice in a list (or None): `of` gives what is compared, `what` names one."""

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
    """Whether a setting has one of these values; without any, whether it is set."""
    return value in values if values else bool(value)


def _wanted(setting: str, values: tuple[Hashable, ...]) -> str:
    """The demand on a setting, in words."""
    return " or ".join(f"{setting}={typed(value)}" for value in values) or setting


def _remedy(setting: str, other: Any, values: tuple[Hashable, ...]) -> str:
    """Advice about a setting that is `other`, in words."""
    if values or other is False:
        return f"set {_wanted(setting, values or (True,))}"
    return f"set {setting} above 0" if isinstance(other, int | float) else f"set {setting}"
