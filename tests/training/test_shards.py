"""An item table, or blocks of an encoder, that two or four gloo processes hold together: results are those of one."""

from pathlib import Path

import pytest

from fullrank.api import train
from fullrank.data.events.store import Store
from fullrank.ops.sharded_rows import RowShard
from fullrank.run.experiment import Experiment, find_experiment
from fullrank.training.shards import check_encoder, shard_of
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

SAMPLED = "model.loss={kind: sampled_softmax, negatives: {count: 8, share: query, popularity: 1.0}}"
OF_ITEMS = {
    "softmax": (),
    "accumulated": ("training.accumulate=2", "training.clip_norm=0.5", "training.weight_decay=0.1"),
    "sampled": (SAMPLED, "training.clip_norm=0.05"),
    "cosine": ("model.scoring={similarity: cosine, temperature: 0.1}", "model.initial=width"),
    "cloze": ("model.task=cloze", "model.encoder.attention.causal=false"),
    "sampled_metric": ("evaluation.protocol=sampled", "evaluation.negatives=20"),
    "features": ("model.features={event: [hour, age], request: [weekday, gap], fuse: concat}",),
    "discounted": ("evaluation.popularity_discount=0.5",),
}


OF_ENCODER = {
    "softmax": (),
    "accumulated": OF_ITEMS["accumulated"],
    "both": ("training.shard_items=true", "training.clip_norm=0.05", SAMPLED),
    "hstu": ("model.encoder={kind: transformer, layers: 3, attention: {kind: hstu, heads: 2}, dropout: 0}",),
    "filters": ("model.encoder={kind: fmlp, dropout: 0}", "model.task=last_item"),
    "last": ("training.keep=last", "training.evaluate_every=2"),
}


def shared(*settings: str) -> Experiment:
    return tiny("training.shard_items=true", "training.max_epochs=2", *settings, dropout=0.0)


def shared_encoder(*settings: str) -> Experiment:
    return tiny("training.shard_encoder=true", "training.max_epochs=2", *settings, dropout=0.0)


@pytest.mark.process
def test_two_processes_equal_one(market: Store, tmp_path: Path) -> None:
    accumulated = shared_encoder(*OF_ENCODER["accumulated"])
    several_equal_one({"items": shared(), "encoder": accumulated}, market, tmp_path, 2)


@pytest.mark.cluster
@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_equal_one(processes: int, market: Store, tmp_path: Path) -> None:
    items = {f"items-{name}": shared(*settings) for name, settings in OF_ITEMS.items()}
    encoders = {f"encoder-{name}": shared_encoder(*settings) for name, settings in OF_ENCODER.items()}
    several_equal_one(items | encoders, market, tmp_path, processes)


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
    spec, wrong = shared(*OF_ITEMS["accumulated"]), with_summed_gradients(tmp_path)
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


@pytest.mark.cluster
def test_a_sum_instead_of_a_mean_is_seen(market: Store, tmp_path: Path) -> None:
    """The planted fault: gradients of the blocks are added up over processes, and those of the rest averaged."""
    spec, script = shared_encoder(*OF_ENCODER["accumulated"]), with_summed_gradients(tmp_path)
    one = train(spec, market, tmp_path / "one", progress=False)
    wrong = torchrun(spec, market, tmp_path / "wrong", worker=script)
    with pytest.raises(AssertionError):  # by the moments: Adam makes the same steps of a gradient and of its double
        equal(wrong, one)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (("model.encoder=gru",), "custom"),
        (("model.reasoner=rearec", "model.task=last_item"), "rearec"),
        (("model.penalties=[sprint]",), "sprint"),
        (("training.compile=true",), "torch.compile"),
    ],
)
def test_encoders_that_cannot_be_shared_out_are_refused(settings: tuple[str, ...], named: str) -> None:
    with refused("encoder-not-sharded", "training.shard_encoder", named):
        check_encoder(shared_encoder(*settings))


@pytest.mark.parametrize("recipe", ["dcnv2", "popularity"])
def test_models_without_an_encoder_are_refused(recipe: str) -> None:
    with refused("encoder-not-sharded", recipe):
        check_encoder(find_experiment(recipe).override("training.shard_encoder=true"))


def test_watching_an_encoder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch)
    with refused("watch-of-shards", "--watch"):
        check_encoder(shared_encoder(), (object(),))
