"""`export`: to faiss, which takes a moment, to the folder that is shipped, and what it refuses."""

import shutil
from pathlib import Path

import pytest

from fullrank import api
from fullrank.data.events.store import Store
from fullrank.run import Run
from fullrank.run.verification import verify
from fullrank.serving.export.folder import Exported
from tests.cli.conftest import Ask, Call, Refuses


def test_item_vectors(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = call("export @sasrec --to faiss --int8 --out out --json")
    assert said.code == 0, said.err
    found = said.json
    assert found["export"] == "out" and found["to"] == "faiss" and found["problem"] == "retrieval"
    assert found["parity"]["histories"] == "test histories of the store"
    assert f"recall@10 {found['parity']['recall@10']:.4f}" in said.err
    assert Exported.open(out).parity == found["parity"]
    again = call("export @sasrec --to faiss --out out --overwrite")
    assert again.code == 0 and "recall@10 1.0000" in again.out
    assert not Exported.open(out).manifest["int8"]


@pytest.mark.slow
def test_a_graph(call: Call, tmp_path: Path) -> None:
    said = call("export @sasrec --k 7 --out graph")
    assert said.code == 0 and "parity: 86 rows" in said.out and "excluded" in said.out, said
    assert Exported.open(tmp_path / "graph").manifest["k"] == 7


def test_what_is_refused(refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    refuses("option-without-effect", "export @sasrec --int8 --out out", "int8", "onnx")
    refuses("option-without-effect", "export @sasrec --to faiss --k 5 --out out", "k", "faiss")
    refuses("unknown-seen-policy", "export @sasrec --seen hide --out out", "hide", "exclude", "keep")
    refuses("inside-a-store", "export @sasrec --out @data/graph", shop / "data")
    refuses("folder-not-empty", "export @sasrec --out @popularity")
    refuses("not-exportable", "export @popularity --out out", "PopularityModel", "sasrec")
    refuses("no-vectors", "export @item_to_item --to faiss --out out")
    assert not (tmp_path / "out").exists()


def test_the_folder_to_ship_answers_alone(ask: Ask, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    item = Store.open(shop / "data").catalog.ids[0]
    own = api.recommend(shop / "sasrec", [[item]], k=5, titles=True)
    out = tmp_path / "ship"
    found = ask("export @sasrec --to folder --out ship")
    names = {"items.parquet", "manifest.json", "spec.json", "weights.safetensors"}
    assert {path.name for path in out.iterdir()} == names and set(found["files"]) == names - {"manifest.json"}
    assert verify(out).ok and (shop / "sasrec" / "checkpoints").exists()
    moved = Path(shutil.move(out, tmp_path / "elsewhere"))
    assert api.recommend(moved, [[item]], k=5, titles=True).equals(own)
    api.export(shop / "sasrec", tmp_path / "logs", to="folder", logs=True)
    assert Run.open(tmp_path / "logs").rows() == Run.open(shop / "sasrec").rows() != []
    words = "export @sasrec --to folder --out"
    refuses("folder-not-empty", f"{words} elsewhere")
    refuses("option-without-effect", f"{words} ship --k 5", "k")
    refuses("option-without-effect", "export @sasrec --to faiss --logs --out ship", "logs")
    (moved / "weights.safetensors").write_bytes((moved / "weights.safetensors").read_bytes()[:-1] + b"x")
    refuses("file-damaged", "export elsewhere --to folder --out ship")
    assert not out.exists()
