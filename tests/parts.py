"""The parts that tests put models together from: a recommender, its tasks, encoders, losses and penalties."""

# ruff: noqa: F401
from typing import Any

import torch

from fullrank.models.sequential.attention.focused import Focused
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.baselines.popularity import Popularity
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.seq2seq import Seq2Seq
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.items.table import Table
from fullrank.models.sequential.model import Recommender, RecommenderModel, Scoring
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.losses.cross_entropy import CrossEntropy
from fullrank.models.sequential.objectives.negatives import Negatives
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.models.sequential.objectives.tasks.generate import Generate
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.objectives.tasks.next_item import NextItem
from fullrank.models.sequential.objectives.tasks.semantic_tokens import SemanticTokens
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.models.sequential.reasoning.rearec import ReaRec
from fullrank.models.sequential.regularizers.mutual_information import MutualInformation
from fullrank.models.sequential.regularizers.reasoning_contrast import ReasoningContrast
from fullrank.models.sequential.regularizers.sprint import Sprint
from tiny import catalog, shaken


def model_with(*penalties: Any, **parts: Any) -> Any:
    """A small recommender with drawn weights that has these penalties and parts."""
    torch.manual_seed(0)
    return shaken(Recommender(**{"dim": 6, "max_length": 12, "penalties": penalties} | parts).build(catalog()))
