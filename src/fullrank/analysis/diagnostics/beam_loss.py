"""Beam loss: the level at which a beam search loses the item chosen next (models that generate semantic ids).

The search goes down the trie of existing tuples and keeps the best beginnings
(`inference/trie_beam.py`). Rows, over at most `USERS` users of the sample whose target may be
shown, of level `index` (from 1), by `label`:

    kept    share of users whose target's beginning is still kept after the level: by a beam of so many
            beginnings, and (`exhaustive`) among as many best ones of a search that loses none before
    beams   the width that the run is evaluated with
    users   number of users

A quarter of the width and four times the width are measured too. The beginnings that an exhaustive
search keeps and the beam does not are lost by the beam; those that both lose, by the model. The
exhaustive search scores every tuple for every user, so it is left out for a large catalogue.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from fullrank.analysis.diagnostics import Claim, Diagnostic, Figure, Row, Runs, Sample, lines
from fullrank.core.device import device_of
from fullrank.evaluation.retrieval import longest_list
from fullrank.inference.batches import Batching, score_batches
from fullrank.inference.filters import Filters
from fullrank.inference.search import Decoding
from fullrank.inference.trie_beam import TrieBeam
from fullrank.metrics import match
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.objectives.tasks.generate import STREAMS, GeneratedScorer

USERS = 256
"""Most users that are measured, the first of the sample: shares to about three percent."""
EXHAUSTIVE = 1 << 18
"""Most pairs of a user and a tuple for which the exhaustive search is made: a few seconds."""
WIDER = (0.25, 1, 4)
"""Widths that are measured, as multiples of the run's."""


class BeamLoss(Diagnostic):
    """Share of targets that are still reachable after each level of the search."""

    name = "beam_loss"
    internal = True
    silent = True
    claim = Claim(
        "What the beam search loses, by level",
        "Items are found code by code, and after each code only the best beginnings are kept. The lines say for "
        "how many people what they chose next can still be found after each level: of the width that the run is "
        "evaluated with, of a quarter and of four times that, and (exhaustive) how many it would be if no beginning "
        "had been given up before. Where these part, more beams help; where all fall, the model does not know better.",
        (lines("level", "share kept", dash="search", percent=True, zero=True),),
    )
    runs_model = True

    def begin(self) -> None:
        self.searches = isinstance(self.context.model, RecommenderModel) and self.context.model.task.code_by_code

    def rows(self) -> list[Row]:
        if not self.searches:
            return []
        spec, model, sample = self.context.evaluation, self.context.model, self.context.sample.first(USERS)
        if spec.seen == "exclude":
            hidden = match(sample.next_items[:, None], sample.histories.items)[:, 0]
            sample = Sample(sample.eval_set.take(~hidden), sample.popularity)
        if not len(sample):
            return self.left_out("the targets of all users are in their histories, which are not shown")
        decoding = spec.decoding if spec.decoding.kind == "beam" else Decoding(kind="beam")
        beams = max(decoding.settings()["beams"], longest_list(spec, model.num_items))
        search = TrieBeam(model.items, beams=beams)
        tuples = len(search.trie)
        rows = self.rows_of({"beams": beams, "users": len(sample)})
        for width in dict.fromkeys(min(max(int(beams * factor), 1), tuples) for factor in WIDER):
            rows += self._shares(self._ranks(search, width, sample) > 0, f"{width} beams")
        if len(sample) * tuples <= EXHAUSTIVE:
            ranks = self._ranks(search, tuples, sample)
            rows += self._shares((ranks > 0) & (ranks <= beams), "exhaustive")
        return rows

    def _shares(self, reached: np.ndarray, label: str) -> list[Row]:
        return [self.row("kept", share, index=level, label=label) for level, share in enumerate(reached.mean(0), 1)]

    @torch.inference_mode()
    def _ranks(self, search: TrieBeam, width: int, sample: Sample) -> Int[np.ndarray, "U K"]:
        """Rank, from 1, of each target's beginning after each level; 0 where it was dropped."""
        model, device = self.context.model, device_of(self.context.model)
        targets, trie = torch.from_numpy(sample.next_items).long(), search.trie
        levels = range(len(trie.levels))
        wanted = torch.stack([trie.nodes_of(trie.place[targets], level) for level in levels], 1).to(device)
        ranks = np.zeros((len(sample), len(levels)), np.int64)
        seen = sample.histories.items if self.context.evaluation.seen == "exclude" else None
        for at, scorer in score_batches(model, sample.histories, Batching(max(STREAMS // width, 1))):
            assert isinstance(scorer, GeneratedScorer)
            filters = None if seen is None else Filters().of_batch(seen.take(at), device)
            for level, (nodes, _) in enumerate(search.walk(scorer, width, filters)):
                ranks[at, level] = _position(nodes, wanted[torch.from_numpy(at).to(device), level]).cpu().numpy()
        return ranks

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        rows = tuple(
            (run.label, search, level, share)
            for run in there
            for (search, level), share in run.diagnosis.values(cls.name, "kept", "label", "index").items()
        )
        return claim.figure(("run", "search", "level", "share kept"), rows)


def _position(nodes: Int[Tensor, "B P"], wanted: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
    """Position, from 1, of a node in its row; 0 where it is not in the row."""
    same = nodes == wanted[:, None]
    return (same.long().argmax(1) + 1) * same.any(1)
