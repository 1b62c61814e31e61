"""`encode`: items of a store to codes, what is printed of them, and mistakes."""

from pathlib import Path

import polars as pl
import pytest

from coded import Sentences, matrix
from fullrank.data.events.store import Store
from fullrank.semantic_ids.reader import Codes
from fullrank.semantic_ids.vectors import text as text_vectors
from tests.cli.conftest import Ask, Call, Refuses

QUICK = "--levels 4 --size 8 --set learner.rounds=2 --set limits.collisions=1"


@pytest.fixture
def vectors(shop: Path, tmp_path: Path) -> Path:
    store = Store.open(shop / "data")
    frame = pl.DataFrame({"item_id": store.catalog.ids, "v": matrix(store.num_items)})
    frame.write_parquet(tmp_path / "v.parquet")
    return tmp_path / "v.parquet"


def test_codes_from_vectors(shop: Path, vectors: Path, tmp_path: Path, ask: Ask, call: Call) -> None:
    said = ask(f"encode @data --vectors v.parquet {QUICK} --out codes")
    store, made = Store.open(shop / "data"), Codes.open(tmp_path / "codes")
    assert made.of(store).shape == (store.num_items, 4) and said["sizes"] == [8, 8, 8, 8]
    assert said["data"] == {"store": "data", "fingerprint": store.fingerprint}
    assert said["report"]["collisions"]["policy"] == "list" and "files" not in said
    told = call(f"encode @data --vectors v.parquet {QUICK} --out codes --overwrite").out
    told = " ".join(told.split())
    whole = f"{store.num_items} items, 4 codes each (opq)"
    for words in ("code utilisation (lowest level)", "collision rate after list", "neighbour agreement", whole):
        assert words in told


def test_codes_from_text(monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    model = Sentences()
    monkeypatch.setattr(text_vectors, "load_encoder", model.load)
    monkeypatch.setattr(text_vectors, "model_identity", lambda name: name)
    options = "--model mine --text-col title --learner rq_kmeans --collisions extra_digit"
    options += " --pca 10 --whiten --cache cache --set learner.iterations=3 --levels 2 --size 4"
    said = ask(f"encode @data {options} --out codes")
    spec = said["spec"]
    assert spec["vectors"]["model"] == "mine" and spec["vectors"]["columns"] == ["title"]
    assert spec["learner"] | {"levels": 2, "size": 4, "iterations": 3} == spec["learner"]
    assert (spec["pca"], spec["whiten"], spec["collisions"]) == (10, True, "extra_digit")
    assert said["report"]["collisions"]["after"]["rate"] == 0 and model.loaded == 1
    assert all(text.startswith("title: ") for text in model.asked)


def test_codes_of_a_run_and_of_what_is_new_in_it(
    shop: Path, vectors: Path, tmp_path: Path, ask: Ask, call: Call, refuses: Refuses
) -> None:
    store = Store.open(shop / "data")
    fewer = pl.read_parquet(shop / "data" / "items.parquet").head(50)
    (tmp_path / "old").mkdir()
    fewer.write_parquet(tmp_path / "old" / "items.parquet")
    (tmp_path / "old" / "manifest.json").write_text('{"format_version": 2}')  # a run of which the items alone are read
    assert call(f"encode old --vectors v.parquet {QUICK} --out a").code == 0
    grow = "encode @sasrec --grow a --out b"
    said = ask(grow)
    assert said["grown"]["items"] == store.num_items - 50 and said["data"] == {"run": "sasrec"}
    assert Codes.open(tmp_path / "b").of(store).shape == (store.num_items, 4)
    assert "new items: reconstruction error" in call(f"{grow} --overwrite").out
    refuses("option-without-effect", f"{grow} --levels 8", "--grow")


@pytest.mark.parametrize(
    ("options", "code", "name"),
    [
        ("--levels 5 --size 8", "width-not-divisible", "--pca 10"),
        ("--levels 4 --size 512", "too-few-vectors", "60 vectors"),
        ("--model x --levels 4 --size 8", "unknown-setting", "'model'"),
        ("--set learner.levels=4 --levels 4 --size 8", "given-twice", "--levels"),
        ("--set limits.neighbours=1 --levels 4 --size 8", "neighbours-lost", "limits.neighbours=0"),
    ],
)
def test_mistakes(options: str, code: str, name: str, vectors: Path, tmp_path: Path, refuses: Refuses) -> None:
    words = f"encode @data --vectors v.parquet --set learner.rounds=2 --set limits.collisions=1 {options} --out codes"
    refuses(code, words, name)
    assert not (tmp_path / "codes").exists()


def test_collaborative_vectors_of_a_run(vectors: Path, tmp_path: Path, call: Call) -> None:
    """What `fullrank vectors` writes is what letter reads."""
    assert call("vectors @sasrec --out people.parquet").code == 0
    quick = "--levels 2 --size 8 --set learner.hidden=[16] --set learner.epochs=2"
    quick += " --set learner.width=8 --set 'limits={use: 0, perplexity: 0, collisions: 1, neighbours: 0}'"
    words = f"encode @data --vectors v.parquet --learner letter {quick} --out letter"
    said = call(f"{words} --collaborative people.parquet")
    assert said.code == 0 and "collaborative agreement" in said.out, said.err
    assert Codes.open(tmp_path / "letter").manifest["collaborative"]["width"] == 8


def test_folders_side_by_side(vectors: Path, tmp_path: Path, ask: Ask, call: Call, refuses: Refuses) -> None:
    words = f"encode @data --vectors v.parquet {QUICK} --collaborative v.parquet"
    assert call(f"{words} --out a").code == 0
    plain = f"encode @data --vectors v.parquet {QUICK} --size 4 --out b"
    assert call(f"{plain} --collisions extra_digit").code == 0
    one, two = ask("show a b")["codes"]
    own = Codes.open(tmp_path / "b").report
    assert (one["levels"], two["levels"], two["policy"]) == ("4 x 8", "4 x 4", "extra_digit")
    assert two["neighbours"] == own["neighbours"]["recall"] and two["error"] == own["reconstruction"]["error"]
    assert two["rate"] == own["collisions"]["before"]["rate"] and two["rate_after"] == 0
    assert 0 < one["collaborative"] <= 1 and two["collaborative"] is None
    told = call("show a b").out
    assert "least perplexity" in told and "0.0000 (extra_digit)" in told and "note" not in told
    fewer_items = pl.read_parquet(vectors).head(50)
    fewer_items.write_parquet(tmp_path / "few.parquet")
    other = f"encode @data --vectors few.parquet {QUICK} --out c"
    assert call(other).code == 0
    assert "learned from different vectors" in call("show a c").out
    assert "4 x 8" in call("show a").out
    refuses("option-without-effect", "show a --set pca=3", "--set")
    refuses("missing-folder", "show a nothing", "nothing")
    refuses("wrong-folder", "show a @sasrec", "sasrec")
