"""MOJITO's maps equal a loop over the definition, moments are those of the calendar, and times are asked for."""

import math
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import torch

from fullrank.models.sequential.attention.calendar import CalendarCodes, calendar_fields
from fullrank.models.sequential.attention.mojito import Mojito, MojitoAttention
from fullrank.testing.inputs import sequences
from parts import Softmax, Transformer
from refusals import refused
from tiny import close, shaken
from twins import same

DIM = 12


def attention(**settings) -> MojitoAttention:
    built = Mojito.parse({"heads": 3, **settings}).build(DIM, 16)
    return shaken(built).eval()


def test_fields_are_those_of_the_calendar() -> None:
    """Leap days, turns of centuries, and weeks that belong to another year among them."""
    random.seed(0)
    days = [
        datetime(y, m, d, 23, 59, tzinfo=UTC)
        for y in (1999, 2000, 2004, 2010, 2100)
        for m, d in ((2, 28), (3, 1), (12, 31), (1, 1))
    ]
    times = [0, *(int(day.timestamp()) for day in days), *(random.randrange(6_000_000_000) for _ in range(2000))]
    for seconds, found in zip(times, calendar_fields(torch.tensor(times)).tolist(), strict=True):
        day = datetime.fromtimestamp(seconds, UTC)
        of_year, week = day.timetuple().tm_yday, day.isocalendar()[1]
        wanted = [day.year - 1970, day.month - 1, day.day - 1, day.weekday(), of_year - 1, week - 1, day.hour]
        assert found == wanted, day


def test_moments_are_fourier_series_of_their_fields() -> None:
    calendar = shaken(CalendarCodes(width=3, harmonics=2, decades=1.5).build(5))
    times = torch.tensor([[1_234_567_890, 17], [86_399, 5_000_000_000]])
    found = calendar(times)
    for row, numbers in zip(found.flatten(0, 1), calendar_fields(times).flatten(0, 1).tolist(), strict=True):
        codes = []
        for field, x in enumerate(numbers):
            for k in range(3):
                turns = [n * x / 10 ** calendar.periods[field, k].item() for n in (1, 2)]
                waves = [math.sin(t) for t in turns] + [math.cos(t) for t in turns]
                codes.append(sum(w * a.item() for w, a in zip(waves, calendar.waves[field, k], strict=True)))
        assert close(row, calendar.joined(torch.tensor(codes)), 1e-3)


@pytest.mark.parametrize("causal", [True, False])
def test_weights_are_those_of_the_definition(causal) -> None:
    """Values, and gradients of every parameter, against a loop over pairs of events."""
    made = attention(causal=causal, width=5)
    x, batch = sequences(DIM)
    queries, keys, _ = made.qkv(x).split(made.sizes, -1)
    of_moment = made.moments(made.calendar(batch.times))
    found = made.weights(x, batch)
    wanted = torch.zeros_like(found)
    for b, length in enumerate(batch.lengths.tolist()):
        for i in range(length):
            seen = range(i + 1 if causal else length)
            scores = []
            for j in seen:
                maps = torch.stack([queries[b, i] @ keys[b, j], of_moment[b, i, :5] @ of_moment[b, j, 5:]])
                hidden = (made.opened.weight @ maps + made.opened.bias).relu()
                scores.append(made.mixed.weight @ hidden / 5**0.5)
            wanted[b, :, i, list(seen)] = torch.stack(scores).softmax(0).T
    valid = batch.valid[:, None, :, None].expand_as(found)
    same(found[valid], wanted[valid], *made.parameters(), tolerance=1e-3)


def test_times_are_asked_for() -> None:
    x, batch = sequences(DIM)
    without = replace(batch, times=None)
    with refused("missing-times", "no times", "attention=softmax"):
        attention()(x, without)
    encoder = Transformer(context="calendar").build(DIM, 16)
    assert encoder.reads_times and not encoder.continues
    with refused("missing-times", "context=none"):
        encoder(x, without)
    assert Mojito(heads=2, dropout=0.1).across() == Softmax(heads=2, dropout=0.1, causal=False)


@pytest.mark.parametrize(("wrong", "code"), [("width=3", "width-not-even"), ("heads=5", "width-not-divisible")])
def test_refusals(wrong, code) -> None:
    spec = Mojito(rope=True).override(wrong)
    with refused(code):
        spec.build(DIM, 16)  # type: ignore[attr-defined]


def test_the_encoder_adds_the_moment() -> None:
    encoder = shaken(Transformer(context="calendar", positions="none").build(DIM, 16)).eval()
    x, batch = sequences(DIM)
    assert close(encoder(x, batch).layers[0], x + encoder.calendar(batch.times))
    later = replace(batch, times=batch.times + 40 * 86_400)
    assert not close(encoder(x, later).tokens[batch.valid], encoder(x, batch).tokens[batch.valid])
