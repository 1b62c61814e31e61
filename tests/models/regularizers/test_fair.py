"""Noise robustness and mutual information: values by hand, what is noisy, shards of randomness, codes, and refusals."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fullrank.models.sequential.items.perturb import Noise, perturb_reference
from fullrank.models.sequential.regularizers.noise_robustness import NoiseRobustness
from fullrank.ops.in_batch_contrast import in_batch_triplet_reference
from parts import (
    PLR,
    Cloze,
    LastItem,
    MutualInformation,
    NextItem,
    ReasoningContrast,
    Recommender,
    RecommenderModel,
    Scoring,
    Semantic,
    Softmax,
    Table,
    Transformer,
    model_with,
)
from refusals import refused
from tests.models.regularizers.contrast import cosine_contrast
from tiny import catalog, close, histories, padded, shaken

ROWS = histories([5, 7, 2, 4])


def build(*penalties, **more) -> RecommenderModel:
    return model_with(*penalties, **{"encoder": Transformer(dropout=0.0)} | more)


def value(model, batch=None) -> Tensor:
    torch.manual_seed(1)
    step = model.step(padded(ROWS) if batch is None else batch)
    (penalty,) = model.penalties.values()
    return penalty(step)


def noisy_by_hand(items, ids, noise) -> Tensor:
    """[B, T, D] of items that are no codes: each vector is its own, another item's, or the padding."""
    others, kept = perturb_reference(ids[..., None], (items.size,), noise)
    pad = torch.zeros(items.part_width()) if noise.pad is None else noise.pad
    return torch.where(kept, items.embed(others[..., 0]), pad)


def test_what_is_noisy() -> None:
    """Of items that are no codes, whose vectors are masked or another item's; tests of semantic ids have the others."""
    items, ids = build().items, padded(ROWS).items
    noise = Noise(0.3, 0.3, torch.arange(4), seed=3)
    found = items.perturbed(ids, noise)
    assert close(found, noisy_by_hand(items, ids, noise)) and not close(found, items.embed(ids))
    assert close(items.perturbed(ids, replace(noise, mask=0.0, substitute=0.0)), items.embed(ids))
    nothing, pad = replace(noise, mask=1.0, substitute=0.0), torch.linspace(-1, 1, items.part_width())
    assert not items.perturbed(ids, nothing).any()
    assert close(items.perturbed(ids, replace(noise, pad=pad)), noisy_by_hand(items, ids, replace(noise, pad=pad)))
    assert close(items.perturbed(ids, replace(nothing, pad=pad)), pad.expand(*ids.shape, -1))


@pytest.mark.parametrize("task", [NextItem(), LastItem(), Cloze()])
@pytest.mark.parametrize("kind", ["ids", "codes"])
def test_noise_robustness_by_hand(task, kind) -> None:
    """The history read a second time, from noisy vectors; targets and covered places as they were."""
    causal = not isinstance(task, Cloze)
    model = build(
        NoiseRobustness(weight=2.0, mask=0.3, substitute=0.3), task=task,
        encoder=Transformer(dropout=0.0, attention=Softmax(causal=causal)),
    )  # fmt: skip
    if kind == "codes":
        model.items = shaken(Semantic().build(6, catalog()))
    batch = padded(ROWS, step=5)
    step = model.step(batch)
    noise = Noise.on(batch, 0.3, 0.3)
    x, inputs = model.task.training_inputs(model.items, batch)
    rough = model.items.perturbed(inputs.items, noise)
    if inputs.hidden is not None:
        rough = torch.where(inputs.hidden[..., None], x, rough)
    ends = [int(n) - 1 for n in inputs.lengths]
    states = [model.encoder(given, inputs).tokens for given in (x, rough)]
    clean, noisy = (torch.stack([s[row, end] for row, end in enumerate(ends)]) for s in states)
    assert not close(clean, noisy)
    found = model.penalties["noise_robustness"](step)
    assert close(found, 2.0 * in_batch_triplet_reference(clean, noisy, 0.2), 1e-4)


def test_a_learned_padding_vector() -> None:
    """It learns from this term alone, and changes the noisy reading as a vector of its own; zeros have no parameter."""
    assert not list(build(NoiseRobustness()).penalties.parameters())
    model = build(NoiseRobustness(mask=0.5, substitute=0.0, pad="learned"))
    pad = model.penalties["noise_robustness"].pad
    assert isinstance(pad, torch.nn.Parameter) and "penalties.noise_robustness.pad" in model.state_dict()
    terms = model(padded(ROWS))
    assert torch.autograd.grad(terms["ahead_1"], pad, retain_graph=True, allow_unused=True) == (None,)
    (gradient,) = torch.autograd.grad(terms["noise_robustness"], pad, retain_graph=True)
    assert gradient.any() and gradient.isfinite().all()
    before = value(model)
    with torch.no_grad():
        pad.zero_()
    emptied = value(model)
    assert before != emptied
    zeros = build(NoiseRobustness(mask=0.5, substitute=0.0))
    zeros.load_state_dict(model.state_dict(), strict=False)
    assert torch.equal(emptied, value(zeros)), "zeros is the learned vector at 0"


@pytest.mark.parametrize(("items", "width"), [(Table(), 6), (Semantic(), 6), (Semantic(parts="concat"), 2)])
def test_the_padding_vector_starts_as_a_digit_does(items, width) -> None:
    """N(0, 0.02) of a digit's width, and by the width of the model where that is asked for."""
    pads = []
    for initial in ("fixed", "width"):
        torch.manual_seed(0)
        spec = Recommender(dim=6, items=items, penalties=(NoiseRobustness(pad="learned"),), initial=initial)  # type: ignore[arg-type]
        pads.append(spec.build(catalog()).penalties["noise_robustness"].pad.detach())  # type: ignore[operator, union-attr]
    assert pads[0].shape == (width,) and 0 < pads[0].abs().max() < 0.1
    assert close(pads[1], pads[0] * (512 / 6) ** 0.5)


def test_noise_changes_with_the_step_and_is_repeated_at_its_place() -> None:
    model = build(NoiseRobustness(mask=0.3, substitute=0.3))
    first, again, later = (value(model, padded(ROWS, step=s)) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, later)


def test_noise_leaves_the_loss_and_the_taps_of_the_clean_pass() -> None:
    plain, noisy = build(), build(NoiseRobustness())
    batch = padded(ROWS)
    assert torch.equal(plain(batch)["ahead_1"], noisy(batch)["ahead_1"])
    step = noisy.step(batch)
    assert step.inputs is not None and step.inputs.captures is None


def test_one_row_has_no_negative() -> None:
    for penalty in (NoiseRobustness(), MutualInformation()):
        model = build(penalty)
        found = value(model, padded([ROWS[0]]))
        assert found == 0
        found.backward()


def test_a_reasoner_and_two_views() -> None:
    """With a reasoner its trained answer is read; of two views the first, whose rows are the clean batch's."""
    model = build(ReasoningContrast(), NoiseRobustness(), MutualInformation(), task=LastItem(), reasoner=PLR())
    step = model.step(padded(ROWS))
    assert step.batch.views == 2
    once = build(NoiseRobustness(), task=LastItem(), reasoner=PLR())
    assert close(model.penalties["noise_robustness"](step), value(once), 1e-4)
    assert model.penalties["mutual_information"](step).isfinite()


@pytest.mark.parametrize("direction", ["target_to_sequence", "sequence_to_target", "both"])
@pytest.mark.parametrize("source", ["mean", "last", "inputs"])
@pytest.mark.parametrize("cosine", [False, True])
def test_mutual_information_by_hand(direction, source, cosine) -> None:
    rows = [*ROWS, [1, 4, ROWS[0][-1]]]  # two histories with one target
    scoring = Scoring(similarity="cosine" if cosine else "dot", temperature=0.5)
    spec = MutualInformation(weight=3.0, temperature=0.2, direction=direction, source=source)
    model = build(spec, scoring=scoring)
    step = model.step(padded(rows))
    tokens = model.items.embed(padded(rows).items) if source == "inputs" else step.states.tokens
    sequences = torch.stack([tokens[b, len(r) - 2] if source == "last" else tokens[b, : len(r) - 1].mean(0)
                             for b, r in enumerate(rows)])  # fmt: skip
    targets = [row[-1] for row in rows]
    items = model.items.embed(torch.tensor(targets))
    there, back = cosine_contrast(items, sequences, targets, 0.2), cosine_contrast(sequences, items, targets, 0.2)
    wanted = {"target_to_sequence": there, "sequence_to_target": back, "both": there + back}[direction]
    assert close(model.penalties["mutual_information"](step), 3.0 * wanted, 1e-4)


def test_what_is_covered_is_no_source() -> None:
    """A covered item is a target: the mean of the input vectors is of the others alone."""
    encoder = Transformer(dropout=0.0, attention=Softmax(causal=False))
    model = build(MutualInformation(source="inputs"), task=Cloze(share=0.4), encoder=encoder)
    step = model.step(padded(ROWS))
    (hidden, items), penalty = (step.inputs.hidden, model.items), model.penalties["mutual_information"]
    seen = [items.embed(torch.tensor(row))[~hidden[b, : len(row)]] for b, row in enumerate(ROWS)]
    wanted = torch.stack([vectors.mean(0) if len(vectors) else vectors.sum(0) for vectors in seen])
    assert hidden.any() and close(penalty._sources(step), wanted)


def test_rows_without_a_query_are_left_out() -> None:
    model = build(MutualInformation())
    with_one = value(model, padded([*ROWS, [3]]))
    assert close(with_one, value(model, padded(ROWS)), 1e-4)
    assert value(model, padded([[3], [4]])) == 0


def test_what_is_refused() -> None:
    for mask, substitute in ((0.0, 0.0), (0.7, 0.4)):
        with refused("share-out-of-range", f"{mask + substitute:g}"):
            NoiseRobustness.parse({"kind": "noise_robustness", "mask": mask, "substitute": substitute})
    with refused("setting-without-effect", "pad=learned", "mask"):
        NoiseRobustness.parse({"kind": "noise_robustness", "mask": 0.0, "pad": "learned"})
    with refused("invalid-setting", "temperature"):
        MutualInformation.parse({"kind": "mutual_information", "temperature": 0.01})
