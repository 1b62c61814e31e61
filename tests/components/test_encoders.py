"""Every encoder passes the checks of `fullrank.testing.encoders`, and these catch planted faults."""

from dataclasses import replace

import pytest
import torch

from fullrank.models import States, last
from fullrank.models.sequential.encoders import Cache
from fullrank.models.sequential.encoders.gru import GRUEncoder
from fullrank.models.sequential.encoders.transformer import TransformerEncoder
from fullrank.testing.encoders import (
    DIM,
    LONGEST,
    check_bf16,
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


class Turned(GRUEncoder):
    """Planted: in bf16 products its input is read transposed."""

    def forward(self, x, batch):
        if torch.is_autocast_enabled("cpu"):
            x = x.mT.reshape(x.shape)
        return super().forward(x, batch)


class Hoarse(GRUEncoder):
    """Planted: in bf16 products the states are added up from many small ones in bf16."""

    def forward(self, x, batch):
        states = super().forward(x, batch)
        if not torch.is_autocast_enabled("cpu"):
            return states
        total = torch.zeros_like(states.tokens, dtype=torch.bfloat16)
        for _ in range(64):
            total = total + (states.tokens / 64).bfloat16()
        return States(total.float(), states.layers, states.blocks)


class Mute(GRUEncoder):
    """Planted: in bf16 products nothing learns."""

    def forward(self, x, batch):
        states = super().forward(x, batch)
        fixed = states.tokens.detach() + 0 * states.tokens if torch.is_autocast_enabled("cpu") else states.tokens
        return States(fixed, states.layers, states.blocks)


@pytest.mark.parametrize(("fault", "what"), [(Turned, "gives"), (Hoarse, "gives"), (Mute, "gradient")])
def test_planted_faults_in_bf16_are_caught(fault, what) -> None:
    class Planted(GRU):
        def build(self, dim, longest):
            return fault(dim, self)

    check_bf16(GRU(), torch.device("cpu"))
    with pytest.raises(AssertionError, match=f"{what} is off by"):
        check_bf16(Planted(), torch.device("cpu"))


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
