"""Whether predicted codes are the popular ones: spectral collapse and popularity of the softmax over codes.

Claim (SPRINT, KDD 2026, Lemma 3.1, of items): the first singular vector of the score matrix is nearly popularity. Here
the columns are the codes of a level, and n(c) the training events of the items with code c. Rows, of level `index`
(from 1), behind the history and the true codes before:

    spearman                         rank correlation of n(c) and the mean probability of c over users
    head_mass                        mean probability of the most popular 20 % of the codes together
    head_predicted, head_targets     share of users whose most likely code is one of these; whose true code is
    effective, effective_targets     exp of the entropy of the mean prediction, and of the true codes: codes in use
    collapse_share, stable_rank,     of the level's table of code vectors (`label` table), and of the scores users x
    entropy_rank                     codes of the first level (`label` scores), where a code is predicted from a state
    popularity_spearman              of the scores' first singular vector and n(c) (`label` scores)

`head_predicted` above `head_targets`: a model that plays safe; `effective` below that of the targets: collapse.

Differs: a softmax is measured where SPRINT has scores, so constants that are added to all scores do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
import torch
from torch import Tensor

from fullrank.analysis.activations import Activations, RetrievalContext
from fullrank.analysis.diagnosis import Row, not_measured, row
from fullrank.analysis.diagnostics import Diagnostic
from fullrank.analysis.diagnostics.code_levels import NO_TARGETS, code_predictions, predicted_items
from fullrank.analysis.diagnostics.spectrum import popularity_likeness, score_spectrum, spearman, triangle
from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.levels import level_panel, level_table, level_values
from fullrank.analysis.report.results import RunResult
from fullrank.models.sequential.codes import GeneratedScorer
from fullrank.models.sequential.items import ItemIndex, unit
from fullrank.models.sequential.items.semantic import levels_of
from fullrank.ops.effective_rank import collapse_share, entropy_rank, stable_rank

HEAD = 0.2
"""Share of a level's codes that are called its head."""
RANKS = {"collapse_share": collapse_share, "stable_rank": stable_rank, "entropy_rank": entropy_rank}


class CodePopularity(Diagnostic):
    """Predicted codes against the popularity of codes, level by level. Without codes it has nothing to say."""

    name = "code_popularity"
    internal = True

    def __init__(self, context: RetrievalContext):
        super().__init__(context)
        self.items = predicted_items(context.model)
        self.sums: list[Tensor] = []
        """Of each level [3, C]: probability, users whose most likely code it is, users whose true code it is."""
        self.states: list[Tensor] = []
        """What the first code is predicted from."""

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        if self.items is None or self.context.targets is None:
            return
        targets = torch.from_numpy(self.context.targets[batch.users]).long()
        codes = self.items.codes[targets.to(self.items.codes.device)]
        for level, log_p in enumerate(code_predictions(batch.scorer, codes)):
            size = log_p.shape[1]
            counts = [torch.bincount(one, minlength=size).double() for one in (log_p.argmax(1), codes[:, level])]
            sums = torch.stack([log_p.double().exp().sum(0), *counts]).cpu()
            if level == len(self.sums):
                self.sums.append(torch.zeros_like(sums))
            self.sums[level] += sums
        if isinstance(batch.scorer, GeneratedScorer):
            start = batch.scorer.start.float()
            self.states.append((unit(start) if batch.scorer.cosine else start / batch.scorer.temperature).cpu())

    def rows(self) -> list[Row]:
        if self.items is None:
            return []
        if not self.sums:
            return [not_measured(self.name, NO_TARGETS)]
        events, found = self.context.sample.popularity, []
        tables = levels_of(ItemIndex(self.items, normalise=self.context.model.cosine))
        codes = self.items.codes.cpu().numpy()
        for level, (sums, table) in enumerate(zip(self.sums, tables, strict=True)):
            size, index = sums.shape[1], level + 1
            counts = np.bincount(codes[:, level], events, minlength=size).astype(np.int64)
            head = torch.from_numpy(np.argsort(-counts, kind="stable")[: ceil(HEAD * size)].copy())
            shares = sums / sums.sum(1, keepdim=True)
            mass, predicted, targets = shares[:, head].sum(1).tolist()
            used, true = torch.special.entr(shares).sum(1).exp()[[0, 2]].tolist()
            figures = {
                "codes": size, "spearman": spearman(counts, shares[0].numpy().round(12)), "head_mass": mass,
                "head_predicted": predicted, "head_targets": targets, "effective": used, "effective_targets": true,
            }  # fmt: skip
            found += [row(self.name, figure, value, index=index) for figure, value in figures.items()]
            vectors = table.vectors.detach()
            sigma = torch.linalg.svdvals(triangle(vectors))
            found += [row(self.name, n, float(rank(sigma)), index=index, label="table") for n, rank in RANKS.items()]
            if level == 0 and self.states:
                spectrum = score_spectrum(torch.cat(self.states), vectors.float().cpu())
                like = popularity_likeness(spectrum, counts).spearman
                found += [
                    row(self.name, n, float(rank(spectrum.sigma)), index=1, label="scores") for n, rank in RANKS.items()
                ]
                found.append(row(self.name, "popularity_spearman", like, index=1, label="scores"))
        return found

    @classmethod
    def figure(cls, results: Sequence[RunResult]) -> Figure | Missing | None:
        """How often the most likely code is one of the popular ones, beside how often the true one is."""
        there = [one for one in results if one.diagnosis.of(cls.name)]
        if not there:
            return None
        caption = (
            "Of the codes of each level, those of the most used items make a head of 20 %. The line says for how many "
            "people the most likely code is in it, the dotted one for how many the code that really came is. A line "
            "well above its dotted one is a model that falls back on popular codes. The table says how many codes are "
            "in use (of predictions and of what was chosen), how the order of mean probabilities goes with the order "
            "of use (1: the same), and how many directions the code vectors have."
        )
        lines, dotted = (
            {one.key: level_values(one, cls.name, name) for one in there} for name in ("head_predicted", "head_targets")
        )
        drawn = level_panel(
            cls.name, results, lines, dotted, means="what was chosen",
            alt="Share of popular codes among the most likely", y="codes of the head (%)",
        )  # fmt: skip
        names = (
            ("codes", None), ("head_predicted", None), ("head_targets", None), ("head_mass", None), ("spearman", None),
            ("effective", None), ("effective_targets", None), ("entropy_rank", "table"), ("stable_rank", "table"),
            ("collapse_share", "table"), ("collapse_share", "scores"), ("popularity_spearman", "scores"),
        )  # fmt: skip
        rows = level_table(there, cls.name, names)
        headers = (
            "run", "level", "codes", "most likely in the head", "chosen in the head", "probability of the head",
            "Spearman correlation with use", "codes in use", "of what was chosen", "effective rank of the table",
            "stable rank of the table", "collapse share of the table", "collapse share of the scores",
            "their correlation with use",
        )  # fmt: skip
        return Figure(cls.name, "Popularity of predicted codes", caption, (drawn,), headers, rows)
