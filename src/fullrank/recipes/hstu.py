"""HSTU, twice: as published at CPU size, and the generalised form that SPRINT scales.

`hstu` (Zhai et al., arXiv:2402.17152): gated SiLU attention, biases by position and time. LayerNorm
without gain before each block, no feed-forward, learned positions from the start behind embeddings
times sqrt(d), dropout 0.2 on the input and on the gated values, softmax over the target and 128
uniform negatives with cosine scores at temperature 0.05 and no logQ. The paper's setting for
MovieLens-1M is ``--set model.dim=50 --set model.max_length=200 --set model.encoder.layers=8``.
Needs a store with times; ``--set model.encoder.attention.rel_bias=positions`` does without.
Differs: 2 blocks of width 64; learned positions start at a standard deviation of .02, where the
authors' have sqrt(1/d) (`model.encoder.position_std`); the positions of a history share their
negatives; AdamW without decay for Adam; rows of like length share a batch; at inference the time
asked about is the last event's, where the published evaluation is told when the target happened.

`hstu_plus`, HSTU++ (SPRINT, Sec. 5.1 and B.2; the example configuration of its code): SiLU
attention without gate, norm and relative biases, RoPE after the SiLU, RMSNorm before each sublayer
and at the end, SwiGLU of inner width 4d, no learned positions, dropout on attention weights alone,
binary cross-entropy with 16 negatives per history. It reads no times. Differs: attention divides by
`max_length` where SPRINT's code takes the padded length of the batch; full-catalogue ranking leaves
the history out by default, the paper ranks it (``--set evaluation.seen=keep``).

Command: ``fullrank train hstu --data data/beauty --out runs/hstu`` (or `hstu_plus`). At most 100
epochs. Numbers: `hstu` in `docs/results/sequence.md` (not searched, best in its last epoch),
`hstu_plus` in `docs/results/popularity_bias.md`.
"""

from __future__ import annotations

from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.models.sequential.objectives.losses.sampled_softmax import SampledSoftmax
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.recipes import recipe
from fullrank.recipes.sasrec import sasrec_plus
from fullrank.run.experiment import Experiment, Training


@recipe(needs="events, times")
def hstu() -> Experiment:
    """HSTU as published, at CPU size: gated SiLU attention, biases by position and time (arXiv:2402.17152)."""
    encoder = Transformer(
        layers=2,
        attention=HSTU(heads=2, dropout=0.2),
        norm="layer",
        norm_affine=False,
        norm_output=False,
        feed_forward="none",
        positions="learned",
        positions_from="start",
        scale_input=True,
        dropout=0.0,
        input_dropout=0.2,
    )
    model = Recommender(
        dim=64,
        encoder=encoder,
        loss=SampledSoftmax(negatives=Negatives(count=128, share="row"), log_q="none"),
        scoring=Scoring(similarity="cosine", temperature=0.05),
    )
    training = Training(max_epochs=100, lr=1e-3, batch_size=4096, betas=(0.9, 0.98), evaluate_every=5, patience=5)
    return Experiment(recipe="hstu", model=model, training=training)


@recipe(needs="events")
def hstu_plus() -> Experiment:
    """HSTU++: the generalised HSTU that SPRINT scales (SPRINT, Sec. 5.1 and B.2)."""
    attention = "{kind: hstu, heads: 2, gate: false, rel_bias: none, rope: true, bias: false, weight_dropout: 0.2}"
    return sasrec_plus().override("recipe=hstu_plus", f"model.encoder.attention={attention}")
