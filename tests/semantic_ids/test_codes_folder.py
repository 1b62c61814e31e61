"""The folder of codes: whole or absent, and every kind of damage is one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from coded import catalog, settings
from fullrank.core.tensor_files import read_tensors, write_tensors
from refusals import refused
from seals import reseal


@pytest.fixture
def folder(vector_file: Path, tmp_path: Path) -> Path:
    return fr.encode(catalog(), tmp_path / "codes", set=settings(vector_file)).path


def change(path: tuple[str, ...], value: Any) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        tree = json.loads((folder / "manifest.json").read_text())
        place = tree
        for key in path[:-1]:
            place = place[key]
        if value is None:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        (folder / "manifest.json").write_text(json.dumps(tree))
        reseal(folder)

    return harm


def table(edit: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Path], None]:
    """Another table under a manifest that says its size: hostile, not merely broken."""

    def harm(folder: Path) -> None:
        edit(pl.read_parquet(folder / "codes.parquet")).write_parquet(folder / "codes.parquet")
        change(("files", "codes.parquet", "bytes"), (folder / "codes.parquet").stat().st_size)(folder)

    return harm


def books(edit: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        file = folder / "codebooks.safetensors"
        write_tensors(file, edit(read_tensors(file)))
        change(("files", file.name, "bytes"), file.stat().st_size)(folder)

    return harm


def reduction(width: int, kept: int) -> dict[str, torch.Tensor]:
    """A reduction that is sound in itself."""
    matrix = torch.ones(width, kept)
    return {"reduce.mean": torch.ones(width), "reduce.matrix": matrix, "reduce.back": matrix.T.contiguous()}


@pytest.mark.parametrize(
    ("harm", "code", "name"),
    [
        (lambda f: shutil.rmtree(f), "missing-folder", "codes"),
        (lambda f: (f / "manifest.json").unlink(), "wrong-folder", "manifest.json"),
        (lambda f: (f / "manifest.json").write_text("{"), "file-damaged", "manifest.json"),
        (lambda f: (f / "codes.parquet").unlink(), "missing-file", "codes.parquet"),
        (lambda f: (f / "codes.parquet").write_bytes(b"x"), "file-damaged", "codes.parquet"),
        (lambda f: (f / "codebooks.safetensors").unlink(), "missing-file", "codebooks.safetensors"),
        (change(("format",), "fullrank.store"), "wrong-folder", "fullrank.store"),
        (change(("format_version",), 2), "wrong-format-version", 1),
        (change(("sizes",), None), "manifest-incomplete", "sizes"),
        (change(("sizes",), [16, 16, 16, True]), "manifest-incomplete", "sizes"),
        (change(("sizes",), [16, 16, 16, 10**9]), "manifest-incomplete", "sizes"),
        (change(("sizes",), [16, 16]), "file-damaged", "codes (2 small numbers)"),
        (change(("sizes",), [16, 16, 16, 4]), "file-damaged", "beyond"),
        (change(("report",), None), "manifest-incomplete", "report"),
        (change(("spec", "learner"), {"kind": "nonsense"}), "manifest-invalid-spec", "nonsense"),
        (change(("counts", "items"), 7), "file-damaged", 200),
        (change(("files", "../../etc/passwd"), {"bytes": 1, "sha256": ""}), "foreign-files", "etc/passwd"),
        (table(lambda f: f.head(0)), "file-damaged", "0 rows, not 200"),
        (table(lambda f: pl.concat([f.head(1), f.head(199)])), "file-damaged", "twice"),
        (table(lambda f: f.with_columns(item_id=pl.lit(None, pl.Int64))), "file-damaged", "missing its id"),
        (table(lambda f: f.with_columns(codes=pl.col("codes").shift(1))), "file-damaged", "lacks codes"),
        (table(lambda f: f.with_columns(codes=pl.col("codes").arr.to_list())), "file-damaged", "item_id and codes"),
        (table(lambda f: f.rename({"item_id": "id"})), "file-damaged", "item_id and codes"),
    ],
)
def test_damage_is_refused_when_opened(harm: Callable[[Path], None], code: str, name: object, folder: Path) -> None:
    harm(folder)
    with refused(code, name):
        fr.Codes.open(folder)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (books(lambda t: {k: v for k, v in t.items() if k != "mean"}), "lacks the tensor 'mean'"),
        (books(lambda t: t | {"mean": t["mean"] * torch.inf}), "not finite"),
        (books(lambda t: t | {"codebooks": t["codebooks"][:, :3]}), "4 levels of 3 codes, the spec says 4 of 16"),
        (books(lambda t: t | {"rotation": t["rotation"][:5]}), "do not fit together"),
        (books(lambda t: t | {"reduce.matrix": torch.ones(3, 3)}), "the reduction lacks its mean"),
        (books(lambda t: t | reduction(12, 5)), "to 5 dimensions and the codebooks do not fit"),
    ],
)
def test_damaged_codebooks_are_refused_when_used(harm: Callable[[Path], None], said: str, folder: Path) -> None:
    harm(folder)
    opened = fr.Codes.open(folder)
    assert opened.of(catalog()).shape == (200, 4), "codes alone do not need them"
    with refused("file-damaged", "codebooks.safetensors", said):
        opened.quantise(torch.zeros(1, 12))


@pytest.mark.parametrize("name", ["codes.parquet", "codebooks.safetensors"])
def test_verify_finds_one_changed_bit(name: str, folder: Path) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(bytes(data))
    with refused("file-damaged", name):
        fr.Codes.open(folder)


def test_a_failure_leaves_the_old_codes(
    folder: Path, vector_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fr.Codes.open(folder, verify=True).fingerprint

    def broken(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fullrank.semantic_ids.folder.write_tensors", broken)
    with refused("not-written", "what was there before is unchanged"):
        fr.encode(catalog(), folder, set=settings(vector_file, "seed=5"), overwrite=True)
    monkeypatch.undo()
    assert fr.Codes.open(folder, verify=True).fingerprint == before
    assert fr.encode(catalog(), folder, set=settings(vector_file, "seed=5"), overwrite=True).fingerprint != before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_nothing_else_is_overwritten(vector_file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with refused("folder-not-empty", "mine"):
        fr.encode(catalog(), tmp_path / "mine", set=settings(vector_file))
    made = fr.encode(catalog(), tmp_path / "codes", set=settings(vector_file))
    (made.path / "notes.txt").write_text("x")
    with refused("foreign-files", "notes.txt"):
        fr.encode(catalog(), made.path, set=settings(vector_file))


def test_tables_open_elsewhere(folder: Path) -> None:
    """Parquet and safetensors: whoever has pandas or numpy reads them."""
    frame = pl.read_parquet(folder / "codes.parquet").to_pandas()
    assert np.stack(frame["codes"]).shape == (200, 4)
