"""An encoder whose blocks two or four gloo processes hold together gives the losses and weights of one process."""

from pathlib import Path

import pytest

from fullrank.api import train
from fullrank.data.events.store import Store
from fullrank.experiment import Experiment, find_experiment
from fullrank.training.fsdp import check_encoder
from refusals import refused
from tests.training.conftest import tiny
from tests.training.several import equal, several_equal_one, torchrun, with_summed_gradients
from tests.training.test_peers import environment
from tests.training.test_sharded_items import SAMPLED

SHARED = ("training.shard_encoder=true", "training.max_epochs=2")
CASES = {
    "softmax": (),
    "accumulated": ("training.accumulate=2", "training.clip_norm=0.5", "training.weight_decay=0.1"),
    "both": ("training.shard_items=true", "training.clip_norm=0.05", SAMPLED),
    "hstu": ("model.encoder={kind: transformer, layers: 3, attention: {kind: hstu, heads: 2}, dropout: 0}",),
    "filters": ("model.encoder={kind: fmlp, dropout: 0}", "model.task=last_item"),
    "last": ("training.keep=last", "training.evaluate_every=2"),
}


def shared(*settings: str) -> Experiment:
    return tiny(*SHARED, *settings, dropout=0.0)


@pytest.mark.process
def test_two_processes_equal_one(market: Store, tmp_path: Path) -> None:
    several_equal_one({"accumulated": shared(*CASES["accumulated"])}, market, tmp_path, 2)


@pytest.mark.cluster
@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_equal_one(processes: int, market: Store, tmp_path: Path) -> None:
    several_equal_one({name: shared(*CASES[name]) for name in CASES}, market, tmp_path, processes)


@pytest.mark.cluster
def test_a_sum_instead_of_a_mean_is_seen(market: Store, tmp_path: Path) -> None:
    """The planted fault: gradients of the blocks are added up over processes, and those of the rest averaged."""
    spec, script = shared(*CASES["accumulated"]), with_summed_gradients(tmp_path)
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
def test_what_cannot_be_shared_out_is_refused(settings: tuple[str, ...], named: str) -> None:
    with refused("encoder-not-sharded", "training.shard_encoder", named):
        check_encoder(shared(*settings))


@pytest.mark.parametrize("recipe", ["dcnv2", "popularity"])
def test_models_without_an_encoder_are_refused(recipe: str) -> None:
    with refused("encoder-not-sharded", recipe):
        check_encoder(find_experiment(recipe).override("training.shard_encoder=true"))


def test_watching_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch)
    with refused("watch-of-shards", "--watch"):
        check_encoder(shared(), (object(),))
