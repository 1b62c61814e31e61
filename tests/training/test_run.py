"""Run folders: what is written can be read, and what is damaged or hostile is refused with one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

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
from tests.training.conftest import tiny


@pytest.fixture(scope="module")
def good(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fr.train(tiny("training.max_epochs=1"), market, tmp_path_factory.mktemp("runs") / "run", progress=False).path


def test_holds_what_the_format_says(good: Path) -> None:
    names = {p.name for p in good.iterdir()}
    assert {"spec.json", "metrics.jsonl", "weights.safetensors", "items.parquet", "manifest.json"} <= names
    run = Run.open(good)
    assert run.manifest["format_version"] == 3 and run.manifest["finished"]
    assert set(run.manifest["files"]) == names - {"manifest.json", "checkpoints"}
    assert run.spec == tiny("training.max_epochs=1")
    assert run.manifest["parameters"] == sum(p.numel() for p in run.model().parameters())


def _json(name: str, **changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "weights.safetensors")
        change(tensors)
        save_file(tensors, folder / "weights.safetensors")

    return apply


DAMAGE: dict[str, tuple[Callable[[Path], None], tuple[object, ...]]] = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), ("not-a-run", "manifest.json")),
    "no spec": (lambda f: (f / "spec.json").unlink(), ("missing-file", "spec.json")),
    "no weights": (lambda f: (f / "weights.safetensors").unlink(), ("missing-file", "weights.safetensors")),
    "no items": (lambda f: (f / "items.parquet").unlink(), ("missing-file", "items.parquet")),
    "newer": (_json("manifest.json", format_version=99), ("unknown-format", "99")),
    "garbage manifest": (
        lambda f: (f / "manifest.json").write_text("{"),
        ("file-damaged", "manifest.json", "line 1 column 2"),
    ),
    "list for a spec": (lambda f: (f / "spec.json").write_text("[1]"), ("file-damaged", "spec.json", "[1]")),
    "deep json": (lambda f: (f / "spec.json").write_text("[" * 100_000), ("file-damaged", "spec.json", 100)),
    "unknown setting": (_json("spec.json", speed=3), ("unknown-setting", "speed")),
    "unknown kind": (_json("spec.json", model={"kind": "os"}), ("unknown-kind", "spec.json", "'os'")),
    "no data": (_json("manifest.json", data=[1]), ("file-damaged", "manifest.json", "data=[1]")),
    "path of a number": (
        _json("manifest.json", data={"path": 5, "split_fingerprint": "x"}),
        ("file-damaged", "manifest.json", "'path': 5"),
    ),
    "true for a version": (_json("manifest.json", format_version=True), ("unknown-format", "True")),
    "a wide spec": (
        lambda f: (f / "spec.json").write_text(
            (f / "spec.json").read_text().replace('"dim": 16', '"dim": 1099511627776')
        ),
        ("invalid-setting", "spec.json", 1099511627776),
    ),
    "cut weights": (
        lambda f: (f / "weights.safetensors").write_bytes(b"\x00" * 9),
        ("file-damaged", "weights.safetensors", "9 bytes"),
    ),
    "pickle for weights": (
        lambda f: torch.save({"x": 1}, f / "weights.safetensors"),
        ("file-damaged", "weights.safetensors", "header too large"),
    ),
    "missing tensor": (
        _tensors(lambda t: t.__delitem__("items.embedding.weight")),
        ("weights-differ-from-spec", "items.embedding.weight"),
    ),
    "foreign tensor": (_tensors(lambda t: t.update(evil=torch.zeros(1))), ("weights-differ-from-spec", "evil")),
    "wrong shape": (
        _tensors(lambda t: t.update({"items.popularity": torch.zeros(3)})),
        ("weights-differ-from-spec", "items.popularity", "(3,)", "(80,)"),
    ),
    "not finite": (
        _tensors(lambda t: t["items.embedding.weight"].fill_(float("nan"))),
        ("weights-not-finite", "items.embedding.weight"),
    ),
    "other items": (lambda f: (f / "items.parquet").write_bytes(b"PAR1"), ("table-unreadable", "items.parquet")),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_gives_a_clear_error(case: str, good: Path, tmp_path: Path) -> None:
    """Of a run without hashes, so that each check stands for itself."""
    change, says = DAMAGE[case]
    folder = as_format_2(shutil.copytree(good, tmp_path / "run"))
    change(folder)
    with refused(*says):
        Run.open(folder).model()


def test_a_row_cut_short_is_left_out(good: Path, tmp_path: Path) -> None:
    as_format_2(shutil.copytree(good, tmp_path / "run"))
    rows = Run.open(good).rows()
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"event": "epo')
    assert Run.open(tmp_path / "run").rows() == rows


@pytest.mark.parametrize(
    "wrong",
    [
        '"step": true, "epoch": 1', '"step": 9, "epoch": "1"', '"step": 9, "epoch": NaN', '"step": 9, "epoch": 1e400',
        f'"step": 9, "epoch": {10**400}', '"step": 9, "epoch": 1, "seconds": []',
        '"step": 9, "epoch": 1, "validation/ndcg@10": "0.5"', '"step": 9, "epoch": 1, "train/loss": null',
    ],
)  # fmt: skip
def test_a_row_that_training_did_not_write_is_left_out_with_those_behind_it(
    wrong: str, good: Path, tmp_path: Path
) -> None:
    """Of a run without hashes; they are shown and summed by verbs."""
    folder = as_format_2(shutil.copytree(good, tmp_path / "run"))
    rows = Run.open(folder).rows()
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(f'{{"event": "epoch", {wrong}}}\n{{"event": "epoch", "step": 99, "epoch": 1}}\n')
    assert Run.open(folder).rows() == rows


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
    before = {p.name: p.read_bytes() for p in (tmp_path / "store").iterdir()}
    with refused("folder-of-others", tmp_path / "store"):
        fr.train("popularity", market, tmp_path / "store", overwrite=True, progress=False)
    with refused("not-a-run", tmp_path / "store", "`fullrank train`"):
        Run.open(tmp_path / "store")
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "store").iterdir()}


@pytest.mark.parametrize(
    ("settings", "loggers", "says"),
    [
        (("model.encoder.attention.heads=3",), (), ("width-not-divisible", 16, 3)),
        ((), ("tensorbord",), ("unknown-logger", "'tensorbord'", "tensorboard")),
        (("training.patience=x",), (), ("invalid-setting", "training.patience", "'x'")),
    ],
)
def test_a_failed_overwrite_leaves_the_old_run(
    settings: tuple[str, ...],
    loggers: tuple[str, ...],
    says: tuple[object, ...],
    good: Path,
    market: Store,
    tmp_path: Path,
) -> None:
    shutil.copytree(good, tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()}
    with refused(*says):
        fr.train(
            tiny(), market, tmp_path / "run", set=settings, loggers=loggers, overwrite=True, progress=False
        )  # fmt: skip
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()}


def test_a_run_cannot_replace_the_one_it_goes_on_from(good: Path, market: Store, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "run")
    with refused("same-folder", tmp_path / "run"):
        fr.train("same", market, tmp_path / "run", init_from=tmp_path / "run", overwrite=True, progress=False)
    assert Run.open(tmp_path / "run").model()


def test_a_baseline_over_another_run_keeps_nothing_of_it(good: Path, market: Store, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "run")
    run = fr.train("popularity", market, tmp_path / "run", overwrite=True, progress=False)
    assert [row["event"] for row in run.rows()] == ["fit"]
    assert not (run.path / "checkpoints").exists()


def test_resume_before_the_first_checkpoint_keeps_the_warm_start(good: Path, market: Store, tmp_path: Path) -> None:
    """The run is killed before it wrote a checkpoint: resumed, it starts from the same weights as an unbroken one."""
    small = ["training.max_epochs=1", "seed=5"]
    whole = fr.train("same", market, tmp_path / "whole", init_from=good, set=small, progress=False)
    cut = fr.train("same", market, tmp_path / "cut", init_from=good, set=small, progress=False)
    shutil.rmtree(cut.path / "checkpoints")
    again = fr.train(cut.spec, market, cut.path, resume=True, progress=False)
    a, b = (load_file(run.path / "weights.safetensors") for run in (whole, again))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert again.manifest["init_from"] == whole.manifest["init_from"] == str(good.resolve())
