"""ServedModel: one version of the service, opened: its live items, how they are searched, and its ranker.

Everything that changes while it serves (items added, retired, expired) is one snapshot (`State`)
that is replaced whole; whoever answers reads it once. Requests are read on the event loop and
answered on the model thread.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int

from fullrank.core.errors import UserError, in_context
from fullrank.core.jagged import Jagged
from fullrank.data.histories import Histories, UserKeys, user_keys
from fullrank.inference.exact import top_k
from fullrank.inference.features import OtherReads, Reads
from fullrank.inference.filters import Filters
from fullrank.inference.list_options import ListChoices, ListOptions, changed
from fullrank.inference.predictor import Predictor
from fullrank.inference.requests import even_times
from fullrank.models import AS_TRAINED, Budget, check_budget
from fullrank.run import Run
from fullrank.serving.catalogue import Documents, LiveItems
from fullrank.serving.explain import explain_lists
from fullrank.serving.messages import JsonObject, PastEvent, RecommendRequest
from fullrank.serving.ranking import ServedRanker
from fullrank.serving.requests import (
    NO_FEATURES,
    Answer,
    ItemNumbers,
    Names,
    Query,
    ServedFeatures,
    check_most,
    jagged,
)
from fullrank.serving.rows import Row
from fullrank.serving.searching import Finder
from fullrank.serving.settings import ServeSettings

Past = Sequence[tuple[int | str, float | None, Row | None]]
"""A history: (external item, seconds since 1970 and features where they are known) of each event, oldest first."""
MOST_EXPLAINED = 100
"""Longest list that is explained: reasons of one of a thousand items take a fifth of a second of the model thread."""


@dataclass(frozen=True)
class State:
    """The snapshot that one answer reads."""

    predictor: Predictor
    items: LiveItems
    finder: Finder
    """The search for `items`, without those that nobody is shown."""
    ranker: ServedRanker | None = None
    documents: Documents = field(default_factory=dict)
    """The documents of items that this was made of."""


class ServedModel:
    """A version: `read` on the event loop, `answer` and `similar` on the model thread."""

    def __init__(self, run: Run, state: State, settings: ServeSettings):
        self.run, self.name, self.state, self.settings = run, run.path.name, state, settings
        model = state.predictor.model
        self.reads_times, self.allows_empty = model.reads_times, model.allows_empty
        self._trained_steps = 0 if model.reasoner is None else model.reasoner.steps
        ranker, most = state.ranker, settings.history_most
        of_ranker, read = ((), 0) if ranker is None else (tuple(ranker.past), ranker.events_read(most))
        reads = Reads.of(model, run.catalog.features, OtherReads(of_ranker))
        self._of_ranker_alone = {*of_ranker} - {*state.predictor.reads.names.get("event", ())}
        self.features = ServedFeatures(reads, max(model.max_length, read), most)

    @classmethod
    def open(cls, folder: str | Path, settings: ServeSettings, documents: Documents) -> ServedModel:
        """The run in `folder` with the items that were added since, warm: it has answered once.

        Raises `UserError` for a ranking model, a damaged folder, and an index below its floor of
        recall.
        """
        run = Run.open(folder)
        budget, decoding = run.spec.lists.reasoning, run.spec.lists.decoding  # refuses a ranking model
        first = Predictor(
            run.model(), run.catalog, device=settings.device, budget=budget, decoding=decoding, name=run.path.name
        )
        predictor, items = LiveItems.of(run, first, documents, time.time())
        items.warm()
        finder = Finder.open(run, first, settings)
        if predictor is not first:  # an index is of the run's own items; those that were added are searched beside it
            finder = finder.with_items(predictor)
        ranker = None if settings.ranker is None else ServedRanker.open(settings, items.catalog)
        state = State(predictor, items, finder.barring(items.barred), ranker, documents)
        served = cls(run, state, settings)
        item = time_of_item = np.zeros(1, np.int64)
        served.answer([Query(item, ListOptions(k=1), time_of_item if served.reads_times else None)])
        return served

    @property
    def predictor(self) -> Predictor:
        return self.state.predictor

    @property
    def items(self) -> LiveItems:
        return self.state.items

    @property
    def budget(self) -> Budget:
        return self.predictor.budget

    @property
    def ranked(self) -> bool:
        """Whether a ranker orders the candidates."""
        return self.state.ranker is not None

    @property
    def ranker_fields(self) -> Sequence[str]:
        """The columns of items that the ranker reads."""
        return () if self.state.ranker is None else sorted(self.state.ranker.of_items)

    @property
    def recall(self) -> float | None:
        """Recall@10 of the index against exact lists; None where every item is scored."""
        return self.state.finder.recall

    def changed(self, documents: Documents, strict: Collection[str] = ()) -> State:
        """The state with other documents. Takes as long as new vectors take, so it is made beside the model thread.

        Raises `UserError` for a document with a key in `strict` that this version cannot take in.
        """
        old = self.state
        with in_context("", public=True):  # its sentences are about documents of items, and nothing else
            predictor, items = old.items.with_documents(old.predictor, documents, time.time(), strict=strict)
            ranker = old.ranker
            if ranker is not None and items.catalog is not old.items.catalog:
                ranker = ranker.with_items(items.catalog, items.changed_since(old.items))
        finder = old.finder if predictor is old.predictor else old.finder.with_items(predictor)
        return State(predictor, items, finder.barring(items.barred), ranker, documents)

    def put(self, state: State) -> None:
        """Answer from another state from now on; on the model thread, once there are requests."""
        self.state = state

    def _now(self) -> State:
        """The state, without what has expired; on the model thread."""
        state = self.state
        live = state.items.at(time.time())
        if live is not state.items:
            self.state = state = replace(state, items=live, finder=state.finder.barring(live.barred))
        return state

    @property
    def documents(self) -> Documents:
        """The documents of items that the state was made of."""
        return self.state.documents

    def knows(self, item: int | str) -> bool:
        """Whether an external id is in the catalogue."""
        return self.items.numbers.get(item) >= 0

    def number(self, item: int | str) -> int:
        """The number of an external id. Raises `UserError` for an unknown one."""
        if not self.knows(item):
            raise UserError(f"there is no item {item!r}", code="unknown-item", public=True)
        return self.items.numbers.get(item)

    def read(
        self,
        request: RecommendRequest,
        history: Past,
        user: Row | None = None,
        others: Names = MappingProxyType({}),
    ) -> Query:
        """A request as arrays; `user` are the stored features of its user.

        Raises `UserError` for what this version or service cannot do, and `RowMistakes` for
        features that neither it nor its ranker reads, but for those of `others`.
        """
        items, most = self.items.at(time.time()), self.settings.history_most
        check_most("k", request.k, self.settings.k_most)
        if request.explain:
            check_most("k of a list that is explained", request.k, MOST_EXPLAINED)
        known, times, positions = self._timed(history, items.numbers)
        if request.filters:
            items.mask(request.filters)  # filters that cannot be read are refused now
        ranker, sent, context = self.state.ranker, request.features or {}, request.context or {}
        ranked = ranker is not None and request.ranker is not False
        of_ranker = {} if ranker is None else {name: sent[name] for name in sent if name in ranker.fields}
        if ranker is not None and ranked:
            ranker.check_names(context)
        elif context or request.ranker:
            what = "context" if context else "ranker"
            raise UserError(f"{what} is for a ranker, and none ranks here: leave it out", code="no-ranker", public=True)
        features = NO_FEATURES
        events = [event for *_, event in history]
        if self.features.reads.names or sent or (request.history and any(events)):
            others = {**others, "request": {*others.get("request", ()), *of_ranker}}
            features = self.features.read(events, user or {}, sent, stored=request.history is None, others=others)
        fields = {**(user or {}), **of_ranker, **context} if ranked else {}
        if unread := self._of_ranker_alone & fields.keys() if ranked else self._of_ranker_alone:
            features = replace(features, missing=tuple(name for name in features.missing if name not in unread))
        return Query(
            known[-most:],
            request,
            None if times is None else times[-most:],
            excluded=items.numbers.known(request.exclude or ()),
            allowed=None if request.allow is None else items.numbers.known(request.allow),
            budget=self._budget(request),
            explain=request.explain,
            untimed=self.reads_times and bool(history) and all(moment is None for _, moment, _ in history),
            ranked=ranked,
            user=None if request.user is None else str(request.user),
            fields=fields,
            features=features.at(positions[-min(self.features.most, most) :]),
            time=request.time,
        )

    def group(self, query: Query) -> Hashable:
        """The key that requests answered together have in common, so that no request's list depends on another's.

        A ranker orders as many candidates as it is given, and a search that is not exact looks
        further for a longer list: then the number of candidates is part of it.
        """
        depth = 0 if self.state.finder.exact and not query.ranked else self._depth(query)
        return id(self), query.budget, query.ranked, depth

    def _depth(self, query: Query) -> int:
        """Places that are filled for a request before its list is cut."""
        return max(query.k, self.settings.candidates) if query.ranked else query.k

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """The lists of requests of one `group`."""
        state, ranked = self._now(), queries[0].ranked
        live = state.items
        k = min(max(self._depth(query) for query in queries), live.size)
        hidden = [_hidden(query) for query in queries]
        masks = [_refused(query, live) for query in queries]
        known = [row for row, query in enumerate(queries) if len(query.items) or self.allows_empty]
        answers: dict[int, Answer] = {}
        if known:
            readable = [queries[row] for row in known]
            features, last = self.features.batch(readable), self.features.last
            times = [query.times[last] for query in readable if query.times is not None]
            items = [query.items[last] for query in readable]
            scores, ids, steps = state.finder(
                items,
                times if len(times) == len(readable) else None,
                k,
                [hidden[row] for row in known],
                [masks[row] for row in known],
                readable[0].budget,
                features,
            )
            if ranked:
                assert state.ranker is not None
                past = Histories(jagged(items), features=features)
                ids, scores = state.ranker.order(readable, ids, scores, self.settings.blend, past)
            taken = [None] * len(readable) if steps is None else steps.tolist()
            answers = {
                row: Answer(*_cut(best, values, queries[row].options), steps=count, ranked=ranked)
                for row, count, best, values in zip(known, taken, ids, scores, strict=True)
            }
        lists = [
            answers[row] if row in answers else self._popular(state, query, hidden[row], masks[row], k)
            for row, query in enumerate(queries)
        ]
        self._explain(state, queries, lists)
        return lists

    def similar(self, queries: Sequence[tuple[int, int]]) -> list[Answer]:
        """For each (item, k) the k items most like it, without itself and without retired ones."""
        state = self._now()
        predictor, live = state.predictor, state.items
        filters = Filters(barred=live.barred if live.any_barred else None)
        seeds = Jagged.from_lists([[item] for item, _ in queries])
        with torch.inference_mode():
            scorer = predictor.model.similar(torch.from_numpy(seeds.values).to(predictor.device), predictor.index)
            k = min(max(k for _, k in queries), live.size)
            scores, ids = top_k(scorer, k, filters=filters.of_batch(seeds, predictor.device))
        rows = zip(ids.cpu().numpy(), scores.cpu().numpy(), queries, strict=True)
        return [Answer(*_cut(best, values, ListOptions(k=k))) for best, values, (_, k) in rows]

    def title(self, item: int | str) -> str | None:
        """The title of an external id; None where it has none, or is not known."""
        items = self.items  # read once: another thread may put another state in its place
        number = items.numbers.get(item)
        return items.titles[number] if items.titles is not None and number >= 0 else None

    def named(self, number: int) -> JsonObject:
        """An item with its title and its band of popularity."""
        items = self.state.items
        title = None if items.titles is None else items.titles[number]
        return {"item": items.ids[number], "title": title, "popularity": items.bands[number]}

    def described(self, number: int) -> JsonObject:
        """One item as `named`, with its columns and whether it is shown."""
        items = self.state.items.at(time.time())
        row = items.catalog.frame.row(number, named=True)
        columns = {name: row[name] for name in items.columns}
        return {**self.named(number), "shown": not bool(items.barred[number]), "columns": columns}

    def _popular(self, state: State, query: Query, hidden: np.ndarray, mask: np.ndarray | None, k: int) -> Answer:
        """The most popular items, for a history without known items."""
        live = state.items
        refused = live.barred.copy() if mask is None else mask | live.barred
        refused[hidden] = True
        ids = live.popular(k, refused)
        scores = live.catalog.popularity[ids].astype(np.float32)
        if query.ranked:
            assert state.ranker is not None
            past = Histories(jagged([query.items]))
            (ids,), (scores,) = state.ranker.order([query], ids[None], scores[None], self.settings.blend, past)
        return Answer(*_cut(ids, scores, query.options), source="popular", ranked=query.ranked)

    def _budget(self, request: RecommendRequest) -> Budget:
        if request.reasoning is None:
            return self.predictor.budget
        changes = request.reasoning.model_dump(exclude_none=True)
        with in_context("", public=True):
            budget = changed("budget", self.predictor.budget, changes) if changes else self.predictor.budget
        if budget != AS_TRAINED:
            check_budget(self.predictor.model, budget)
            check_most("reasoning steps", budget.steps or 0, max(self.settings.steps_most, self._trained_steps))
        return budget

    def _timed(
        self, history: Past, numbers: ItemNumbers
    ) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"] | None, Sequence[int]]:
        """The known items of a history, and what a model reads beside them.

        A model that reads times gets these too, and items in their order; where no event has a
        time, they are taken as of now, a day between events. A model that reads features gets the
        positions of the items in the history.
        """
        if not self.reads_times and not self.features.reads.names:
            return numbers.known([item for item, *_ in history]), None, ()
        known = [numbers.get(item) for item, *_ in history]
        positions = [position for position, number in enumerate(known) if number >= 0]
        if not self.reads_times:
            return np.array([known[position] for position in positions], np.int64), None, positions
        lacking = [item for item, moment, _ in history if moment is None]
        if 0 < len(lacking) < len(history):
            raise UserError(
                f"this model reads when events happened, and the event of {lacking[0]!r} has no time where others have "
                'one: give each event as {"item": id, "time": seconds}, or none of them a time',
                code="missing-times",
                public=True,
            )
        moments = even_times(np.array([len(history)])) if lacking else [moment or 0 for _, moment, _ in history]
        positions.sort(key=lambda position: int(moments[position]))
        items, times = (
            np.array([int(column[position]) for position in positions], np.int64) for column in (known, moments)
        )
        return items, times, positions

    def _explain(self, state: State, queries: Sequence[Query], answers: Sequence[Answer]) -> None:
        """Put the reasons into the answers of requests that ask for them."""
        rows = [row for row, query in enumerate(queries) if query.explain]
        if not rows:
            return
        histories = histories_of([queries[row] for row in rows], self.features)
        explanations = explain_lists(state.predictor, histories, [answers[row].ids for row in rows])
        for row, explanation in zip(rows, explanations, strict=True):
            answers[row].explanation = explanation


def request_history(request: RecommendRequest) -> Past | None:
    """The history that a request brings; None where it brings none."""
    if request.history is None:
        return None
    return [
        (event.item, event.time, event.features) if isinstance(event, PastEvent) else (event, None, None)
        for event in request.history
    ]


def histories_of(queries: Sequence[Query], features: ServedFeatures) -> Histories:
    """The histories of some requests, as far as a model that reads features reads them."""
    items = jagged([query.items[features.last] for query in queries])
    timed = [query.times[features.last] for query in queries if query.times is not None]
    keys = UserKeys(partial(user_keys, pl.Series([query.user for query in queries], dtype=pl.String)))
    times = np.concatenate(timed) if len(timed) == len(queries) else None
    return Histories(items, times, keys=keys, features=features.batch(queries))


def _hidden(query: Query) -> Int[np.ndarray, "p"]:
    """Items that one request is not shown: those of its history, and those that it excludes."""
    if query.options.seen == "keep":
        return query.excluded
    return np.concatenate([query.items, query.excluded]) if len(query.excluded) else query.items


def _refused(query: Query, live: LiveItems) -> Bool[np.ndarray, "V"] | None:
    """Mask of the items that the filters and `allow` of a request refuse.

    Requests with the same filters share one array.
    """
    filters: Any = query.options.filters  # of one request
    mask = live.mask(filters) if filters else None
    if query.allowed is None:
        return mask
    only = np.ones(live.size, bool)
    only[query.allowed] = False
    return only if mask is None else only | mask


def _cut(
    ids: Int[np.ndarray, "m"], scores: Float[np.ndarray, "m"], options: ListChoices
) -> tuple[list[int], list[float]]:
    """The ids and scores of the first k places, where they are shown."""
    count = int(options.shown(ids, scores)[: options.k].sum())
    return ids[:count].tolist(), scores[:count].tolist()
