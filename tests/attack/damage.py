"""Hypothesis strategies of damages: of any file, of each kind of file by what its format can get wrong, of folders.

A damage writes a file where there is none, from what the whole file held.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.attack.strategies import TREES, columns, frames

CANARY = "FULLRANK_CANARY"
"""Environment variable with the path of a file that exists only after code of an opened folder was run."""


@dataclass(frozen=True)
class Damage:
    """One damage; `write` is called with a path where nothing is; a file that lacks is not written."""

    name: str
    write: Callable[[Path], object] = field(repr=False)


class Evil:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f'touch "${CANARY}"',))


def put(name: str, content: bytes | str) -> Damage:
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return Damage(name, lambda path: path.write_bytes(data))


def damages(file: Path, twin: Path | None) -> SearchStrategy[Damage]:
    """Damages of a file by its suffix; `twin` is the same file of another folder of its format."""
    special = BY_SUFFIX[file.suffix]
    general = places() | contents(file.read_bytes(), twin)
    return general if special is None else general | special(file.read_bytes()) | special(file.read_bytes())


def places() -> SearchStrategy[Damage]:
    return st.sampled_from([
        Damage("missing", lambda path: None), Damage("a folder", lambda path: path.mkdir()),
        Damage("a link to itself", lambda path: path.symlink_to(path.name)),
        Damage("a link to nowhere", lambda path: path.symlink_to("nowhere")),
        Damage("a pipe", lambda path: os.mkfifo(path)),
        Damage("unreadable", lambda path: (path.write_bytes(b"x"), path.chmod(0))),
    ])  # fmt: skip


def contents(whole: bytes, twin: Path | None) -> SearchStrategy[Damage]:
    archive, evil = io.BytesIO(), pickle.dumps(Evil())
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", evil)
    texts = {"empty": b"", "a byte more": whole + b"\0", "last byte lacks": whole[:-1], "zeros": bytes(len(whole)),
             "a pickle": evil, "a zip": archive.getvalue(), "CSV": b"a,b\n1,2\n"}  # fmt: skip
    if twin is not None and twin.is_file():
        texts["that of another folder"] = twin.read_bytes()
    places = st.integers(0, max(0, len(whole) - 1))

    def flip(at: int, bit: int) -> Damage:
        flipped = bytes(byte ^ (1 << bit) for byte in whole[at : at + 1])
        return put(f"bit {bit} of byte {at}", whole[:at] + flipped + whole[at + 1 :])

    return st.one_of(
        st.sampled_from([put(name, content) for name, content in texts.items()]),
        places.map(lambda at: put(f"truncated at {at}", whole[:at])),
        st.builds(flip, places, st.integers(0, 7)),
        st.binary(max_size=200).map(lambda data: put("random bytes", data)),
    )  # fmt: skip


# JSON and JSON lines

VALUES = st.sampled_from([
    None, True, -1, 0, 10**30, 0.5, "", "x" * 3000, "SASREC", [], {}, [[[]]], {"kind": "os:system"}, float("nan"),
    "1e400",
    [1, "2", None], "../../etc/passwd", "\u2028\x00", 999, "1", 1.0,
]) | TREES  # fmt: skip
"""What stands in the place of a value; `"1e400"` is written as that number, which Python reads as infinity."""
LACKS = object()


def dumped(tree: Any) -> str:
    return json.dumps(tree).replace('"1e400"', "1e400")


def paths_in(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and the first positions of a tree, below one another."""
    inner = tree.items() if isinstance(tree, dict) else list(enumerate(tree))[:3] if isinstance(tree, list) else ()
    for key, value in inner:
        yield (*above, key)
        yield from paths_in(value, (*above, key))


@st.composite
def trees(draw: Any, tree: Any) -> tuple[str, Any]:
    """What was changed, and a copy of a tree with one value changed, taken out or added."""
    copy = json.loads(json.dumps(tree))
    path = draw(st.sampled_from([*paths_in(tree)] or [()]))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    old = inner[path[-1]] if path else None
    near = (
        [old.swapcase()]
        if isinstance(old, str) and len(old) < 200
        else [old + 1, float(old)]
        if type(old) is int
        else []
    )
    value = draw(st.sampled_from([LACKS, *near]) | VALUES | VALUES)
    name = ".".join(map(str, path))
    if not path:
        return "a value alone", None if value is LACKS else value
    if value is LACKS:
        del inner[path[-1]]
        return f"{name} lacks", copy
    inner[path[-1]] = value
    return f"{name} = {json.dumps(value)[:40]}", copy


def of_json(whole: bytes) -> SearchStrategy[Damage]:
    text, tree = whole.decode(), json.loads(whole)
    forms = {
        "an unknown key": dumped(tree | {"unheard_of": 1}), "a list around it": f"[{text}]",
        "a key twice": "{" + f"{json.dumps(next(iter(tree)))}: null, " + text.lstrip()[1:],
        "100,000 brackets": "[" * 100_000, "5,000 digits": text.replace("{", '{"long": ' + "9" * 5000 + ", ", 1),
        "deep below a key": text.replace("{", '{"deep": ' + "[" * 300 + "]" * 300 + ", ", 1),
        "a byte order mark": "\ufeff" + text, "UTF-16": text.encode("utf-16"),
        "code of Python": f"!!python/object/apply:os.system ['touch ${CANARY}']",
    }  # fmt: skip
    changed = trees(tree).map(lambda drawn: put(drawn[0], dumped(drawn[1])))
    return changed | changed | changed | st.sampled_from([put(*form) for form in forms.items()])


def of_jsonl(whole: bytes) -> SearchStrategy[Damage]:
    lines = whole.decode().splitlines(keepends=True)
    half = len(lines) // 2

    def with_line(name: str, line: str, behind: int = half) -> Damage:
        return put(name, "".join([*lines[:half], line + "\n", *lines[behind:]]))

    torn = lines[half][: len(lines[half]) // 2]
    forms = [put("the last line torn", "".join(lines)[: -len(lines[-1]) // 2]), with_line("a line torn in the middle",
        torn),
             put("other order", "".join(reversed(lines))), put("a line twice", "".join([*lines, lines[-1]])),
             *(with_line(f"{row!r} as a line", row) for row in ('{"a": 1}', "7", "[]", "", "null"))]  # fmt: skip
    changed = trees(json.loads(lines[half])).map(lambda drawn: with_line(drawn[0], dumped(drawn[1]), half + 1))
    return st.sampled_from(forms) | changed


# Arrays, tables, tensors


def _array(name: str, array: np.ndarray, pickled: bool = False) -> Damage:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=pickled)
    return put(name, file.getvalue())


@st.composite
def arrays(draw: Any, whole: bytes) -> Damage:
    """An array of another type, shape, header or value."""
    array = np.load(io.BytesIO(whole))
    flat, kind = array.reshape(-1), draw(st.sampled_from(["value", "type", "shape", "header", "objects", "order"]))
    if kind == "type":
        dtype = draw(st.sampled_from(["<f8", "<i2", ">i8", "|S3", "<c8", "|b1", "<i4"]))
        with np.errstate(invalid="ignore"):
            return _array(f"dtype {dtype}", array.astype(dtype))
    if kind == "header":
        shape = draw(
            st.sampled_from(["(10**15,)", "(2**62, 4)", "(-1,)", "(1,)*2000", "'x'", "(True,)", "(9999999999999,)"])
        )
        text = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        return put(
            f"header of shape {shape}", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + array.tobytes()
        )
    if kind == "objects":
        objects = np.empty(2, object)
        objects[:] = [Evil(), Evil()]
        return _array("objects", objects, pickled=True)
    if kind == "value" and len(flat):
        at, other = draw(st.integers(0, len(flat) - 1)), draw(st.integers(0, len(flat) - 1))
        ends = (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max) if array.dtype.kind in "iu" else (np.nan, np.inf)
        copy = array.copy()
        copy.reshape(-1)[at] = draw(st.sampled_from([flat[other].item(), *ends]))
        return _array(f"value {at} is {copy.reshape(-1)[at]}", copy)
    shapes = {"a row less": array[:-1], "no rows": array[:0], "a row more": np.concatenate([array, array[-1:]]),
              "an axis more": array[..., None], "no axis": flat[0] if len(flat) else array}  # fmt: skip
    orders = {"by columns": np.asfortranarray(array), "transposed": np.ascontiguousarray(array.T),
              "backwards": np.ascontiguousarray(array[::-1]), "all the same": np.full_like(array,
              flat[-1] if len(flat) else 0)}  # fmt: skip
    return _array(*draw(st.sampled_from([*(shapes if kind == "shape" else orders).items()])))


def of_parquet(whole: bytes) -> SearchStrategy[Damage]:
    frame = pl.read_parquet(io.BytesIO(whole))
    cells = st.one_of([columns(frame[name]).map(frame.with_columns) for name in frame.columns])
    return (frames(frame) | cells).map(lambda table: Damage(f"the table {table!s:.300}", table.write_parquet))


@st.composite
def tensors(draw: Any, whole: bytes) -> Damage:
    """Another length or tree of the header; tensors taken out, renamed, added, or of other values."""
    size = struct.unpack("<Q", whole[:8])[0]
    header, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    kind = draw(st.sampled_from(["length", "header", "header", "tensors", "values"]))
    if kind == "length":
        length = draw(st.sampled_from([0, 2**63, 2**64 - 1, len(whole), size + 8, 100_000_000, 1]))
        return put(f"header of {length} bytes", struct.pack("<Q", length) + whole[8:])
    if kind == "header":
        name, tree = draw(trees(header))
        return put(f"header: {name}", _tensors(tree, data))
    names = [name for name in header if name != "__metadata__"]
    pieces = {name: data[slice(*header[name]["data_offsets"])] for name in names}
    name = draw(st.sampled_from(names))
    if kind == "values":
        value = draw(st.sampled_from([float("nan"), float("inf"), 1e30, 0.0]))
        pieces[name] = struct.pack("<f", value) + pieces[name][4:]
        return put(f"{value} in {name}", _packed(header, pieces))
    way = draw(st.sampled_from(["lacks", "renamed", "more"]))
    if way != "lacks":
        header, pieces = header | {"other": header[name]}, pieces | {"other": pieces[name]}
    if way != "more":
        del pieces[name]
    return put(f"{name} {way}", _packed(header, pieces))


def _tensors(header: Any, data: bytes) -> bytes:
    text = dumped(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _packed(header: dict[str, Any], pieces: dict[str, bytes]) -> bytes:
    entries, at = {}, 0
    for name, content in pieces.items():
        entries[name] = header[name] | {"data_offsets": [at, at + len(content)]}
        at += len(content)
    return _tensors(entries, b"".join(pieces.values()))


BY_SUFFIX: dict[str, Callable[[bytes], SearchStrategy[Damage]] | None] = {
    ".json": of_json, ".jsonl": of_jsonl, ".npy": arrays, ".parquet": of_parquet, ".safetensors": tensors,
    ".yaml": None,
}  # fmt: skip
"""Suffix -> damages of what is in such a file; a folder with another file fails `test_tamper`."""


def apply(folder: Path, file: str, damage: Damage) -> None:
    """Put a damaged file into a folder that is whole; `.` is the folder itself."""
    if file != ".":
        (folder / file).unlink()
    damage.write(folder / file)


def reseal(folder: Path, file: str) -> None:
    """Give a manifest (or the page of an evaluation) that can be read the hash of a file as it is, and its own seal."""
    page = next((page for page in (folder / "evaluation.json", folder / "manifest.json") if page.is_file()), None)
    try:
        tree = json.loads(page.read_bytes()) if page else None
    except (OSError, ValueError, RecursionError):
        return  # nothing to put right
    if page is None or not isinstance(tree, dict):
        return
    listed, damaged = tree.get("files"), folder / file
    if damaged.is_file():
        content = damaged.read_bytes()
        entry = listed.get(file) if isinstance(listed, dict) else None
        if isinstance(entry, dict):
            entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if file.startswith("per_"):
            tree["rows_sha256"] = hashlib.sha256(content).hexdigest()
    if "content" in tree and isinstance(listed, dict):
        if all(isinstance(entry, dict) and "sha256" in entry for entry in listed.values()):
            lines = "".join(f"{name} {listed[name]['sha256']}\n" for name in sorted(listed))
            tree["content"] = hashlib.sha256(lines.encode()).hexdigest()
    if "seal" in tree:
        rest = {key: value for key, value in tree.items() if key != "seal"}
        text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
        tree["seal"] = hashlib.sha256(text.encode()).hexdigest()
    page.unlink()
    page.write_text(json.dumps(tree))


def of_folder(folder: Path, twin: Path | None) -> SearchStrategy[Damage]:
    """Damages of a whole folder; `write` is given the folder itself."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    first = names[0] if names else "manifest.json"

    def instead(name: str, write: Callable[[Path], object]) -> Damage:
        return Damage(name, lambda it: (shutil.rmtree(it), write(it)))

    def swapped(one: str, other: str) -> Damage:
        def write(it: Path) -> None:
            (it / one).rename(it / "aside")
            (it / other).rename(it / one)
            (it / "aside").rename(it / other)

        return Damage(f"{one} and {other} changed places", write)

    found = [
        Damage("a stranger's file", lambda it: (it / "notes.txt").write_text("mine")),
        Damage("a stranger's folder", lambda it: (it / "old" / "older").mkdir(parents=True)),
        Damage("a file that a killed writer left", lambda it: (it / f".{first}.4194999.part").write_bytes(b"half")),
        Damage("a folder that a killed writer left", lambda it: (it / f".{first}.4194999-1.part").mkdir()),
        Damage("a link to itself inside", lambda it: (it / "loop").symlink_to("loop")),
        Damage("a pipe inside", lambda it: os.mkfifo(it / "pipe")),
        Damage("every file empty", lambda it: [path.write_bytes(b"") for path in it.rglob("*") if path.is_file()]),
        Damage("reached by a link", lambda it: (it.rename(it.with_name("real")), it.symlink_to("real"))),
        instead("nothing in it", lambda it: it.mkdir()), instead("a file", lambda it: it.write_bytes(b"1")),
        instead("a link to itself", lambda it: it.symlink_to(it.name)), instead("a pipe", lambda it: os.mkfifo(it)),
        instead("missing", lambda it: None), *map(swapped, names, names[1:]),
    ]  # fmt: skip
    common = [name for name in names if twin is not None and (twin / name).is_file()]
    for name in common:
        if not name.endswith(".jsonl") and (twin / name).read_bytes() != (folder / name).read_bytes():  # type: ignore[operator]
            others = [other for other in common if other != name]  # with all, it would be the other folder, whole
            found.append(Damage(f"all but {name} of another folder", lambda it, others=others: [
                shutil.copyfile(twin / other, it / other) for other in others]))  # type: ignore[operator]  # fmt: skip
    return st.sampled_from(found)


def kinds_of_files(folder: Path) -> list[str]:
    """A file of each kind in a folder: of checkpoints, cells and numbered files the first."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())
    kinds: dict[str, str] = {}
    for name in names:
        if not name.endswith(".lock"):
            kinds.setdefault(re.sub(r"cells/[^/]+|\d+", "*", name), name)
    return [*kinds.values()]
