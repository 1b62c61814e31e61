"""Nasty values: of numbers, words, paths and YAML, each with a name for the case."""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import polars as pl

LONG = 100_000


def chosen(names: Iterable[str], key: str, count: int) -> list[str]:
    """`count` names of a pool, other ones for each key: between them the keys try all of the pool."""
    return sorted(names, key=lambda name: zlib.crc32(f"{key}/{name}".encode()))[:count]


SEPARATOR = "\u2028"

INTEGERS = {
    "empty": "",
    "blank": " ",
    "zero": "0",
    "negative": "-1",
    "half": "1.5",
    "nan": "nan",
    "inf": "inf",
    "word": "x",
    "thirty-digits": "9" * 30,
    "many-digits": "9" * LONG,
    "2**63": str(2**63),
    "2**63-1": str(2**63 - 1),
    "unicode": "٣",
    "line": "1\u2028",
    "nul": "1\0",
    "true": "true",
    "underscore": "1_0",
    "hex": "0x10",
    "list": "[1]",
    "minus-2**64": str(-(2**64)),
    "long-word": "x" * LONG,
}
FLOATS = {
    "empty": "",
    "blank": " ",
    "zero": "0",
    "minus-zero": "-0.0",
    "negative": "-1",
    "nan": "nan",
    "inf": "inf",
    "minus-inf": "-inf",
    "overflow": "1e400",
    "tiny": "1e-320",
    "huge": "1e300",
    "word": "x",
    "many-digits": "9" * LONG,
    "line": "0.5\u2028",
    "nul": "0.5\0",
    "unicode": "٣",
    "true": "true",
    "list": "[0.5]",
    "two": "0.5,0.5",
}
WORDS = {
    "empty": "",
    "blank": " ",
    "unknown-word": "xyzzy",
    "long": "x" * LONG,
    "line": f"a{SEPARATOR}b",
    "newline": "a\nb",
    "nul": "a\0b",
    "umlaut": "größe",
    "emoji": "🛋",
    "surrogate": "\ud800",
    "dash": "-",
    "option": "--json",
    "parent": "../..",
    "shell": "$(id)",
    "null": "null",
    "none": "none",
    "number": "5",
    "comma": ",",
    "equals": "=",
    "braces": "{}",
    "list": "[1, 2]",
    "module": "os:system",
    "format": "%s{0}",
}
VALUES = {
    "empty": "",
    "null": "null",
    "true": "true",
    "word": "xyzzy",
    "zero": "0",
    "negative": "-1",
    "half": "0.5",
    "thirty-digits": "9" * 30,
    "many-digits": "9" * 5001,
    "nan": ".nan",
    "inf": ".inf",
    "minus-inf": "-.inf",
    "tiny": "1e-320",
    "list": "[]",
    "nested": "[[1, [2]], {a: 1}]",
    "mapping": "{}",
    "kind": "{kind: xyzzy}",
    "date": "2001-13-01",
    "int-tag": "!!int x",
    "python-tag": "!!python/object/apply:os.system [id]",
    "bad-time": "!!timestamp foo",
    "long": "x" * LONG,
    "line": f"a{SEPARATOR}b",
    "nul": "a\0b",
    "unclosed": "[1, {",
    "two-values": "1\n---\n2",
    "deep": "[" * 3000 + "]" * 3000,
    "module": "os:system",
    "anchor": "*nothing",
    "bomb": "{a: &a [x,x,x,x,x,x,x,x,x,x], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a],"
    " c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c], "
    "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d], f: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]}",
}
"""What stands behind ``--set PATH=``, in a grid and in an experiment file."""

Made = Callable[[Path], AbstractContextManager[str]]
"""Makes something in a folder and says its path, as long as the block lasts."""


def _just(make: Callable[[Path], str | Path]) -> Made:
    @contextlib.contextmanager
    def made(place: Path) -> Iterator[str]:
        yield str(make(place))

    return made


def _file(name: str, content: bytes) -> Made:
    def make(place: Path) -> Path:
        (place / name).write_bytes(content)
        return place / name

    return _just(make)


def _folder(*names: str) -> Made:
    def make(place: Path) -> Path:
        (place / "given").mkdir()
        for name in names:
            (place / "given" / name).write_text("mine")
        return place / "given"

    return _just(make)


def _link(target: str) -> Made:
    def make(place: Path) -> Path:
        (place / "link").symlink_to(target)
        return place / "link"

    return _just(make)


def _torn(place: Path) -> Path:
    pl.DataFrame({"user_id": range(1000), "item_id": range(1000)}).write_parquet(place / "torn.parquet")
    whole = (place / "torn.parquet").read_bytes()
    (place / "torn.parquet").write_bytes(whole[: len(whole) // 2])
    return place / "torn.parquet"


def _closed(place: Path) -> Path:
    path = place / "closed"
    path.mkdir()
    (path / "file.csv").write_text("a\n1\n")
    path.chmod(0o000)
    return path / "file.csv"


@contextlib.contextmanager
def fifo(place: Path) -> Iterator[str]:
    """A named pipe that a writer opens again and again: whoever reads it gets a line that is no data, and the end."""
    path, over = place / "pipe.csv", threading.Event()
    os.mkfifo(path)

    def write() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), open(path, "wb", buffering=0) as pipe:
                pipe.write(b"a,b\n1\n")
            over.wait(0.01)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield str(path)
    finally:
        over.set()
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # lets the writer's own open return
            thread.join(2)
            os.close(handle)


PATHS: dict[str, Made] = {
    "missing": _just(lambda place: place / "none.csv"),
    "empty-word": _just(lambda place: ""),
    "dot": _just(lambda place: "."),
    "dash": _just(lambda place: "-"),
    "nul": _just(lambda place: "a\0b"),
    "line": _just(lambda place: f"a{SEPARATOR}b"),
    "surrogate": _just(lambda place: "a\ud800b"),
    "long-name": _just(lambda place: "x" * 300),
    "long-path": _just(lambda place: "x/" * 5000),
    "null-device": _just(lambda place: "/dev/null"),
    "full-device": _just(lambda place: "/dev/full"),
    "proc": _just(lambda place: "/proc/none/here"),
    "memory": _just(lambda place: "/proc/self/mem"),
    "loop": _link("link"),
    "dangling": _link("nowhere.csv"),
    "fifo": fifo,
    "empty-folder": _folder(),
    "foreign-folder": _folder("mine.txt"),
    "run-like-folder": _folder("spec.json", "manifest.json"),
    "store-like-folder": _folder("items.npy", "manifest.json"),
    "under-a-file": _just(lambda place: _touch(place / "plain") / "below.csv"),
    "missing-and-up": _just(lambda place: place / "missing" / ".." / "z"),
    "empty-csv": _file("e.csv", b""),
    "empty-parquet": _file("e.parquet", b""),
    "empty-jsonl": _file("e.jsonl", b""),
    "empty-json": _file("e.json", b""),
    "empty-yaml": _file("e.yaml", b""),
    "header": _file("h.csv", b"user_id,item_id\n"),
    "torn-parquet": _just(_torn),
    "random-parquet": _file("r.parquet", b"PAR1" + bytes(range(256)) * 4 + b"PAR1"),
    "random-csv": _file("r.csv", bytes(range(256)) * 4),
    "ragged-csv": _file("g.csv", b"a,b\n1,2,3\n4\n"),
    "nul-csv": _file("n.csv", b"user_id,item_id\n\0,\0\n"),
    "utf16-csv": _file("u.csv", "user_id,item_id\na,1\n".encode("utf-16")),
    "bad-jsonl": _file("b.jsonl", b'{"user_id": 1}\n{"user_id": '),
    "other-jsonl": _file("o.jsonl", b'[1]\n"x"\n'),
    "bad-json": _file("b.json", b'{"a": '),
    "list-json": _file("l.json", b"[1, 2]"),
    "word-yaml": _file("w.yaml", b"x\n"),
    "bad-yaml": _file("b.yaml", b"a: [1\nb: }"),
    "random-yaml": _file("r.yaml", bytes(range(256))),
    "deep-json": _file("d.json", b"[" * 100_000),
    "bomb-yaml": _file("m.yaml", VALUES["bomb"].encode()),
    "unknown-suffix": _file("x.docx", b"x"),
    "pickle": _file("p.parquet", b"\x80\x04K\x01."),
    "other-events": _just(lambda place: "@events.csv"),
    "other-items": _just(lambda place: "@items.csv"),
    "other-store": _just(lambda place: "@store"),
    "other-clicks": _just(lambda place: "@clicks"),
    "other-run": _just(lambda place: "@sasrec"),
    "other-baseline": _just(lambda place: "@popularity"),
    "other-ranker": _just(lambda place: "@lr"),
    "other-codes": _just(lambda place: "@codes"),
    "other-evaluation": _just(lambda place: "@evaluation"),
    "other-grid": _just(lambda place: "@grid.yaml"),
}
CONTENTS = {
    name for name in PATHS if name.split("-")[-1] in ("csv", "parquet", "jsonl", "json", "yaml", "header", "pickle")
}
"""Files with something wrong in them; the others are places."""
CONTENTS -= {"random-csv", "bad-json"}  # these two are tried where a folder is asked for
if os.geteuid() != 0:
    PATHS["unreadable"] = _just(_closed)


def _touch(path: Path) -> Path:
    path.write_text("plain")
    return path
