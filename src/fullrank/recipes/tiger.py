"""TIGER's task on a decoder alone: the codes of the next item one after the other (NeurIPS 2023, arXiv:2305.05065).

Claim: a transformer that writes an item's semantic id code by code retrieves better than item vectors (Table 1: Beauty
Recall@10 .0648, NDCG@10 .0384) and knows items that it was not trained on. Public reproductions have .0575 and .0311 to
.0721 and .0378.

Commands::

    fullrank encode data/s3rec-beauty --learner rq_kmeans --levels 3 --set pca=64 --collisions extra_digit \\
        --out data/codes
    fullrank train tiger --data data/s3rec-beauty --set model.items.codes=data/codes --out runs/tiger

Differs: a causal decoder reads the history as one row of codes and trains on all of its items in one pass, where
TIGER's encoder and decoder (T5) read it anew for each prefix; rotary positions; no user token; codes by residual
k-means, which public measurements find as good as RQ-VAE. Lists come from a beam over the trie of existing tuples, so
that no answer is an item that does not exist. The history is excluded; TIGER ranks it (``fullrank evaluate RUN --set
seen=keep``).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fullrank.evaluation.spec import Evaluation
from fullrank.experiment import Experiment, Training
from fullrank.inference.search import Decoding
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.losses.cross_entropy import CrossEntropy
from fullrank.models.sequential.objectives.tasks.generate import Generate
from fullrank.recipes import RecipeSpec

EVALUATION = Evaluation(decoding=Decoding(kind="beam", beams=50))


class TIGERRecipe(RecipeSpec):
    """TIGER's generative retrieval on a decoder alone, semantic ids code by code (arXiv:2305.05065)."""

    kind: Literal["tiger"] = "tiger"
    needs: ClassVar[str] = "events, codes"

    def build(self) -> Experiment:
        encoder = Transformer(
            layers=4, attention=Softmax(heads=4, rope=True, dropout=0.1), positions="none", inner=256, dropout=0.1
        )
        model = Recommender(
            dim=128, max_length=20, items=Semantic(parts="sum"), encoder=encoder, task=Generate(),
            loss=CrossEntropy(label_smoothing=0.1),
        )  # fmt: skip
        training = Training(
            max_epochs=40, lr=2e-3, batch_size=1024, warmup=0.05, schedule="cosine", clip_norm=1.0, evaluate_every=5,
        )  # fmt: skip
        return Experiment(recipe="tiger", model=model, training=training, evaluation=EVALUATION)
