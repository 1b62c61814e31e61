"""Read JSON, JSON lines and YAML of others, with bounds, and one short sentence for any fault.

The bounds stand far above what the library or a person writes: a text beyond them is damaged, or
made to exhaust the memory of whoever opens it. In YAML, aliases count as often as they are used,
before anything is built from them.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import yaml

from fullrank.core.errors import UserError, brief, in_context

JsonObject = dict[str, Any]
"""An object of JSON: a manifest, a protocol, the body of an answer."""
MOST_JSON = 64 * 2**20
"""Bytes of a JSON file, or of one line of JSON lines."""
MOST_YAML = 2**20
"""Bytes of YAML: its parser takes some seconds for so many."""
MOST_NODES = 30_000
"""Values in YAML, with all aliases written out."""
MOST_LEVELS = 100
"""Lists and mappings inside each other."""
MOST_DIGITS = 1000
"""Characters of a number: Python refuses to print more than 4,300 decimal digits."""

_NOT_THE_FILE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES})
"""Errors of the system that say nothing about what a file holds."""


def read_text(path: str | Path, most: int = MOST_YAML) -> str:
    """The text of a file. Raises `UserError`: unreadable, no UTF-8, more than `most` bytes."""
    try:
        with in_context(f"cannot read {path}: "):
            return _decoded(read_bytes(path, most))
    except OSError as error:
        raise cannot_read(path, error) from None


def read_bytes(path: str | Path, most: int = MOST_JSON) -> bytes:
    """The bytes of a file. Raises `OSError`, and `UserError` with a bare reason beyond `most`."""
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise _Refused(f"it is larger than {most:,} bytes", code="too-large")
    return content


def refuse_special(path: str | Path) -> None:
    """Raise `OSError` for a pipe or a device: reading one may wait for ever."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder fails at once, with words of its own
        raise OSError(errno.EINVAL, "it is a pipe or a device, and no file", str(path))


def cannot_open(path: Path, error: BaseException) -> UserError | None:
    """The error for a file that the system did not open, for reasons other than what it holds (too many open files);
    None for other errors."""
    return cannot_read(path, error) if isinstance(error, OSError) and error.errno in _NOT_THE_FILE else None


def cannot_read(path: str | Path, error: Exception) -> UserError:
    """The error for a file that the system does not let one read."""
    return UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", code="file-unreadable")


def missing_file(path: str | Path, again: str = "the folder is incomplete") -> UserError:
    """The error for a file of a folder of ours that is not there; `again` says what to do."""
    return UserError(f"{path} is missing; {again}", code="missing-file")


def read_json(path: str | Path) -> JsonObject:
    """The JSON object of a file in a folder of ours; anything else gives a `UserError`."""
    try:
        refuse_special(path)
        tree = read_json_text(read_bytes(path))
        if not isinstance(tree, dict):
            raise _Refused(f"it holds {brief(tree, 80)}, no object", code="not-an-object")
        return tree
    except FileNotFoundError:
        raise missing_file(path) from None
    except (OSError, UserError) as error:
        raise cannot_open(Path(path), error) or UserError(
            f"{path} is not readable JSON ({error}); the folder is damaged", code="file-damaged"
        ) from None


def read_jsonl(path: str | Path, *, torn: bool = True) -> list[JsonObject]:
    """The objects of a file of JSON lines, up to the first line that is none: a killed process leaves half a line.

    With `torn=False` such a line is refused. Raises `UserError` where the file cannot be read.
    """
    rows: list[JsonObject] = []
    try:
        refuse_special(path)
        with open(path, "rb") as file:
            while line := file.readline(MOST_JSON + 1):
                try:
                    row = read_json_text(line)
                    if not isinstance(row, dict):
                        raise _Refused("it is no object", code="not-an-object")
                except UserError as error:
                    if torn:
                        break
                    raise UserError(
                        f"line {len(rows) + 1} of {path} is not readable JSON ({error})", code="file-damaged"
                    ) from None
                rows.append(row)
    except OSError as error:
        raise cannot_read(path, error) from None
    return rows


def read_json_text(text: str | bytes) -> Any:
    """Parse JSON text. Raises `UserError` with the reason alone, for a caller who adds the rest."""
    if len(text) > MOST_JSON:
        raise _Refused(f"it is larger than {MOST_JSON:,} bytes", code="too-large")
    try:
        whole = text if isinstance(text, str) else _decoded(text)
        tree = json.loads(whole, parse_int=lambda digits: int(_refuse_long(digits)))
    except _Refused:
        raise
    except (RecursionError, MemoryError):
        raise _TooDeep() from None
    except ValueError as error:
        raise _Refused(str(error)[:200], code="not-json") from None
    if whole.count("[") + whole.count("{") > MOST_LEVELS:  # most texts need no walk
        _refuse_deep(tree)
    return tree


def read_yaml_text(text: str) -> Any:
    """Parse YAML text. Raises `UserError` with the reason alone, for a caller who adds the rest."""
    if len(text) > MOST_YAML:
        raise _Refused(f"it is larger than {MOST_YAML:,} characters", code="too-large")
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _measure(node, {})
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except _Refused:
        raise
    except yaml.YAMLError as error:
        raise _Refused((str(error).splitlines() or ["it has no sense"])[0][:200], code="not-yaml") from None
    except (RecursionError, MemoryError):
        raise _TooDeep() from None
    except ValueError as error:
        raise _Refused(f"a value is not what it says: {str(error)[:100]}", code="not-yaml") from None
    except Exception:  # PyYAML's constructors index and search what they did not check: `!!timestamp x`, `!!bool x`
        raise _Refused("a value is not of the type that its tag says", code="not-yaml") from None


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise _Refused("it is not text", code="not-text") from None


class _Refused(UserError):
    """A bare reason, which a caller makes a sentence of."""


class _TooDeep(_Refused):
    def __init__(self) -> None:
        super().__init__(f"lists and mappings stand in each other more than {MOST_LEVELS} deep", code="too-deep")


class _TooMany(_Refused):
    def __init__(self) -> None:
        super().__init__(
            f"it holds more than {MOST_NODES:,} values, with its aliases written out", code="too-many-values"
        )


class _Loader(yaml.SafeLoader):
    """PyYAML's loader of plain data, which stops at the bounds.

    PyYAML alone looks a thousand brackets ahead before it says that they are too deep, and it is
    too slow to read on behind the last value that is allowed.
    """

    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise _TooMany()
        return super().compose_node(parent, index)

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level >= MOST_LEVELS:
            raise _TooDeep()
        super().fetch_flow_collection_start(token)


def _refuse_long(number: str) -> str:
    if len(number) > MOST_DIGITS:
        raise _Refused(f"a number has {len(number):,} digits, more than {MOST_DIGITS:,}", code="number-too-long")
    return number


def _refuse_deep(tree: Any) -> None:
    level, parents = 0, [tree]
    while parents := [child for parent in parents for child in _children(parent)]:
        level += 1
        if level > MOST_LEVELS:
            raise _TooDeep()


def _children(tree: Any) -> list[Any]:
    return list(tree.values()) if isinstance(tree, dict) else tree if isinstance(tree, list) else []


def _measure(node: yaml.Node, sizes: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """The values in a node and its levels. Raises `_Refused` for too many, for an endless node, and
    for too long a number.

    `sizes` holds the nodes that were measured, by id, and None for those under way. So a node that
    aliases use often is measured once, before anything is written out.
    """
    if id(node) in sizes:
        size = sizes[id(node)]
        if size is None:
            raise _Refused("it holds itself by an alias", code="endless-alias")
        return size
    if isinstance(node, yaml.ScalarNode):
        if node.tag.endswith((":int", ":float")):
            _refuse_long(node.value)
        return 1, 0
    sizes[id(node)] = None
    children = node.value if isinstance(node, yaml.SequenceNode) else [child for pair in node.value for child in pair]
    inner = [_measure(child, sizes) for child in reversed(children)]
    values, levels = 1 + sum(count for count, _ in inner), 1 + max((depth for _, depth in inner), default=0)
    if values > MOST_NODES:
        raise _TooMany()
    if levels > MOST_LEVELS:
        raise _TooDeep()
    sizes[id(node)] = values, levels
    return values, levels
