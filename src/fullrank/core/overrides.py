"""One setting as a person writes it, `a.b=value`: read, and put into the plain data of a spec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fullrank.core.errors import UserError, brief, did_you_mean, in_context, middle_cut, nearest
from fullrank.core.readers import read_yaml_text
from fullrank.core.renamed import REMOVED


def read_setting(setting: str) -> tuple[str, Any]:
    """The dotted path and the value (YAML) of `a.b=value`."""
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise UserError(f"cannot read the setting {brief(setting)}: write it as a.b=value", code="unreadable-setting")
    with in_context(f"cannot read the value of {brief(setting)}: it is not YAML (", ")", code="unreadable-setting"):
        return path.strip(), read_yaml_text(text)


class _Started(dict[str, Any]):
    """A component of which the kind alone is known: what else it has, and lacks, shows when it is read."""


def put_setting(tree: dict[str, Any], path: str, value: Any) -> None:
    """Put a value at a dotted path, in place. Raises `UserError` with the nearest name where there is no such path."""
    _put(tree, path.strip().split("."), value, path, tree)


def _put(tree: Any, keys: list[str], value: Any, whole: str, root: dict[str, Any]) -> None:
    key, rest = keys[0], keys[1:]
    if isinstance(tree, list):
        if not key.isdecimal() or len(key) > 9 or int(key) >= len(tree):
            raise UserError(
                f"{middle_cut(whole)}: {brief(key)} is not a place in a list of {len(tree)}", code="unknown-setting"
            )
        if rest:
            _put(tree[int(key)], rest, value, whole, root)
        else:
            tree[int(key)] = value
        return
    if not isinstance(tree, dict):
        raise UserError(
            f"{middle_cut(whole)}: nothing can be set below this value; it is {brief(tree)}", code="unknown-setting"
        )
    gone = (str(tree.get("kind")), key) in REMOVED  # which the spec refuses, unless the value changes nothing
    if not (key in tree or gone or isinstance(tree, _Started)):
        names = [n for n in tree if n != "kind"]
        raise UserError(
            f"{middle_cut(whole)}: there is no setting {brief(key)}{_meant(key, names, whole, root)} "
            f"(allowed: {', '.join(names)})",
            code="unknown-setting",
        )
    if rest == ["kind"]:
        tree[key] = _Started(kind=value)
    elif rest:
        _put(tree[key], rest, value, whole, root)
    else:
        tree[key] = value


def _meant(key: str, names: list[str], whole: str, root: dict[str, Any]) -> str:
    """The path that ends in what was typed (`lr`: `training.lr`), else the nearest name here, else anywhere."""
    paths = {path: path.rpartition(".")[2] for path in _paths(root)}
    ending = [path for path in paths if path.endswith(f".{whole}")]
    here = did_you_mean(key, names)
    if not ending and not here:
        ending = [path for path, last in paths.items() if last == nearest(key, paths.values())]
    return f"; did you mean {' or '.join(map(repr, ending[:3]))}?" if ending else here


def _paths(tree: Any, before: str = "") -> Iterator[str]:
    """The dotted paths of all settings in plain data."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield f"{before}{key}"
        yield from _paths(value, f"{before}{key}.")
