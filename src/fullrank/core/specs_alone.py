"""Specs without torch: a module's settings without the code that computes.

A Spec stands in the file of the model that it builds, so importing it imports torch, which takes
seconds; a page of help and a mistake in a setting need the Spec alone. Here the class is made a
second time from the source of its module, with the names that it needs and no others: neither
torch, nor classes that derive from torch's own. Fields, bounds, validators and the `build` of a
recipe are the module's. The classes are not: a Spec from here is asked and thrown away, and
never handed to the library.
"""

from __future__ import annotations
import __future__

import ast
import functools
import importlib
import linecache
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

from fullrank.core import registry

HEAVY = ("torch", "lightning", "safetensors.torch")
IMPORTED = "fullrank.core."
"""Modules shared with the library, since they load nothing heavy: errors, Spec, registry."""
T = TypeVar("T")


def ask_alone(module: str, ask: Callable[[Any], T]) -> T | None:
    """Call `ask` with a module loaded without torch; None where it needs torch.

    Raises the `UserError` that the module itself would raise.
    """
    if sys.modules.get("torch") is not None:
        return ask(importlib.import_module(module))
    before, registry.load = registry.load, module_alone
    try:
        return ask(module_alone(module))
    except (NameError, AttributeError, ImportError):
        return None
    finally:
        registry.load = before


@functools.cache
def module_alone(name: str) -> ModuleType:
    """A module of ours whose names are defined when they are asked for, without torch."""
    if name.startswith(IMPORTED) and not any(map(_heavy, registry.source(name).body)):
        return importlib.import_module(name)
    return _Alone(name)


class _Alone(ModuleType):
    """A module made from the source of another: each name is defined when it is first asked for."""

    def __init__(self, name: str):
        super().__init__(f"{name}:specs")
        sys.modules[self.__name__] = self  # where pydantic looks up the names in annotations
        # and here the docstrings of fields; the module's own file would pass for both modules
        self.__file__ = f"<{self.__name__}>"
        text = registry.source_file(name).read_text(encoding="utf-8")
        linecache.cache[self.__file__] = (len(text), None, text.splitlines(keepends=True), self.__file__)
        self._waiting = {name: statement for statement in registry.source(name).body for name in _defined(statement)}
        self._names = _Names(self)

    def __getattr__(self, name: str) -> Any:
        statement = vars(self).get("_waiting", {}).pop(name, None)
        if statement is None or _heavy(statement):
            raise AttributeError(name)
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("fullrank."):
            defined = _imported(statement, name)
        else:
            defined = self._run(statement, name)
        vars(self)[name] = self._names[name] = defined
        return defined

    def _run(self, statement: ast.stmt, name: str) -> Any:
        for used in _used(statement):  # the body of a class does not ask `_Names.__missing__`, as functions do
            getattr(self, used, None)
        flags = __future__.annotations.compiler_flag
        code = compile(ast.Module([statement], []), str(self.__file__), "exec", flags, dont_inherit=True)
        try:
            exec(code, self._names)
        except NameError:  # of torch, or of a class that is derived from one of its own
            raise AttributeError(name) from None
        return self._names[name]


class _Names(dict[str, Any]):
    """The global names of what a module defines: what is not there yet is asked of the module."""

    def __init__(self, module: ModuleType):
        super().__init__(__name__=module.__name__)
        self.module = module

    def __missing__(self, name: str) -> Any:
        try:
            return getattr(self.module, name)
        except AttributeError:
            raise KeyError(name) from None


def _imported(statement: ast.ImportFrom, name: str) -> Any:
    """The object that `from module import name` gives, for a module of ours."""
    module = str(statement.module)
    what = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
    inner = f"{module}.{what}"
    return module_alone(inner) if registry.source_file(inner).is_file() else getattr(module_alone(module), what)


def _heavy(statement: ast.stmt) -> bool:
    """Whether a statement imports torch, or a package that does."""
    if isinstance(statement, ast.Import):
        return any(alias.name.startswith(HEAVY) for alias in statement.names)
    return isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(HEAVY)


def _defined(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module gives it."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.split(".")[0] for alias in statement.names)
    else:
        # of an assignment its targets: the variable of a comprehension on its right
        # is no name of the module
        targets = getattr(statement, "targets", [getattr(statement, "target", statement)])
        names = (n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
        yield from (n.id for n in names if isinstance(n.ctx, ast.Store))


def _used(node: ast.AST) -> Iterator[str]:
    """The names that are read when a node runs; those inside the
    functions that it defines are not."""
    if isinstance(node, ast.Name):
        yield node.id
    inside = (node.args, *node.decorator_list) if isinstance(node, ast.FunctionDef) else ast.iter_child_nodes(node)
    for child in inside:
        if not isinstance(child, ast.arg):
            yield from _used(child)
