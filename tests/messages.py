"""Every sentence of a `UserError` in the source, by code: `python tests/messages.py` writes the snapshot anew.

Read from the source text: an f-string's parts that are computed stand as {...}.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "fullrank"
SNAPSHOT = Path(__file__).with_name("messages.json")
PASSED_ON = "(passed on)"
"""In place of a code that the raising line was given: by its caller, or by the error that it tells more about."""


def sentences(root: Path = SOURCE) -> dict[str, list[str]]:
    """code -> its sentences; a call without a code stands under the file and line."""
    found: dict[str, set[str]] = {}
    for file in sorted(root.rglob("*.py")):
        for call in calls(ast.parse(file.read_text(encoding="utf-8"))):
            given = next((k.value for k in call.keywords if k.arg == "code"), None)
            codes = [f"NO CODE {file.relative_to(root).as_posix()}:{call.lineno}"] if given is None else _codes(given)
            for code in codes:
                found.setdefault(code, set()).add(_text(call.args[0]) if call.args else "")
    return {code: sorted(found[code]) for code in sorted(found)}


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that make a `UserError`, or a class of it that is named after it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "UserError":
            yield node


def _codes(given: ast.expr) -> list[str]:
    if isinstance(given, ast.IfExp):
        return [*_codes(given.body), *_codes(given.orelse)]
    return [_text(given)] if isinstance(given, ast.Constant | ast.JoinedStr) else [PASSED_ON]


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "{...}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "{...}"


def text() -> str:
    return json.dumps(sentences(), indent=1) + "\n"


if __name__ == "__main__":
    SNAPSHOT.write_text(text(), encoding="utf-8")
