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


def test_collaborative_vectors_of_a_run(shop: Path, vectors: Path, tmp_path: Path, call: Call) -> None:
    """What `fullrank vectors` writes is what letter reads."""
    assert call("vectors", shop / "sasrec", "--out", tmp_path / "people.parquet").code == 0
    quick = ("--levels", 2, "--size", 8, "--set", "learner.hidden=[16]", "--set", "learner.epochs=2")
    quick += ("--set", "learner.width=8", "--set", "limits={use: 0, perplexity: 0, collisions: 1, neighbours: 0}")
    words = ("encode", shop / "data", "--vectors", vectors, "--learner", "letter", *quick, "--out", tmp_path / "letter")
    said = call(*words, "--collaborative", tmp_path / "people.parquet")
    assert said.code == 0 and "collaborative agreement" in said.out, said.err
    assert Codes.open(tmp_path / "letter").manifest["collaborative"]["width"] == 8


def test_folders_side_by_side(shop: Path, vectors: Path, tmp_path: Path, call: Call, refuses: Refuses) -> None:
    words = ("encode", shop / "data", "--vectors", vectors, *QUICK, "--collaborative", vectors)
    assert call(*words, "--out", tmp_path / "a").code == 0
    plain = ("encode", shop / "data", "--vectors", vectors, *QUICK, "--size", 4, "--out", tmp_path / "b")
    assert call(*plain, "--collisions", "extra_digit").code == 0
    one, two = call("show", tmp_path / "a", tmp_path / "b", "--json").json["codes"]
    own = Codes.open(tmp_path / "b").report
    assert (one["levels"], two["levels"], two["policy"]) == ("4 x 8", "4 x 4", "extra_digit")
    assert two["neighbours"] == own["neighbours"]["recall"] and two["error"] == own["reconstruction"]["error"]
    assert two["rate"] == own["collisions"]["before"]["rate"] and two["rate_after"] == 0
    assert 0 < one["collaborative"] <= 1 and two["collaborative"] is None
    told = call("show", tmp_path / "a", tmp_path / "b").out
    assert "least perplexity" in told and "0.0000 (extra_digit)" in told and "note" not in told
    fewer_items = pl.read_parquet(vectors).head(50)
    fewer_items.write_parquet(tmp_path / "few.parquet")
    other = ("encode", shop / "data", "--vectors", tmp_path / "few.parquet", *QUICK, "--out", tmp_path / "c")
    assert call(*other).code == 0
    assert "learned from different vectors" in call("show", tmp_path / "a", tmp_path / "c").out
    assert "4 x 8" in call("show", tmp_path / "a").out
    refuses("option-without-effect", ["show", tmp_path / "a", "--set", "pca=3"], "--set")
    refuses("missing-folder", ["show", tmp_path / "a", tmp_path / "nothing"], tmp_path / "nothing")
    refuses("wrong-folder", ["show", tmp_path / "a", shop / "sasrec"], "sasrec")
