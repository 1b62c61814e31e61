"""`fullrank export` from the command line: to faiss, which takes a moment, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fullrank.serving.export.folder import Exported

if TYPE_CHECKING:
    from conftest import Call, Refuses


def test_item_vectors(call: Call, shop: Path, tmp_path: Path) -> None:
    out = tmp_path / "vectors"
    said = call("export", shop / "sasrec", "--to", "faiss", "--int8", "--out", out, "--json")
    assert said.code == 0, said.err
    found = said.json
    assert found["export"] == str(out) and found["to"] == "faiss" and found["problem"] == "retrieval"
    assert found["parity"]["histories"] == "test histories of the store"
    assert f"recall@10 {found['parity']['recall@10']:.4f}" in said.err
    assert Exported.open(out).parity == found["parity"]
    again = call("export", shop / "sasrec", "--to", "faiss", "--out", out, "--overwrite")
    assert again.code == 0 and "recall@10 1.0000" in again.out
    assert not Exported.open(out).manifest["int8"]


@pytest.mark.slow
def test_a_graph(call: Call, shop: Path, tmp_path: Path) -> None:
    said = call("export", shop / "sasrec", "--k", 7, "--out", tmp_path / "graph")
    assert said.code == 0 and "parity: 86 rows" in said.out and "excluded" in said.out, said
    assert Exported.open(tmp_path / "graph").manifest["k"] == 7


def test_what_is_refused(refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    run, out = shop / "sasrec", tmp_path / "out"
    refuses("unknown-export", ["export", run, "--to", "onx", "--out", out], "onx", "onnx", "torch", "faiss")
    refuses("option-without-effect", ["export", run, "--int8", "--out", out], "int8", "onnx")
    refuses("option-without-effect", ["export", run, "--to", "faiss", "--k", 5, "--out", out], "k", "faiss")
    refuses("unknown-seen-policy", ["export", run, "--seen", "hide", "--out", out], "hide", "exclude", "keep")
    refuses("inside-a-store", ["export", run, "--out", shop / "data" / "graph"], shop / "data")
    refuses("folder-not-empty", ["export", run, "--out", shop / "popularity"])
    refuses("not-exportable", ["export", shop / "popularity", "--out", out], "PopularityModel", "sasrec")
    refuses("no-vectors", ["export", shop / "item_to_item", "--to", "faiss", "--out", out])
    assert not out.exists()
