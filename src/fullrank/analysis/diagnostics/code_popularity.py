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

from math import ceil

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.analysis.diagnostics import Activations, Claim, Row, lines
from fullrank.analysis.diagnostics.code_levels import NO_TARGETS, CodeDiagnostic
from fullrank.analysis.diagnostics.spectrum import (
    popularity_likeness,
    rank_figures,
    score_spectrum,
    spearman,
    triangle,
)  # fmt: skip
from fullrank.models.sequential.items import ItemIndex, unit
from fullrank.models.sequential.items.semantic import levels_of
from fullrank.models.sequential.objectives.tasks.generate import GeneratedScorer

HEAD = 0.2
"""Share of a level's codes that are called its head."""


class CodePopularity(CodeDiagnostic):
    """Predicted codes against the popularity of codes, level by level."""

    name = "code_popularity"
    claim = Claim(
        "Popularity of predicted codes",
        "Of the codes of each level, those of the most used items make a head of 20 %. The line says for how many "
        "people the most likely code is in it, the dashed one for how many the code that really came is. A line "
        "well above its dashed one is a model that falls back on popular codes. The table says how many codes are "
        "in use (of predictions and of what was chosen), how the order of mean probabilities goes with the order "
        "of use (1: the same), and how many directions the code vectors have.",
        (
            lines(
                "level", ("most likely in the head", "chosen in the head"), axis="codes of the head",
                percent=True, zero=True,
            ),
        ),
        key="index",
        at="level",
        columns={
            "codes": "codes", "most likely in the head": "head_predicted", "chosen in the head": "head_targets",
            "probability of the head": "head_mass", "Spearman correlation with use": "spearman",
            "codes in use": "effective", "of what was chosen": "effective_targets",
            "effective rank of the table": ("entropy_rank", "table"),
            "stable rank of the table": ("stable_rank", "table"),
            "collapse share of the table": ("collapse_share", "table"),
            "collapse share of the scores": ("collapse_share", "scores"),
            "their correlation with use": ("popularity_spearman", "scores"),
        },
    )  # fmt: skip

    def begin(self) -> None:
        super().begin()
        self.sums: list[Tensor] = []
        """Of each level [3, C]: probability, users whose most likely code it is, users whose true code it is."""
        self.states: list[Tensor] = []
        """What the first code is predicted from."""

    def add(self, level: int, log_p: Float[Tensor, "B C"], codes: Int[Tensor, "B"], targets: Int[Tensor, "B"]) -> None:
        size = log_p.shape[1]
        counts = [torch.bincount(one, minlength=size).double() for one in (log_p.argmax(1), codes)]
        sums = torch.stack([log_p.double().exp().sum(0), *counts]).cpu()
        if level == len(self.sums):
            self.sums.append(torch.zeros_like(sums))
        self.sums[level] += sums

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        super().observe(batch)
        if self.sums and isinstance(batch.scorer, GeneratedScorer):
            start = batch.scorer.start.float()
            self.states.append((unit(start) if batch.scorer.cosine else start / batch.scorer.temperature).cpu())

    def rows(self) -> list[Row]:
        if self.items is None:
            return []
        if not self.sums:
            return self.left_out(NO_TARGETS)
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
            found += self.rows_of(figures, index=index)
            vectors = table.vectors.detach()
            ranks = rank_figures(torch.linalg.svdvals(triangle(vectors)))
            found += self.rows_of(ranks, index=index, label="table")
            if level == 0 and self.states:
                spectrum = score_spectrum(torch.cat(self.states), vectors.float().cpu())
                like = popularity_likeness(spectrum, counts).spearman
                ranks = rank_figures(spectrum.sigma)
                found += self.rows_of(ranks | {"popularity_spearman": like}, index=1, label="scores")
        return found
