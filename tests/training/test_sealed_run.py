"""The seal of a run: whatever is changed in a file that the manifest lists is found by who reads it."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import fullrank as fr
from folders import full
from fullrank.data.events.store import Store
from fullrank.data.manifest import sealed
from fullrank.run import Run, write_run, write_weights
from fullrank.run.manifest import note_once, reopen_run, seal_run
from fullrank.semantic_ids.encode import open_items
from fullrank.training import TrainState, fit
from fullrank.training.data_module import RetrievalData
from refusals import refused
from seals import as_format_2, flip
from tests.training.clicks import shop
from tests.training.clicks import tiny as tiny_clicks
from tests.training.conftest import change_json, tiny

FILES = ("spec.json", "items.parquet", "weights.safetensors", "metrics.jsonl", "manifest.json")
CLICK_FILES = ("spec.json", "encoder.json", "vocabulary.parquet", "weights.safetensors", "manifest.json")


@pytest.fixture(scope="module")
def runs(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`lists` and `clicks`, and of each another of the same shape (`..._other`)."""
    home = tmp_path_factory.mktemp("sealed")
    for name, seed in (("lists", 1), ("lists_other", 2)):
        fr.train(tiny("training.max_epochs=1", f"seed={seed}"), market, home / name, progress=False)
    store = shop(home / "data_clicks")
    for name, seed in (("clicks", 1), ("clicks_other", 2)):
        fr.train(tiny_clicks("training.max_epochs=1", f"seed={seed}"), store, home / name, progress=False)
    return home


@pytest.fixture
def folder(runs: Path, tmp_path: Path) -> Path:
    """A copy of `lists`."""
    return Path(shutil.copytree(runs / "lists", tmp_path / "run"))


@pytest.fixture
def notes(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    note_once.cache_clear()
    with caplog.at_level(logging.INFO, "fullrank"):
        yield caplog


def turn(path: Path, other: Path) -> None:
    flip(path)


def cut(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def swap(path: Path, other: Path) -> None:
    """The file of another run: the same in both are the items and the vocabulary, so they are turned round."""
    if path.suffix == ".parquet":
        column = "item_id" if "items" in path.name else "value"
        pl.read_parquet(path).with_columns(pl.col(column).reverse()).write_parquet(path)
    elif path.name == "encoder.json":
        path.write_text(path.read_text().replace('"scale": ', '"scale": 1'))
    else:
        shutil.copyfile(other, path)


def gone(path: Path, other: Path) -> None:
    path.unlink()


def read(folder: Path) -> None:
    """All that a verb may read."""
    run = Run.open(folder)
    fr.load(run)
    run.rows()


@pytest.mark.parametrize("harm", [turn, cut, swap, gone])
@pytest.mark.parametrize(("kind", "name"), [*(("lists", f) for f in FILES), *(("clicks", f) for f in CLICK_FILES)])
def test_every_change_of_every_file_is_found(
    harm: Callable[[Path, Path], None], kind: str, name: str, runs: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(runs / kind, tmp_path / "run"))
    read(folder)
    harm(folder / name, runs / f"{kind}_other" / name)
    code = "file-damaged" if harm is not gone else "not-a-run" if name == "manifest.json" else "missing-file"
    # the manifest of another run is whole in itself: a file that it lists is then the one that differs
    named = "spec.json" if name == "manifest.json" and harm is swap else name
    with refused(code, named):
        read(folder)


def test_a_hash_is_compared_by_every_reader(runs: Path, tmp_path: Path, market: Store) -> None:
    """The calls that read a run's files by other ways than `Run.model`."""
    weights, items = tmp_path / "weights", tmp_path / "items"
    for folder, name in ((weights, "weights.safetensors"), (items, "items.parquet")):
        shutil.copytree(runs / "lists", folder)
        swap(folder / name, runs / "lists_other" / name)
    readers: list[Callable[[Any], Any]] = [
        lambda run: fr.grow_catalog(run, pl.DataFrame({"item_id": [999_999]}), tmp_path / "out", start="mean"),
        lambda run: fr.train("same", market, tmp_path / "out", init_from=run, progress=False),
        lambda run: fr.recommend(run.path, {"u": [market.catalog.ids[0]]}),
    ]
    for folder in (weights, items):
        for reader in readers:
            with refused("file-damaged", folder):
                reader(Run.open(folder))
            assert not (tmp_path / "out" / "weights.safetensors").exists()
    with refused("file-damaged", "items.parquet"):
        open_items(items)


def test_a_change_after_opening_is_found_when_the_file_is_read(folder: Path) -> None:
    run = Run.open(folder)
    run.model()
    flip(folder / "weights.safetensors")
    with refused("file-damaged", "weights.safetensors"):
        run.model()


def test_inference_needs_no_metrics(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()
    fr.load(folder)
    with refused("missing-file", "metrics.jsonl"):
        Run.open(folder).rows()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda tree: tree.pop("files"), "manifest-incomplete"),
        (lambda tree: tree.pop("finished"), "manifest-incomplete"),
        (lambda tree: tree["files"].pop("items.parquet"), "manifest-incomplete"),
        (lambda tree: tree["files"].pop("weights.safetensors"), "manifest-incomplete"),
        (lambda tree: tree["files"].update({"../x": {"bytes": 1, "sha256": ""}}), "foreign-files"),
        (lambda tree: tree["files"].update({"metrics.jsonl": {"sha256": 5}}), "manifest-incomplete"),
        (lambda tree: tree.update(init_from=5), "file-damaged"),
        (lambda tree: tree.update(init_from=["x"]), "file-damaged"),
    ],
)
def test_a_hostile_manifest_is_refused(change: Callable[[dict[str, Any]], Any], code: str, folder: Path) -> None:
    """Whoever made the folder made the seal, too."""
    tree = json.loads((folder / "manifest.json").read_text())
    change(tree)
    (folder / "manifest.json").write_text(json.dumps(sealed(tree)))
    with refused(code):
        Run.open(folder)


def test_a_run_without_a_seal_is_of_an_older_format(folder: Path) -> None:
    change_json(folder / "manifest.json", seal=None)
    with refused("manifest-incomplete", "seal"):
        Run.open(folder)


def test_older_formats_open_with_one_note(runs: Path, folder: Path, notes: pytest.LogCaptureFixture) -> None:
    as_format_2(folder)
    fr.load(folder)
    fr.load(folder)
    assert [str(folder) in record.message for record in notes.records] == [True]
    fr.load(runs / "lists")
    assert len(notes.records) == 1, "nothing is said of a run that is sealed"


def test_a_run_that_was_cut_off_opens_resumes_and_is_sealed_then(
    runs: Path, market: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: pytest.LogCaptureFixture
) -> None:
    """The process dies between the weights and the seal."""

    def die(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fit, "seal_run", die)
    spec = tiny("training.max_epochs=1", "seed=1")
    with pytest.raises(KeyboardInterrupt):
        fr.train(spec, market, tmp_path / "run", progress=False)
    monkeypatch.undo()
    cut_off = Run.open(tmp_path / "run")
    assert not cut_off.manifest["finished"] and set(cut_off.manifest["files"]) == {"spec.json", "items.parquet"}
    cut_off.model()
    assert ["has not ended" in record.message for record in notes.records] == [True]
    run = fr.train(spec, market, tmp_path / "run", resume=True, progress=False)
    whole = Run.open(runs / "lists")
    assert run.manifest["finished"]
    assert run.manifest["files"]["weights.safetensors"] == whole.manifest["files"]["weights.safetensors"]


@pytest.mark.parametrize("finished", [True, False])
def test_best_weights_that_were_damaged_before_a_resume_are_never_sealed(
    finished: bool, market: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no hash in the manifest yet; the checkpoint knows it. The later epochs bring no better ones."""
    scores = iter([0.9, 0.1, 0.1])
    monkeypatch.setattr(RetrievalData, "score", lambda *_: next(scores))
    monkeypatch.setattr(fit, "seal_run", lambda folder: None)
    spec, last = tiny("training.max_epochs=3"), KeyboardInterrupt
    stop = None if finished else 2

    class Stop:
        def on_epoch(self, state: TrainState) -> dict[str, float]:
            if state.epoch == stop:
                raise last
            return {}

    with nullcontext() if finished else pytest.raises(last):
        fr.train(spec, market, tmp_path / "run", progress=False, callbacks=[Stop()])
    monkeypatch.undo()
    monkeypatch.setattr(RetrievalData, "score", lambda *_: 0.1)
    flip(tmp_path / "run" / "weights.safetensors")
    with refused("file-damaged", "weights.safetensors", tmp_path / "run" / "checkpoints"):
        fr.train(spec, market, tmp_path / "run", resume=True, progress=False)
    assert not Run.open(tmp_path / "run").manifest["finished"]


def test_a_sealed_run_is_open_while_its_weights_change(runs: Path, folder: Path) -> None:
    """Without its checkpoint a resumed run is trained again: the seal of before must not outlive the weights."""
    reopen_run(folder)
    write_weights(folder, Run.open(runs / "lists_other").model())
    assert not Run.open(folder).manifest["finished"]
    flip(folder / "items.parquet")
    with refused("file-damaged", "items.parquet"):
        reopen_run(folder)


def test_a_resumed_run_of_format_2_is_sealed(runs: Path, folder: Path, market: Store, tmp_path: Path) -> None:
    shutil.rmtree(as_format_2(folder) / "checkpoints")
    run = fr.train(Run.open(folder).spec, market, folder, resume=True, progress=False)
    assert run.manifest["format_version"] == 3 and run.manifest["finished"]
    kept = as_format_2(shutil.copytree(runs / "lists", tmp_path / "kept"))
    run = fr.train(Run.open(kept).spec, market, kept, resume=True, progress=False)
    assert run.manifest["format_version"] == 2, "nobody knows whether the weights are those that were written"


def test_a_grown_and_a_filled_run_are_sealed_for_themselves(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.open(runs / "lists")
    grown = fr.grow_catalog(run, pl.DataFrame({"item_id": [999_999]}), tmp_path / "grown", start="mean")
    assert grown.manifest["finished"] and grown.manifest["files"].keys() == run.manifest["files"].keys()
    for name in ("items.parquet", "weights.safetensors"):
        assert grown.manifest["files"][name] != run.manifest["files"][name]
    read(grown.path)

    monkeypatch.setattr("fullrank.run.write_tensors", full)
    with refused("not-written", "gone"):
        fr.grow_catalog(run, pl.DataFrame({"item_id": [999_999]}), tmp_path / "gone", start="mean")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grown"], "whole or not at all"


def test_a_run_that_was_written_by_hand_is_sealed_once(market: Store, tmp_path: Path) -> None:
    model = fr.recipe("popularity").model.build(market.catalog)
    model.fit(market)
    data = {"path": str(market.path), "split_fingerprint": market.fingerprint}
    write_run(tmp_path, fr.recipe("popularity"), market.catalog, {"parameters": 0, "data": data})
    write_weights(tmp_path, model)
    seal_run(tmp_path)
    before = (tmp_path / "manifest.json").read_bytes()
    seal_run(tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert all(torch.isfinite(one).all() for one in Run.open(tmp_path).tensors().values())
