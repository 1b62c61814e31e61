"""What an argument of a public function may be, checked at its door: a path, a whole number, settings, a type.

Each check gives the value back, or raises `UserError` that names the argument and what was given. Specs check their own
fields; this is for the arguments beside them, so that a wrong one is a sentence and not an error from deep inside.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fullrank.core.errors import UserError, brief, did_you_mean
from fullrank.core.renamed import called_now

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])
MOST = 2**63 - 1
"""The largest whole number that an array holds."""


def keywords_checked(public: C) -> C:
    """A public function, or a class with its public methods, that answers a keyword which it has not with the nearest.

    Raises `UserError` then, before anything is done; what takes any keyword stays as it is.
    """
    if isinstance(public, type):
        for name, member in vars(public).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                setattr(public, name, keywords_checked(member))
        return public
    parameters = inspect.signature(public).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return public

    @functools.wraps(public)
    def checked(*args: Any, **given: Any) -> Any:
        if not given.keys() <= parameters.keys():
            wrong = next(name for name in given if name not in parameters)
            allowed = [name for name in parameters if name != "self"]
            raise UserError(
                f"{public.__name__} has no argument {brief(wrong, 80)}"
                f"{called_now(public.__name__, wrong) or did_you_mean(wrong, allowed)} (allowed: {', '.join(allowed)})",
                code="unknown-argument",
            )
        return public(*args, **given)

    return checked  # type: ignore[return-value]


def check_path(name: str, given: Any) -> Path:
    """A path from text or a path. Raises `UserError` for other types, no text at all, and text that names no file."""
    if not isinstance(given, str | os.PathLike) or isinstance(os.fspath(given), bytes):
        raise UserError(f"{name}={brief(given, 80)}: give a path", code="not-a-path")
    if not os.fspath(given) or "\0" in os.fspath(given):
        raise UserError(
            f"{name}={brief(given, 80)} is no path: it is empty, or has a null character", code="not-a-path"
        )
    return Path(given)


def check_whole(name: str, given: Any, least: int, most: int = MOST) -> int:
    """A whole number from `least` to `most`, of Python or numpy. True and False are none."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise UserError(f"{name}={brief(given, 80)} is not a whole number", code="not-a-whole-number")
    if not least <= int(given) <= most:
        raise UserError(
            f"{name}={brief(given, 80)} must be at least {least} and at most {most}", code="setting-out-of-range"
        )
    return int(given)


def check_number(name: str, given: Any) -> float:
    """A number; NaN is one."""
    if isinstance(given, bool) or not isinstance(given, int | float | np.integer | np.floating):
        raise UserError(f"{name}={brief(given, 80)} is not a number", code="not-a-number")
    try:
        return float(given)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if given > 0 else -math.inf


def check_flag(name: str, given: Any) -> bool:
    """True or False, and nothing that would merely count as one of them."""
    if type(given).__name__ not in ("bool", "bool_"):  # numpy's own
        raise UserError(f"{name}={brief(given, 80)}: give True or False", code="not-a-flag")
    return bool(given)


def check_texts(name: str, given: Any, such_as: str) -> tuple[str, ...]:
    """A list of texts, such as settings. One text is no list, though Python could go through its letters."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or not all(isinstance(t, str) for t in given):
        raise UserError(f"{name}={brief(given, 80)}: give a list of texts, such as {such_as}", code="not-a-list")
    return tuple(given)


def check_overrides(given: Any) -> tuple[str, ...]:
    """The argument `set` of a public function."""
    return check_texts("set", given, 'set=["seed=1"]')


def check_type(name: str, given: Any, kinds: type[T] | tuple[type[Any], ...], what: str) -> Any:
    """An object of one of the types; `what` says in words what that is."""
    if not isinstance(given, kinds):
        raise UserError(f"{name}={brief(given, 80)}: give {what}", code="wrong-argument-type")
    return given
