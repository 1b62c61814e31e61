"""Two stages: a retriever finds candidates in the whole catalogue, a ranker puts them in order.

    Cascade("runs/sasrec", "runs/dcnv2", items="movies.parquet").recommend({"me": [2, 3, 5]}, context={"hour": 20})
    Cascade("runs/sasrec", "runs/dcnv2").evaluate("test").differences["ndcg@10"]

The retriever is any run that ranks a catalogue, the ranker any ranking model. What the ranker reads of a user, of an
item and of the context is encoded once for each of them; a pair (user, candidate) is a gather. Pairs exist in chunks
alone: U users and C candidates never make a table of U x C rows of features. R pairs of a chunk, B users of a block.
"""

from fullrank.cascade.cascade import Cascade
from fullrank.cascade.evaluate import CascadeResult
from fullrank.cascade.stages import RankingStage, RetrievalStage

__all__ = ["Cascade", "RankingStage", "CascadeResult", "RetrievalStage"]
