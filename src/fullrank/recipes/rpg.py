"""RPG: all codes of the next item at once, long semantic ids (Hou et al., KDD 2025, arXiv:2506.05781).

Claim: with K heads that predict K unordered codes in parallel, semantic ids may be long (16 to 64
codes), and beat TIGER's four codes written one after the other; FAIR's Table 2 has RPG at Recall@10
.0730, NDCG@10 .0422 on Beauty.

Commands::

    fullrank encode data/s3rec-beauty --levels 16 --out data/s3rec-beauty-codes
    fullrank train rpg --data data/s3rec-beauty --set model.items.codes=data/s3rec-beauty-codes --out runs/rpg

`paper` has the paper's size and its settings for Beauty (32 codes) and wants a GPU; Sports has 16
codes and lr 3e-3, CDs 64 codes and lr 5e-3. To decode by graph in place of exact scores:
`fullrank evaluate runs/rpg --set decoding.kind=graph`.

Differs: batches of CPU size hold 2,048 events of rows of like length; the encoder is GPT-2's shape
with our attention (GELU by erf, not its tanh form). Warm-up is a share of the run. CPU size has 20
epochs where the paper has 150: items are multiplied by the square root of the width, since a mean
of K small vectors is drowned by the positions beside it, and learning rate, temperature and dropout
of the input are tuned. The history is excluded from lists; RPG's code ranks it, and so do the
figures above (``fullrank evaluate RUN --set seen=keep``; `experiments/fair/beauty.yaml` has both).
Cost: 11 minutes of one core of a busy machine on s3rec-beauty. Numbers: `results/fair/`.
"""

from __future__ import annotations

from fullrank.evaluation.spec import Evaluation
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.tasks.semantic_tokens import SemanticTokens
from fullrank.recipes import recipe
from fullrank.run.experiment import Experiment, Training

TRAINING = Training(max_epochs=20, lr=3e-3, batch_size=2048, warmup=0.1, schedule="cosine", clip_norm=1.0, patience=10)
"""At CPU size; the learning rate was chosen on validation."""
EVALUATION = Evaluation(selection="ndcg@20")


@recipe(needs="events, codes")
def rpg() -> Experiment:
    """RPG: all codes of the next item at once, long semantic ids (Hou et al., KDD 2025, arXiv:2506.05781)."""
    small = model(128, 256, temperature=0.03, input_dropout=0.1, scale_input=True)
    return Experiment(recipe="rpg", model=small, training=TRAINING, evaluation=EVALUATION)


def paper() -> Experiment:
    """RPG's own size: width 448, inner width 1024, 150 epochs of 256 rows, lr 1e-2 (Beauty)."""
    training = Training(
        max_epochs=150,
        lr=1e-2,
        batch_by="rows",
        batch_size=256,
        warmup=0.5,
        schedule="cosine",
        clip_norm=1.0,
        patience=20,
    )
    large = model(448, 1024, temperature=0.03, input_dropout=0.5, scale_input=False)
    return Experiment(recipe="rpg-paper", model=large, training=training, evaluation=EVALUATION)


def model(dim: int, inner: int, *, temperature: float, input_dropout: float, scale_input: bool) -> Recommender:
    """GPT-2's blocks around items of codes."""
    encoder = Transformer(
        layers=2,
        attention=Softmax(heads=4, bias=True, dropout=0.5),
        norm="layer",
        norm_eps=1e-5,
        feed_forward="mlp",
        activation="gelu",
        bias=True,
        inner=inner,
        scale_input=scale_input,
        dropout=0.0,
        input_dropout=input_dropout,
    )
    return Recommender(
        dim=dim,
        max_length=50,
        items=Semantic(),
        encoder=encoder,
        task=SemanticTokens(),
        scoring=Scoring(similarity="cosine", temperature=temperature),
    )
