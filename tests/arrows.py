"""Reads every import of the source and reports what the house forbids.

`faults(root)` gives one sentence per fault; as a script (`python tests/arrows.py src/fullrank`, part of `make check`)
it prints them and fails. Nothing of the source is imported: the text alone is read.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Low to high. A room may import from its own layer (without a cycle of rooms) and from the layers before it.
LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(layer.split())
    for layer in (
        "__version__",
        "core",
        "parallel",
        "ops",
        "metrics data",
        "semantic_ids",
        "models",
        "inference",
        "evaluation",
        "run",
        "training cascade",
        "sweeps analysis serving",
        "recipes testing",
        "api",
        "cli",
        "__main__ __init__",  # the facade: it re-exports, lazily, and nothing below may import it
    )
)
LEVEL = {room: level for level, layer in enumerate(LAYERS) for room in layer}
# The same inside rooms that have rooms: neither family of models sees the other, and what composes stands above.
INSIDE: dict[str, tuple[str, ...]] = {
    "models": ("__init__", "sequential ranking"),
    "models.sequential": (
        "attention",
        "items baselines",
        "encoders",
        "objectives regularizers",
        "reasoning",
        "model",
    ),
}
LIGHTNING = {"lightning", "pytorch_lightning"}
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
PICKLING_CALLS = {"read_pickle", "to_pickle"}
# What importing a room, or the package itself, must not load.
LIGHT = {"data": {"torch", *LIGHTNING}, "core": {"torch", *LIGHTNING}, "__init__": {"torch", "polars", *LIGHTNING}}
MAY_BE_HEAVY = {"core.device", "core.tensor_files", "data.batch", "data.events.loader"}


@dataclass(frozen=True)
class Import:
    """One import statement's target, as an absolute dotted name, and where it stands."""

    target: str
    line: int
    lazy: bool
    """Inside a function or under TYPE_CHECKING: it does not run when the module is imported."""


Imports = dict[str, list[Import]]
"""Module -> its imports."""


def modules(root: Path) -> dict[str, Path]:
    """Dotted name below the package (`data.loader`; a package is `data.__init__`) -> file."""
    return {".".join(file.relative_to(root).with_suffix("").parts): file for file in sorted(root.rglob("*.py"))}


def faults(root: Path) -> list[str]:
    """One sentence for every import in the package at `root` that the house forbids."""
    imports = imports_below(root)
    found = [
        *_arrows(root.name, imports),
        *_cycles(root.name, imports),
        *_lightning(imports),
        *_heavy(root.name, imports),
    ]
    for name, (text, tree) in read(root).items():
        if re.search("pickl|load|save|joblib|shelve|marshal|dill", text):
            found += [f"{name}:{line}: {what}: no pickle is read or written" for what, line in _pickling(tree)]
    return found


@cache
def read(root: Path) -> dict[str, tuple[str, ast.Module]]:
    """The text and the tree of each module of the package at `root`; read once in a process."""
    texts = {name: file.read_text(encoding="utf-8") for name, file in modules(root).items()}
    return {name: (text, ast.parse(text)) for name, text in texts.items()}


@cache
def imports_below(root: Path) -> Imports:
    """Every import of the package at `root`, by module; read once in a process."""
    return {name: list(imports_of(tree, f"{root.name}.{name}")) for name, (_, tree) in read(root).items()}


def imports_of(tree: ast.AST, module: str) -> Iterator[Import]:
    """Every import below a node, with relative ones made absolute from `module` (`fullrank.data.events.loader`)."""
    yield from _walk(tree, module, lazy=False)


def room_of(name: str) -> str:
    """`data.sources.planted` -> `data`; `cli` -> `cli`."""
    return name.split(".", maxsplit=1)[0]


def externals(root: Path, *, lazy: bool) -> dict[str, list[str]]:
    """Third-party packages imported (lazily, or when a module is imported) -> the modules that do it."""
    found: dict[str, list[str]] = {}
    for name, imports in imports_below(root).items():
        for item in imports:
            top = item.target.split(".")[0]
            if item.lazy == lazy and top != root.name and top not in sys.stdlib_module_names:
                found.setdefault(top, []).append(name)
    return found


def _walk(node: ast.AST, module: str, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, module)
            # `from fullrank import data` names a room in the alias; elsewhere the alias may be a class: harmless.
            yield from (Import(f"{base}.{alias.name}", child.lineno, lazy) for alias in child.names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _walk(child, module, lazy=True)
        else:
            inner = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, module, inner)


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def _inner(package: str, item: Import) -> str | None:
    """The part of an import below the package, or None where it goes outside: `fullrank.core.files` -> `core.files`."""
    if item.target == package:
        return "__init__"
    return item.target.removeprefix(package + ".") if item.target.startswith(package + ".") else None


def _arrows(package: str, imports: Imports) -> Iterator[str]:
    for name, items in imports.items():
        here = room_of(name)
        if here not in LEVEL:
            yield f"{name}: the room {here!r} has no layer; give it one in tests/arrows.py"
            continue
        for item in items:
            target = _inner(package, item)
            if target is None:
                continue
            there = room_of(target)
            if there not in LEVEL:
                yield f"{name}:{item.line}: imports {item.target}: import from the room that defines it, not the facade"
            elif LEVEL[there] > LEVEL[here]:
                yield f"{name}:{item.line}: {here} imports {there}, which stands above it"
            for outer, layers in INSIDE.items():
                ours, theirs = (_level_inside(outer, layers, module) for module in (name, target))
                if ours is not None and theirs is not None and ours[1] != theirs[1] and theirs[0] >= ours[0]:
                    yield f"{name}:{item.line}: in {outer}, {ours[1]} imports {theirs[1]}, which is not below it"


def _level_inside(outer: str, layers: tuple[str, ...], module: str) -> tuple[int, str] | None:
    """The layer and the name of the inner room that a module stands in; None where it stands elsewhere."""
    inner = module.removeprefix(outer + ".").split(".")[0] if module.startswith(outer + ".") else ""
    return next(((level, inner) for level, layer in enumerate(layers) if inner in layer.split()), None)


def _cycles(package: str, imports: Imports) -> Iterator[str]:
    """Rooms of one layer may see each other in one direction only."""
    edges: dict[str, set[str]] = {}
    for name, items in imports.items():
        targets = {room_of(t) for item in items if (t := _inner(package, item)) is not None}
        edges.setdefault(room_of(name), set()).update(targets - {room_of(name)})
    for room in sorted(edges):
        level = LEVEL.get(room)
        reached, front = set[str](), {r for r in edges[room] if LEVEL.get(r) == level}
        while front:
            reached |= front
            front = {r for f in front for r in edges.get(f, ()) if LEVEL.get(r) == level} - reached
        if room in reached:
            yield f"{room}: a cycle of rooms in one layer leads back to it ({', '.join(sorted(reached))})"


def _lightning(imports: Imports) -> Iterator[str]:
    for name, items in imports.items():
        for item in items:
            if item.target.split(".")[0] in LIGHTNING and room_of(name) != "training":
                yield f"{name}:{item.line}: imports {item.target}: only training/ imports Lightning"


def _heavy(package: str, imports: Imports) -> Iterator[str]:
    for name in imports:
        banned = LIGHT.get(room_of(name), set())
        if name not in MAY_BE_HEAVY:
            for top, way in _loaded(package, name, imports).items():
                if top in banned:
                    yield f"{name}: importing it loads {top} (by way of {way}); import that inside a function"


def _loaded(package: str, name: str, imports: Imports) -> dict[str, str]:
    """External packages that run when a module is imported -> the module of ours that imports each."""
    outside: dict[str, str] = {}
    seen, front = set[str](), _runs(name, imports)
    while front:
        module = front.pop()
        seen.add(module)
        for item in imports[module]:
            target = None if item.lazy else _inner(package, item)
            if target is not None:
                front |= _runs(target, imports) - seen
            elif not item.lazy:
                outside.setdefault(item.target.split(".")[0], module)
    return outside


def _runs(target: str, imports: Imports) -> set[str]:
    """The modules that run when `target` (a module, or a name in one) is imported: itself and its packages."""
    parts = target.split(".")
    prefixes = ["", *(".".join(parts[: n + 1]) for n in range(len(parts)))]
    candidates = {c for p in prefixes for c in (p, f"{p}.__init__" if p else "__init__")}
    return candidates & imports.keys()


def _pickling(tree: ast.AST) -> Iterator[tuple[str, int]]:
    torches = {"torch"} | {
        a.asname for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names if a.name == "torch" and a.asname
    }
    for item in imports_of(tree, "x.x"):
        top, _, rest = item.target.partition(".")
        if top in PICKLERS or (top == "torch" and rest in {"load", "save"}):
            yield f"import of {item.target}", item.line
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in PICKLING_CALLS or (owner in torches and node.attr in {"load", "save"}):
                yield ast.unparse(node), node.lineno
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                yield "allow_pickle", node.value.lineno


def main(arguments: Iterable[str]) -> int:
    """Prints the faults of the packages named; 1 where there are any."""
    found = [fault for root in arguments for fault in faults(Path(root))]
    print("\n".join(found) or "imports point one way")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
