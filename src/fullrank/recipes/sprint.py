"""SPRINT and what it is compared with, on SASRec++ (SPRINT, Secs. 5 and B).

Claim: with depth, scores collapse onto the direction of popularity; bounded column sums and
norms keep fairness and accuracy (Tables 1 and 6: Beauty NDCG@5 .0248 -> .0355, fair0.8@1 .269 ->
.413 at the paper's size).

Commands: ``fullrank train sprint --data data/beauty --out runs/sprint``, or any function below as
``fullrank train fullrank.recipes.sprint:plain``; `mojito` and `tpab` are names like `sprint`, for
stores with times. `plain`, `sprint` and the baselines are of CPU size: 4 layers of width 64, 50
epochs. `beauty`, `toys` and `ml1m` fix the paper's size and training, `ml20m_xxs` to `ml20m_xxl`
its ladder (Table 5); they want a GPU and have not been run. Grids: ``experiments/sprint/``
(`paper.yaml`: the paper's); numbers: ``results/sprint/``.

What to expect: `sprint` has the residual form of the proof and of the authors' code, `printed`
Eq. 4.5's logarithm, which has no least value, so that a large weight drives the projections
towards zero until attention does nothing. It is also the more accurate one here, because at this
size the plain model gains no accuracy from what events tell each other in the first place. With
the history ranked, as in the paper, much of `fair0.8@1` is items of the user's own history: read
`repeat@1` beside it (`docs/results/popularity_bias.md`, `docs/log.md`). Weights do not carry over
between sizes and data. On HSTU with t = 1 the column sums are so small that n_h is the logarithm
of the number of keys, and the projections alone are bounded.

Differs: batches hold 4,096 events (about 450 rows of Amazon) at CPU size for 512 rows; rows train
on their last `max_length` events; training stops after 10 evaluations without a gain at the paper's
size. The history is ranked like any other item (`evaluation.seen=keep`), as in the paper.
"""

from __future__ import annotations

from typing import Any

from fullrank.models.sequential.items.tpab import TPAB
from fullrank.models.sequential.objectives.tasks.mojito import MojitoNextItem
from fullrank.models.sequential.objectives.weightings.inverse_propensity import D2LR
from fullrank.models.sequential.objectives.weightings.r2rec import R2Rec
from fullrank.models.sequential.regularizers.dros import DROS
from fullrank.models.sequential.regularizers.logdet import LogDet
from fullrank.models.sequential.regularizers.resn import ReSN
from fullrank.models.sequential.regularizers.sprint import Sprint
from fullrank.models.sequential.regularizers.tpab import TPABBootstrap
from fullrank.recipes import recipe
from fullrank.recipes.hstu import hstu_plus
from fullrank.recipes.sasrec import sasrec_plus
from fullrank.run.experiment import Experiment

LADDER = {
    "xxs": (1, 64),
    "xs": (2, 128),
    "small": (4, 256),
    "base": (6, 512),
    "large": (8, 768),
    "xl": (10, 1024),
    "xxl": (12, 1536),
}
"""Table 5: layers and width; a head has width 64. It counts 12 d^2 a layer; SwiGLU's third matrix makes that 16 d^2."""


RESIDUAL = Sprint(attention=5.0, feed_forward=0.65, embedding=0.16)


def plain() -> Experiment:
    """SASRec++ without any penalty: what the others change in one place."""
    return _small("plain")


@recipe(needs="events")
def sprint() -> Experiment:
    """SPRINT: SASRec++ of 4 layers with bounds on attention columns and spectral norms (KDD 2026).

    In the residual form; its weights are the best of four on amazon-beauty's validation split.
    """
    return _small("sprint", penalties=(RESIDUAL,))


def printed() -> Experiment:
    """SPRINT with Eq. 4.5's logarithm, summed over layers; its weights are the best of four pairs there."""
    penalty = Sprint(outer="log", layer_reduction="sum", attention=0.633, feed_forward=0.161)
    return _small("printed", penalties=(penalty,))


def dros() -> Experiment:
    """Distributionally robust optimisation over targets and negatives."""
    return _small("dros", penalties=(DROS(),))


def logdet() -> Experiment:
    """LogDet on the item table."""
    return _small("logdet", penalties=(LogDet(),))


def resn() -> Experiment:
    """Spectral norm of the batch's scores."""
    return _small("resn", penalties=(ReSN(),))


def r2rec() -> Experiment:
    """Tail targets weigh more (a reconstruction)."""
    return _small("r2rec", weighting=R2Rec())


def d2lr() -> Experiment:
    """Inverse propensity of the targets (a reconstruction)."""
    return _small("d2lr", weighting=D2LR())


@recipe(needs="events, times")
def mojito() -> Experiment:
    """MOJITO: SASRec++ of 4 layers whose attention mixes items with calendar time (SIGIR 2023; needs times).

    Maps mixed of items and moments in every layer, and a long-term part beside the state. Moments
    in the input too, as in the paper's tokens, are ``--set model.encoder.context=calendar``.
    """
    attention = "{kind: mojito, heads: 2, rope: true, dropout: 0.2}"
    return _small("mojito", task=MojitoNextItem()).override(f"model.encoder.attention={attention}")


@recipe(needs="events, times")
def tpab() -> Experiment:
    """TPAB: SASRec++ of 4 layers with vectors for popularity at the time of an event (KDD 2025; needs times).

    Intrinsic and popularity vectors, with bootstrapping; answers with the popularity that is
    forecast.
    """
    return _small("tpab", items=TPAB(), penalties=(TPABBootstrap(),))


def hstu_plain() -> Experiment:
    """The generalised HSTU of the paper's tables at CPU size, without any penalty."""
    return _small("hstu_plain", hstu_plus())


def hstu_sprint() -> Experiment:
    """`hstu_plain` with SPRINT. At t = 1 the column sums of |A| hardly count (What to expect, above)."""
    return _small("hstu_sprint", hstu_plus(), penalties=(RESIDUAL,))


def beauty() -> Experiment:
    """The paper's size on Amazon Beauty: 8 layers of width 256, SPRINT at 5 and 0.001."""
    return _paper("beauty", layers=8, dim=256, heads=4, negatives=16, max_length=50)


def toys() -> Experiment:
    """The paper's size on Amazon Toys."""
    return _paper("toys", layers=8, dim=256, heads=4, negatives=16, max_length=50)


def ml1m() -> Experiment:
    """The paper's size on MovieLens-1M."""
    return _paper("ml1m", layers=8, dim=256, heads=4, negatives=32, max_length=200)


def ml20m_xxs() -> Experiment:
    return _rung("xxs")


def ml20m_xs() -> Experiment:
    return _rung("xs")


def ml20m_small() -> Experiment:
    return _rung("small")


def ml20m_base() -> Experiment:
    return _rung("base")


def ml20m_large() -> Experiment:
    return _rung("large")


def ml20m_xl() -> Experiment:
    return _rung("xl")


def ml20m_xxl() -> Experiment:
    return _rung("xxl")


def _rung(size: str) -> Experiment:
    """A rung of the ladder of Table 5 on MovieLens-20M."""
    layers, dim = LADDER[size]
    experiment = _paper(f"ml20m_{size}", layers=layers, dim=dim, heads=dim // 64, negatives=32, max_length=200)
    return experiment.override(
        "model.penalties=[{kind: sprint, attention: 0.25, feed_forward: 0.001}]", "training.batch_size=1024"
    )


def _small(name: str, base: Experiment | None = None, **model: Any) -> Experiment:
    """SASRec++, or `base`, at CPU size: 4 layers of width 64, 50 epochs."""
    settings = "training.max_epochs=50", "training.patience=null"
    return _sized(base or sasrec_plus(), name, 4, 64, 2, *settings, **model)


def _paper(name: str, *, layers: int, dim: int, heads: int, negatives: int, max_length: int) -> Experiment:
    """SPRINT at the paper's size and training."""
    settings = (
        f"model.max_length={max_length}",
        f"model.loss.negatives.count={negatives}",
        "training.max_epochs=200",
        "training.batch_by=rows",
        "training.batch_size=512",
        "training.patience=10",
    )
    return _sized(sasrec_plus(), name, layers, dim, heads, *settings, penalties=(Sprint(),))


def _sized(base: Experiment, name: str, layers: int, dim: int, heads: int, *settings: str, **model: Any) -> Experiment:
    """A recipe at a size and under the paper's protocol, with what
    `model` names put in its place."""
    experiment = base.override(
        f"recipe={name}",
        f"model.dim={dim}",
        f"model.encoder.layers={layers}",
        f"model.encoder.attention.heads={heads}",
        "evaluation.selection=ndcg@5",
        "evaluation.seen=keep",
        *settings,
    )
    return experiment.model_copy(update={"model": experiment.model.model_copy(update=model)})
