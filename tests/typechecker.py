"""The run-time type checker that pytest puts on every function of fullrank (see addopts in pyproject.toml).

The checks of jaxtyping's own decorator at a fraction of its cost, which was a quarter of the suite's: that one binds
the arguments of each call to name them in a message, and checks them before the call and again behind it. Here beartype
wraps the function itself, and letters of shapes are remembered where a signature has arrays. In each test the first
`CALLS` calls of a function are checked. What this cannot wrap (a generator, a shape that reads an argument) goes to
jaxtyping's.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError
from jaxtyping._config import config
from jaxtyping._decorator import _destring_annotation
from jaxtyping._storage import pop_shape_memo, push_shape_memo, shape_str

checked = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeCheckError))
"""beartype, but an int is accepted where a float is asked for, as type checkers and Python itself do."""

CALLS = 25
"""Calls of a function that are checked in each test: the component checks alone make thousands of the same."""
_test = 0
"""The number of the test that runs."""

_whole = jaxtyping.jaxtyped


def begin_test() -> None:
    """Check first calls again."""
    global _test
    _test += 1


def jaxtyped(*given: Any, **named: Any) -> Any:
    """In the place of `jaxtyping.jaxtyped`, as its import hook calls it: with a type checker, for what it decorates."""
    whole = _whole(*given, **named)
    if given or "typechecker" not in named:
        return whole

    def decorate(made: Any) -> Any:
        if isinstance(made, types.FunctionType):
            return _quick(made) or whole(made)
        begin = made.__dict__.get("__init__") if dataclasses.is_dataclass(made) else None
        if begin is None or hasattr(begin, "__wrapped__"):  # inherited, or written out: its types are checked already
            return made
        if quick := _quick(begin):
            made.__init__ = quick
            return made
        return whole(made)

    return decorate


def _quick(function: types.FunctionType) -> Callable[..., Any] | None:
    """The function with its types checked; None where jaxtyping has to do it."""
    code = function.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return None
    hints = {name: _hint(one, function.__globals__) for name, one in function.__annotations__.items()}
    arrays = [array for hint in hints.values() for array in _arrays(hint)]
    if any("{" in array.dim_str for array in arrays):
        return None
    # A copy, since beartype reads the annotations, and others want them as they were written.
    copy = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, hints
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    try:
        inner = checked(copy)
    except Exception:
        return None
    return _often(function, _scoped(inner) if arrays else inner)


def _often(function: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    """The first `CALLS` calls of each test checked, and those behind them as they are."""
    calls, test = 0, -1

    @functools.wraps(function)
    def typed(*given: Any, **named: Any) -> Any:
        nonlocal calls, test
        __tracebackhide__ = True
        if test != _test:
            calls, test = 0, _test
        calls += 1
        if calls > CALLS or config.jaxtyping_disable:
            return function(*given, **named)
        return inner(*given, **named)

    return typed


def _scoped(inner: Callable[..., Any]) -> Callable[..., Any]:
    """A letter is one size in the arguments and the result of a call."""

    def scoped(*given: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        memos = push_shape_memo({})
        try:
            return inner(*given, **named)
        except TypeCheckError as error:
            if not hasattr(error, "__notes__"):
                error.add_note(shape_str(memos))
            raise
        finally:
            pop_shape_memo()

    return scoped


_HINTS: dict[tuple[int, str], Any] = {}


def _hint(written: Any, names: dict[str, Any]) -> Any:
    """What an annotation says; Any where a name in it is not known when the module is imported, as in jaxtyping."""
    if not isinstance(written, str):
        return _destring_annotation(written, names)
    key = (id(names), written)
    if key not in _HINTS:
        found = _destring_annotation(written, names)
        if found is Any:  # a class further down in the module may come yet
            return Any
        _HINTS[key] = found
    return _HINTS[key]


def _arrays(hint: Any) -> list[Any]:
    """The jaxtyping types in a type."""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return [hint]
    return [array for part in get_args(hint) for array in _arrays(part)]


jaxtyping.jaxtyped = jaxtyped
