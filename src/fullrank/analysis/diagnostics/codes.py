"""Codes of semantic ids: how well a model predicts those of the item chosen next, and whether it prefers popular ones.

Accuracy (TIGER, RPG), by teacher forcing: log p of every code of a level, behind the history and
the true codes of the levels before; of models that predict all codes at once, behind the history
alone. Rows, of level `index` (from 1), over the users of the sample:

    codes, open     codes of the level; mean number of those that some item has behind the codes before
    top_1, top_10   share of users whose true code is the most likely one, or among the ten most likely
    top_1_open      share of users whose true code is the most likely of the open ones
    open_mass       mean probability of all open codes; the rest goes to items that do not exist
    log_p           mean of log p of the true code
    log_p_counts    mean of log n(code) / n: training events of the items that begin so (one more for
                    each code), over those of the codes before; without any knowledge of the user
    median_rank     median rank of the true code among all of the level, 1 for the most likely

Log p of an item is the sum over levels, so a level with a low `log_p` is where items are lost.

Spectral collapse, and popularity of the softmax over codes. Claim (SPRINT, KDD 2026, Lemma 3.1, of
items): the first singular vector of the score matrix is nearly popularity. Here the columns are the
codes of a level, and n(c) the training events of the items with code c. Rows, of level `index`
(from 1), behind the history and the true codes before:

    spearman                       rank correlation of n(c) and the mean probability of c over users
    head_mass                      mean probability of the most popular 20 % of the codes together
    head_predicted, head_targets   share of users whose most likely code is one of these; whose true one
    effective, effective_targets   exp of the entropy of the mean prediction, and of the true codes
    collapse_share, stable_rank,   of the level's table of code vectors (`label` table), and of the
    entropy_rank                   scores users x codes of level 1 (`label` scores), if made of a state
    popularity_spearman            of the scores' first singular vector and n(c) (`label` scores)

`head_predicted` above `head_targets`: a model that plays safe; `effective` below that
of the targets: collapse.

Differs: a softmax is measured where SPRINT has scores, so constants that are added to
all scores do not count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import ceil

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.analysis.diagnostics import Activations, Claim, Diagnostic, Row, lines
from fullrank.analysis.diagnostics.spectrum import (
    popularity_likeness,
    rank_figures,
    score_spectrum,
    spearman,
    triangle,
)
from fullrank.inference.trie_beam import trie_of
from fullrank.models import Model, Scorer
from fullrank.models.sequential.items import ItemIndex, unit
from fullrank.models.sequential.items.semantic import CodeScorer, SemanticItems, levels_of
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.objectives.tasks.generate import GeneratedScorer
from fullrank.semantic_ids.reader import Trie

NO_TARGETS = "the training split has no targets"


class CodeDiagnostic(Diagnostic, ABC):
    """A diagnostic of the codes of the next item, level by level; no rows without codes."""

    internal = True
    silent = True

    def begin(self) -> None:
        self.items = predicted_items(self.context.model)

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        if self.items is None or self.context.targets is None:
            return
        targets = torch.from_numpy(self.context.targets[batch.users]).long()
        codes = self.items.codes[targets.to(self.items.codes.device)]
        for level, log_p in enumerate(code_predictions(batch.scorer, codes)):
            self.add(level, log_p, codes[:, level], targets)

    @abstractmethod
    def add(self, level: int, log_p: Float[Tensor, "B C"], codes: Int[Tensor, "B"], targets: Int[Tensor, "B"]) -> None:
        """Add a batch at a level: log p of its codes, and the true ones."""


class CodeLevels(CodeDiagnostic):
    """Accuracy and log-probability of the targets' codes, level by level."""

    name = "code_levels"
    claim = Claim(
        "Codes predicted right, by level",
        "An item is a few codes, which these models predict. Given the true codes before it, the line says how "
        "often the code that really came is the most likely of its level, the dashed one how often it is the most "
        "likely of those that some item has there. The table has its log-probability too, beside what counting how "
        "often codes were used would give: a level that is no better than counting was not learned.",
        (
            lines(
                "level", ("most likely", "of those that exist"), axis="true code is the most likely",
                percent=True, zero=True,
            ),
        ),
        key="index",
        at="level",
        columns={
            "codes": "codes", "that exist there": "open", "most likely": "top_1", "of those that exist": "top_1_open",
            "in the first ten": "top_10", "log p": "log_p", "log p by counting": "log_p_counts",
            "probability of those that exist": "open_mass", "median rank": "median_rank",
        },
    )  # fmt: skip

    def begin(self) -> None:
        super().begin()
        self.parts: list[list[Float[Tensor, "5 B"]]] = []
        """For each level and batch: log p, rank, rank among the open codes, their mass, their number."""
        self.targets: list[Tensor] = []
        """Item ids of the targets of each batch."""
        if self.items is not None:
            self.trie = trie_of(self.items)

    def add(self, level: int, log_p: Float[Tensor, "B C"], codes: Int[Tensor, "B"], targets: Int[Tensor, "B"]) -> None:
        if not level:
            self.targets.append(targets)
        if level == len(self.parts):
            self.parts.append([])
        true = log_p.gather(1, codes[:, None])
        opened = open_codes(self.trie, targets, level, log_p.shape[1]).to(log_p.device)
        ahead = log_p > true
        ranks = [1 + ahead.sum(1), 1 + (ahead & opened).sum(1)]
        measured = torch.stack([true[:, 0], *ranks, (log_p.exp() * opened).sum(1), opened.sum(1)])
        self.parts[level].append(measured.double().cpu())

    def rows(self) -> list[Row]:
        if self.items is None:
            return []
        if not self.parts:
            return self.left_out(NO_TARGETS)
        rows: list[Row] = []
        popularity = torch.as_tensor(self.context.sample.popularity)
        counted = counted_log_p(self.trie, popularity, torch.cat(self.targets))
        for level, (size, parts) in enumerate(zip(self.items.sizes, self.parts, strict=True)):
            log_p, rank, open_rank, mass, number = torch.cat(parts, 1)
            figures = {
                "codes": float(size),
                "open": number.mean(),
                "top_1": (rank == 1).double().mean(),
                "top_10": (rank <= 10).double().mean(),
                "top_1_open": (open_rank == 1).double().mean(),
                "open_mass": mass.mean(),
                "log_p": log_p.mean(),
                "log_p_counts": counted[level].mean(),
                "median_rank": rank.median(),
            }
            rows += self.rows_of(figures, index=level + 1)
        return rows


def predicted_items(model: Model) -> SemanticItems | None:
    """The items of a model that predicts their codes; None for any other."""
    if not isinstance(model, RecommenderModel) or not model.task.generates:
        return None
    return model.items if isinstance(model.items, SemanticItems) else None


def code_predictions(scorer: Scorer, codes: Int[Tensor, "B K"]) -> Iterator[Float[Tensor, "B C"]]:
    """log p of the codes of each level, behind the history and (if autoregressive) `codes`."""
    if isinstance(scorer, GeneratedScorer):
        log_p, cache = scorer.first(), scorer.cache
        yield log_p
        for level in range(codes.shape[1] - 1):
            after, cache = scorer.after(codes[:, level, None], level, cache)
            yield after[:, 0]
    elif isinstance(scorer, CodeScorer):
        yield from (level.T * len(scorer.sizes) for level in scorer.levels.split(scorer.sizes))


def open_codes(trie: Trie, items: Int[Tensor, "B"], level: int, size: int) -> Bool[Tensor, "B C"]:
    """The codes of a level that some item has behind the codes that these items have before it."""
    nodes = trie.levels[level]
    parent = trie.nodes_of(trie.place[items], level - 1) if level else torch.zeros_like(items)
    first = nodes.children[parent].long()
    count = nodes.children[parent + 1].long() - first
    # the children of each row's parent, one behind the other: row of each, and its
    # number among its siblings
    rows = torch.arange(len(items)).repeat_interleave(count)
    child = torch.arange(len(rows)) - (count.cumsum(0) - count)[rows] + first[rows]
    opened = torch.zeros(len(items), size, dtype=torch.bool)
    opened[rows, nodes.codes[child].long()] = True
    return opened


def counted_log_p(trie: Trie, events: Int[Tensor, "V"], items: Int[Tensor, "N"]) -> list[Float[Tensor, "N"]]:
    """log of the share of these items' codes in the training events behind the codes before, level by level.

    Each code counts once more than it has events, so that none has the share 0.
    """
    log_shares = []
    before = events.sum()[None].double()
    at = torch.zeros_like(items)
    for level, nodes in enumerate(trie.levels):
        of_items = trie.nodes_of(trie.place, level)
        counts = torch.zeros(len(nodes.codes), dtype=torch.float64).index_add_(0, of_items, events.double())
        parents, at = at, trie.nodes_of(trie.place[items], level)
        siblings = nodes.children[parents + 1].long() - nodes.children[parents].long()
        log_shares.append(((counts[at] + 1) / (before[parents] + siblings)).log())
        before = counts
    return log_shares


HEAD = 0.2
"""Share of a level's codes, the most popular ones, that is called its head."""


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
        """For each level [3, C]: probability, users whose most likely code it is, users whose true code it is."""
        self.states: list[Tensor] = []
        """States [B, D] from which the first code is predicted, of each batch."""

    def add(self, level: int, log_p: Float[Tensor, "B C"], codes: Int[Tensor, "B"], targets: Int[Tensor, "B"]) -> None:
        size = log_p.shape[1]
        counts = [torch.bincount(chosen, minlength=size).double() for chosen in (log_p.argmax(1), codes)]
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
        events, rows = self.context.sample.popularity, []
        tables = levels_of(ItemIndex(self.items, normalise=self.context.model.cosine))
        codes = self.items.codes.cpu().numpy()
        for level, (sums, table) in enumerate(zip(self.sums, tables, strict=True)):
            size, index = sums.shape[1], level + 1
            counts = np.bincount(codes[:, level], events, minlength=size).astype(np.int64)
            head = torch.from_numpy(np.argsort(-counts, kind="stable")[: ceil(HEAD * size)].copy())
            shares = sums / sums.sum(1, keepdim=True)
            mass, predicted, targets = shares[:, head].sum(1).tolist()
            in_use, true = torch.special.entr(shares).sum(1).exp()[[0, 2]].tolist()
            figures = {
                "codes": size,
                "spearman": spearman(counts, shares[0].numpy().round(12)),
                "head_mass": mass,
                "head_predicted": predicted,
                "head_targets": targets,
                "effective": in_use,
                "effective_targets": true,
            }
            rows += self.rows_of(figures, index=index)
            vectors = table.vectors.detach()
            rows += self.rows_of(rank_figures(torch.linalg.svdvals(triangle(vectors))), index=index, label="table")
            if level == 0 and self.states:
                spectrum = score_spectrum(torch.cat(self.states), vectors.float().cpu())
                like = {"popularity_spearman": popularity_likeness(spectrum, counts).spearman}
                rows += self.rows_of(rank_figures(spectrum.sigma) | like, index=1, label="scores")
        return rows
