"""Noise robustness and mutual information: values by hand, what is noisy, shards of randomness, codes, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fullrank.data.batch import Batch, Step
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items import Items
from fullrank.models.sequential.items.perturb import Noise, perturb_reference
from fullrank.models.sequential.items.semantic import Semantic, SemanticItems
from fullrank.models.sequential.items.table import Table
from fullrank.models.sequential.model import Recommender, RecommenderModel, Scoring
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.objectives.tasks.next_item import NextItem
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.models.sequential.regularizers.mutual_information import MutualInformation
from fullrank.models.sequential.regularizers.noise_robustness import NoiseRobustness
from fullrank.models.sequential.regularizers.reasoning_contrast import ReasoningContrast
from fullrank.ops.in_batch_triplet import in_batch_triplet_reference
from refusals import refused
from tiny import catalog, close, histories, padded, shaken

ROWS = histories([5, 7, 2, 4])


def build(*penalties: Any, dropout: float = 0.0, **more: Any) -> RecommenderModel:
    more = {"encoder": Transformer(dropout=dropout)} | more
    torch.manual_seed(0)
    model = Recommender(dim=6, max_length=12, penalties=penalties, **more).build(catalog())
    shaken(model)
    return model


def value(model: RecommenderModel, batch: Batch | None = None) -> Tensor:
    torch.manual_seed(1)
    step = model.step(padded(ROWS) if batch is None else batch)
    (penalty,) = model.penalties.values()
    return penalty(step)


def noisy_by_hand(items: Any, ids: Tensor, noise: Noise) -> Tensor:
    """[B, T, D], vector by vector."""
    codes = items.codes[ids] if isinstance(items, SemanticItems) else ids[..., None]
    found, kept = perturb_reference(codes, items.sizes if isinstance(items, SemanticItems) else (items.size,), noise)
    out = []
    for row in range(len(ids)):
        for place in range(ids.shape[1]):
            parts = []
            for digit in range(codes.shape[2]):
                c = found[row, place, digit]
                vector = items.table[items.offsets[digit] + c] if isinstance(items, SemanticItems) else items.embed(c)
                pad = 0 * vector if noise.pad is None else noise.pad
                parts.append(vector if kept[row, place, digit] else pad)
            out.append(torch.stack(parts).mean(0))
    return torch.stack(out).view(*ids.shape, -1)


@pytest.mark.parametrize("kind", ["ids", "codes"])
def test_what_is_noisy(kind: str) -> None:
    items: Any = shaken(Semantic().build(6, catalog())) if kind == "codes" else build().items
    assert isinstance(items, Items) and (type(items).perturbed is not Items.perturbed) == (kind == "codes")
    ids, noise = padded(ROWS).items, Noise(0.3, 0.3, torch.arange(4), seed=3)
    found = items.perturbed(ids, noise)
    assert close(found, noisy_by_hand(items, ids, noise)) and not close(found, items.embed(ids))
    assert close(items.perturbed(ids, replace(noise, mask=0.0, substitute=0.0)), items.embed(ids))
    nothing = replace(noise, mask=1.0, substitute=0.0)
    assert not items.perturbed(ids, nothing).any()
    padded_by = torch.linspace(-1, 1, items.part_width())
    filled = replace(noise, pad=padded_by)
    assert close(items.perturbed(ids, filled), noisy_by_hand(items, ids, filled))
    assert close(items.perturbed(ids, replace(nothing, pad=padded_by)), padded_by.expand(*ids.shape, -1))


@pytest.mark.parametrize("task", [NextItem(), LastItem(), Cloze()])
@pytest.mark.parametrize("kind", ["ids", "codes"])
def test_noise_robustness_by_hand(task: Any, kind: str) -> None:
    """The history read a second time, from vectors made one by one; targets and covered places as they were."""
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
    rough = noisy_by_hand(model.items, inputs.items, noise)
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
def test_the_padding_vector_starts_as_a_digit_does(items: Any, width: int) -> None:
    """N(0, 0.02) of a digit's width, and by the width of the model where that is asked for."""
    pads = []
    for initial in ("fixed", "width"):
        torch.manual_seed(0)
        spec = Recommender(dim=6, items=items, penalties=(NoiseRobustness(pad="learned"),), initial=initial)  # type: ignore[arg-type]
        pads.append(spec.build(catalog()).penalties["noise_robustness"].pad.detach())  # type: ignore[operator, union-attr]
    assert pads[0].shape == (width,) and 0 < float(pads[0].abs().max()) < 0.1
    assert close(pads[1], pads[0] * (512 / 6) ** 0.5)


def test_noise_changes_with_the_step_and_is_repeated_at_its_place() -> None:
    model = build(NoiseRobustness(mask=0.3, substitute=0.3))
    first, again, later = (value(model, padded(ROWS, step=s)) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, later)
    fewer = NoiseRobustness(mask=0.01, substitute=0.0)
    assert value(build(fewer)) < value(build(NoiseRobustness(mask=0.9, substitute=0.0)))


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


def contrast(anchors: Tensor, others: Tensor, targets: list[int], temperature: float) -> Tensor:
    """The mean over rows of -log softmax at each row's own, one pair after the other."""
    found = []
    for i in range(len(anchors)):
        kept = [j for j in range(len(others)) if j == i or targets[j] != targets[i]]
        scores = torch.stack([F.cosine_similarity(anchors[i], others[j], dim=0) / temperature for j in kept])
        found.append(scores.logsumexp(0) - scores[kept.index(i)])
    return torch.stack(found).mean()


@pytest.mark.parametrize("direction", ["target_to_sequence", "sequence_to_target", "both"])
@pytest.mark.parametrize("source", ["mean", "last"])
@pytest.mark.parametrize("cosine", [False, True])
def test_mutual_information_by_hand(direction: Any, source: Any, cosine: bool) -> None:
    rows = [*ROWS, [1, 4, ROWS[0][-1]]]  # two histories with one target
    scoring = Scoring(similarity="cosine" if cosine else "dot", temperature=0.5)
    spec = MutualInformation(weight=3.0, temperature=0.2, direction=direction, source=source)
    model = build(spec, scoring=scoring)
    step = model.step(padded(rows))
    tokens = step.states.tokens
    sequences = torch.stack([tokens[b, : len(r) - 1].mean(0) if source == "mean" else tokens[b, len(r) - 2]
                             for b, r in enumerate(rows)])  # fmt: skip
    targets = [row[-1] for row in rows]
    items = model.items.embed(torch.tensor(targets))
    there, back = contrast(items, sequences, targets, 0.2), contrast(sequences, items, targets, 0.2)
    wanted = {"target_to_sequence": there, "sequence_to_target": back, "both": there + back}[direction]
    assert close(model.penalties["mutual_information"](step), 3.0 * wanted, 1e-4)


def test_rows_without_a_query_are_left_out() -> None:
    model = build(MutualInformation())
    with_one = value(model, padded([*ROWS, [3]]))
    assert close(with_one, value(model, padded(ROWS)), 1e-4)
    assert value(model, padded([[3], [4]])) == 0


class Unmasked:
    """Planted: the other rows with the same target are negatives."""

    def __call__(self, step: Step) -> Tensor:
        (q,) = step.queries
        unlike = replace(q, targets=torch.arange(len(q.targets)))
        table = q.table

        class Asked:
            size = table.size

            def embed(self, ids: Tensor) -> Tensor:
                return table.embed(q.targets[ids])

            all, log_q = table.all, table.log_q

        return MutualInformation().build()(replace(step, queries=(replace(unlike, table=Asked()),)))


def test_the_planted_fault_is_caught() -> None:
    rows = [*ROWS, [1, 4, ROWS[0][-1]]]
    model = build(MutualInformation(), task=LastItem())
    step = model.step(padded(rows))
    right, wrong = model.penalties["mutual_information"](step), Unmasked()(step)
    assert not close(right, wrong, 1e-4)
    apart = model.step(padded(histories([5, 7, 2])))
    assert close(model.penalties["mutual_information"](apart), Unmasked()(apart), 1e-4)


def test_what_is_refused() -> None:
    for mask, substitute in ((0.0, 0.0), (0.7, 0.4)):
        with refused("share-out-of-range", f"{mask + substitute:g}"):
            NoiseRobustness.parse({"kind": "noise_robustness", "mask": mask, "substitute": substitute})
    with refused("setting-without-effect", "pad=learned", "mask"):
        NoiseRobustness.parse({"kind": "noise_robustness", "mask": 0.0, "pad": "learned"})
    with refused("invalid-setting", "temperature"):
        MutualInformation.parse({"kind": "mutual_information", "temperature": 0.01})
