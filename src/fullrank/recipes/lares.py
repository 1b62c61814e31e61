"""LARES: depth-recurrent latent reasoning over all events of a history (Liu et al. 2025, arXiv:2505.16865).

Claim: a block whose weights are shared is applied to all tokens again and again, so that more steps
cost compute and no parameters, and two alignments in training make the steps of use; above SASRec
and ReaRec on four Amazon sets.

Commands: ``fullrank train lares --data data/beauty --out runs/lares``, or a function below
as ``fullrank train fullrank.recipes.lares:base``. `lares` and `no_alignment` differ in the
penalty alone, `fixed` always takes four steps, `base` has the pre-block and the core as two
ordinary layers, read once. `paper` has all prefixes and batches of 2,048 rows; it wants a
GPU and has not been run.

Numbers: none is recorded yet.

Differs: reconstructed (`models/sequential/reasoning/lares.py`), and without the reinforcement
post-training. Widths, layers, dropout, depth, temperature and weights are defaults of the authors'
code, which they search. At CPU size four prefixes of a user are drawn in each epoch, and batches
hold 4,096 events of rows of like length. The history is ranked like any other item
(`evaluation.seen=keep`), as for PLR.
"""

from __future__ import annotations

from typing import Any

from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Scoring
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.reasoning.lares import LARES
from fullrank.models.sequential.regularizers.reasoning_alignment import ReasoningAlignment
from fullrank.recipes import recipe
from fullrank.recipes.bert4rec import bert_blocks
from fullrank.recipes.plr import PAPER, reasoning_experiment
from fullrank.run.experiment import Experiment

DROPOUT = 0.5


@recipe(needs="events")
def lares(dropout: float = DROPOUT) -> Experiment:
    """LARES: a block that refines all events of a history, again and again (arXiv:2505.16865).

    Depths are drawn around four; both alignments.
    """
    return _small("lares", dropout, reasoner=_reasoner(dropout), penalties=(ReasoningAlignment(),))


def no_alignment(dropout: float = DROPOUT) -> Experiment:
    """LARES trained on the targets alone."""
    return _small("no_alignment", dropout, reasoner=_reasoner(dropout))


def fixed(dropout: float = DROPOUT) -> Experiment:
    """LARES with four steps in every batch."""
    reasoner = _reasoner(dropout).model_copy(update={"depth": "fixed"})
    return _small("fixed", dropout, reasoner=reasoner, penalties=(ReasoningAlignment(),))


def base(dropout: float = DROPOUT) -> Experiment:
    """Pre-block and core as two layers, read once."""
    return _small("base", dropout, encoder=_encoder(2, dropout))


def paper() -> Experiment:
    """All prefixes, in batches of 2,048."""
    experiment = _small(
        "lares_paper",
        DROPOUT,
        reasoner=_reasoner(DROPOUT),
        penalties=(ReasoningAlignment(),),
        task=LastItem(per_user=None),
    )
    return experiment.model_copy(update={"training": PAPER})


def _reasoner(dropout: float) -> LARES:
    core = _encoder(1, dropout).model_copy(update={"positions": "none", "norm_input": False, "input_dropout": 0.0})
    return LARES(core=core)


def _encoder(layers: int, dropout: float) -> Transformer:
    """BERT's blocks: so many, of inner width 256."""
    return bert_blocks(Softmax(heads=2, bias=True, dropout=dropout), dropout, layers=layers, inner=256)


def _small(name: str, dropout: float, **model: Any) -> Experiment:
    """A pre-block of one layer at CPU size, but for what `model` names."""
    parts = {"encoder": _encoder(1, dropout), "scoring": Scoring(similarity="cosine", temperature=0.07)}
    return reasoning_experiment(name, **parts | model)
