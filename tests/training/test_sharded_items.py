"""An item table that two or four gloo processes hold together gives the losses, weights and metrics of one process."""

import sys
from pathlib import Path

import pytest

from fullrank.api import train
from fullrank.data.events.store import Store
from fullrank.experiment import Experiment, find_experiment
from fullrank.training.shards import shard_of
from refusals import refused
from tests.training.conftest import column, tiny
from tests.training.several import LONG, equal, goes_on, with_summed_gradients
from tests.training.test_ddp import torchrun
from tests.training.test_peers import environment

SHARED = ("training.shard_items=true", "training.max_epochs=2")
SAMPLED = "model.loss={kind: sampled_softmax, negatives: {count: 8, share: query, popularity: 1.0}}"
CASES = {
    "softmax": (),
    "accumulated": ("training.accumulate=2", "training.clip_norm=0.5", "training.weight_decay=0.1"),
    "sampled": (SAMPLED, "training.clip_norm=0.05"),
    "cosine": ("model.scoring={similarity: cosine, temperature: 0.1}", "model.initial=width"),
    "penalty": ("model.loss=bce", "model.penalties=[dros]"),
    "cloze": ("model.task=cloze", "model.encoder.attention.causal=false"),
    "sampled_metric": ("evaluation.protocol=sampled", "evaluation.negatives=20"),
    "discounted": ("evaluation.popularity_discount=0.5",),
}
COUPLED = ("penalty",)
"""What sees a process's own rows together, so that one process trains something else than several do."""
SLOW = (pytest.mark.slow, pytest.mark.cluster)


def shared(*settings: str) -> Experiment:
    return tiny(*SHARED, *settings, dropout=0.0)


@pytest.mark.process
@pytest.mark.parametrize(
    ("case", "processes"),
    [pytest.param(c, n, marks=() if (c, n) == ("softmax", 2) else SLOW) for c in CASES for n in (2, 4)
     if n == 2 or c in ("softmax", "accumulated", "sampled")],
)  # fmt: skip
def test_several_processes_equal_one(case: str, processes: int, market: Store, tmp_path: Path, worker: Path) -> None:
    spec = shared(*CASES[case])
    if case in COUPLED:
        whole = spec.override("training.shard_items=false")
        one = torchrun(worker, whole, market, tmp_path / "whole", processes)
    else:
        one = train(spec, market, tmp_path / "one", progress=False)
    equal(torchrun(worker, spec, market, tmp_path / "several", processes), one)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("held", ["shard_items", "shard_encoder"])
def test_resumed_with_another_number_of_processes(held: str, market: Store, tmp_path: Path, worker: Path) -> None:
    goes_on(worker, tiny(f"training.{held}=true", *LONG, dropout=0.0), market, tmp_path)


@pytest.mark.slow
@pytest.mark.cluster
def test_started_from_a_run(market: Store, tmp_path: Path) -> None:
    """Items are matched by external id, on the process that holds their rows."""
    source = train(shared("training.max_epochs=1"), market, tmp_path / "source", progress=False)
    script = tmp_path / "going_on.py"
    script.write_text(
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import json, torch\nfrom fullrank.api import train\nfrom fullrank.experiment import Experiment\n"
        "torch.set_num_threads(1)\nstore, out, spec, _ = sys.argv[1:]\n"
        f"train(Experiment.parse(json.loads(spec)), store, out, init_from={str(source.path)!r}, progress=False)\n"
    )
    spec = shared("training.max_epochs=1", "seed=3")
    one = train(spec, market, tmp_path / "one", init_from=source, progress=False)
    equal(torchrun(script, spec, market, tmp_path / "several", 2), one)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_forgotten_scale_is_seen(market: Store, tmp_path: Path, worker: Path) -> None:
    """The planted fault: without the division by the number of processes the norm that is clipped is another one."""
    spec, wrong = shared(*CASES["accumulated"]), with_summed_gradients(worker, tmp_path)
    one = train(spec, market, tmp_path / "one", progress=False)
    assert column(torchrun(wrong, spec, market, tmp_path / "wrong", 2)) != pytest.approx(column(one), rel=1e-5)


@pytest.mark.parametrize(
    ("code", "setting", "named"),
    [
        ("items-not-sharded", "model.items={kind: text, fields: [title]}", "training.shard_items"),
        ("reads-every-item", "model.loss.label_smoothing=0.1", "training.shard_items"),
        ("reads-every-item", "model.penalties=[logdet]", "logdet"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(code: str, setting: str, named: str, market: Store) -> None:
    with refused(code, named):
        shard_of(shared(setting), market.catalog)


@pytest.mark.parametrize("recipe", ["dcnv2", "popularity"])
def test_models_without_an_item_table_are_refused(recipe: str, market: Store) -> None:
    with refused("items-not-sharded", recipe):
        shard_of(find_experiment(recipe).override("training.shard_items=true"), market.catalog)


def test_watching_and_tiny_catalogues_are_refused(market: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, WORLD_SIZE="90", LOCAL_WORLD_SIZE="90")
    with refused("watch-of-shards", "--watch"):
        shard_of(shared(), market.catalog, (object(),))
    with refused("fewer-items-than-processes", 80, 90):
        shard_of(shared(), market.catalog)


def test_one_process_holds_all_rows(market: Store) -> None:
    assert shard_of(shared(), market.catalog) is None
    assert shard_of(tiny(), market.catalog) is None
