"""The sample is bounded and repeatable; the pass shows what the model did and changes nothing."""

import numpy as np
import pytest
import torch

from fullrank.analysis.activations import activations, sample_users
from fullrank.models import DenseScorer
from fullrank.models.sequential.model import reading as room
from fullrank.models.sequential.model.reading import weights_of
from refusals import refused
from tests.analysis.conftest import EVERYONE, STORE, history, model_of, shop
from tiny import close, padded


def test_a_sample_is_a_function_of_the_seed() -> None:
    one, two, other = (
        sample_users(STORE, "test", 9),
        sample_users(STORE, "test", 9),
        sample_users(STORE, "test", 9, seed=1),
    )
    assert np.array_equal(one.users, two.users) and not np.array_equal(one.users, other.users)
    assert len(one) == 9 and len(np.unique(one.users)) == 9
    assert np.array_equal(sample_users(STORE, "test", 20).first(9).users, one.users), (
        "a smaller sample is its beginning"
    )
    assert len(EVERYONE) == len(STORE.eval_set("test"))


@pytest.mark.parametrize(
    ("split", "users", "said"), [("tset", 5, "unknown-split"), ("test", 1, "setting-out-of-range")]
)
def test_a_sample_that_cannot_be(split, users, said) -> None:
    with refused(said, split if said == "unknown-split" else users):
        sample_users(shop(), split, users)


def test_every_user_is_read_once_with_the_models_answer() -> None:
    model = model_of()
    seen = []
    for reading in activations(model, EVERYONE):
        seen += reading.users.tolist()
        assert isinstance(reading.scorer, DenseScorer) and reading.states is not None
        for place, vector in zip(reading.users, reading.scorer.vectors, strict=True):
            alone = model.answer(padded([history(EVERYONE, place).tolist()])).vectors[0]
            assert close(vector, alone)
    assert sorted(seen) == list(range(len(EVERYONE)))


def test_what_attentions_and_norms_were_given() -> None:
    model = model_of()
    (reading,) = activations(model, EVERYONE)
    assert [attended.layer for attended in reading.attentions] == [0, 1]
    for attended, layer in zip(reading.attentions, reading.states.layers, strict=False):
        block = model.encoder.blocks[attended.layer]
        assert close(attended.x, block.attention_norm(layer))
        assert torch.equal(reading.module_inputs[block.attention_norm], layer)
        fed = reading.module_inputs[block.feed_forward_norm]
        assert close(reading.module_inputs[block.feed_forward], block.feed_forward_norm(fed))


def test_nothing_stays_behind() -> None:
    model = model_of().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.random.get_rng_state()
    for _ in activations(model, EVERYONE):
        break
    assert model.training and torch.equal(torch.random.get_rng_state(), state)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_weights_come_in_parts_without_padding(monkeypatch) -> None:
    model = model_of()
    (reading,) = activations(model, EVERYONE)
    attended = reading.attentions[1]
    with torch.no_grad():
        ((_, _, whole),) = weights_of(attended)
        monkeypatch.setattr(room, "WEIGHTS", 700)
        parts = list(weights_of(attended))
        assert len(parts) > 3
        for rows, batch, weights in parts:
            width = batch.items.shape[1]
            assert width == batch.lengths.max()
            assert close(weights, whole[rows, :, :width, :width])
            assert not whole[rows, :, width:].any(), "rows of padded queries are zero"
            assert close(weights.sum(-1), batch.valid[:, None].float().expand(-1, 2, -1))
