"""How a version finds its items: exactly, by an index of item vectors, or by a search among semantic ids.

Exact lists of plain models on the CPU go the quick way (`serving/fast.py`), and an index takes its
states; all others (reasoners, items made of codes, models on a GPU) go through `inference.rank`. A
blend asks each of its members, those that go the quick way in a second thread: compiled calls
hold no lock of Python, so a second core works on them while the others are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from fullrank.core.errors import UserError
from fullrank.data.features import HistoryFeatures
from fullrank.data.histories import Histories
from fullrank.inference.batches import BLOCK, score_batches
from fullrank.inference.filters import Filters
from fullrank.inference.predictor import Predictor
from fullrank.inference.recommend import rank
from fullrank.inference.search import Search, search_of
from fullrank.models import Budget, DenseScorer
from fullrank.models.sequential.baselines.blend import BlendModel, Member, MemberLists
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.model import RecommenderModel
from fullrank.run import Run
from fullrank.serving.card import sample_histories
from fullrank.serving.fast import FastEncoder
from fullrank.serving.requests import Rows, jagged
from fullrank.serving.settings import ServeSettings
from fullrank.serving.vector_index import IndexSettings, VectorIndex, is_index

if TYPE_CHECKING:
    from fullrank.serving.export.session import ExportedModel

Masks = Sequence[Bool[np.ndarray, "V"] | None]
Lists = tuple[Float[np.ndarray, "B k"], Int[np.ndarray, "B k"], Int[np.ndarray, "B"] | None]
"""Scores and item numbers, best first, with -inf and -1 in empty places; and the steps that a reasoner took."""
MEASURED = 1024
"""Histories on which the recall of an index is measured."""


@dataclass(frozen=True)
class Finder:
    """Lists of histories from one model; what goes with a model's items is replaced when they change (`with_items`)."""

    predictor: Predictor
    fast: FastEncoder | None = None
    index: VectorIndex | None = None
    decode: Search | None = None
    """The search of a model that generates semantic ids."""
    barred: Bool[np.ndarray, "V"] | None = None
    """Items that nobody is shown."""
    members: tuple[Finder, ...] = ()
    """The search of each member of a blend."""
    beside: Executor | None = None
    """The thread of a blend for the members that go the quick way."""
    graph: ExportedModel | None = None
    """An export of the model, which answers what its graph can: requests without filters, for the run's own items."""

    @classmethod
    def open(cls, run: Run, predictor: Predictor, settings: ServeSettings) -> Finder:
        """The search that the settings ask for.

        Raises `UserError` where an index is asked for and the model has no item vectors, and where
        its recall is below the floor.
        """
        by_vectors, model = _has_vectors(predictor), predictor.model
        if settings.search == "index" and not by_vectors:
            raise UserError(
                f"{predictor.name} cannot be searched by an index: that is for models on the CPU that score items by "
                "inner products and do not reason; leave --search out",
                code="index-needs-vectors",
            )
        if predictor.decoding.kind != "exact":
            return cls(predictor, decode=search_of(predictor.model, predictor.decoding, BLOCK))
        if isinstance(model, BlendModel):
            alone = settings.model_copy(update={"search": "exact", "exported": None})
            members = tuple(cls.open(run, _member_predictor(predictor, member), alone) for member in model.members)
            return cls(predictor, members=members, beside=ThreadPoolExecutor(1, "blend"))
        finder = cls(predictor, FastEncoder.of(model), graph=_graph(run, settings))
        large = settings.search == "auto" and predictor.catalog.size >= settings.index_from
        if by_vectors and (large or settings.search == "index"):
            return replace(finder, index=_index(run, finder, settings))
        return finder

    def with_items(self, predictor: Predictor) -> Finder:
        """The search over the items of another predictor of the model, which has more of them."""
        fast, model = self.fast, predictor.model
        if fast is not None:
            with torch.inference_mode():
                fast = fast.with_items(model.items.all().detach(), task=model.task)
        decode = None if self.decode is None else search_of(predictor.model, predictor.decoding, BLOCK)
        return replace(self, predictor=predictor, fast=fast, decode=decode)

    def barring(self, barred: Bool[np.ndarray, "V"]) -> Finder:
        """The search with other items that nobody is shown; on the quick way they cost a request nothing."""
        fast = None if self.fast is None else self.fast.with_items(barred=barred)
        members = tuple(member.barring(barred) for member in self.members)
        return replace(self, fast=fast, barred=barred if barred.any() else None, members=members)

    @property
    def exact(self) -> bool:
        """Whether a list is the beginning of every longer one."""
        return self.index is None and self.predictor.decoding.kind == "exact"

    @property
    def recall(self) -> float | None:
        """Recall@10 of the index against exact lists; None without one."""
        return None if self.index is None else self.index.facts.recall

    def described(self) -> dict[str, Any]:
        """Facts of the search, as plain data for the card."""
        if self.index is not None:
            return {"name": "index", **asdict(self.index.facts)}
        if self.members:
            return {"name": "blend", "members": {member.predictor.name: member.described() for member in self.members}}
        kind = self.predictor.decoding.kind
        return {"name": kind, "quick": self.fast is not None, "exported": self.graph is not None}

    def __call__(
        self,
        items: Rows,
        times: Rows | None,
        k: int,
        hidden: Rows,
        masks: Masks,
        budget: Budget,
        features: HistoryFeatures | None = None,
    ) -> Lists:
        """The k best items of each history.

        `hidden` are the items that each is not shown, `masks` those that its filters refuse.
        """
        if self.graph is not None and self.barred is None and not any(mask is not None for mask in masks):
            if (lists := self._by_graph(self.graph, items, times, k, hidden)) is not None:
                return lists
        if self.fast is not None and self.index is None:
            scores, ids = self.fast.lists_of(items, k, times=times, hidden=hidden, refused=masks, features=features)
            return scores, ids, None
        predictor = self.predictor
        if self.members:
            parts = self._lists_of_members(items, times, hidden, masks, features)
            return *predictor.model.joined(parts, predictor.model.weights_of(jagged(items)), k), None
        filters, histories = _filters(hidden, masks, self.barred), _histories(items, times, features)
        if self.index is not None:
            table = predictor.index.all()  # type: ignore[union-attr]  # models with item vectors have an index
            scorer = DenseScorer(self._vectors(histories), table, predictor.model.temperature)
            with torch.inference_mode():
                values, best = self.index(scorer, k, filters.of_batch(None))
            return values.numpy(), best.numpy(), None
        search = self.decode or predictor.decoding
        ranked = rank(
            predictor.model,
            histories,
            k=k,
            seen="keep",
            filters=filters,
            budget=budget,
            search=search,
            index=predictor.index,
        )
        return ranked.scores, ranked.ids, ranked.steps

    def _lists_of_members(
        self, items: Rows, times: Rows | None, hidden: Rows, masks: Masks, features: HistoryFeatures | None
    ) -> list[MemberLists]:
        """The lists that a blend joins, in the order of its members."""
        assert self.beside is not None
        length = min(self.predictor.model.spec.depth, self.predictor.catalog.size)

        def lists(member: Finder) -> MemberLists:
            scores, ids, _ = member(items, times, length, hidden, masks, member.predictor.budget, features)
            return MemberLists(ids, scores)

        quick = {at: self.beside.submit(lists, member) for at, member in enumerate(self.members) if member.fast}
        counted = {at: lists(member) for at, member in enumerate(self.members) if not member.fast}
        return [quick[at].result() if at in quick else counted[at] for at in range(len(self.members))]

    def _by_graph(self, graph: ExportedModel, items: Rows, times: Rows | None, k: int, hidden: Rows) -> Lists | None:
        """The lists of the graph; None where it cannot answer.

        It knows no features, no longer lists, no added items, and no seen items that may be shown.
        """
        if self.predictor.reads.names or k > graph.k or self.predictor.catalog.size != graph.num_items:
            return None
        recent = [row[-graph.max_length :] for row in items]
        if graph.seen == "exclude" and any(
            not np.isin(row, hides).all() for row, hides in zip(recent, hidden, strict=True)
        ):
            return None
        rows, moments = jagged(recent), None
        if graph.reads_times:
            assert times is not None
            moments = jagged([row[-graph.max_length :] for row in times]).padded(graph.length)
        excluded = jagged(hidden).padded(fill=-1)
        scores, ids = graph.answer(rows.padded(graph.length), rows.lengths, moments, excluded)
        return scores[:, :k], ids[:, :k], None

    def _vectors(self, histories: Histories, *, quick: bool = True) -> torch.Tensor:
        """[B, D] query vectors of histories; `quick` where these are few and
        lie behind each other from 0."""
        model = self.predictor.model
        if self.fast is not None and quick:
            timed = None if histories.seconds is None or not model.reads_times else list(histories.seconds)
            states = self.fast.states_of(list(histories.items), timed, histories.features)
            return unit(states) if model.cosine else states
        parts, order = list[torch.Tensor](), list[np.ndarray]()
        for rows, scorer in score_batches(model, histories, index=self.predictor.index):
            assert isinstance(scorer, DenseScorer)  # as all scorers of models that an index is for
            parts.append(scorer.vectors)
            order.append(rows)
        vectors = torch.zeros(len(histories), parts[0].shape[1])
        vectors[torch.from_numpy(np.concatenate(order))] = torch.cat(parts)
        return vectors


def _member_predictor(blend: Predictor, member: Member) -> Predictor:
    """A member of a blend by itself, over the blend's catalogue."""
    budget, decoding = member.how["budget"], member.how["search"]
    return Predictor(
        member.model, blend.catalog, device=str(blend.device), name=member.name, budget=budget, decoding=decoding
    )


def _graph(run: Run, settings: ServeSettings) -> ExportedModel | None:
    """The export that the settings name. Versions that come later have other weights, and answer by themselves.

    Raises `UserError` where it is not an export of the run that the service is started with.
    """
    if settings.exported is None or run.path.resolve() != Path(settings.run).resolve():
        return None
    from fullrank.serving.export.session import ExportedModel

    opened = ExportedModel.open(settings.exported, settings.threads)
    opened.exported.require_run(run)
    return opened


def _index(run: Run, finder: Finder, settings: ServeSettings) -> VectorIndex:
    """The index of a run's item vectors: from its folder where it is there and fits,
    else built (and kept there)."""
    vectors = finder.predictor.item_vectors()
    folder = None if settings.index_folder is None else Path(settings.index_folder) / run.path.resolve().name
    index = None
    if folder is not None and is_index(folder):
        try:
            index = VectorIndex.open(folder, vectors)
        except UserError as error:
            if error.code != "index-of-other-vectors":
                raise
    if index is None:
        wanted = IndexSettings(recall=max(settings.recall, IndexSettings().recall))
        index = VectorIndex.build(vectors, _users(run, finder), wanted)
        if folder is not None:
            folder.parent.mkdir(parents=True, exist_ok=True)
            index.save(folder)
    index.require(settings.recall)
    return index


def _users(run: Run, finder: Finder) -> Float[np.ndarray, "U D"]:
    """Vectors of users: of test histories of the run's store, or of histories of one
    item where it is not there."""
    histories = sample_histories(run, MEASURED)
    if histories is None:
        draw = np.random.default_rng(0)
        items = [draw.integers(0, finder.predictor.catalog.size, 1) for _ in range(MEASURED)]
        histories = _histories(items, [np.zeros(1, np.int64)] * MEASURED, None)
    with torch.inference_mode():
        return finder._vectors(histories, quick=finder.predictor.model.reads_features is None).numpy()


def _has_vectors(predictor: Predictor) -> bool:
    """Whether a model scores by inner products with vectors that can be
    indexed, and does not reason."""
    model = predictor.model
    by_vectors = isinstance(model, RecommenderModel) and not model.task.generates and predictor.decoding.kind == "exact"
    return by_vectors and str(predictor.device) == "cpu" and model.reasoner is None


def _histories(items: Rows, times: Rows | None, features: HistoryFeatures | None) -> Histories:
    return Histories(jagged(items), None if times is None else np.concatenate(times), features=features)


def _filters(hidden: Rows, masks: Masks, barred: Bool[np.ndarray, "V"] | None) -> Filters:
    """The filters of a batch: rows that share a mask are one group."""
    groups: dict[int, tuple[list[int], np.ndarray]] = {}
    for row, mask in enumerate(masks):
        if mask is not None:
            groups.setdefault(id(mask), ([], mask))[0].append(row)
    masked = tuple((np.array(rows, np.int64), mask) for rows, mask in groups.values())
    return Filters(jagged(hidden), barred, None, masked)
