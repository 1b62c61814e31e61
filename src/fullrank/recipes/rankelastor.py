"""RankElastor and what it is compared with (KDD 2026, arXiv:2605.23191, Sec. 4).

Claim: full mixing and gated per-token FFNs keep the effective rank of the layers and raise AUC over
RankMixer, DCNv2, xDeepFM, AutoInt and DNN (Table 2: by about .001 on Criteo and Avazu); each of the
two alone brings less (Table 3).

Commands: ``fullrank train rankelastor --data data/ctr --out runs/rankelastor``, or any function
below as ``fullrank train fullrank.recipes.rankelastor:ml1m``. `ml1m` and `frappe` are of CPU size.
`criteo_x1` and `avazu_x4` fix the paper's sizes and training (100 epochs at most, a tenth of the
rate at each epoch without gain, stop after two); they want a GPU. These have the block of the
authors' code, `equation_4` has the paper's formula. `mixing_*` are Table 3: mixing (full or block
transpose) times FFN (glu or gelu), all else equal. `matched_*` have equally many dense parameters,
`ladder_*` are the lowest common rung of the ladders of Figures 7 and 8, `deep` has 16 blocks that
start near the identity. Cost: with Eq. 4 an epoch of RankElastor takes about 90 s of one core on
ml-1m and 20 s on frappe, of RankMixer 40 s and 9 s. Numbers: results/rankelastor/,
docs/results/rankers.md: at the best public settings of frappe it is ahead of RankMixer and behind
DCNv2, on ml-1m behind DCNv2; 4 blocks are better than one.

Differs: `mixing_*`, `matched_*` and `ladder_*` have Eq. 4 behind a norm (`feed_forward=glu`), as
they were run and as their weights are counted. The ablation shares one head, and T = 16 tokens of
width 32, which block transpose can divide, where the paper's shapes (15, 26) and (16, 24) cannot be
transposed. With the paper's hidden widths (r = 3 against D) a block of RankElastor has (T^2 + 10 T)
D^2 weights and one of RankMixer 2 T D^2: at T = 8 they agree where RankMixer is three times as
wide. So the pair and the ladders have T = 8 and share a head whose weights hardly count
(`flatten`). The paper's ladder of width widens the FFNs alone; ours of that name widens the tokens,
and the paper's is `hidden`. The paper stops by validation loss, the code by AUC (Criteo) or AUC -
LogLoss (Avazu): ours is the code's.
"""

from __future__ import annotations

from pydantic import JsonValue

from fullrank.models.ranking import RankerSpec
from fullrank.models.ranking.blocks import Heads, Tokeniser
from fullrank.models.ranking.embedding import Embedding
from fullrank.models.ranking.feed_forwards import FeedForwardSpec
from fullrank.models.ranking.feed_forwards.gelu import Gelu
from fullrank.models.ranking.feed_forwards.glu import Glu
from fullrank.models.ranking.mixings import BlockTranspose, Full, MixingSpec
from fullrank.models.ranking.model import RankingModel
from fullrank.models.ranking.rankelastor import RankElastor
from fullrank.models.ranking.rankmixer import RankMixer
from fullrank.recipes import recipe
from fullrank.run.experiment import Experiment, Training

SMALL = Training(
    max_epochs=20, batch_by="rows", batch_size=4096, lr=1e-3, clip_norm=10.0, schedule="plateau", patience=2
)
"""Training of the small recipes: FuxiCTR's training, 20 epochs at most."""
TOKENS = Tokeniser(hidden=64, dropout=0.0)
"""Their tokeniser; the code's 500 hidden units with dropout, for every token, cost more than all the rest on a CPU."""
NORMED = TOKENS.override("hidden_norm=true")
"""That tokeniser with the norm of the code's best configurations, of the recipes `rankelastor` and `rankmixer`."""
FRAPPE = Embedding(l2=0.05, l2_on="table")
FRAPPE_TRAINING: dict[str, JsonValue] = {"lr": 7.69e-4, "max_epochs": 45}
"""Settings of RankElastor and RankMixer alike on frappe: chosen on validation, with the L2 of the best public ones."""
HEAD: Heads = "flatten"
"""The head of both: one linear layer on all tokens. The code's `mlp` (on both sides too) has 2 T^2 D^2 weights, as many
as the full mixings of two blocks, and more on RankMixer's side, whose tokens are wider: a table would compare heads."""


@recipe(needs="impressions")
def rankelastor() -> Experiment:
    """RankElastor: learned mixing of tokens and gated networks per token (KDD 2026, arXiv:2605.23191)."""
    return ranking_experiment("rankelastor", RankElastor(tokeniser=NORMED, head=HEAD))


def equation_4() -> Experiment:
    """The recipe with Eq. 4 to the letter as its FFN.

    In `model.ranker.feed_forward` the switches inner_skip, outer_skip, closing and norm are off,
    and hidden is empty; the biases, which the paper omits "for clarity", are on. All else is the
    recipe's. What results/ call rankelastor up to 2026-11-22 has the norm too (`feed_forward=glu`),
    the head `mlp`, and no hidden norm in the tokeniser.
    """
    ranker = RankElastor(tokeniser=NORMED, head=HEAD, feed_forward=Glu(norm=False))
    return ranking_experiment("rankelastor-equation_4", ranker)


def deep() -> Experiment:
    """16 blocks of the ladders' width that pass what they are given at the start, with a warm-up.

    The paper's ladders end at 4 blocks on Criteo and 5 on Avazu.
    """
    settings = ("model.ranker.blocks=16", "model.ranker.initial=identity", "training.warmup=0.02")
    return ladder_rankelastor().override("recipe=rankelastor-deep", *settings)


def ml1m() -> Experiment:
    """MovieLens-1M, clicks are ratings of at least 4, split by time."""
    return ranking_experiment("rankelastor-ml1m", RankElastor(tokeniser=NORMED, head=HEAD))


def frappe() -> Experiment:
    """Frappe at the best of eight trials (experiments/rankelastor/search_frappe.yaml):
    use of apps in ten contexts."""
    ranker = RankElastor(tokens=10, width=30, tokeniser=TOKENS, head="mlp")
    return ranking_experiment("rankelastor-frappe", ranker, FRAPPE, **FRAPPE_TRAINING)


def frappe_rankmixer() -> Experiment:
    """RankMixer at the best of its eight trials there, which are the same settings."""
    ranker = RankMixer(tokens=10, width=30, tokeniser=TOKENS, head="mlp")
    return ranking_experiment("frappe_rankmixer", ranker, FRAPPE, **FRAPPE_TRAINING)


def criteo_x1() -> Experiment:
    """Criteo: 39 fields of width 20, 15 tokens of width 26, L2 1e-5 on the tables."""
    embedding = Embedding(dim=20, l2=1e-5, l2_on="table")
    return ranking_experiment("rankelastor-criteo_x1", RankElastor(tokens=15, width=26), embedding, max_epochs=100)


def avazu_x4() -> Experiment:
    """Avazu: 24 fields of width 16, 16 tokens of width 24, batches of 10,000."""
    settings = {"max_epochs": 100, "batch_size": 10_000}
    experiment = ranking_experiment("rankelastor-avazu_x4", RankElastor(tokens=16, width=24), Embedding(), **settings)
    return experiment.override("evaluation.selection=auc-logloss")


def mixing_full_glu() -> Experiment:
    """Table 3: RankElastor itself."""
    return _ablation("mixing_full_glu", Full(), Glu())


def mixing_full_gelu() -> Experiment:
    """Table 3: RankElastor without the gate."""
    return _ablation("mixing_full_gelu", Full(), Gelu())


def mixing_transpose_glu() -> Experiment:
    """Table 3: RankMixer with the gate."""
    return _ablation("mixing_transpose_glu", BlockTranspose(), Glu())


def mixing_transpose_gelu() -> Experiment:
    """Table 3: RankMixer with RankElastor's head."""
    return _ablation("mixing_transpose_gelu", BlockTranspose(), Gelu())


def matched_rankelastor() -> Experiment:
    """RankElastor at T = 8, D = 40: 471 thousand dense parameters on ml-1m, about those of the dcnv2 recipe."""
    return ladder_rankelastor().override("recipe=matched_rankelastor", "model.ranker.width=40")


def matched_rankmixer() -> Experiment:
    """RankMixer with as many dense parameters (within 5 %): D = 120."""
    return ladder_rankmixer().override("recipe=matched_rankmixer", "model.ranker.width=120")


def ladder_rankelastor() -> Experiment:
    """The lowest rung of the ladders: 8 tokens of width 16, 2 blocks; 79 thousand dense parameters on ml-1m."""
    ranker = RankElastor(tokens=8, width=16, head="flatten", tokeniser=TOKENS, feed_forward=Glu())
    return ranking_experiment("ladder_rankelastor", ranker)


def ladder_rankmixer() -> Experiment:
    """RankMixer of three times the width of `ladder_rankelastor`."""
    ranker = RankMixer(tokens=8, width=48, head="flatten", tokeniser=TOKENS)
    return ranking_experiment("ladder_rankmixer", ranker)


def _ablation(name: str, mixing: MixingSpec, feed_forward: FeedForwardSpec) -> Experiment:
    """A cell of Table 3: this mixing with this FFN, all else equal."""
    ranker = RankElastor(tokens=16, width=32, mixing=mixing, feed_forward=feed_forward, tokeniser=TOKENS)
    return ranking_experiment(name, ranker)


def ranking_experiment(
    name: str, ranker: RankerSpec, embedding: Embedding | None = None, **training: JsonValue
) -> Experiment:
    """A ranker under the training that the small recipes share, but for what `training` says."""
    model = RankingModel(embedding=embedding or Embedding(l2=1e-5), ranker=ranker)
    return Experiment(recipe=name, model=model, training=SMALL.model_copy(update=training))
