"""How often the library refuses: `python tests/refusals_count.py [src/fullrank]`, read from the source text.

Counted are constructions of `UserError`, and calls of functions that do nothing but raise one: a function without a
result whose body raises a `UserError`, and the checks of `core/checks.py`, which give back what they were given.
Constraints that a field declares (`core/constraints.py`) are no calls that refuse: one validator reads them.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "fullrank"


def refusals(root: Path = SOURCE) -> Counter[str]:
    """Both counts, of the package at `root`."""
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(root.rglob("*.py"))}
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    checks = {f.name for f in functions if _only_raises(f)}
    checks |= {n.name for n in ast.walk(trees[root / "core" / "checks.py"]) if isinstance(n, ast.FunctionDef)}
    names = [_name(node) for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return Counter("UserError" if name == "UserError" else "checks" for name in names if name in checks | {"UserError"})


def _only_raises(function: ast.FunctionDef) -> bool:
    """Whether it raises a `UserError` and changes and gives back nothing."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    raises = any(
        isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call) and _name(n.exc) == "UserError" for n in nodes
    )
    changes = any(isinstance(n, ast.Attribute | ast.Subscript) and isinstance(n.ctx, ast.Store) for n in nodes)
    acts = any(isinstance(n, ast.Return | ast.Yield) and n.value is not None for n in nodes)
    void = isinstance(function.returns, ast.Constant) and function.returns.value is None
    return raises and void and not changes and not acts and not function.name.startswith("__")


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


if __name__ == "__main__":
    counts = refusals(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
    print(f"{sum(counts.values()):,} refusals: {counts['UserError']:,} UserError, {counts['checks']:,} calls of checks")
