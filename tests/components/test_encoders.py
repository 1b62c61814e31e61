"""Every encoder passes the checks of `fullrank.testing.encoders`, and these catch planted faults."""

from dataclasses import replace

import pytest
import torch

from fullrank.models.contracts import States, last
from fullrank.models.sequential.encoders import Cache
from fullrank.models.sequential.encoders.gru import GRUEncoder
from fullrank.models.sequential.encoders.transformer import TransformerEncoder
from fullrank.testing.encoders import (
    DIM,
    LONGEST,
    check_causal,
    check_padding,
    check_steps,
)  # fmt: skip
from fullrank.testing.inputs import LENGTHS, sequences
from parts import GRU, Transformer
from tests.components.cases import every_kind, run_checks
from tiny import close, shaken


@every_kind("encoders")
def test_encoders(pair) -> None:
    run_checks(pair)


def test_last() -> None:
    x, batch = sequences(DIM)
    assert close(last(x, batch), torch.stack([x[i, n - 1] for i, n in enumerate(LENGTHS)]))


class Peeking(GRUEncoder):
    """Planted: each position adds the mean of the whole row."""

    def forward(self, x, batch):
        states = super().forward(x, batch)
        return States(states.tokens + (x * batch.valid[..., None]).mean(1, keepdim=True), states.layers, states.blocks)


class Backwards(GRUEncoder):
    """Planted: reads from the right end, padding first."""

    causal = False

    def forward(self, x, batch):
        states = super().forward(x.flip(1), batch)
        return States(states.tokens.flip(1), states.layers, states.blocks)


class Overrun(GRUEncoder):
    """Planted: remembers the state behind the padding instead of behind each row's end."""

    def start(self, x, batch):
        return self(x, batch), Cache(((self.gru(x)[1].movedim(1, 0)[:, None],),), batch)


class Late(TransformerEncoder):
    """Planted: a step forgets that steps went before it."""

    def step(self, x, cache):
        return super().step(x, replace(cache, layers=tuple(kept[:2] for kept in cache.layers)))


class Gossip(TransformerEncoder):
    """Planted: a stream hears of the others."""

    def step(self, x, cache):
        return super().step(x + x.mean(1, keepdim=True), cache)


@pytest.mark.parametrize(
    ("sound", "fault", "check"),
    [
        (GRUEncoder, Peeking, check_causal),
        (GRUEncoder, Backwards, check_padding),
        (GRUEncoder, Overrun, check_steps),
        (TransformerEncoder, Late, check_steps),
        (TransformerEncoder, Gossip, check_steps),
    ],
)
def test_planted_faults_are_caught(sound, fault, check) -> None:
    arguments = (DIM, GRU()) if sound is GRUEncoder else (DIM, LONGEST, Transformer())
    check(shaken(sound(*arguments)).eval())
    with pytest.raises(AssertionError):
        check(shaken(fault(*arguments)).eval())
