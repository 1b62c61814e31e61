"""S3-Rec's objectives place by place and row by row, and what they refuse."""

from dataclasses import replace

import polars as pl
import pytest
import torch
from torch import Tensor

from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.regularizers.s3rec import S3Rec, S3RecPenalty, segments
from parts import HSTU, Cloze, RecommenderModel, Softmax, Transformer, model_with
from refusals import refused
from tiny import catalog, close, histories, padded
from twins import same

OPEN = Transformer(attention=Softmax(causal=False))


def made(encoder=OPEN, **settings) -> RecommenderModel:
    spec = S3Rec(**{"attributes": ("tags", "brand")} | settings)
    return model_with(spec, encoder=encoder, task=Cloze(share=0.4)).eval()


def attributes_of(item) -> set:
    row = catalog().frame.row(item, named=True)
    return {*(row["tags"] or []), *([row["brand"]] if row["brand"] is not None else [])}


def attribute_reference(model, side, batch, covered) -> Tensor:
    """One place and one attribute after the other."""
    penalty = model.penalties["s3rec"]
    assert isinstance(penalty, S3RecPenalty) and penalty.table is not None
    step = model.step(batch)
    names = [*catalog().categories("tags").values, *catalog().categorical("brand").values]
    found = []
    for row, length in enumerate(batch.lengths.tolist()):
        for t in range(length):
            if bool(step.inputs.hidden[row, t]) == covered:
                state, own = side(step.states.tokens[row, t]), attributes_of(int(batch.items[row, t]))
                signs = torch.tensor([1.0 if name in own else -1.0 for name in names])
                found.append(-(signs * (penalty.table @ state)).sigmoid().log().sum())
    return torch.stack(found).sum() / covered_places(model, batch)


def covered_places(model, batch) -> int:
    inputs = model.step(batch).inputs
    return int(inputs.hidden.sum())


@pytest.mark.parametrize("which", ["associated", "masked"])
def test_attributes_place_by_place(which) -> None:
    model = made(**{"associated": 0, "masked": 0, "segment": 0} | {which: 2.0})
    penalty = model.penalties["s3rec"]
    side = penalty.of_seen if which == "associated" else penalty.of_covered
    batch = padded(histories([1, 5, 7, 2]), step=4)
    fast, slow = model(batch)["s3rec"], 2.0 * attribute_reference(model, side, batch, which == "masked")
    same(fast, slow, penalty.table, side.weight, model.items.embedding.weight)


@pytest.mark.parametrize("encoder", [OPEN, Transformer(attention=HSTU(causal=False))], ids=["softmax", "times"])
def test_segments_row_by_row(encoder) -> None:
    model = made(encoder, associated=0, masked=0, segment=2.0)
    batch = padded(histories([1, 5, 7, 2]), step=4)
    within = segments(batch)

    def read(row, hidden):
        length = int(batch.lengths[row])
        one = padded([batch.items[row, :length].tolist()])
        if encoder.attention.kind == "hstu":
            from fullrank.models.sequential.objectives.tasks.cloze import known_times

            one = replace(one, times=known_times(one.times, hidden[None, :length]))
        x = model.items.embed(one.items).clone()
        x[0, hidden[:length]] = model.task.cover  # type: ignore[assignment]
        return model.encoder(x, one).tokens[0, -1]

    context = [read(row, within[row]) for row in range(4)]
    segment = [read(row, ~within[row]) for row in range(4)]
    side = model.penalties["s3rec"].of_context
    terms = [
        -(side(context[i]) @ segment[i] - side(context[i]) @ segment[i - 1]).sigmoid().log()  # type: ignore[operator]
        for i in range(4)
    ]
    assert close(model(batch)["s3rec"], 2.0 * torch.stack(terms).sum() / covered_places(model, batch))


def test_a_segment_is_up_to_half_of_a_row() -> None:
    lengths, seen = [1, 2, 3, 10, 11], set()
    for step in range(600):
        within = segments(padded(histories(lengths), extra=2, step=step))
        for row, length in enumerate(lengths):
            places = within[row].nonzero()[:, 0].tolist()
            assert places == list(range(places[0], places[0] + len(places))) and places[-1] < length
            assert 1 <= len(places) <= max(1, length // 2)
            seen.add((length, len(places), places[0]))
    assert {(10, n) for n in range(1, 6)} <= {(length, n) for length, n, _ in seen}
    assert {(11, 1, at) for at in range(11)} <= seen and (10, 5, 5) in seen
    assert torch.equal(segments(padded(histories([5, 7])))[:1, :5], segments(padded(histories([5])))[:1])


def test_one_row_has_no_other_segment() -> None:
    model = made(associated=0, masked=0)
    value = model(padded(histories([5])))["s3rec"]
    assert value == 0
    value.backward()


def test_a_causal_model_starts_from_its_weights() -> None:
    """What the model that recommends has is all there, in the same shapes; what pre-training adds is its own."""
    pretrained = made().state_dict()
    model = model_with().state_dict()
    assert all(pretrained[name].shape == value.shape for name, value in model.items())
    assert not any("codes" in name for name in pretrained), "what the catalogue says is no weight"


def test_refusals() -> None:
    with refused("weights-all-zero", "associated", "segment"):
        S3Rec.parse({"associated": 0, "masked": 0, "segment": 0})
    with refused("no-feature-columns", "attributes"):
        S3Rec.parse({"attributes": []})
    with refused("penalty-needs-cloze", "model.task=cloze", "--from"):
        model_with(S3Rec(attributes=("tags",)))
    with refused("unknown-column", "'tgas'", "did you mean 'tags'?"):
        made(attributes=("tgas",))
    empty = Catalog(catalog().frame.with_columns(tags=pl.lit(None).cast(pl.List(pl.String))))
    with refused("no-feature-columns", "'tags'"):
        S3Rec(attributes=("tags",)).build().read_items(empty)
    assert "s3rec" in made(attributes=(), associated=0, masked=0)(padded(histories([3, 4])))
