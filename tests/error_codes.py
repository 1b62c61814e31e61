"""The codes of every `UserError` in the source: `python tests/error_codes.py` writes the snapshot anew.

Read from the source text: the computed parts of an f-string stand as {...}.
"""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src/fullrank"
SNAPSHOT = Path(__file__).with_name("error_codes.json")
CONSTRAINTS = ("only_with", "not_with", "needs", "some_of", "once")
"""Functions of `core/constraints.py`."""
CODED = ("in_context", "check_that", "refuse", "require_known", "require_filter", "require_list",
         "check_one_way", "check_unset", "require_problem", *CONSTRAINTS)  # fmt: skip
"""Functions that have a code of their own, where they are given none."""
RAISING = ("UserError", "Requirement", "no_such", "check_given", "check_once", "require_layers", *CODED)
"""What raises a `UserError`: itself, functions that are given its code, what a part requires of another, and
constraints of fields."""
PASSED_ON = "(passed on)"
"""In place of a code that the raising line was given: by its caller, or by the error that it tells more about."""


def error_codes(root: Path = SOURCE) -> list[str]:
    """Every code once, sorted; a call without a code stands under its file and line."""
    codes = set()
    for file in root.rglob("*.py"):
        for call in calls(ast.parse(file.read_bytes())):
            code = next((k.value for k in call.keywords if k.arg == "code"), None)
            if code is None and _name(call) in CODED:
                continue  # the one of its kind, which the function itself has; that of the mistake inside
            codes.update(
                [f"NO CODE {file.relative_to(root).as_posix()}:{call.lineno}"] if code is None else codes_of(code)
            )
    constraints = ast.parse((root / "core" / "constraints.py").read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(constraints) if isinstance(node, ast.FunctionDef)]
    last = [default for f in functions for default in f.args.kw_defaults[-1:]]
    codes.update(str(default.value) for default in last if isinstance(default, ast.Constant))
    return sorted(codes)


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that make a `UserError`, or the constraint or requirement that becomes one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node) in RAISING:
            yield node


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "id", ""))


def codes_of(code: ast.expr) -> list[str]:
    """The codes that an expression can have: one, or one for each branch of a condition."""
    if isinstance(code, ast.IfExp):
        return [*codes_of(code.body), *codes_of(code.orelse)]
    if isinstance(code, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "{...}" for part in code.values)]
    return [str(code.value)] if isinstance(code, ast.Constant) else [PASSED_ON]


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(error_codes(), indent=1) + "\n", encoding="utf-8")
