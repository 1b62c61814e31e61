"""TIGER's task on a decoder alone: the codes of the next item one after the other (NeurIPS 2023, arXiv:2305.05065).

Claim: a transformer that writes an item's semantic id code by code retrieves better than item
vectors (Table 1: Beauty Recall@10 .0648, NDCG@10 .0384) and knows items that it was not trained on.
Public reproductions have .0575 and .0311 to .0721 and .0378.

Commands::

    fullrank encode data/s3rec-beauty --learner rq_kmeans --levels 3 --set pca=64 --collisions extra_digit \\
        --out data/codes
    fullrank train tiger --data data/s3rec-beauty --set model.items.codes=data/codes --out runs/tiger

or any function below as ``fullrank train fullrank.recipes.tiger:paper ...``: `paper` has TIGER's
encoder and decoder in the paper's size, for a GPU; `sprint` is the recipe under SPRINT's penalties,
`focused` an encoder and decoder of FAIR's attention under FAIR's penalties.

Differs: a causal decoder reads the history as one row of codes and trains on all of its items in
one pass, where TIGER's encoder and decoder (T5) read it anew for each prefix; rotary positions; no
user token; label smoothing of .1. `paper` has none of that, but batches of 2,048 events, about the
256 rows of the paper with hardly any padding, and what `encoders/seq2seq.py` says. Of both: codes
by residual k-means, which public measurements find as good as RQ-VAE; lists from a beam over the
trie of existing tuples, so that no answer is an item that does not exist; the history is excluded,
where TIGER ranks it (``fullrank evaluate RUN --set seen=keep``).
"""

from __future__ import annotations

from fullrank.evaluation.spec import Evaluation
from fullrank.models.sequential.attention.focused import Focused
from fullrank.models.sequential.attention.relative import Relative
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.seq2seq import Seq2Seq
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.losses.cross_entropy import CrossEntropy
from fullrank.models.sequential.objectives.tasks.generate import Generate
from fullrank.models.sequential.regularizers import PenaltySpec
from fullrank.models.sequential.regularizers.mutual_information import MutualInformation
from fullrank.models.sequential.regularizers.noise_robustness import NoiseRobustness
from fullrank.models.sequential.regularizers.sprint import Sprint
from fullrank.recipes import recipe
from fullrank.run.experiment import Experiment, Training

EVALUATION = Evaluation.parse({"decoding": {"kind": "beam", "beams": 50}})
TRAINING = Training(
    max_epochs=40, lr=2e-3, batch_size=1024, warmup=0.05, schedule="cosine", clip_norm=1.0, evaluate_every=5
)


@recipe(needs="events, codes")
def tiger() -> Experiment:
    """TIGER's generative retrieval on a decoder alone, semantic ids code by code (arXiv:2305.05065)."""
    return _decoder("tiger")


def sprint() -> Experiment:
    """`tiger` under SPRINT's penalties on attention, feed-forward and the vectors of all codes.

    The factor of attention is a hundredth of what `sprint` has for item ids: codes before the next
    one reach it by attention alone, and validation NDCG@10 falls with the factor
    (docs/results/generative.md).
    """
    return _decoder("tiger-sprint", Sprint(attention=0.05))


def paper() -> Experiment:
    """The paper's size: encoder and decoder of four blocks, six heads of 64, inner width 1024; a row a prefix."""
    encoder = Seq2Seq(layers=4, attention=Relative(heads=6, width=64, dropout=0.1), inner=1024, dropout=0.1)
    model = Recommender(
        dim=128,
        max_length=20,
        items=Semantic(parts="sum"),
        encoder=encoder,
        task=Generate(targets="last", user_tokens=2000),
    )
    training = Training(
        max_epochs=200,
        lr=5e-4,
        batch_size=2048,
        warmup=0.05,
        schedule="cosine",
        clip_norm=1.0,
        evaluate_every=10,
        patience=5,
    )
    return Experiment(recipe="tiger-paper", model=model, training=training, evaluation=EVALUATION)


def focused() -> Experiment:
    """Encoder and decoder of FAIR's focused attention, with its noise robustness and mutual information."""
    encoder = Seq2Seq(
        layers=2, attention=Focused(heads=4, rope=True, norm="softmax", dropout=0.1), inner=256, dropout=0.1
    )
    model = Recommender(
        dim=128,
        max_length=20,
        items=Semantic(parts="sum"),
        encoder=encoder,
        task=Generate(targets="last", per_user=4),
        loss=CrossEntropy(label_smoothing=0.1),
        penalties=(NoiseRobustness(weight=0.1), MutualInformation(weight=0.01)),
    )
    training = TRAINING.model_copy(update={"batch_size": 2048, "lr": 1e-3})
    return Experiment(recipe="tiger-focused", model=model, training=training, evaluation=EVALUATION)


def _decoder(name: str, *penalties: PenaltySpec) -> Experiment:
    """A causal decoder alone, at CPU size, under these penalties."""
    encoder = Transformer(
        layers=4, attention=Softmax(heads=4, rope=True, dropout=0.1), positions="none", inner=256, dropout=0.1
    )
    model = Recommender(
        dim=128,
        max_length=20,
        items=Semantic(parts="sum"),
        encoder=encoder,
        task=Generate(),
        loss=CrossEntropy(label_smoothing=0.1),
        penalties=penalties,
    )
    return Experiment(recipe=name, model=model, training=TRAINING, evaluation=EVALUATION)
