"""Every regulariser and weighting moves what it claims to move: 200 steps with it against 200 steps without."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import polars as pl
import pytest
import torch

from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.models import Step, last
from fullrank.models.sequential.items.perturb import Noise
from fullrank.models.sequential.objectives.weightings.inverse_propensity import D2LR, InversePopularity
from fullrank.models.sequential.objectives.weightings.r2rec import R2Rec, tail_items
from fullrank.models.sequential.regularizers import Needs, user_vectors
from fullrank.models.sequential.regularizers.dros import DROS
from fullrank.models.sequential.regularizers.logdet import LogDet
from fullrank.models.sequential.regularizers.noise_robustness import NoiseRobustness, Noisy
from fullrank.models.sequential.regularizers.resn import ReSN
from fullrank.ops.singular_values import entropy_rank
from parts import BCE, GRU, MutualInformation, Negatives, Recommender, RecommenderModel, Sprint, Transformer
from refusals import refused


def test_needs_add_up() -> None:
    both = Needs(columns=True) | Needs(second_view=True, loss_of="first_view")
    assert both == Needs(columns=True, second_view=True, loss_of="first_view")
    assert Needs() | both == both == both | both


def test_captures_are_made_where_modules_have_to_keep_something() -> None:
    assert Needs(second_view=True).captures() is None
    before, after = Needs(columns=True).captures(), Needs(columns_after_dropout=True).captures()
    assert before is not None and before.columns == [] and not before.after_dropout and before.memory is None
    assert after is not None and after.columns == [] and after.after_dropout


def test_needs_that_contradict_each_other_are_refused() -> None:
    with refused("penalties-disagree", "loss_views=first"):
        Needs(loss_of="both_views") | Needs(loss_of="first_view")
    with refused("penalties-disagree", "dropout"):
        Needs(columns=True) | Needs(columns_after_dropout=True)


ITEMS, USERS, LENGTH = 40, 256, 10
NEGATIVES = Negatives(count=4, share="row")


@cache
def shop() -> np.ndarray:
    """Histories with a power law of popularity; half of the events follow from the one before."""
    rng = np.random.default_rng(0)
    chances = np.arange(1, ITEMS + 1) ** -1.2
    rows = rng.choice(ITEMS, (USERS, LENGTH), p=chances / chances.sum())
    for at in range(1, LENGTH):
        follows = rng.random(USERS) < 0.5
        rows[follows, at] = (rows[follows, at - 1] * 7 + 3) % ITEMS
    return rows


def batch(some, step) -> Batch:
    lengths = torch.full((len(some),), LENGTH)
    return Batch(torch.tensor(shop()[some]), lengths, rows=torch.tensor(some), seed=0, step=step)


@cache
def trained(penalty=None, weighting=None, encoder=GRU(dropout=0.0)) -> RecommenderModel:
    """200 steps from the same weights over the same batches."""
    counts = np.bincount(shop().ravel(), minlength=ITEMS)
    catalog = Catalog(pl.DataFrame({"item": np.arange(ITEMS), "item_id": np.arange(ITEMS), "train_count": counts}))
    torch.manual_seed(0)
    model = Recommender(
        dim=16, max_length=LENGTH - 1, encoder=encoder, loss=BCE(negatives=NEGATIVES), weighting=weighting,
        penalties=() if penalty is None else (penalty,),
    ).build(catalog)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for k in range(200):
        some = np.random.default_rng(k).choice(USERS, 32, replace=False)
        terms = model(batch(some, k))
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()
        optimizer.step()
    return model


def whole(model) -> Step:
    return model.step(batch(np.arange(USERS), 1000))


def rayleigh(model) -> float:
    """||Y r||^2 / ||r||^2 of the score matrix Y at its row sum r."""
    step = whole(model)
    scores = user_vectors(step) @ step.queries[0].table.all().T
    r = scores.sum(0)
    return ((scores @ r).norm() / r.norm()).square().item()


def eigenvalues(model) -> float:
    """Geometric mean of the eigenvalues of the items' Gram matrix, det^(1/D)."""
    table = model.items.all()
    return (torch.logdet(table.T @ table) / table.shape[1]).exp().item()


def item_rank(model) -> float:
    return entropy_rank(torch.linalg.svdvals(model.items.all())).item()


def user_rank(model) -> float:
    return entropy_rank(torch.linalg.svdvals(user_vectors(whole(model)))).item()


def error_spread(model) -> float:
    """Standard deviation of the squared errors of probabilities, over targets and negatives."""
    (record,) = whole(model).records.values()
    missed, raised = (-record.positive).sigmoid(), record.negative.sigmoid()[record.kept]
    return torch.cat([missed, raised]).square().std().item()


def tail_mass(model) -> float:
    """Share of the targets' scores' gradient that belongs to targets of the tail."""
    step = whole(model)
    (q,) = step.queries
    record = step.records[q.name]
    losses = record.losses if model.weighting is None else record.losses * model.weighting(q, step)
    (slopes,) = torch.autograd.grad(losses.sum(), record.positive)
    return (slopes.abs() @ tail_items(q.table, 0.8, slopes.device)[q.targets].float() / slopes.abs().sum()).item()


def column_peak(model) -> float:
    """The largest column sum of attention, over layers and heads."""
    batch_, states = batch(np.arange(USERS), 1000), whole(model).states
    _, inputs = model.task.training_inputs(model.items, batch_)
    sums = [
        (b.attention.weights(b.attention_norm(x), inputs) * inputs.valid[:, None, :, None]).sum(2).max()  # type: ignore[operator, union-attr]
        for b, x in zip(states.blocks, states.layers, strict=False)
    ]
    return torch.stack(sums).max().item()


def feed_forward_norm(model) -> float:
    """Product of the spectral norms of the feed-forwards' matrices."""
    norms = [torch.linalg.matrix_norm(w, 2) for b in model.encoder.blocks for w in b.feed_forward.matrices()]
    return torch.stack(norms).prod().item()


def table_norm(model) -> float:
    return torch.linalg.matrix_norm(model.items.all(), 2).item()


@dataclass(frozen=True)
class Move:
    """What a spec claims: the measure becomes at least `factor` times larger (or smaller) than without it."""

    spec: Spec
    of: Callable[[RecommenderModel], float]
    way: Literal["up", "down"]
    factor: float
    encoder: Spec = GRU(dropout=0.0)

    def __str__(self):
        return f"{self.spec.kind_of()}-{self.of.__name__}"


PENALTIES = [
    Move(ReSN(weight=1e-3), rayleigh, "down", 5),
    Move(LogDet(), eigenvalues, "up", 3),
    Move(LogDet(), item_rank, "up", 1.2),
    Move(LogDet(user_weight=1e-2), user_rank, "up", 1.2),
    Move(DROS(weight=2, temperature=0.1), error_spread, "down", 1.5),
]
ATTENTIVE = Transformer(layers=2, dropout=0.0)
PENALTIES += [
    Move(Sprint(attention=1, feed_forward=0, value_norms="none"), column_peak, "down", 1.2, ATTENTIVE),
    Move(Sprint(attention=0, feed_forward=0.1, embedding=0), feed_forward_norm, "down", 2, ATTENTIVE),
    Move(Sprint(attention=0, feed_forward=0, embedding=0.1), table_norm, "down", 1.2, ATTENTIVE),
]


def noise_distance(model) -> float:
    """Mean cosine distance between the last states of histories and of the same with a fifth of them lost, over that
    to other histories."""
    some = batch(np.arange(USERS), 1000)
    states = []
    for items in (model.items, Noisy(model.items, Noise.on(some, 0.2, 0.0))):
        x, inputs = model.task.training_inputs(items, some)
        states.append(last(model.encoder(x, inputs).tokens, inputs))
    clean, noisy = (torch.nn.functional.normalize(s, dim=-1) for s in states)
    return ((1 - (clean * noisy).sum(-1)).mean() / (1 - clean @ clean.T).mean()).item()


def contrast_left(model) -> float:
    """The contrast of targets and histories itself, in nats."""
    return MutualInformation(weight=1.0).build()(whole(model)).item()


PENALTIES += [
    Move(NoiseRobustness(margin=1, mask=0.2), noise_distance, "down", 1.5),
    Move(MutualInformation(weight=0.3), contrast_left, "down", 1.5),
]
WEIGHTINGS = [
    Move(R2Rec(), tail_mass, "up", 1.15),
    Move(D2LR(power=0.5), tail_mass, "up", 1.05),
    Move(InversePopularity(), tail_mass, "up", 1.05),
]


def check_move(move, model) -> None:
    before, after = move.of(trained(encoder=move.encoder)), move.of(model)
    small, large = (before, after) if move.way == "up" else (after, before)
    assert large > small * move.factor, f"{move}: {before:.4g} without, {after:.4g} with it"


@pytest.mark.parametrize("move", PENALTIES, ids=str)
def test_penalties_move_what_they_claim(move) -> None:
    check_move(move, trained(penalty=move.spec, encoder=move.encoder))


@pytest.mark.parametrize("move", WEIGHTINGS, ids=str)
def test_weightings_move_what_they_claim(move) -> None:
    check_move(move, trained(weighting=move.spec))
