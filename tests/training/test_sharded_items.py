"""An item table that two or four gloo processes hold together gives the losses, weights and metrics of one process."""

from pathlib import Path

import pytest

from fullrank.api import train
from fullrank.data.events.store import Store
from fullrank.experiment import Experiment, find_experiment
from fullrank.ops.sharded_rows import RowShard
from fullrank.training.shards import shard_of
from refusals import refused
from tests.training.conftest import column, tiny
from tests.training.several import (
    LONG,
    equal,
    goes_on,
    several_equal_one,
    torchrun,
    torchrun_all,
    with_summed_gradients,
)
from tests.training.test_peers import environment

SHARED = ("training.shard_items=true", "training.max_epochs=2")
SAMPLED = "model.loss={kind: sampled_softmax, negatives: {count: 8, share: query, popularity: 1.0}}"
CASES = {
    "softmax": (),
    "accumulated": ("training.accumulate=2", "training.clip_norm=0.5", "training.weight_decay=0.1"),
    "sampled": (SAMPLED, "training.clip_norm=0.05"),
    "cosine": ("model.scoring={similarity: cosine, temperature: 0.1}", "model.initial=width"),
    "cloze": ("model.task=cloze", "model.encoder.attention.causal=false"),
    "sampled_metric": ("evaluation.protocol=sampled", "evaluation.negatives=20"),
    "discounted": ("evaluation.popularity_discount=0.5",),
}


def shared(*settings: str) -> Experiment:
    return tiny(*SHARED, *settings, dropout=0.0)


@pytest.mark.process
def test_two_processes_equal_one(market: Store, tmp_path: Path) -> None:
    several_equal_one({"softmax": shared()}, market, tmp_path, 2)


@pytest.mark.cluster
@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_equal_one(processes: int, market: Store, tmp_path: Path) -> None:
    several_equal_one({name: shared(*CASES[name]) for name in CASES}, market, tmp_path, processes)


@pytest.mark.cluster
def test_a_penalty_of_a_process_own_rows(market: Store, tmp_path: Path) -> None:
    """It sees the rows of a process together, so that one process trains something else than several do."""
    spec = shared("model.loss=bce", "model.penalties=[dros]")
    specs = {tmp_path / "several": spec, tmp_path / "whole": spec.override("training.shard_items=false")}
    equal(*torchrun_all(specs, market, 2))


@pytest.mark.cluster
@pytest.mark.parametrize("held", ["shard_items", "shard_encoder"])
def test_resumed_with_another_number_of_processes(held: str, market: Store, tmp_path: Path) -> None:
    goes_on(tiny(f"training.{held}=true", *LONG, dropout=0.0), market, tmp_path)


@pytest.mark.cluster
def test_started_from_a_run(market: Store, tmp_path: Path) -> None:
    """Items are matched by external id, on the process that holds their rows."""
    source = train(shared("training.max_epochs=1"), market, tmp_path / "source", progress=False)
    spec = shared("training.max_epochs=1", "seed=3")
    one = train(spec, market, tmp_path / "one", init_from=source, progress=False)
    equal(torchrun(spec, market, tmp_path / "several", 2, str(source.path)), one)


@pytest.mark.cluster
def test_a_forgotten_scale_is_seen(market: Store, tmp_path: Path) -> None:
    """The planted fault: without the division by the number of processes the norm that is clipped is another one."""
    spec, wrong = shared(*CASES["accumulated"]), with_summed_gradients(tmp_path)
    one = train(spec, market, tmp_path / "one", progress=False)
    assert column(torchrun(spec, market, tmp_path / "wrong", worker=wrong)) != pytest.approx(column(one), rel=1e-5)


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


def test_items_without_a_table_say_so_where_they_are_built(market: Store) -> None:
    spec = shared("model.items={kind: text, fields: [title]}").model
    with refused("items-not-sharded", "text", "model.items=table"):
        spec.build(market.catalog, RowShard(market.num_items, 0, 2))  # type: ignore[attr-defined]


def test_watching_and_tiny_catalogues_are_refused(market: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, WORLD_SIZE="90", LOCAL_WORLD_SIZE="90")
    with refused("watch-of-shards", "--watch"):
        shard_of(shared(), market.catalog, (object(),))
    with refused("fewer-items-than-processes", 80, 90):
        shard_of(shared(), market.catalog)


def test_one_process_holds_all_rows(market: Store) -> None:
    assert shard_of(shared(), market.catalog) is None
    assert shard_of(tiny(), market.catalog) is None
