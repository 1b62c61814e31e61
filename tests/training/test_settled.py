"""Settings left open: `auto`, by the device, and by what the epoch is chosen where targets repeat."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.analysis.report.answer import retrieval_answer
from fullrank.analysis.report.collect import collect
from fullrank.cli.output import Output
from fullrank.cli.print_evaluation import print_single
from fullrank.cli.train import best
from fullrank.cli.train import report as said_of_training
from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.events.subset import subset
from fullrank.ops import kernels
from fullrank.run.experiment import find_experiment
from fullrank.sweeps.jobs import Cell, make_jobs
from fullrank.sweeps.work import check_job_folder, run_job
from fullrank.training.fit import _trainer, fit
from fullrank.training.settled import best_precision, settled, usual_precision
from refusals import refused
from tests.training.conftest import Runs, tiny

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
AUTO = find_experiment("dcnv2").override("training.precision=auto")


@pytest.fixture
def multiplies(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Devices as they are, and those that multiply bf16."""
    monkeypatch.delenv("FULLRANK_BF16")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))

    def processor(amx: bool) -> None:
        monkeypatch.setattr(kernels, "_processor", lambda: {"amx_bf16": amx})

    return processor


def test_auto_is_what_the_device_multiplies_fast(multiplies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    multiplies(False)
    assert best_precision(AUTO, CUDA) == "bf16" and best_precision(AUTO, CPU) == "fp32"
    assert settled(AUTO, CUDA).training.precision == "bf16" and settled(AUTO, CPU).training.precision == "fp32"
    assert settled(AUTO, CPU) == find_experiment("dcnv2"), "something else has changed"
    multiplies(True)
    assert settled(AUTO, CPU).training.precision == "bf16"
    baseline = find_experiment("popularity").override("training.precision=auto")
    for device in (CPU, CUDA):
        assert settled(baseline, device) == find_experiment("popularity")
    monkeypatch.setenv("FULLRANK_BF16", "0")
    assert best_precision(AUTO, CPU) == best_precision(AUTO, CUDA) == "fp32"
    assert settled(AUTO.override("training.precision=bf16"), CPU).training.precision == "bf16"
    monkeypatch.delenv("FULLRANK_BF16")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert best_precision(AUTO, CUDA) == "fp32"


def test_on_a_cpu_auto_is_bf16_for_what_was_measured(multiplies: Any) -> None:
    multiplies(True)
    quick = ("dcnv2", "sasrec", "fullrank.recipes.srt:full")
    exact = ("gru4rec", "finalmlp", "srt", "bert4rec", "plr", "cl4srec", "hstu", "fair")
    for name, wanted in {**dict.fromkeys(quick, "bf16"), **dict.fromkeys(exact, "fp32")}.items():
        assert best_precision(find_experiment(name), CPU) == wanted, name
        assert best_precision(find_experiment(name), CUDA) == "bf16", name


def test_a_run_says_what_it_was_and_goes_on_in_it(market: Store, multiplies: Any, runs: Runs) -> None:
    multiplies(False)
    run = runs("run", "training.precision=auto", "training.max_epochs=1")
    assert run.spec.training.precision == "fp32"
    assert usual_precision("sasrec", run.path, resume=True) == ("training.precision=fp32",)
    changed = tiny("training.precision=bf16", "training.max_epochs=1")
    with refused("other-spec", "training.precision"):
        fit(changed, market, run.path, resume=True, progress=False)
    half = fit(changed, market, run.path.with_name("half"), progress=False)
    assert usual_precision("sasrec", half.path, resume=True) == ("training.precision=bf16",)


def test_a_named_recipe_trains_in_auto(tmp_path: Path) -> None:
    new = tmp_path / "new"
    for resume in (False, True):
        assert usual_precision("sasrec", new, resume=resume) == ("training.precision=auto",)
    for written in ("mine.yaml", "module:function", AUTO, Path("sasrec")):
        assert usual_precision(written, new, resume=False) == ()


def test_a_grid_names_its_precision() -> None:
    cell = Cell.parse({"name": "a", "recipe": "sasrec", "set": {"training.precision": "auto"}})
    with refused("precision-differs-by-machine", "bf16"):
        make_jobs(cell, (0,), ("test",))


def test_lightning_gets_the_precision() -> None:
    import lightning

    for name, wanted in (("bf16", "bf16-mixed"), ("fp32", "32-true")):
        training = AUTO.override(f"training.precision={name}").training
        assert _trainer(training, 1, 1, lightning.Callback(), CPU).precision == wanted


KEEP = "seen=keep"


@pytest.fixture(scope="module")
def sessions() -> pl.DataFrame:
    """60 items in a cycle; two users in five go back to their first items at the end."""
    rng, rows = np.random.default_rng(0), []
    for user in range(200):
        steps = [(int(rng.integers(60)) + place) % 60 for place in range(int(rng.integers(4, 9)))]
        steps = list(dict.fromkeys(steps))
        rows += [(user, item, 10 * user + time) for time, item in enumerate(steps + steps[:2] * (user % 5 < 2))]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


@pytest.fixture(scope="module")
def store(sessions: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return prepare(sessions, tmp_path_factory.mktemp("sessions") / "store")


def counted(store: Store, split: str) -> tuple[int, int]:
    """(different targets of each user, those of them in the history), user by user."""
    users = store.eval_set(split, without_history=True)
    pairs = [(set(t.tolist()), set(h.tolist())) for t, h in zip(users.targets, users.histories.items, strict=True)]
    return sum(len(targets) for targets, _ in pairs), sum(len(targets & known) for targets, known in pairs)


def test_prepare_counts_the_targets_in_the_history(
    sessions: pl.DataFrame, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = prepare(sessions, tmp_path / "later", set=["split.kind=global_time"])
    plain = prepare(sessions.unique(["user_id", "item_id"], maintain_order=True), tmp_path / "plain")
    parted = prepare(sessions, tmp_path / "parted", parts=3)
    half = subset(store, tmp_path / "half", share=0.5)
    for each in (store, later, parted, half, plain):
        for split in ("validation", "test"):
            counts = each.manifest["split"][split]
            assert (counts["targets"], counts["repeated_targets"]) == counted(each, split)
            share = counts["repeated_targets"] / counts["targets"]
            assert each.repeated_share(split) == share
            notes = [note for note in each.manifest["notes"] if KEEP in note]
            assert len(notes) == (each is not plain) and all(f"{share:.1%} of the {split}" in note for note in notes)
            monkeypatch.setitem(each.manifest["split"], split, {"events": 1})  # as an older version wrote it
            assert each.repeated_share(split) == share
    assert parted.manifest["split"]["test"].keys() == later.manifest["split"]["test"].keys()
    assert counted(later, "test")[0] > len(later.eval_set("test", without_history=True)), "several targets a user"


def test_an_evaluation_says_what_it_cannot_hit(store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = fit(tiny("training.max_epochs=1"), store, tmp_path / "run", progress=False)
    hidden, ranked = fr.evaluate(run, data=store), fr.evaluate(run, data=store, set=[KEEP])
    (note,) = hidden.notes
    targets, repeated = counted(store, "test")
    assert f"{repeated / targets:.1%} of the targets ({repeated:,} of {targets:,})" in note and f"--set {KEEP}" in note
    assert not ranked.notes and note in str(hidden)
    for setting, ceiling in (("seen=exclude", 1 - repeated / targets), (KEEP, 1.0)):
        whole = fr.evaluate(run, data=store, set=[setting, f"ks=[{store.num_items}]", "metrics=[recall]"])
        assert whole.metrics[f"recall@{store.num_items}"] == pytest.approx(ceiling), "what the note says is so"
    for every in (False, True):
        print_single(Output(False), {}, hidden, whole=every)
        assert note[:60] in " ".join(capfd.readouterr().out.split())
    answer = list(retrieval_answer(collect([run], data=store, sample=20)))
    assert answer[1] == f"{note[0].upper()}{note[1:]}.", "behind the figure that it is about"
    older = {key: value for key, value in hidden.protocol.items() if key != "targets"}
    assert fr.compare(hidden, type(hidden)(**{**vars(hidden), "protocol": older}), "ndcg@10").difference == 0


def test_the_best_epoch_is_chosen_by_what_can_be_reached(
    sessions: pl.DataFrame,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spec, chosen = tiny("training.max_epochs=2"), "evaluation.selection_seen"
    run = fit(spec, store, tmp_path / "run", progress=False)
    assert "40.0% of the validation targets" in capfd.readouterr().err
    assert run.spec == spec.override(f"{chosen}=keep"), "recorded, and nothing else has changed"
    top: Any = best(run)
    assert top["value"] == pytest.approx(fr.evaluate(run, "validation", data=store, set=[KEEP]).metrics["ndcg@10"])
    said_of_training(Output(False), run)
    assert "history ranked" in capfd.readouterr().out
    assert fit(spec, store, run.path, resume=True, progress=False).spec == run.spec
    with refused("other-spec", "selection_seen"):
        fit(spec.override(f"{chosen}=exclude"), store, run.path, resume=True, progress=False)

    plain = prepare(sessions.unique(["user_id", "item_id"], maintain_order=True), tmp_path / "store")
    for name, setting, data in (("typed", f"{chosen}=exclude", store), ("plain", "seed=1", plain)):
        own = fit(spec.override(setting), data, tmp_path / name, progress=False)
        assert own.spec == spec.override(setting)
    popular = fr.recipe("popularity")
    assert fit(popular, store, tmp_path / "popular", progress=False).spec == popular, "nothing is chosen"

    monkeypatch.setattr(
        "fullrank.training.settled.MANY_REPEATS", 1.0
    )  # a run of a version that chose by `seen` goes on by it
    older = fit(spec, store, tmp_path / "older", progress=False)
    monkeypatch.undo()
    assert older.spec == spec == fit(spec, store, older.path, resume=True, progress=False).spec


def test_a_search_chooses_so_too_and_its_hashes_stay(store: Store, tmp_path: Path) -> None:
    settings = {"model.dim": 8, "training.max_epochs": 1}
    (job,) = make_jobs(Cell(name="a", recipe="sasrec", set=settings), (0,), ("validation",), selection_only=True)
    row = run_job(job, store, tmp_path)
    assert row["protocol"]["validation"]["seen"] == "keep" and row["spec_hash"] == job.spec_hash
    assert row["metrics"]["validation"]["ndcg@10"] == pytest.approx(row["validation_best"]["value"])
    check_job_folder(job, store, tmp_path)
