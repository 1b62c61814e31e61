"""At which level a beam search loses what people chose next (models that generate semantic ids code by code).

The search goes down the trie of existing tuples and keeps the best beginnings (`inference/trie_beam.py`). Rows, over at
most `USERS` users of the sample whose target may be shown, of level `index` (from 1), by `label`:

    kept    share of users the beginning of whose target is still kept after the level: by a beam of so many
            beginnings, and (`exhaustive`) among as many best ones of a search that loses none before
    beams   the width that the run is evaluated with
    users   who were asked

A quarter of the width and four times the width stand beside it, which say what another would give. What an exhaustive
search keeps and the beam does not is the beam's loss; what both lose, the model's. It is left out where a catalogue is
large, since it scores every tuple for every user.
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
"""Most users measured: the first of the sample. Shares to about three percent."""
EXHAUSTIVE = 1 << 18
"""Most pairs of a user and a tuple for which the exhaustive search is done too: a few seconds."""
WIDER = (0.25, 1, 4)
"""Widths that are measured, over the run's own."""


class BeamLoss(Diagnostic):
    """Targets that are still reachable after each level of the search. Without a search it has nothing to say."""

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
        context = self.context
        spec = context.evaluation
        asked = context.sample.first(USERS)
        hidden = match(asked.next_items[:, None], asked.histories.items)[:, 0] if spec.seen == "exclude" else None
        if hidden is not None:
            asked = Sample(asked.eval_set.take(~hidden), asked.popularity)
        if not len(asked):
            return self.left_out("the targets of all users are in their histories, which are not shown")
        decoding = spec.decoding if spec.decoding.kind == "beam" else Decoding(kind="beam")
        own = max(decoding.settings()["beams"], longest_list(spec, context.model.num_items))
        search = TrieBeam(context.model.items, beams=own)
        tuples = len(search.trie)
        found = self.rows_of({"beams": own, "users": len(asked)})
        for width in dict.fromkeys(min(max(int(own * factor), 1), tuples) for factor in WIDER):
            places = self._places(search, width, asked)
            found += self._shares(places > 0, f"{width} beams")
        if len(asked) * tuples <= EXHAUSTIVE:
            places = self._places(search, tuples, asked)
            found += self._shares((places > 0) & (places <= own), "exhaustive")
        return found

    def _shares(self, kept: np.ndarray, label: str) -> list[Row]:
        return [self.row("kept", float(v), index=n, label=label) for n, v in enumerate(kept.mean(0), 1)]

    @torch.inference_mode()
    def _places(self, search: TrieBeam, width: int, asked: Sample) -> Int[np.ndarray, "U K"]:
        """The place of each target's beginning among those kept after each level, from 1; 0 where it is not kept."""
        model, device = self.context.model, device_of(self.context.model)
        targets, trie = torch.from_numpy(asked.next_items).long(), search.trie
        levels = range(len(trie.levels))
        wanted = torch.stack([trie.nodes_of(trie.place[targets], level) for level in levels], 1).to(device)
        found = np.zeros((len(asked), len(levels)), np.int64)
        seen = asked.histories.items if self.context.evaluation.seen == "exclude" else None
        for at, scorer in score_batches(model, asked.histories, Batching(max(STREAMS // width, 1))):
            assert isinstance(scorer, GeneratedScorer)
            filters = None if seen is None else Filters().of_batch(seen.take(at), device)
            for level, (nodes, _) in enumerate(search.walk(scorer, width, filters)):
                found[at, level] = _place(nodes, wanted[torch.from_numpy(at).to(device), level]).cpu().numpy()
        return found

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        rows = tuple(
            (one.label, search, level, share)
            for one in there
            for (search, level), share in one.diagnosis.values(cls.name, "kept", "label", "index").items()
        )
        return claim.figure(("run", "search", "level", "share kept"), rows)


def _place(nodes: Int[Tensor, "B P"], wanted: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
    """From 1; 0 where it is not among them."""
    same = nodes == wanted[:, None]
    return (same.long().argmax(1) + 1) * same.any(1)
