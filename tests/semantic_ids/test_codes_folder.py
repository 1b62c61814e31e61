"""The folder of codes: whole or absent, and every kind of damage is one sentence."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from coded import catalog
from fullrank.core.tensor_files import read_tensors, write_tensors
from refusals import refused
from seals import flip, reseal, rewrite


@pytest.fixture
def folder(encode: Callable) -> Path:
    return encode().path


def change(**changes: Any) -> Callable:
    return lambda folder: rewrite(folder, changes)


def table(edit: Callable) -> Callable:
    """Another table under a manifest that says its size: hostile, not merely broken."""

    def harm(folder: Path) -> None:
        edit(pl.read_parquet(folder / "codes.parquet")).write_parquet(folder / "codes.parquet")
        reseal(folder, sizes=True)

    return harm


def books(edit: Callable) -> Callable:
    def harm(folder: Path) -> None:
        file = folder / "codebooks.safetensors"
        write_tensors(file, edit(read_tensors(file)))
        reseal(folder, sizes=True)

    return harm


def reduction(width: int, kept: int) -> dict:
    """A reduction that is sound in itself."""
    matrix = torch.ones(width, kept)
    return {"reduce.mean": torch.ones(width), "reduce.matrix": matrix, "reduce.back": matrix.T.contiguous()}


@pytest.mark.parametrize(
    ("harm", "code", "name"),
    [
        (shutil.rmtree, "missing-folder", "codes"),
        (lambda f: (f / "manifest.json").unlink(), "wrong-folder", "manifest.json"),
        (lambda f: (f / "manifest.json").write_text("{"), "file-damaged", "manifest.json"),
        (lambda f: (f / "codes.parquet").unlink(), "missing-file", "codes.parquet"),
        (lambda f: (f / "codes.parquet").write_bytes(b"x"), "file-damaged", "codes.parquet"),
        (lambda f: (f / "codebooks.safetensors").unlink(), "missing-file", "codebooks.safetensors"),
        (change(format="fullrank.store"), "wrong-folder", "a store of events"),
        (change(format_version=2), "wrong-format-version", 1),
        (change(sizes=None), "manifest-incomplete", "sizes"),
        (change(sizes=[16, 16, 16, True]), "manifest-incomplete", "sizes"),
        (change(sizes=[16, 16, 16, 10**9]), "manifest-incomplete", "sizes"),
        (change(sizes=[16, 16]), "file-damaged", "codes (2 small numbers)"),
        (change(sizes=[16, 16, 16, 4]), "file-damaged", "beyond"),
        (change(report=None), "manifest-incomplete", "report"),
        (change(spec={"learner": {"kind": "nonsense"}}), "manifest-invalid-spec", "nonsense"),
        (change(counts={"items": 7}), "file-damaged", 200),
        (change(files={"../../etc/passwd": {"bytes": 1, "sha256": ""}}), "foreign-files", "etc/passwd"),
        (table(lambda f: f.head(0)), "file-damaged", "0 rows, not 200"),
        (table(lambda f: pl.concat([f.head(1), f.head(199)])), "file-damaged", "twice"),
        (table(lambda f: f.with_columns(item_id=pl.lit(None, pl.Int64))), "file-damaged", "missing its id"),
        (table(lambda f: f.with_columns(codes=pl.col("codes").shift(1))), "file-damaged", "lacks codes"),
        (table(lambda f: f.with_columns(codes=pl.col("codes").arr.to_list())), "file-damaged", "item_id and codes"),
        (table(lambda f: f.rename({"item_id": "id"})), "file-damaged", "item_id and codes"),
    ],
)
def test_damage_is_refused_when_opened(harm: Callable, code: str, name: object, folder: Path) -> None:
    harm(folder)
    with refused(code, name):
        fr.Codes.open(folder)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (books(lambda t: {k: v for k, v in t.items() if k != "mean"}), "lacks the tensor 'mean'"),
        (books(lambda t: t | {"mean": t["mean"] * torch.inf}), "'mean' of the shape (12), float32 and finite"),
        (books(lambda t: t | {"codebooks": t["codebooks"][:, :3]}), "(4, 16, 3.0)"),
        (books(lambda t: t | {"rotation": t["rotation"][:5]}), "'rotation' of the shape (12, 12)"),
        (
            books(lambda t: t | {"reduce.matrix": torch.ones(3, 3)}),
            "'reduce.mean' of the shape (D), float32 and finite: given is none",
        ),
        (books(lambda t: t | reduction(12, 5)), "'reduce.matrix' of the shape (12, 12)"),
    ],
)
def test_damaged_codebooks_are_refused_when_used(harm: Callable, said: str, folder: Path) -> None:
    harm(folder)
    opened = fr.Codes.open(folder)
    assert opened.of(catalog()).shape == (200, 4), "codes alone do not need them"
    with refused("file-damaged", "codebooks.safetensors", said):
        opened.quantise(torch.zeros(1, 12))


@pytest.mark.parametrize("name", ["codes.parquet", "codebooks.safetensors"])
def test_verify_finds_one_changed_bit(name: str, folder: Path) -> None:
    flip(folder / name)
    with refused("file-damaged", name):
        fr.Codes.open(folder)


def test_nothing_else_is_overwritten(encode: Callable, tmp_path: Path) -> None:
    for name, code in (("mine", "folder-not-empty"), ("codes", "foreign-files")):
        if name == "mine":
            (tmp_path / name).mkdir()
        else:
            encode()
        (tmp_path / name / "thesis.tex").write_text("x")
        with refused(code, name):
            encode(name=name)


def test_tables_open_elsewhere(folder: Path) -> None:
    """Parquet and safetensors: whoever has pandas or numpy reads them."""
    frame = pl.read_parquet(folder / "codes.parquet").to_pandas()
    assert np.stack(frame["codes"]).shape == (200, 4)
