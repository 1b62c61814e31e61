"""Check the arguments of public functions at the door, by their annotations (`public`).

Each check gives the value back, or raises `UserError` that names the argument and what was given.
Specs check their own fields; this is for the arguments beside them, so that a wrong one is a
sentence and not an error from deep inside.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import operator
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from pydantic.fields import FieldInfo

from fullrank.core.errors import MOST_SENTENCE, UserError, brief, called_now, did_you_mean, middle_cut

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])
Check = Callable[[str, Any], Any]
"""Called with an argument's name and the argument: gives it back, as its type, or raises `UserError`."""
SIGNS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
NAMED_CODES = ("engine", "form", "method", "split", "start")
"""Arguments whose wrong choice has a code of its own, `unknown-engine`; for others it is `unknown-choice`."""
MOST = 2**63 - 1
"""The largest whole number that an array holds."""


def keywords_checked(public: C) -> C:
    """Answer an unknown keyword with the nearest known one: a decorator of functions and classes.

    Raises `UserError` for such a keyword, before anything is done. What takes any keyword stays as
    it is.
    """
    if isinstance(public, type):
        for name, member in vars(public).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                setattr(public, name, keywords_checked(member))
        return public
    parameters = inspect.signature(public).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()) or "checks" in vars(public):
        return public

    @functools.wraps(public)
    def checked(*args: Any, **keywords: Any) -> Any:
        _check_keywords(public, parameters, keywords)
        return public(*args, **keywords)

    return cast(C, checked)


def public(function: C) -> C:
    """Check arguments by their annotations, and answer an unknown keyword with the nearest one.

    Read are `str | Path` (among Specs, stores and runs), `bool`, `int` and `float` (with bounds:
    `Annotated[int, Field(ge=1)]`), `str`, `Literal`, `Sequence[str]` and classes, each with None
    where that is allowed; others are the function's own to look at, as are those that `takes` adds
    unless they are `checked`. A value that is the default passes.
    """
    parameters = inspect.signature(function).parameters
    annotated = parameters.keys() - vars(function).get("in_groups", ())
    declared = vars(function).get("declared")

    @functools.cache
    def checks() -> dict[str, Check]:
        names = _Names(function)
        hints = {} if declared is None else get_type_hints(declared, include_extras=True)
        hints |= {name: eval(str(parameters[name].annotation), {}, names) for name in annotated}
        read = {name: _check_of(hint) for name, hint in hints.items()}
        return {name: check for name, check in read.items() if check is not None}

    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        _check_keywords(function, parameters, keywords)

        def argument(name: str, value: Any) -> Any:
            """The value of an argument, checked unless it is the default."""
            at_default = value is parameters[name].default
            return value if at_default or name not in checks() else checks()[name](name, value)

        values = map(argument, parameters, args)
        return function(
            *values, *args[len(parameters) :], **{name: argument(name, keywords[name]) for name in keywords}
        )

    vars(checked)["checks"] = checks
    return cast(C, checked)


def _check_keywords(function: Callable[..., Any], parameters: Any, keywords: dict[str, Any]) -> None:
    wrong = next((name for name in keywords if name not in parameters), None)
    if wrong is not None:
        allowed = [name for name in parameters if name != "self"]
        name = function.__name__
        raise UserError(
            f"{name} has no argument {brief(wrong, 80)}{called_now(name, wrong) or did_you_mean(wrong, allowed)} "
            f"(allowed: {', '.join(allowed)})",
            code="unknown-argument",
        )


def takes(keywords: Any, defaults: Mapping[str, Any], *, checked: bool = False) -> Callable[[C], C]:
    """Show the keywords of a typed dictionary in the signature of a function of `**options`.

    So `help()`, documentation and the error for a wrong keyword name them. `checked`: `public`
    looks at them, by their annotations; else whoever reads the options does.
    """
    texts = {name: getattr(hint, "__forward_arg__", hint) for name, hint in keywords.__annotations__.items()}
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=texts[name])
        for name, default in defaults.items()
    ]

    def with_signature(function: C) -> C:
        signature = inspect.signature(function)
        named = [
            parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
        ]
        vars(function).update(
            __signature__=signature.replace(parameters=[*named, *shown]),
            in_groups=defaults.keys(),
            declared=keywords if checked else None,
        )
        return function

    return with_signature


def with_defaults(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """The options of a call over the defaults. Raises `TypeError` for an unknown option."""
    if not options.keys() <= defaults.keys():
        raise TypeError(f"no option {sorted(options.keys() - defaults.keys())} (allowed: {', '.join(defaults)})")
    return {**defaults, **options}


class _Unknown:
    """A name in an annotation that only a type checker imports: it accepts anything."""

    def __getattr__(self, _: Any) -> _Unknown:
        return self

    __getitem__ = __or__ = __ror__ = __getattr__


class _Names(dict[str, Any]):
    """The names in annotations; those that only a type checker imports accept anything."""

    def __init__(self, function: Any):
        known: FunctionType = inspect.unwrap(function)  # a type checker of tests wraps it
        super().__init__(vars(builtins) | known.__globals__)

    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest looks for `__tracebackhide__` among the names of a frame
            raise KeyError(name)
        return _Unknown()


def _check_of(annotation: Any) -> Check | None:
    """The check for an annotation; None where the annotation says nothing that can be checked."""
    check: Check | None
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    others = [member for member in members if member is not type(None)]
    if Any in others:
        return None
    if str in others and Path in others:
        classes = tuple(member for member in others if isinstance(member, type) and member not in (str, Path))
        if len(classes) + 2 < len(others):
            return None

        def opened_or_path(name: str, value: Any) -> Any:
            return value if isinstance(value, classes) else check_path(name, value)

        check = opened_or_path
    else:
        check = _member_check(others[0]) if len(others) == 1 else None
    if check is None or len(others) == len(members):
        return check
    return lambda name, value: None if value is None else check(name, value)


def _member_check(annotation: Any) -> Check | None:
    if get_origin(annotation) is Annotated:
        member, *marks = get_args(annotation)
        inner = _member_check(member)
        bounds = [bound for mark in marks if isinstance(mark, FieldInfo) for bound in mark.metadata]
        if any(getattr(bound, sign, 0) is Any for bound in bounds for sign in SIGNS):
            raise NameError(f"a bound of {annotation} is not imported")
        return None if inner is None else lambda name, value: check_bounds(name, inner(name, value), bounds)
    if get_origin(annotation) is Literal:
        return lambda name, value: check_choice(name, value, get_args(annotation))
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    if isinstance(annotation, type) and annotation is not Any and get_origin(annotation) is None:
        return lambda name, value: check_type(name, value, annotation, f"fr.{annotation.__name__}(...)")
    return None


def check_choice(name: str, argument: Any, allowed: Sequence[str]) -> Any:
    """One of the allowed words. Raises `UserError` for another one, and for what is no text."""
    if not isinstance(argument, str) or argument not in allowed:  # an array compares with each of its elements
        near = did_you_mean(argument, allowed) if isinstance(argument, str) else ""
        raise UserError(
            f"{name}={brief(argument, 80)}{near} (allowed: {', '.join(allowed)})",
            code=f"unknown-{name}" if name in NAMED_CODES else "unknown-choice",
        )
    return argument


def check_bounds(name: str, argument: Any, bounds: Sequence[Any]) -> Any:
    """A number within the bounds of a pydantic `Field`; raises `UserError` outside of them."""
    limits = [(sign, getattr(bound, sign)) for bound in bounds for sign in SIGNS if hasattr(bound, sign)]
    inside = all(getattr(operator, sign)(argument, limit) for sign, limit in limits)
    demand = " and ".join(f"{SIGNS[sign]} {limit:,}" if limit < math.inf else "finite" for sign, limit in limits)
    check_that(inside, name, argument, f" must be {demand}", code="setting-out-of-range")
    return argument


def check_path(name: str, argument: Any) -> Path:
    """A path from text or a path. Raises `UserError` for anything that cannot name a file."""
    text = os.fspath(argument) if isinstance(argument, str | os.PathLike) else ""
    sound = isinstance(text, str) and text != "" and "\0" not in text
    check_that(sound, name, argument, ": give a path, as text without null characters", code="not-a-path")
    return Path(text)


def check_whole(name: str, argument: Any, least: int, most: int = MOST) -> int:
    """A whole number from `least` to `most`, of Python or numpy. True and False are none."""
    whole = not isinstance(argument, bool) and isinstance(argument, int | np.integer)
    check_that(whole, name, argument, " is not a whole number", code="not-a-whole-number")
    limits = f"at least {least:,}" + (f" and at most {most:,}" if most < MOST else "")
    check_that(least <= int(argument) <= most, name, argument, f" must be {limits}", code="setting-out-of-range")
    return int(argument)


def divided(width: int, parts: int, what: str, unit: str) -> int:
    """The width of one of so many equal parts. Raises `UserError` where they would not be equal."""
    if width % parts:
        raise UserError(f"{what} {width} does not divide by {parts} {unit}", code="width-not-divisible")
    return width // parts


def halved(width: int, what: str) -> int:
    """The width of the smaller half of a vector. Raises `UserError` for one that has no two."""
    if width < 2:
        raise UserError(f"{what} needs two halves of a vector: set model.dim to 2 or more", code="width-not-divisible")
    return width // 2


def known_times(times: T | None, reader: str, lacking: str, remedy: str) -> T:
    """Event times for `reader`. Raises `UserError` where `lacking` (a clause) has none."""
    if times is None:
        raise UserError(f"{reader} reads when events happened, and {lacking}: {remedy}", code="missing-times")
    return times


def check_number(name: str, argument: Any) -> float:
    """A number; NaN is one."""
    number = not isinstance(argument, bool) and isinstance(argument, int | float | np.integer | np.floating)
    check_that(number, name, argument, " is not a number", code="not-a-number")
    try:
        return float(argument)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if argument > 0 else -math.inf


def check_given(name: str, argument: T | None, remedy: str, *, code: str) -> T:
    """Require an argument. Raises `UserError` where it is None; `remedy` says what to do."""
    if argument is None:
        raise UserError(f"{name} is missing: {remedy}", code=code)
    return argument


def check_one_way(ways: Mapping[str, object], *, needed: bool = False, code: str | None = None) -> None:
    """Require that at most one of several ways to say the same (name -> argument) is given; exactly one if `needed`.

    Raises `UserError` that names them all. Without a `code` it has those of options.
    """
    typed = [way for way, argument in ways.items() if argument is not None]
    if len(typed) > 1 or (needed and not typed):
        raise UserError(
            f"give one of {' or '.join(ways)} (given: {' and '.join(typed) or 'none'})",
            code=code or ("options-exclude-each" if typed else "missing-option"),
        )


def check_once(
    names: Iterable[str], what: str, remedy: str, *, code: str, same: Callable[[str], Hashable] = str
) -> None:
    """Refuse a repeated name, compared by `same`. The `UserError` shows names up to the repeat."""
    before = dict[Hashable, str]()
    for name in names:
        if same(name) in before:
            among = middle_cut(", ".join(map(repr, [*before.values(), name])), MOST_SENTENCE // 2)
            raise UserError(f"{what}: {brief(name)} twice among {among}; {remedy}", code=code)
        before[same(name)] = name


def check_flag(name: str, argument: Any) -> bool:
    """True or False, and nothing that would merely count as one of them."""
    flag = type(argument).__name__ in ("bool", "bool_")  # numpy's own
    check_that(flag, name, argument, ": give True or False", code="not-a-flag")
    return bool(argument)


def check_texts(name: str, argument: Any, such_as: str) -> tuple[str, ...]:
    """A list of texts, such as settings; a single text is refused."""
    listed = isinstance(argument, Sequence) and not isinstance(argument, str | bytes)
    texts = listed and all(isinstance(text, str) for text in argument)
    check_that(texts, name, argument, f": give a list of texts, such as {such_as}", code="not-a-list")
    return tuple(argument)


def check_overrides(argument: Any) -> tuple[str, ...]:
    """The argument `set` of a public function."""
    return check_texts("set", argument, 'set=["seed=1"]')


def check_type(name: str, argument: Any, kinds: type[T] | tuple[type[Any], ...], what: str) -> Any:
    """An object of one of the types; `what` says in words what that is."""
    check_that(isinstance(argument, kinds), name, argument, f": give {what}", code="wrong-argument-type")
    return argument


def check_that(sound: bool, name: str, argument: Any, demand: str, *, code: str) -> None:
    """Raise `UserError` unless `sound`; `demand` ends the sentence with what is allowed."""
    if not sound:
        raise UserError(f"{name}={brief(argument, 80)}{demand}", code=code)


SIMPLE: dict[Any, Check] = {
    bool: check_flag,
    int: lambda name, value: check_whole(name, value, -MOST),
    float: check_number,
    str: lambda name, value: check_type(name, value, str, "a text"),
    Sequence[str]: lambda name, value: (
        check_overrides(value) if name == "set" else check_texts(name, value, f'{name}=["..."]')
    ),
}
"""The check of each plain annotation."""
