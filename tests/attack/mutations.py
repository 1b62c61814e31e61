"""Ways to damage a file: of any file, and of each kind of file by what its format can get wrong.

A mutation writes a file where there is none, from what the whole file held. All are functions of the file and of a
seed: a case that failed can be run again by its name.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

Write = Callable[[Path], None]
CANARY = "FULLRANK_CANARY"
"""Environment variable with the path of a file that exists only after code of an opened folder was run."""


@dataclass(frozen=True)
class Mutation:
    """One damage of one file."""

    name: str
    write: Write
    """Writes the damaged file at a path where nothing is; does nothing where the damage is that it lacks."""
    visible: bool = True
    """Whether a reader without hashes could notice: a flipped bit of a weight is a weight."""


def mutations(kind: str, file: Path, twin: Path | None, seed: int = 0) -> Iterator[Mutation]:
    """Every damage of a file of this kind (`KINDS`); `twin` is the same file of another folder of its format."""
    yield from _of_any(file, twin, random.Random(f"{seed} {file.name}"))
    yield from KINDS[kind](file, random.Random(f"{seed} {kind} {file.name}"))


class Evil:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f'touch "${CANARY}"',))


def _of_any(file: Path, twin: Path | None, draw: random.Random) -> Iterator[Mutation]:
    whole = file.read_bytes()
    size = len(whole)
    yield Mutation("missing", lambda path: None)
    yield Mutation("empty", _bytes(b""))
    for part in (0.02, 0.5, 0.97):
        yield Mutation(f"truncated at {part:.0%}", _bytes(whole[: int(size * part)]))
    yield Mutation("last byte lacks", _bytes(whole[:-1]))
    yield Mutation("a byte more", _bytes(whole + b"\0"), visible=False)
    for at in sorted(draw.sample(range(size), min(6, size))):
        bit = draw.randrange(8)
        yield Mutation(f"bit {bit} of byte {at}", _bytes(_flipped(whole, at, bit)), visible=False)
    if twin is not None and twin.read_bytes() != whole:
        yield Mutation("that of another folder", _bytes(twin.read_bytes()), visible=False)
    yield Mutation("a folder", lambda path: path.mkdir())
    yield Mutation("a link to itself", lambda path: path.symlink_to(path.name))
    yield Mutation("a link to nowhere", lambda path: path.symlink_to("nowhere"))
    yield Mutation("a pipe", lambda path: os.mkfifo(path))
    yield Mutation("random bytes", _bytes(draw.randbytes(min(size, 4096))))
    yield Mutation("zeros", _bytes(bytes(size)))
    yield Mutation("a pickle", _bytes(pickle.dumps(Evil())))
    yield Mutation("a zip", _bytes(_zip(pickle.dumps(Evil()))))
    if os.geteuid() != 0:  # root reads what nobody may read
        yield Mutation("unreadable", _unreadable(whole))


# JSON

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


def _json(file: Path, draw: random.Random) -> Iterator[Mutation]:
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
            yield Mutation(f"{name} = {json.dumps(value)[:40]}", _tree(_with(tree, place, value)), visible=False)
        old = _at(tree, place)
        if isinstance(old, str) and old.lower() != old.upper() and len(old) < 200:
            yield Mutation(f"{name} in capitals", _tree(_with(tree, place, old.swapcase())), visible=False)
        if type(old) is int:
            yield Mutation(f"{name} + 1", _tree(_with(tree, place, old + 1)), visible=False)
            yield Mutation(f"{name} as a float", _tree(_with(tree, place, float(old))), visible=False)
        if place[-1] == "format_version":
            for version in VERSIONS:
                if json.dumps(version) != json.dumps(old):
                    yield Mutation(f"{name} = {version!r}", _tree(_with(tree, place, version)))
    yield Mutation("an unknown key", _tree(tree | {"unheard_of": 1}), visible=False)
    first = next(iter(tree))
    double = "{" + f"{json.dumps(first)}: null, " + text.lstrip()[1:]
    yield Mutation("a key twice", _bytes(double.encode()), visible=False)
    yield Mutation("100,000 brackets", _bytes(b"[" * 100_000))
    yield Mutation("5,000 digits", _bytes(text.replace("{", '{"long": ' + "9" * 5000 + ", ", 1).encode()))
    yield Mutation("deep below a key", _bytes(text.replace("{", '{"deep": ' + "[" * 300 + "]" * 300 + ", ", 1).encode()))
    yield Mutation("a byte order mark", _bytes(b"\xef\xbb\xbf" + text.encode()))
    yield Mutation("UTF-16", _bytes(text.encode("utf-16")))
    yield Mutation("a list around it", _bytes(f"[{text}]".encode()))
    yield Mutation("code of Python", _bytes(f"!!python/object/apply:os.system ['touch ${CANARY}']".encode()))


def _jsonl(file: Path, draw: random.Random) -> Iterator[Mutation]:
    lines = file.read_text().splitlines(keepends=True)
    half = len(lines) // 2
    torn = lines[half][: len(lines[half]) // 2]
    yield Mutation("the last line torn", _text("".join(lines)[: -len(lines[-1]) // 2]), visible=False)
    yield Mutation("a line torn in the middle", _text("".join([*lines[:half], torn + "\n", *lines[half:]])), visible=False)
    yield Mutation("other order", _text("".join(reversed(lines))), visible=False)
    yield Mutation("a line twice", _text("".join([*lines, lines[-1]])), visible=False)
    for name, row in {"a foreign row": '{"a": 1}', "a number": "7", "a list": "[]", "nothing": "", "null": "null"}.items():
        yield Mutation(f"{name} as a line", _text("".join([*lines[:half], row + "\n", *lines[half:]])), visible=False)
    row = json.loads(lines[half])
    for key in row:
        rest = {other: value for other, value in row.items() if other != key}
        value = VALUES[draw.randrange(len(VALUES))]
        for name, changed in ((f"{key} lacks", rest), (f"{key} = {json.dumps(value)[:40]}", row | {key: value})):
            yield Mutation(name, _text("".join([*lines[:half], _dumped(changed) + "\n", *lines[half + 1 :]])), visible=False)


# numpy

def _npy(file: Path, draw: random.Random) -> Iterator[Mutation]:
    array = np.load(file)
    for dtype in ("<f8", "<i2", ">i8", "|S3", "<c8", "|b1"):
        if np.dtype(dtype) != array.dtype:
            yield Mutation(f"dtype {dtype}", _array(array.astype(dtype)))
    yield Mutation("one row less", _array(array[:-1]))
    yield Mutation("no rows", _array(array[:0]))
    yield Mutation("a row more", _array(np.concatenate([array, array[-1:]])))
    yield Mutation("an axis more", _array(array[..., None]))
    yield Mutation("no axis", _array(array.reshape(-1)[0]))
    if array.ndim > 1:
        yield Mutation("by columns", _array(np.asfortranarray(array)))
        yield Mutation("transposed", _array(np.ascontiguousarray(array.T)))
    evil = io.BytesIO()
    objects = np.empty(2, object)
    objects[:] = [Evil(), Evil()]
    np.save(evil, objects, allow_pickle=True)
    yield Mutation("objects", _bytes(evil.getvalue()))
    for shape in ("(10**15,)", "(2**62, 4)", "(-1,)", "(1,)*2000", "'x'", "(True,)", "(9999999999999,)"):
        yield Mutation(f"header of shape {shape}", _bytes(_header(array, shape)))
    flat = array.reshape(-1)
    if len(flat):
        info = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
        ends = (info.min, info.max) if info else (np.nan, np.inf)
        for value in ends:
            yield Mutation(f"{value} somewhere", _array(_put(array, len(flat) // 2, value)), visible=False)
        yield Mutation("backwards", _array(np.ascontiguousarray(array[::-1])), visible=False)
        yield Mutation("all the same", _array(np.full_like(array, flat[-1])), visible=False)
        yield Mutation("two values changed places", _array(_swapped(array, draw)), visible=False)


# Parquet

def _parquet(file: Path, draw: random.Random) -> Iterator[Mutation]:
    frame = pl.read_parquet(file)
    for name in frame.columns:
        yield Mutation(f"without {name}", _frame(frame.drop(name)))
        yield Mutation(f"{name} under another name", _frame(frame.rename({name: "other"})))
        yield Mutation(f"{name} backwards", _frame(frame.with_columns(frame[name].reverse())), visible=False)
        yield Mutation(f"{name} with a null", _frame(_cell(frame, name, None)), visible=False)
        yield Mutation(f"{name} null", _frame(frame.with_columns(pl.lit(None).alias(name))), visible=False)
        yield Mutation(f"{name} twice", _frame(_cell(frame, name, frame[name][-1])), visible=False)
        yield Mutation(f"{name} as a struct", _frame(frame.with_columns(pl.struct(pl.col(name)).alias(name))))
        other = pl.Int64 if frame[name].dtype == pl.String else pl.String
        retyped = frame.with_row_index("row").select(pl.col("row").cast(other).alias(name))[name]
        yield Mutation(f"{name} as {other}", _frame(frame.with_columns(retyped)), visible=False)
        if frame[name].dtype.is_numeric():
            for dtype in (pl.Float32, pl.Boolean, pl.UInt8):
                cast = frame[name].cast(dtype, strict=False)
                yield Mutation(f"{name} as {dtype}", _frame(frame.with_columns(cast)), visible=False)
    yield Mutation("rows backwards", _frame(frame.reverse()), visible=False)
    yield Mutation("columns backwards", _frame(frame.select(frame.columns[::-1])), visible=False)
    yield Mutation("a row less", _frame(frame[:-1]), visible=False)
    yield Mutation("no rows", _frame(frame[:0]))
    yield Mutation("a row twice", _frame(pl.concat([frame, frame[-1:]])), visible=False)
    yield Mutation("a column more", _frame(frame.with_columns(more=pl.lit("x" * 100))), visible=False)
    yield Mutation("CSV", _text("a,b\n1,2\n"))


# safetensors

def _safetensors(file: Path, draw: random.Random) -> Iterator[Mutation]:
    whole = file.read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    names = [name for name in header if name != "__metadata__"]
    for length in (0, 2**63, 2**64 - 1, len(whole), size + 8, 100_000_000, 1):
        yield Mutation(f"header of {length} bytes", _bytes(struct.pack("<Q", length) + whole[8:]))
    largest = max(names, key=lambda one: header[one]["data_offsets"][1] - header[one]["data_offsets"][0])
    for name in dict.fromkeys((names[0], largest)):
        entry = header[name]
        for what, changed in {
            "dtype F16": {"dtype": "F16"}, "dtype Q9": {"dtype": "Q9"}, "dtype I32": {"dtype": "I32"},
            "shape backwards": {"shape": entry["shape"][::-1]}, "shape huge": {"shape": [2**40, 2**40]},
            "shape negative": {"shape": [-1]}, "shape flat": {"shape": [int(np.prod(entry["shape"]))]},
            "offsets beyond": {"data_offsets": [0, 2**50]}, "offsets backwards": {"data_offsets": entry["data_offsets"][::-1]},
            "offsets of others": {"data_offsets": [0, entry["data_offsets"][1] - entry["data_offsets"][0]]},
        }.items():  # fmt: skip
            if entry | changed != entry:
                yield Mutation(f"{name}: {what}", _bytes(_tensors(header | {name: entry | changed}, data)))
    tensors = {name: data[slice(*header[name]["data_offsets"])] for name in names}
    for name in dict.fromkeys((names[0], names[len(names) // 2], names[-1])):
        rest = {other: value for other, value in tensors.items() if other != name}
        yield Mutation(f"without {name}", _bytes(_packed(header, rest)))
        yield Mutation(f"{name} under another name", _bytes(_packed(header | {"other": header[name]}, rest | {"other": tensors[name]})))
    yield Mutation("a tensor more", _bytes(_packed(header | {"more": header[names[0]]}, tensors | {"more": tensors[names[0]]})))
    yield Mutation("no tensors", _bytes(_packed({}, {})))
    floats = [name for name in names if header[name]["dtype"] == "F32" and tensors[name]]
    for name in floats[:1] + floats[-1:]:
        for value in (float("nan"), float("inf"), 1e30):
            yield Mutation(
                f"{value} in {name}", _bytes(_packed(header, tensors | {name: struct.pack("<f", value) + tensors[name][4:]})),
                visible=value != 1e30,
            )  # fmt: skip
        yield Mutation(f"zeros in {name}", _bytes(_packed(header, tensors | {name: bytes(len(tensors[name]))})), visible=False)


KINDS: dict[str, Callable[[Path, random.Random], Iterator[Mutation]]] = {
    "json": _json, "jsonl": _jsonl, "npy": _npy, "parquet": _parquet, "safetensors": _safetensors,
    "other": lambda file, draw: iter(()),
}  # fmt: skip


def damage(folder: Path, file: str, mutation: Mutation) -> None:
    """Put the damaged file into a folder that is whole."""
    place = folder / file
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()
    mutation.write(place)


# How each is written

def _bytes(content: bytes) -> Write:
    return lambda path: path.write_bytes(content) and None


def _text(content: str) -> Write:
    return _bytes(content.encode())


def _unreadable(content: bytes) -> Write:
    def write(path: Path) -> None:
        path.write_bytes(content)
        path.chmod(0)

    return write


def _tree(tree: Any) -> Write:
    return _text(_dumped(tree))


def _dumped(tree: Any) -> str:
    return json.dumps(tree).replace('"1e400"', "1e400")


def _array(array: np.ndarray) -> Write:
    return lambda path: np.save(path, array, allow_pickle=False)


def _frame(frame: pl.DataFrame) -> Write:
    return lambda path: frame.write_parquet(path)


def _flipped(whole: bytes, at: int, bit: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]


def _zip(content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", content)
    return archive.getvalue()


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


def _header(array: np.ndarray, shape: str) -> bytes:
    text = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + array.tobytes()


def _put(array: np.ndarray, at: int, value: Any) -> np.ndarray:
    copy = array.copy()
    copy.reshape(-1)[at] = value
    return copy


def _swapped(array: np.ndarray, draw: random.Random) -> np.ndarray:
    copy = array.copy()
    flat = copy.reshape(-1)
    one = draw.randrange(len(flat))
    others = np.flatnonzero(flat != flat[one])
    if len(others):
        other = int(others[draw.randrange(len(others))])
        flat[one], flat[other] = flat[other].item(), flat[one].item()
    return copy


def _cell(frame: pl.DataFrame, name: str, value: Any) -> pl.DataFrame:
    values = frame[name].to_list()
    return frame.with_columns(pl.Series(name, [value, *values[1:]], dtype=frame[name].dtype))


def _tensors(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _packed(header: dict[str, Any], tensors: dict[str, bytes]) -> bytes:
    entries, at = {}, 0
    for name, content in tensors.items():
        entries[name] = header[name] | {"data_offsets": [at, at + len(content)]}
        at += len(content)
    return _tensors(entries, b"".join(tensors.values()))
