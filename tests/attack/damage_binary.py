"""Damages of arrays, tables and tensors: headers, types, shapes, places, and values that are of the right type."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tests.attack.damage import Evil, Mutation, Write, put_bytes, put_text

# numpy


def of_npy(file: Path, draw: random.Random) -> Iterator[Mutation]:
    array = np.load(file)
    for dtype in ("<f8", "<i2", ">i8", "|S3", "<c8", "|b1"):
        if np.dtype(dtype) != array.dtype:
            with np.errstate(invalid="ignore"):
                cast = array.astype(dtype)
            yield Mutation(f"dtype {dtype}", _array(cast))
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
    yield Mutation("objects", put_bytes(evil.getvalue()))
    for shape in ("(10**15,)", "(2**62, 4)", "(-1,)", "(1,)*2000", "'x'", "(True,)", "(9999999999999,)"):
        yield Mutation(f"header of shape {shape}", put_bytes(_header(array, shape)))
    flat = array.reshape(-1)
    if len(flat):
        info = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
        ends = (info.min, info.max) if info else (np.nan, np.inf)
        for value in ends:
            yield Mutation(f"{value} somewhere", _array(_put(array, len(flat) // 2, value)))
        yield Mutation("backwards", _array(np.ascontiguousarray(array[::-1])))
        yield Mutation("all the same", _array(np.full_like(array, flat[-1])))
        yield Mutation("two values changed places", _array(_swapped(array, draw)))


# Parquet


def of_parquet(file: Path, draw: random.Random) -> Iterator[Mutation]:
    frame = pl.read_parquet(file)
    for name in frame.columns:
        yield Mutation(f"without {name}", _frame(frame.drop(name)))
        yield Mutation(f"{name} under another name", _frame(frame.rename({name: "other"})))
        yield Mutation(f"{name} backwards", _frame(frame.with_columns(frame[name].reverse())))
        yield Mutation(f"{name} with a null", _frame(_cell(frame, name, None)))
        yield Mutation(f"{name} null", _frame(frame.with_columns(pl.lit(None).alias(name))))
        yield Mutation(f"{name} twice", _frame(_cell(frame, name, frame[name][-1])))
        yield Mutation(f"{name} as a struct", _frame(frame.with_columns(pl.struct(pl.col(name)).alias(name))))
        other = pl.Int64 if frame[name].dtype == pl.String else pl.String
        retyped = pl.Series(name, range(len(frame))).cast(other)
        yield Mutation(f"{name} as {other}", _frame(frame.with_columns(retyped)))
        if frame[name].dtype.is_numeric():
            for dtype in (pl.Float32, pl.Boolean, pl.UInt8):
                cast = frame[name].cast(dtype, strict=False)
                yield Mutation(f"{name} as {dtype}", _frame(frame.with_columns(cast)))
    yield Mutation("rows backwards", _frame(frame.reverse()))
    yield Mutation("columns backwards", _frame(frame.select(frame.columns[::-1])))
    yield Mutation("a row less", _frame(frame[:-1]))
    yield Mutation("no rows", _frame(frame[:0]))
    yield Mutation("a row twice", _frame(pl.concat([frame, frame[-1:]])))
    yield Mutation("a column more", _frame(frame.with_columns(more=pl.lit("x" * 100))))
    yield Mutation("CSV", put_text("a,b\n1,2\n"))


# safetensors


def of_safetensors(file: Path, draw: random.Random) -> Iterator[Mutation]:
    whole = file.read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    names = [name for name in header if name != "__metadata__"]
    for length in (0, 2**63, 2**64 - 1, len(whole), size + 8, 100_000_000, 1):
        yield Mutation(f"header of {length} bytes", put_bytes(struct.pack("<Q", length) + whole[8:]))
    largest = max(names, key=lambda one: header[one]["data_offsets"][1] - header[one]["data_offsets"][0])
    for name in dict.fromkeys((names[0], largest)):
        entry = header[name]
        for what, changed in {
            "dtype F16": {"dtype": "F16"}, "dtype Q9": {"dtype": "Q9"}, "dtype I32": {"dtype": "I32"},
            "shape backwards": {"shape": entry["shape"][::-1]}, "shape huge": {"shape": [2**40, 2**40]},
            "shape negative": {"shape": [-1]}, "shape flat": {"shape": [int(np.prod(entry["shape"]))]},
            "offsets beyond": {"data_offsets": [0, 2**50]},
            "offsets backwards": {"data_offsets": entry["data_offsets"][::-1]},
            "offsets of others": {"data_offsets": [0, entry["data_offsets"][1] - entry["data_offsets"][0]]},
        }.items():  # fmt: skip
            if entry | changed != entry:
                yield Mutation(f"{name}: {what}", put_bytes(_tensors(header | {name: entry | changed}, data)))
    tensors = {name: data[slice(*header[name]["data_offsets"])] for name in names}
    for name in dict.fromkeys((names[0], names[len(names) // 2], names[-1])):
        rest = {other: value for other, value in tensors.items() if other != name}
        yield Mutation(f"without {name}", put_bytes(_packed(header, rest)))
        yield Mutation(
            f"{name} under another name",
            put_bytes(_packed(header | {"other": header[name]}, rest | {"other": tensors[name]})),
        )
    yield Mutation(
        "a tensor more", put_bytes(_packed(header | {"more": header[names[0]]}, tensors | {"more": tensors[names[0]]}))
    )
    yield Mutation("no tensors", put_bytes(_packed({}, {})))
    floats = [name for name in names if header[name]["dtype"] == "F32" and tensors[name]]
    for name in floats[:1] + floats[-1:]:
        for value in (float("nan"), float("inf"), 1e30):
            content = struct.pack("<f", value) + tensors[name][4:]
            yield Mutation(f"{value} in {name}", put_bytes(_packed(header, tensors | {name: content})))
        yield Mutation(f"zeros in {name}", put_bytes(_packed(header, tensors | {name: bytes(len(tensors[name]))})))


def _array(array: np.ndarray) -> Write:
    return lambda path: np.save(path, array, allow_pickle=False)


def _frame(frame: pl.DataFrame) -> Write:
    return lambda path: frame.write_parquet(path)


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
