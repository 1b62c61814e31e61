"""`encode`: items of a store to codes, what is printed of them, and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from coded import Sentences, matrix
from fullrank.data.events.store import Store
from fullrank.semantic_ids.reader import Codes
from fullrank.semantic_ids.vectors import sentences

if TYPE_CHECKING:
    from conftest import Call, Refuses

QUICK = ("--levels", 4, "--size", 8, "--set", "learner.rounds=2", "--set", "limits.collisions=1")


@pytest.fixture
def vectors(shop: Path, tmp_path: Path) -> Path:
    store = Store.open(shop / "data")
    frame = pl.DataFrame({"item_id": store.catalog.ids, "v": matrix(store.num_items)})
    frame.write_parquet(tmp_path / "v.parquet")
    return tmp_path / "v.parquet"


def test_codes_from_vectors(shop: Path, vectors: Path, tmp_path: Path, call: Call) -> None:
    said = call("encode", shop / "data", "--vectors", vectors, *QUICK, "--out", tmp_path / "codes", "--json")
    assert said.code == 0, said.err
    store, made = Store.open(shop / "data"), Codes.open(tmp_path / "codes")
    assert made.of(store).shape == (store.num_items, 4) and said.json["sizes"] == [8, 8, 8, 8]
    assert said.json["data"] == {"store": "data", "fingerprint": store.fingerprint}
    assert said.json["report"]["collisions"]["policy"] == "list" and "files" not in said.json
    told = call("encode", shop / "data", "--vectors", vectors, *QUICK, "--out", tmp_path / "codes", "--overwrite").out
    told = " ".join(told.split())
    whole = f"{store.num_items} items, 4 codes each (opq)"
    for words in ("code utilisation (lowest level)", "collision rate after list", "neighbour agreement", whole):
        assert words in told


def test_codes_from_text(shop: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Sentences()
    monkeypatch.setattr(sentences, "load_encoder", model.load)
    monkeypatch.setattr(sentences, "model_identity", lambda name: name)
    options = ("--model", "mine", "--text-col", "title", "--learner", "rq_kmeans", "--collisions", "extra_digit")
    options += ("--pca", 10, "--whiten", "--cache", tmp_path / "cache", "--set", "learner.iterations=3")
    options += ("--levels", 2, "--size", 4)
    said = call("encode", shop / "data", *options, "--out", tmp_path / "codes", "--json")
    assert said.code == 0, said.err
    spec = said.json["spec"]
    assert spec["vectors"]["model"] == "mine" and spec["vectors"]["columns"] == ["title"]
    assert spec["learner"] | {"levels": 2, "size": 4, "iterations": 3} == spec["learner"]
    assert (spec["pca"], spec["whiten"], spec["collisions"]) == (10, True, "extra_digit")
    assert said.json["report"]["collisions"]["after"]["rate"] == 0 and model.loaded == 1
    assert all(text.startswith("title: ") for text in model.asked)


def test_codes_of_a_run_and_of_what_is_new_in_it(
    shop: Path, vectors: Path, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    store = Store.open(shop / "data")
    fewer = pl.read_parquet(shop / "data" / "items.parquet").head(50)
    (tmp_path / "old").mkdir()
    fewer.write_parquet(tmp_path / "old" / "items.parquet")
    (tmp_path / "old" / "manifest.json").write_text('{"format_version": 2}')  # a run of which the items alone are read
    assert call("encode", tmp_path / "old", "--vectors", vectors, *QUICK, "--out", tmp_path / "a").code == 0
    grow = ("encode", shop / "sasrec", "--grow", tmp_path / "a", "--out", tmp_path / "b")
    said = call(*grow, "--json")
    assert said.code == 0, said.err
    assert said.json["grown"]["items"] == store.num_items - 50 and said.json["data"] == {"run": "sasrec"}
    assert Codes.open(tmp_path / "b").of(store).shape == (store.num_items, 4)
    assert "new items: reconstruction error" in call(*grow, "--overwrite").out
    refuses("option-without-effect", [*grow, "--levels", 8], "--grow")


@pytest.mark.parametrize(
    ("options", "code", "name"),
    [
        (("--learner", "opqq"), "unknown-kind", "'opq'"),
        (("--levels", 5), "width-not-divisible", "--pca 10"),
        (("--size", 512), "too-few-vectors", "60 vectors"),
        (("--collisions", "hash"), "invalid-setting", "'list', 'extra_digit' or 'sinkhorn'"),
        (("--model", "x"), "unknown-setting", "'model'"),
        (("--set", "learner.levels=4"), "given-twice", "--levels"),
        (("--set", "limits.neighbours=1"), "neighbours-lost", "limits.neighbours=0"),
    ],
)
def test_mistakes(
    options: tuple[object, ...], code: str, name: str, shop: Path, vectors: Path, tmp_path: Path, refuses: Refuses
) -> None:
    given = [word for pair in zip(QUICK[::2], QUICK[1::2], strict=True) if pair[0] not in options for word in pair]
    given += ["--set", "learner.rounds=2", "--set", "limits.collisions=1"] if "--set" in options else []
    given += ["--levels", 4] if "learner.levels=4" in options else []
    given += ["--size", 8] if "--size" not in given and "--size" not in options else []
    words = ["encode", shop / "data", "--vectors", vectors, *given, *options, "--out", tmp_path / "codes"]
    refuses(code, words, name)
    assert not (tmp_path / "codes").exists()


def test_a_folder_that_is_no_store(tmp_path: Path, refuses: Refuses) -> None:
    refuses("missing-folder", ["encode", tmp_path / "nothing", "--out", tmp_path / "codes"], tmp_path / "nothing")
