"""Features beside the items: what a place may know, and that it knows it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from featured import NAMES, changed, featured, random_fields, with_features
from fullrank.data.batch import Batch, BatchFeatures
from fullrank.models.sequential.items.event_features import BUCKETS, FeatureInput
from fullrank.models.sequential.model import Recommender, RecommenderModel
from refusals import refused
from tiny import ITEMS, catalog, close, histories, padded, shaken

CATALOG = with_features(catalog())
ENCODER = CATALOG.features
assert ENCODER is not None
ALL = "{event: [auto, hour, weekday, day, gap, age], request: [auto, hour, weekday, day, gap]}"
ENCODERS = {
    "transformer": (),
    "hstu": ("encoder.attention=hstu", "encoder.attention.rel_bias=positions"),
    "gru": ("encoder=gru",),
    "fmlp": ("encoder=fmlp", "encoder.positions=none"),
}


def spec_of(*settings: str, features: str = ALL) -> Recommender:
    return Recommender(dim=8, max_length=9).override(f"features={features}", *settings)


def built(*settings: str, features: str = ALL) -> RecommenderModel:
    torch.manual_seed(0)
    model = spec_of(*settings, features=features).build(CATALOG)
    return shaken(model).eval()


def rows(lengths: tuple[int, ...] = (3, 10, 7, 2)) -> Batch:
    return featured(padded(histories(lengths)), ENCODER)


def with_role(batch: Batch, role: str, where: torch.Tensor) -> Batch:
    """Other features of a role at some places (of a user: of rows that have one)."""
    known = batch.features
    assert known is not None
    where = where.any(1) if role == "user" else where
    return replace(batch, features=replace(known, **{role: changed(getattr(known, role), where)}))


def moved(a: RecommenderModel, batch: Batch, other: Batch) -> torch.Tensor:
    """[B T] where a query's vector changes, by the place of the event before its target."""
    found = torch.zeros(batch.items.shape, dtype=torch.bool)
    for one, two in zip(a.step(batch).queries, a.step(other).queries, strict=True):
        at = one.positions - a.task.tokens_before
        assert torch.equal(one.positions, two.positions)
        found[one.rows, at] = ~torch.isclose(one.vectors, two.vectors, rtol=1e-4, atol=1e-5).all(1)
    return found


def asked_places(model: RecommenderModel, batch: Batch) -> torch.Tensor:
    found = torch.zeros(batch.items.shape, dtype=torch.bool)
    (q,) = model.step(batch).queries
    found[q.rows, q.positions - model.task.tokens_before] = True
    return found


def check_leak(model: RecommenderModel) -> None:
    """Other features of a target's event and of all later ones change no query, nor do requests behind the target's;
    what is known does."""
    batch = rows()
    asked, places = asked_places(model, batch), torch.arange(batch.items.shape[1])
    for t in range(1, batch.items.shape[1]):
        later = (places >= t).expand(batch.items.shape)
        by_event = moved(model, batch, with_role(batch, "event", later))
        by_request = moved(model, batch, with_role(batch, "request", later & (places > t)))
        assert not by_event[:, :t].any() and not by_request[:, :t].any(), f"place {t} is seen before it happens"
        known = asked & (places == t - 1)
        for role, at in (("event", t - 1), ("request", t), ("user", 0)):
            seen = moved(model, batch, with_role(batch, role, (places == at).expand(batch.items.shape)))
            assert torch.equal(seen & known, known), f"the {role} is not seen"


@pytest.mark.parametrize("fuse", ["sum", "concat", "gate"])
@pytest.mark.parametrize("user_at", ["places", "prefix"])
@pytest.mark.parametrize("task", ["next_item", "last_item"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_no_query_sees_what_is_known_later(encoder: str, task: str, user_at: str, fuse: str) -> None:
    check_leak(built(*ENCODERS[encoder], f"task={task}", features=f"{{fuse: {fuse}, user_at: {user_at}}}"))


def late_event(self: BatchFeatures, times: torch.Tensor | None) -> BatchFeatures:
    """Planted: a place reads what is known with its target."""
    sound = self.in_order(times)  # type: ignore[attr-defined]
    return replace(sound, event=self.event.map(lambda x: x[:, 1:]))  # type: ignore[union-attr]


def late_request(self: BatchFeatures, times: torch.Tensor | None) -> BatchFeatures:
    """Planted: a place reads the request behind its target's."""
    sound = self.in_order(times)  # type: ignore[attr-defined]
    return replace(sound, asked=self.request.map(lambda x: x.roll(-2, 1)[:, :-1]))  # type: ignore[union-attr]


def no_request(self: BatchFeatures, times: torch.Tensor | None) -> BatchFeatures:
    """Planted: the request that is answered is not read."""
    return replace(self.in_order(times), asked=None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", [late_event, late_request, no_request])
def test_planted_leaks_are_caught(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchFeatures, "in_order", BatchFeatures.before_targets, raising=False)
    monkeypatch.setattr(BatchFeatures, "before_targets", fault)
    with pytest.raises(AssertionError, match="seen"):
        check_leak(built(features="auto"))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_times_are_seen_where_they_are_declared(encoder: str) -> None:
    """The hour of an event is known with it; that of the request that is answered is, where it is named."""
    shift = 5 * 3600 + 2 * 86_400
    for names, early in (("{event: [hour, gap], request: [], user: []}", 0), ("{request: [hour]}", 1)):
        model, batch = built(*ENCODERS[encoder], features=names), rows()
        assert batch.times is not None and model.reads_times
        places = torch.arange(batch.items.shape[1])
        asked = asked_places(model, batch)
        for t in range(1, batch.items.shape[1]):
            unseen = replace(batch, times=torch.where(places >= t + early, batch.times + shift, batch.times))
            assert not moved(model, batch, unseen)[:, :t].any()
            seen = replace(batch, times=torch.where(places >= t + early - 1, batch.times + shift, batch.times))
            assert torch.equal(moved(model, batch, seen)[:, t - 1], asked[:, t - 1])


@pytest.mark.parametrize("task", ["next_item", "last_item"])
@pytest.mark.parametrize("user_at", ["places", "prefix"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_answer_is_the_state_that_was_trained(encoder: str, user_at: str, task: str) -> None:
    """The query for event t + 1 of a training row is the answer to its first t events and the request of that event."""
    features = ALL[:-1] + f", user_at: {user_at}}}"
    model, batch = built(*ENCODERS[encoder], f"task={task}", features=features), rows((9, 9))
    known, times = batch.features, batch.times
    assert known is not None and times is not None and known.request is not None
    for t in range(1, 9):
        upto = known.at_places(lambda x, t=t: x[:, : t + 1])
        row = Batch(batch.items[:, : t + 1], torch.full((2,), t + 1), times=times[:, : t + 1], features=upto)
        (q,) = model.step(row).queries
        trained = q.vectors[q.positions - model.task.tokens_before == t - 1]
        asked = known.request.map(lambda x, t=t: x[:, t])
        before = replace(known.at_places(lambda x, t=t: x[:, :t]), asked=asked, asked_at=times[:, t])
        history = Batch(row.items[:, :t], torch.full((2,), t), times=times[:, :t], features=before)
        assert close(model.answer(history).block(0, ITEMS), trained @ model.items.all().T, 1e-4), t


def test_what_nobody_knows_is_missing() -> None:
    """No features at all, none of the request, and some missing in every field are one answer; times are needed."""
    model, batch = built(features="{event: [auto], request: [auto, hour]}"), padded(histories((4, 9)))
    bare = model.answer(batch).block(0, ITEMS)
    gone = featured(batch, ENCODER)
    assert gone.features is not None and gone.features.event is not None
    none = BatchFeatures(*(getattr(gone.features, role).unknown(*shape) for role, shape in (
        ("event", batch.items.shape), ("request", batch.items.shape), ("user", (2,)))))  # fmt: skip
    assert close(bare, model.answer(replace(batch, features=none)).block(0, ITEMS))
    given = replace(batch, features=BatchFeatures(asked=random_fields(ENCODER, "request", 2)))
    assert not close(bare, model.answer(given).block(0, ITEMS)), "a request without past ones is read"
    with refused(code="missing-times"):
        model.answer(replace(batch, times=None))


def test_values_have_their_own_vectors() -> None:
    """Ids, numbers and lists by hand; gaps and ages fall into buckets by powers of two."""
    model, batch = built(features="{event: [rating, dwell, tags, gap, age], request: [], user: []}"), rows()
    reader = model.features
    assert reader is not None and batch.features is not None and batch.features.event is not None
    part, fields = reader.vectors["event"], batch.features.event
    vectors = part(fields, reader._time_ids(part, batch, batch.features, of_answer=False), *batch.items.shape)
    assert vectors.shape == (*batch.items.shape, 5, 8)
    table, (slope, zero, none), starts = part.table, part.numbers, part.starts
    assert batch.times is not None
    for b, t in ((0, 0), (1, 4), (1, 9), (2, 6)):
        expected = [table[starts["rating"] + fields.ids[b, t, 0]]]
        seconds = [None if t == 0 else int(batch.times[b, t] - batch.times[b, t - 1])]
        seconds.append(int(batch.times[b, t]) - CATALOG.frame["first_event_time"][int(batch.items[b, t])])
        for name, given in zip(("gap", "age"), seconds, strict=True):
            bucket = 0 if given is None else 1 + min(max(given, 0).bit_length(), BUCKETS - 1)
            expected.append(table[starts[name] + bucket])
        held = fields.bags[0][b, t][fields.bags[0][b, t] > 0].tolist() or [0]
        expected.append(torch.stack([table[starts["tags"] + one] for one in held]).mean(0))
        number = fields.numbers[b, t, 0]
        expected.append(none[0] if fields.missing[b, t, 0] else zero[0] + number * slope[0])
        assert close(vectors[b, t], torch.stack(expected))


def test_a_prefix_is_a_token_of_the_user_before_the_first_event() -> None:
    model, batch = built("encoder.attention=hstu", features="{event: [], request: [], user_at: prefix}"), rows()
    x, inputs = model.task.training_inputs(model.items, batch)
    assert torch.equal(inputs.lengths, batch.lengths) and x.shape[1] == batch.items.shape[1]
    assert inputs.times is not None and batch.times is not None and inputs.features is None
    assert torch.equal(inputs.times[:, 1:], batch.times[:, :-1]) and torch.equal(inputs.times[:, 0], batch.times[:, 0])
    assert torch.equal(x[:, 1:], model.items.read(batch.items[:, :-1]))
    assert model.task.tokens_before == 1 and built().task.tokens_before == 0


def test_concat_starts_as_the_sum() -> None:
    torch.manual_seed(0)
    plain = spec_of().build(CATALOG).eval()
    torch.manual_seed(0)
    joined = spec_of("features.fuse=concat").build(CATALOG).eval()
    for a, b in zip(plain.task.features.parameters(), joined.task.features.parameters(), strict=False):
        assert torch.equal(a, b)
    batch = rows()
    assert close(plain.task.training_inputs(plain.items, batch)[0], joined.task.training_inputs(joined.items, batch)[0])


def test_names_are_those_of_the_store() -> None:
    """A column that nobody declared, in the wrong role, an age of a request, nothing to read; bare `auto` is all."""
    for names, name in (("{event: [ratin]}", "rating"), ("{request: [age]}", "age"), ("{event: [device]}", "device")):
        with refused("unknown-feature", name):
            built(features=names)
    for names in ("{event: [], request: [], user: []}", "{user: [], user_at: prefix}",
                  "{event: [], request: [], user_at: prefix, fuse: gate}"):  # fmt: skip
        with refused(code="setting-without-effect"):
            built(features=names)
    assert spec_of(features="auto").features == FeatureInput()
    assert built(features="auto").reads_features == NAMES
    bare = catalog()
    with refused(code="setting-without-effect"):
        spec_of(features="auto").build(bare)
    assert spec_of(features="{event: [hour]}").build(bare).reads_features == {"event": ("hour",)}
    with refused("unknown-column", "first_event_time"):
        spec_of(features="{event: [age]}").build(bare)
