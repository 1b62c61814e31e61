"""FAIR: focused attention over long semantic ids, with noise-robustness and mutual information (arXiv:2512.11254).

Claim: RPG's attention spends itself on noise. The difference of two attentions (FAM), a triplet
loss against noisy codes (NRT) and a contrast of histories and targets (MIM) each add to it: Beauty
NDCG@10 .0429, .0442, .0457, .0465 (Table 3), 13 % more Recall@5 than RPG on Toys (Table 2).

Commands::

    fullrank encode data/s3rec-beauty --levels 16 --out data/s3rec-beauty-codes
    fullrank train fair --data data/s3rec-beauty --set model.items.codes=data/s3rec-beauty-codes --out runs/fair

or any function below as ``fullrank train fullrank.recipes.fair:no_noise ...``. `plain`, `focus` and
`focus_noise` are the first three rows of Table 3, of which `fair` is the last; `no_focus`,
`no_noise` and `no_information` leave one part out; `relu_norm` and `no_norm` are `fair` under other
norms of the difference. Code length, width and sensitivity (Figures 3 to 9) are settings. `paper`
has the paper's size and wants a GPU.

alpha and beta: Eq. 17 adds alpha = 1 and beta = .01 to the sum over the K levels (Eq. 1). Here the
loss is the mean of the levels, the sum over K, so a weight here counts K times as much: with K = 16
codes alpha = .1 stands for 1.6 of the paper's and beta = .01 for .16, which is 16 times the
paper's. The paper's own would be 1/16 and .01/16 here. `paper` has the sum.

Differs: alpha and beta as said; heads and cosine scores as in RPG; positions are rotary (the paper
says nothing). Norm, which the paper leaves open, is the softmax of a row, A = softmax(A1 - A2):
positive rows that sum to one, as its Table 4 prints them, which start as the mean of the history.
It was the best of four on validation (docs/decisions/0007-focused-attention-without-norm.md).
Masked digits are zeros (`model.penalties.0.pad=learned` has the paper's padding vector). CPU size
as in `recipes/rpg.py`, whose scaled items and epochs it shares; learning rate and temperature are
the paper's. The history is excluded from lists; FAIR builds on RPG's code, which ranks it
(``fullrank evaluate RUN --set seen=keep``). Cost: 13 minutes of one core of a busy machine on
s3rec-beauty. Numbers: `results/fair/`.
"""

from __future__ import annotations

from fullrank.core.spec import Spec
from fullrank.models.sequential.attention.focused import Focused, Norm
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.tasks.semantic_tokens import SemanticTokens
from fullrank.models.sequential.regularizers.mutual_information import MutualInformation
from fullrank.models.sequential.regularizers.noise_robustness import NoiseRobustness
from fullrank.recipes import recipe
from fullrank.recipes.rpg import EVALUATION, TRAINING
from fullrank.run.experiment import Experiment, Training

SCORING = Scoring(similarity="cosine", temperature=0.03)
NOISE = NoiseRobustness(weight=0.1)
"""alpha under the mean of the levels: on the sum of K levels it would be K times that."""
INFORMATION = MutualInformation(weight=0.01)
"""beta under the mean of the levels: .16 on the sum of 16, where the paper has .01."""


@recipe(needs="events, codes")
def fair() -> Experiment:
    """FAIR: focused attention over long semantic ids, noise robustness, mutual information (arXiv:2512.11254)."""
    return _small("fair")


def plain() -> Experiment:
    """FAIR's blocks with softmax attention and neither penalty (Table 3, first row)."""
    return _small("plain", focus=False, noise=False, information=False)


def focus() -> Experiment:
    """Focused attention alone (second row)."""
    return _small("focus", noise=False, information=False)


def focus_noise() -> Experiment:
    """Focused attention and noise robustness (third row)."""
    return _small("focus_noise", information=False)


def no_focus() -> Experiment:
    """Both penalties on softmax attention: between RPG and `fair` on s3rec-beauty
    (docs/results/generative.md)."""
    return _small("no_focus", focus=False)


def no_noise() -> Experiment:
    """Without the triplet loss."""
    return _small("no_noise", noise=False)


def no_information() -> Experiment:
    """Without the contrast of histories and targets."""
    return _small("no_information", information=False)


def softmax_norm() -> Experiment:
    """`fair`, by the name of its norm that its first runs have (experiments/fair/final.yaml)."""
    return _small("softmax_norm", norm="softmax")


def relu_norm() -> Experiment:
    """`fair` with A = relu(A1 - A2) over its sum: such rows without a limit to how
    much one event may stand out."""
    return _small("relu_norm", norm="relu_l1")


def no_norm() -> Experiment:
    """`fair` with A = A1 - A2: signed rows that sum to zero, so that blocks start near the identity."""
    return _small("no_norm", norm="none")


def paper() -> Experiment:
    """The paper's size: width 512, inner width 1024, 32 codes, 200 epochs of 256 rows, the sum of the levels."""
    model = Recommender(
        dim=512,
        max_length=50,
        items=Semantic(),
        encoder=_encoder(1024),
        task=SemanticTokens(reduction="sum"),
        scoring=SCORING,
        penalties=(NoiseRobustness(weight=1.0), MutualInformation(weight=0.01)),
    )
    training = Training(max_epochs=200, lr=3e-3, batch_by="rows", batch_size=256, warmup=0.05, patience=20)
    return Experiment(recipe="fair-paper", model=model, training=training, evaluation=EVALUATION)


def _encoder(inner: int, *, focus: bool = True, norm: Norm = "softmax", scale_input: bool = False) -> Transformer:
    focused = Focused(heads=4, rope=True, dropout=0.1, norm=norm)
    attention: Spec = focused if focus else Softmax(heads=4, rope=True, dropout=0.1)
    return Transformer(
        layers=2, attention=attention, inner=inner, positions="none", dropout=0.1, scale_input=scale_input
    )


def _small(
    name: str, *, focus: bool = True, noise: bool = True, information: bool = True, norm: Norm = "softmax"
) -> Experiment:
    """The recipe at CPU size, with or without each of its three parts."""
    penalties = ((NOISE,) if noise else ()) + ((INFORMATION,) if information else ())
    model = Recommender(
        dim=128,
        max_length=50,
        items=Semantic(),
        encoder=_encoder(256, focus=focus, norm=norm, scale_input=True),
        task=SemanticTokens(),
        scoring=SCORING,
        penalties=penalties,
    )
    training = TRAINING.model_copy(update={"lr": 3e-3})
    return Experiment(recipe=name, model=model, training=training, evaluation=EVALUATION)
