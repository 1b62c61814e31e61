"""Hypothesis strategies of damages: of any file, of each kind of file by what its format can get wrong, of folders.

A damage writes a file where there is none, from what the whole file held.
"""

import contextlib
import hashlib
import io
import itertools
import json
import os
import pickle
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import safetensors.numpy
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import seals
from fullrank.core.files import exchange
from tests.attack.frame import paths_in
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
    general = st.sampled_from(PLACES) | contents(file.read_bytes(), twin)
    return general if special is None else general | special(file.read_bytes()) | special(file.read_bytes())


PLACES = [Damage(*place) for place in {
    "missing": lambda path: None, "a folder": lambda path: path.mkdir(), "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "unreadable": lambda path: (path.write_bytes(b"x"), path.chmod(0)),
}.items()]  # fmt: skip
"""What else may lie where a file or folder was."""


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


@st.composite
def trees(draw: Any, tree: Any) -> tuple[str, Any]:
    """What was changed, and a copy of a tree with one value changed, taken out or added."""
    copy = json.loads(json.dumps(tree))
    path = draw(st.sampled_from([*paths_in(tree)] or [()]))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    old = inner[path[-1]] if path else None
    near = [old.swapcase()] if isinstance(old, str) else [old + 1, float(old)] if type(old) is int else []
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
    half, torn = len(lines) // 2, "".join(lines)[: -len(lines[-1]) // 2]

    def with_line(name: str, line: str, behind: int = half) -> Damage:
        return put(name, "".join([*lines[:half], line + "\n", *lines[behind:]]))

    rows = ('{"a": 1}', "7", "[]", "", "null", lines[half][: len(lines[half]) // 2])
    forms = [put("the last line torn", torn), put("other order", "".join(reversed(lines))),
             put("a line twice", "".join([*lines, lines[-1]])),
             *(with_line(f"{row!r} as a line", row) for row in rows)]  # fmt: skip
    changed = trees(json.loads(lines[half])).map(lambda drawn: with_line(drawn[0], dumped(drawn[1]), half + 1))
    return st.sampled_from(forms) | changed


# Arrays, tables, tensors


@st.composite
def arrays(draw: Any, whole: bytes) -> Damage:
    """An array of another type, shape, header or value."""
    array = np.load(io.BytesIO(whole))
    flat, kind = array.reshape(-1), draw(st.sampled_from(["value", "type", "shape", "header", "objects", "order"]))
    if kind == "header":
        shapes = ["(10**15,)", "(2**62, 4)", "(-1,)", "(1,)*2000", "'x'", "(True,)", "(9999999999999,)"]
        shape = draw(st.sampled_from(shapes))
        text = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
        return put(f"header of shape {shape}", header + array.tobytes())
    if kind == "type":
        dtype = draw(st.sampled_from(["<f8", "<i2", ">i8", "|S3", "<c8", "|b1", "<i4"]))
        with np.errstate(invalid="ignore"):
            array = array.astype(dtype)
    elif kind == "objects":
        array = np.array([Evil(), Evil()], object)
    elif kind == "value" and len(flat):
        limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
        ends = [limits.min, limits.max] if limits else [np.nan, np.inf]
        array = array.copy()
        array.reshape(-1)[draw(st.integers(0, len(flat) - 1))] = draw(
            st.sampled_from([*ends, *flat[:: len(flat) // 7 + 1]])
        )
    else:
        forms = [
            array[:-1],
            array[:0],
            np.concatenate([array, array[-1:]]),
            array[..., None],
            flat[:1].reshape(()) if len(flat) else array,
        ]
        if kind == "order":
            forms = [
                np.asfortranarray(array),
                array.T.copy(),
                array[::-1].copy(),
                np.full_like(array, flat[-1] if len(flat) else 0),
            ]
        array = draw(st.sampled_from(forms))
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return put(f"{kind}: {array.dtype} {array.shape}", file.getvalue())


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
    name = draw(st.sampled_from(sorted({*header} - {"__metadata__"})))
    if kind == "values":
        value, at = draw(st.sampled_from([np.nan, np.inf, 1e30, 0.0])), 8 + size + header[name]["data_offsets"][0]
        return put(f"{value} in {name}", whole[:at] + struct.pack("<f", value) + whole[at + 4 :])
    pieces, way = safetensors.numpy.load(whole), draw(st.sampled_from(["lacks", "renamed", "more"]))
    if way != "lacks":
        pieces["other"] = pieces[name]
    if way != "more":
        del pieces[name]
    return put(f"{name} {way}", safetensors.numpy.save(pieces, header.get("__metadata__")))


def _tensors(header: Any, data: bytes) -> bytes:
    text = dumped(header).encode()
    return struct.pack("<Q", len(text)) + text + data


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
    """Give a manifest (or the page of an evaluation) that can be read the hashes of the files as they are."""
    page = next((page for page in (folder / "evaluation.json", folder / "manifest.json") if page.is_file()), None)
    with contextlib.suppress(OSError, ValueError, RecursionError, TypeError, AttributeError):  # nothing to put right
        tree = json.loads(page.read_bytes()) if page else {}
        if file.startswith("per_"):
            tree["rows_sha256"] = hashlib.sha256((folder / file).read_bytes()).hexdigest()
            page.write_text(json.dumps(tree))
        if "seal" in tree:
            seals.reseal(page if page.stem == "evaluation" else folder, sizes=True)


def of_folder(folder: Path, twin: Path | None) -> SearchStrategy[Damage]:
    """Damages of a whole folder; `write` is given the folder itself."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    first = names[0] if names else "manifest.json"
    changes: dict[str, Callable[[Path], object]] = {
        "a stranger's file": lambda it: (it / "notes.txt").write_text("mine"),
        "a stranger's folder": lambda it: (it / "old" / "older").mkdir(parents=True),
        "a file that a killed writer left": lambda it: (it / f".{first}.4194999.part").write_bytes(b"half"),
        "a folder that a killed writer left": lambda it: (it / f".{first}.4194999-1.part").mkdir(),
        "a link to itself inside": lambda it: (it / "loop").symlink_to("loop"),
        "a pipe inside": lambda it: os.mkfifo(it / "pipe"),
        "every file empty": lambda it: [path.write_bytes(b"") for path in it.rglob("*") if path.is_file()],
        "reached by a link": lambda it: (it.rename(it.with_name("real")), it.symlink_to("real")),
    }
    for place in PLACES:
        changes[place.name] = lambda it, place=place: (shutil.rmtree(it), place.write(it))
    for pair in itertools.pairwise(names):
        changes[f"{pair} changed places"] = lambda it, pair=pair: exchange(it / pair[0], it / pair[1])
    common = [name for name in names if twin is not None and (twin / name).is_file()]
    for name in common:
        if not name.endswith(".jsonl") and (twin / name).read_bytes() != (folder / name).read_bytes():  # type: ignore[operator]
            others = [other for other in common if other != name]  # with all, it would be the other folder, whole
            changes[f"all but {name} of another folder"] = lambda it, others=others: [
                shutil.copyfile(twin / other, it / other) for other in others]  # type: ignore[operator]  # fmt: skip
    return st.sampled_from([Damage(*change) for change in changes.items()])


def kinds_of_files(folder: Path) -> list[str]:
    """A file of each kind in a folder: of checkpoints, cells and numbered files the first."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())
    kinds: dict[str, str] = {}
    for name in names:
        if not name.endswith(".lock"):
            kinds.setdefault(re.sub(r"cells/[^/]+|\d+", "*", name), name)
    return [*kinds.values()]
