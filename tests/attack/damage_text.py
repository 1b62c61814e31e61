"""Damages of JSON and of JSON lines: keys, values of other types, versions, torn and foreign lines."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.attack.damage import CANARY, Mutation, Write, put_bytes, put_text

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 0.5, "", "x" * 3000, "SASREC", [], {}, [[[]]], {"kind": "os:system"},
    float("nan"), "1e400", [1, "2", None], "../../etc/passwd", "\u2028\x00",
)  # fmt: skip
"""What stands in the place of a value; `"1e400"` is written as that number, which Python reads as infinity."""
VERSIONS: tuple[Any, ...] = (-1, 0, 999, "1", 1.0, True, None)
PER_PLACE = 2
"""Values of the pool that each place of a tree meets; all of them are met over a few places."""
PLACES = 60
"""Most places of a tree that are changed: of a larger one some, spread evenly."""


def of_json(file: Path, draw: random.Random) -> Iterator[Mutation]:
    text = file.read_text()
    tree = json.loads(text)
    every = list(_places(tree))
    some = every[:: max(1, -(-len(every) // PLACES))]
    turn = draw.randrange(len(VALUES))
    for place in some:
        name = ".".join(map(str, place))
        yield Mutation(f"{name} lacks", _tree(_without(tree, place)))
        for _ in range(PER_PLACE):
            value, turn = VALUES[turn % len(VALUES)], turn + 1
            yield Mutation(f"{name} = {json.dumps(value)[:40]}", _tree(_with(tree, place, value)))
        old = _at(tree, place)
        if isinstance(old, str) and old.lower() != old.upper() and len(old) < 200:
            yield Mutation(f"{name} in capitals", _tree(_with(tree, place, old.swapcase())))
        if type(old) is int:
            yield Mutation(f"{name} + 1", _tree(_with(tree, place, old + 1)))
            yield Mutation(f"{name} as a float", _tree(_with(tree, place, float(old))))
        if place[-1] == "format_version":
            for version in VERSIONS:
                if json.dumps(version) != json.dumps(old):
                    yield Mutation(f"{name} = {version!r}", _tree(_with(tree, place, version)))
    yield Mutation("an unknown key", _tree(tree | {"unheard_of": 1}))
    first = next(iter(tree))
    double = "{" + f"{json.dumps(first)}: null, " + text.lstrip()[1:]
    yield Mutation("a key twice", put_bytes(double.encode()))
    yield Mutation("100,000 brackets", put_bytes(b"[" * 100_000))
    yield Mutation("5,000 digits", put_bytes(text.replace("{", '{"long": ' + "9" * 5000 + ", ", 1).encode()))
    yield Mutation(
        "deep below a key", put_bytes(text.replace("{", '{"deep": ' + "[" * 300 + "]" * 300 + ", ", 1).encode())
    )
    yield Mutation("a byte order mark", put_bytes(b"\xef\xbb\xbf" + text.encode()))
    yield Mutation("UTF-16", put_bytes(text.encode("utf-16")))
    yield Mutation("a list around it", put_bytes(f"[{text}]".encode()))
    yield Mutation("code of Python", put_bytes(f"!!python/object/apply:os.system ['touch ${CANARY}']".encode()))


def of_jsonl(file: Path, draw: random.Random) -> Iterator[Mutation]:
    lines = file.read_text().splitlines(keepends=True)
    half = len(lines) // 2
    torn = lines[half][: len(lines[half]) // 2]
    yield Mutation("the last line torn", put_text("".join(lines)[: -len(lines[-1]) // 2]))
    yield Mutation("a line torn in the middle", put_text("".join([*lines[:half], torn + "\n", *lines[half:]])))
    yield Mutation("other order", put_text("".join(reversed(lines))))
    yield Mutation("a line twice", put_text("".join([*lines, lines[-1]])))
    for name, row in {
        "a foreign row": '{"a": 1}',
        "a number": "7",
        "a list": "[]",
        "nothing": "",
        "null": "null",
    }.items():
        yield Mutation(f"{name} as a line", put_text("".join([*lines[:half], row + "\n", *lines[half:]])))
    row = json.loads(lines[half])
    for key in row:
        rest = {other: value for other, value in row.items() if other != key}
        value = VALUES[draw.randrange(len(VALUES))]
        for name, changed in ((f"{key} lacks", rest), (f"{key} = {json.dumps(value)[:40]}", row | {key: value})):
            yield Mutation(name, put_text("".join([*lines[:half], _dumped(changed) + "\n", *lines[half + 1 :]])))


def _tree(tree: Any) -> Write:
    return put_text(_dumped(tree))


def _dumped(tree: Any) -> str:
    return json.dumps(tree).replace('"1e400"', "1e400")


Place = tuple[Any, ...]


def _places(tree: Any, above: Place = ()) -> Iterator[Place]:
    """Every key and every position of a tree, below one another."""
    inner = tree.items() if isinstance(tree, dict) else list(enumerate(tree))[:3] if isinstance(tree, list) else ()
    for key, value in inner:
        yield (*above, key)
        yield from _places(value, (*above, key))


def _at(tree: Any, place: Place) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def _with(tree: Any, place: Place, value: Any) -> Any:
    copy = json.loads(json.dumps(tree))
    _at(copy, place[:-1])[place[-1]] = value
    return copy


def _without(tree: Any, place: Place) -> Any:
    copy = json.loads(json.dumps(tree))
    del _at(copy, place[:-1])[place[-1]]
    return copy
