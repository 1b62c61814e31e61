"""Run folders: what is written can be read, and what is damaged or hostile is refused with one sentence."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

import fullrank as fr
from coded import settings
from fullrank.data.events.store import Store
from fullrank.run import Run
from refusals import refused
from seals import as_format_2
from tests.training.conftest import Runs, change_json, content, same_weights, tiny


@pytest.fixture
def copied(run: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run.path, tmp_path / "run"))


@pytest.fixture
def unhashed(copied: Path) -> Path:
    """Of a format without hashes, so that each check stands for itself."""
    return as_format_2(copied)


def test_holds_what_the_format_says(run: Run) -> None:
    names = {p.name for p in run.path.iterdir()}
    assert {"spec.json", "metrics.jsonl", "weights.safetensors", "items.parquet", "manifest.json"} <= names
    opened = Run.open(run.path)
    assert opened.manifest["format_version"] == 3 and opened.manifest["finished"]
    assert set(opened.manifest["files"]) == names - {"manifest.json", "checkpoints"}
    assert opened.spec == tiny("training.max_epochs=2")
    assert opened.manifest["parameters"] == sum(p.numel() for p in opened.model().parameters())


Change = Callable[[Path], Any]


def _json(name: str, **changes: object) -> Change:
    return lambda folder: change_json(folder / name, **changes)


def _content(name: str, content: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content)


def _tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "weights.safetensors")
        change(tensors)
        save_file(tensors, folder / "weights.safetensors")

    return apply


WEIGHT = "items.embedding.weight"
DAMAGE: list[tuple[Change, str, tuple[object, ...]]] = [
    (_json("manifest.json", format_version=99), "unknown-format", ("99",)),
    (_json("manifest.json", format_version=True), "unknown-format", ("True",)),
    (_json("manifest.json", data=[1]), "file-damaged", ("manifest.json", "data=[1]")),
    (
        _json("manifest.json", data={"path": 5, "split_fingerprint": "x"}),
        "file-damaged",
        ("manifest.json", "'path': 5"),
    ),
    (_content("manifest.json", b"{"), "file-damaged", ("manifest.json", "line 1 column 2")),
    (_content("spec.json", b"[1]"), "file-damaged", ("spec.json", "[1]")),
    (_content("spec.json", b"[" * 100_000), "file-damaged", ("spec.json", 100)),
    (_json("spec.json", speed=3), "unknown-setting", ("speed",)),
    (_json("spec.json", model={"kind": "os"}), "unknown-kind", ("spec.json", "'os'")),
    (_json("spec.json", model=tiny().model.dump() | {"dim": 2**40}), "invalid-setting", ("spec.json", 2**40)),
    (_content("weights.safetensors", b"\x00" * 9), "file-damaged", ("weights.safetensors", "9 bytes")),
    (lambda f: torch.save({"x": 1}, f / "weights.safetensors"), "file-damaged", ("header too large",)),
    (_tensors(lambda t: t.pop(WEIGHT)), "weights-differ-from-spec", (WEIGHT,)),
    (_tensors(lambda t: t.update(evil=torch.zeros(1))), "weights-differ-from-spec", ("evil",)),
    (
        _tensors(lambda t: t.update({"items.popularity": torch.zeros(3)})),
        "weights-differ-from-spec",
        ("items.popularity", "(3,)", "(80,)"),
    ),
    (_tensors(lambda t: t[WEIGHT].fill_(float("nan"))), "weights-not-finite", (WEIGHT,)),
    (_content("items.parquet", b"PAR1"), "table-unreadable", ("items.parquet",)),
]


@pytest.mark.parametrize(("change", "code", "names"), DAMAGE)
def test_damage_gives_a_clear_error(change: Change, code: str, names: tuple[object, ...], unhashed: Path) -> None:
    change(unhashed)
    with refused(code, *names):
        Run.open(unhashed).model()


@pytest.mark.parametrize("name", ["manifest.json", "spec.json", "weights.safetensors", "items.parquet"])
def test_a_missing_file_is_named(name: str, unhashed: Path) -> None:
    (unhashed / name).unlink()
    with refused("not-a-run" if name == "manifest.json" else "missing-file", name):
        Run.open(unhashed).model()


@pytest.mark.parametrize(
    "wrong",
    [
        '"step": true, "epoch": 1', '"step": 9, "epoch": "1"', '"step": 9, "epoch": NaN', '"step": 9, "epoch": 1e400',
        f'"step": 9, "epoch": {10**400}', '"step": 9, "epoch": 1, "seconds": []', '"step": 9, "epo',
        '"step": 9', '"step": 9, "epoch": 1, "validation/ndcg@10": "0.5"', '"step": 9, "epoch": 1, "train/loss": null',
    ],
)  # fmt: skip
def test_a_row_that_training_did_not_write_is_left_out_with_those_behind_it(wrong: str, unhashed: Path) -> None:
    """They are shown and summed by verbs. A row cut short is the last one."""
    rows = Run.open(unhashed).rows()
    more = "" if wrong.endswith("epo") else '}\n{"event": "epoch", "step": 99, "epoch": 1}\n'
    with open(unhashed / "metrics.jsonl", "a") as file:
        file.write('{"event": "epoch", ' + wrong + more)
    assert Run.open(unhashed).rows() == rows


@pytest.mark.slow
def test_every_recipe_trains_and_is_read_back(market: Store, tmp_path: Path) -> None:
    from fullrank.core.registry import kinds

    ids = market.catalog.ids
    vectors = np.random.default_rng(0).normal(size=(len(ids), 12)).astype(np.float32)
    pl.DataFrame({"item_id": ids, "vector": vectors}).write_parquet(tmp_path / "vectors.parquet")
    quick = [*settings(tmp_path / "vectors.parquet"), "limits.neighbours=0"]
    codes = fr.encode(market, tmp_path / "codes", set=quick)
    for name in kinds("recipes"):
        spec = fr.recipe(name)
        if spec.clicks is not None:
            continue  # of impressions: test_clicks.py
        small = ["training.max_epochs=1", "training.batch_size=512"] if spec.model.kind_of() == "recommender" else []
        if "kind: semantic" in spec.to_yaml():
            small.append(f"model.items.codes={codes.path}")
        if name == "unisrec":
            small.append(f"model.items.vectors={{kind: file, path: '{tmp_path / 'vectors.parquet'}'}}")
        elif "kind: text" in spec.to_yaml():
            small.append("model.items.fields=[{column: title}, {column: brand, tokens: 8, empty: unknown}]")
        if "kind: features" in spec.to_yaml():
            small.append("model.items.categorical=[category, brand]")
        if "kind: s3rec" in spec.to_yaml():
            small.append("model.penalties=[{kind: s3rec, attributes: [category, brand]}]")
        run = fr.train(spec.override(*small, "seed=3"), market, tmp_path / name, progress=False)
        found = fr.evaluate(run, "validation", data=market)
        assert found.metrics["ndcg@10"] > 0, name
        assert fr.recommend(run, {"u": [market.catalog.ids[0]]}, k=3, untimed="even").height == 3, name


def test_a_store_is_never_taken_for_a_run(market: Store, tmp_path: Path) -> None:
    shutil.copytree(market.path, tmp_path / "store")
    before = content(tmp_path / "store")
    with refused("folder-of-others", tmp_path / "store"):
        fr.train("popularity", market, tmp_path / "store", overwrite=True, progress=False)
    with refused("not-a-run", tmp_path / "store", "`fullrank train`"):
        Run.open(tmp_path / "store")
    assert before == content(tmp_path / "store")


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"set": ["model.encoder.attention.heads=3"]}, "width-not-divisible"),
        ({"set": ["training.patience=x"]}, "invalid-setting"),
        ({"loggers": ["tensorbord"]}, "unknown-logger"),
        ({"init_from": "run"}, "same-folder"),
    ],
)
def test_a_failed_overwrite_leaves_the_old_run(
    how: dict[str, Any], code: str, copied: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied.parent)
    before = content(copied)
    with refused(code):
        runs("run", overwrite=True, **how)
    assert before == content(copied)


def test_a_baseline_over_another_run_keeps_nothing_of_it(copied: Path, market: Store) -> None:
    run = fr.train("popularity", market, copied, overwrite=True, progress=False)
    assert [row["event"] for row in run.rows()] == ["fit"]
    assert not (run.path / "checkpoints").exists()


def test_resume_before_the_first_checkpoint_keeps_the_warm_start(run: Run, runs: Runs) -> None:
    """The run is killed before it wrote a checkpoint: resumed, it starts from the same weights as an unbroken one."""
    small = ("training.max_epochs=1", "seed=5")
    whole, cut = (runs(name, *small, init_from=run) for name in ("whole", "cut"))
    shutil.rmtree(cut.path / "checkpoints")
    again = runs("cut", *small, resume=True)
    assert same_weights(whole, again)
    assert again.manifest["init_from"] == whole.manifest["init_from"] == str(run.path.resolve())
