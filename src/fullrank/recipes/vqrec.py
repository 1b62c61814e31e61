"""VQ-Rec and RecJPQ: items whose vectors are put together from a few codes, searched like any other item vectors.

`vqrec` (Hou et al., WWW 2023, arXiv:2210.12316): 32 codes of 256 by optimised product quantisation
of an item's text, the mean of their vectors is the item's, and a transformer with cosine scores
finds the next item. Claim: vectors by way of codes transfer from one shop to the next and keep
apart what text confuses (Table 2).

`recjpq` (Petrov and Macdonald, WSDM 2024, arXiv:2312.06165): the same with eight parts side by
side, from codes of collaborative vectors where `fullrank encode` is given a file of such. Claim: a
table 50 times smaller, as accurate.

Commands::

    fullrank encode data/s3rec-beauty --levels 32 --out data/codes-opq32
    fullrank train vqrec --data data/s3rec-beauty --set model.items.codes=data/codes-opq32 --out runs/vqrec
    fullrank train fullrank.recipes.vqrec:recjpq --data data/s3rec-beauty --set model.items.codes=FOLDER \\
        --out runs/recjpq

Differs: trained on one data set from nothing; VQ-Rec pre-trains on several, with negatives of other
shops and of exchanged digits, and then aligns the code vectors of the new shop by permutation.
Around the items is our `sasrec`, so that the three differ in their items alone; `vqrec` has the
paper's temperature. NDCG@10 of `vqrec` on s3rec-beauty .0567, of `sasrec` .0579, history excluded,
one seed (docs/results/generative.md).
"""

from __future__ import annotations

from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.model import Recommender, Scoring
from fullrank.recipes import recipe
from fullrank.recipes.sasrec import sasrec
from fullrank.run.experiment import Experiment


@recipe(needs="events, codes")
def vqrec() -> Experiment:
    """VQ-Rec: item vectors as the mean of the vectors of 32 codes of their text (WWW 2023, arXiv:2210.12316)."""
    return _around("vqrec", Semantic(parts="mean"), Scoring(similarity="cosine", temperature=0.07))


def recjpq() -> Experiment:
    """RecJPQ: item vectors as parts of their codes, side by side."""
    return _around("recjpq", Semantic(parts="concat"))


def _around(name: str, items: Semantic, scoring: Scoring | None = None) -> Experiment:
    """The recipe `sasrec` on these items."""
    base = sasrec()
    assert isinstance(base.model, Recommender)
    model = base.model.model_copy(update={"items": items, "scoring": scoring or base.model.scoring})
    return base.model_copy(update={"recipe": name, "model": model})
