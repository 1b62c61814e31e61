"""ServedModel: one version of the service, opened: its live items, how they are searched, and its ranker.

What changes while it serves (items added, retired, expired) is one snapshot (`State`) that is replaced whole; whoever
answers reads it once. Requests are read on the event loop and answered on the model thread.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Mapping, Sequence
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
from fullrank.models.sequential.reasoning import AS_TRAINED, Budget, check_budget
from fullrank.run import Run
from fullrank.serving.catalogue import Documents, LiveItems
from fullrank.serving.explain import explain_lists
from fullrank.serving.features import Names, ServedFeatures
from fullrank.serving.messages import PastEvent, RecommendRequest
from fullrank.serving.ranking import ServedRanker
from fullrank.serving.requests import NOT_TOLD, Answer, Ask, ItemNumbers, check_most, jagged
from fullrank.serving.searching import Finder
from fullrank.serving.settings import ServeSettings

Past = Sequence[tuple[int | str, float | None, Mapping[str, Any] | None]]
"""A history: (external item, seconds since 1970 and features where they are known) of each event, oldest first."""
MOST_EXPLAINED = 100
"""Longest list that is explained: reasons of one of a thousand items take a fifth of a second of the model thread."""


@dataclass(frozen=True)
class State:
    """What one answer reads."""

    predictor: Predictor
    items: LiveItems
    finder: Finder
    """The search for them, without those that nobody is shown."""
    ranker: ServedRanker | None = None
    documents: Documents = field(default_factory=dict)
    """What was said of items, that this was made of."""


class ServedModel:
    """A version: `read` on the event loop, `answer` and `similar` on the model thread."""

    def __init__(self, run: Run, state: State, settings: ServeSettings):
        self.run, self.name, self.state, self.settings = run, run.path.name, state, settings
        model = state.predictor.model
        self.reads_times, self.allows_empty = model.reads_times, model.allows_empty
        self._own_steps = 0 if model.reasoner is None else model.reasoner.steps
        ranker, most = state.ranker, settings.history_most
        of_ranker, read = ((), 0) if ranker is None else (tuple(ranker.past), ranker.events_read(most))
        reads = Reads.of(model, run.catalog.features, OtherReads(of_ranker))
        self._of_ranker_alone = {*of_ranker} - {*state.predictor.reads.names.get("event", ())}
        self.features = ServedFeatures(reads, max(model.max_length, read), most)

    @classmethod
    def open(cls, folder: str | Path, settings: ServeSettings, documents: Documents) -> ServedModel:
        """The run in `folder` with the items that were added since, warm: it has answered once.

        Raises `UserError` for a ranking model, a damaged folder, and an index below its floor of recall.
        """
        run = Run.open(folder)
        how = run.spec.lists  # refuses a ranking model
        first = Predictor(
            run.model(), run.catalog, device=settings.device, budget=how.reasoning, decoding=how.decoding,
            name=run.path.name,
        )  # fmt: skip
        predictor, items = LiveItems.of(run, first, documents, time.time())
        items.warm()
        finder = Finder.open(run, first, settings)
        if predictor is not first:  # an index is of the run's own items; those that were added are searched beside it
            finder = finder.with_items(predictor)
        ranker = None if settings.ranker is None else ServedRanker.open(settings, items.catalog)
        state = State(predictor, items, finder.barring(items.barred), ranker, documents)
        made = cls(run, state, settings)
        made.answer(
            [Ask(np.zeros(1, np.int64), ListOptions(k=1), times=np.zeros(1, np.int64) if made.reads_times else None)]
        )
        return made

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
        """Whether a ranker orders what is found."""
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
        with in_context("", public=True):  # of what was said of items, and of nothing else
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
        """What was said of items, that the state was made of."""
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
        asked: RecommendRequest,
        history: Past,
        user: Mapping[str, Any] | None = None,
        others: Names = MappingProxyType({}),
    ) -> Ask:
        """A request as arrays; `user` are the stored features of its user.

        Raises `UserError` for what this version or service cannot do, and `RowMistakes` for features that neither it
        nor its ranker reads, but for those of `others`.
        """
        settings, items = self.settings, self.items.at(time.time())
        check_most("k", asked.k, settings.k_most)
        if asked.explain:
            check_most("k of a list that is explained", asked.k, MOST_EXPLAINED)
        known, times, places = self._timed(history, items.numbers)
        if asked.filters:
            items.mask(asked.filters)  # what cannot be asked is told now
        ranked, ranker, given = self.ranked and asked.ranker is not False, self.state.ranker, asked.features or {}
        of_ranker = {} if ranker is None else {name: given[name] for name in given if name in ranker.fields}
        if asked.context and ranked and ranker is not None:
            ranker.check_names(asked.context)
        elif not ranked and (asked.context or asked.ranker):
            what = "context" if asked.context else "ranker"
            raise UserError(f"{what} is for a ranker, and none ranks here: leave it out", code="no-ranker", public=True)
        told = NOT_TOLD
        events = [features for *_, features in history]
        if self.features.reads.names or given or (asked.history and any(events)):
            known_here = {**others, "asked": {*others.get("asked", ()), *of_ranker}}
            told = self.features.told(events, user or {}, given, stored=asked.history is None, others=known_here)
        fields = {**(user or {}), **of_ranker, **(asked.context or {})} if ranked else {}
        unread = self._of_ranker_alone & fields.keys() if ranked else self._of_ranker_alone
        told = replace(told, lacking=tuple(name for name in told.lacking if name not in unread)) if unread else told
        return Ask(
            known[-settings.history_most :],
            asked,
            times=None if times is None else times[-settings.history_most :],
            excluded=items.numbers.known(asked.exclude or ()),
            allowed=None if asked.allow is None else items.numbers.known(asked.allow),
            budget=self._budget(asked),
            explain=asked.explain,
            untimed=self.reads_times and bool(history) and all(moment is None for _, moment, _ in history),
            ranked=ranked,
            user=None if asked.user is None else str(asked.user),
            fields=fields,
            told=told.beside(places[-min(self.features.most, settings.history_most) :]),
            time=asked.time,
        )

    def group(self, ask: Ask) -> Hashable:
        """What requests that are answered together have in common, so that no request's list depends on another's.

        A ranker orders as many candidates as it is given, and a search that is not exact looks further for a longer
        list: then the number of candidates is part of it.
        """
        depth = 0 if self.state.finder.exact and not ask.ranked else self._depth(ask)
        return id(self), ask.budget, ask.ranked, depth

    def _depth(self, ask: Ask) -> int:
        """Places that are filled for a request before its list is cut."""
        return max(ask.k, self.settings.candidates) if ask.ranked else ask.k

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """The lists of requests of one `group`."""
        state, ranked = self._now(), asks[0].ranked
        live = state.items
        k = min(max(self._depth(ask) for ask in asks), live.size)
        hidden = [_hidden(ask) for ask in asks]
        masks = [_refused(ask, live) for ask in asks]
        known = [row for row, ask in enumerate(asks) if len(ask.items) or self.allows_empty]
        answers: dict[int, Answer] = {}
        if known:
            some = [asks[row] for row in known]
            beside, last = self.features.of(some), self.features.last
            timed = [ask.times[last] for ask in some if ask.times is not None]
            read = [ask.items[last] for ask in some]
            scores, ids, steps = state.finder(
                read, timed if len(timed) == len(some) else None, k, [hidden[row] for row in known],
                [masks[row] for row in known], some[0].budget, beside,
            )  # fmt: skip
            if ranked:
                assert state.ranker is not None
                past = Histories(jagged(read), features=beside)
                ids, scores = state.ranker.order(some, ids, scores, self.settings.blend, past)
            taken = [None] * len(some) if steps is None else steps.tolist()
            answers = {
                row: Answer(*_cut(best, values, asks[row].options), steps=own, ranked=ranked)
                for row, own, best, values in zip(known, taken, ids, scores, strict=True)
            }
        lists = [
            answers[row] if row in answers else self._popular(state, ask, hidden[row], masks[row], k)
            for row, ask in enumerate(asks)
        ]
        self._explain(state, asks, lists)
        return lists

    def similar(self, asks: Sequence[tuple[int, int]]) -> list[Answer]:
        """Of each (item, k) the items most like it, without itself and without what is retired."""
        state = self._now()
        predictor, live = state.predictor, state.items
        filters = Filters(barred=live.barred if live.any_barred else None)
        own = Jagged.from_lists([[item] for item, _ in asks])
        with torch.inference_mode():
            scorer = predictor.model.similar(torch.from_numpy(own.values).to(predictor.device), predictor.index)
            k = min(max(k for _, k in asks), live.size)
            scores, ids = top_k(scorer, k, filters=filters.of_batch(own, predictor.device))
        rows = zip(ids.cpu().numpy(), scores.cpu().numpy(), asks, strict=True)
        return [Answer(*_cut(best, values, ListOptions(k=k))) for best, values, (_, k) in rows]

    def title(self, item: int | str) -> str | None:
        """The title of an external id; None where it has none, or is not known."""
        items = self.items  # read once: another thread may put another state in its place
        number = items.numbers.get(item)
        return items.titles[number] if items.titles is not None and number >= 0 else None

    def named(self, number: int) -> dict[str, Any]:
        """An item with its title and its band of popularity."""
        items = self.state.items
        title = None if items.titles is None else items.titles[number]
        return {"item": items.ids[number], "title": title, "popularity": items.bands[number]}

    def described(self, number: int) -> dict[str, Any]:
        """What is known of one item: `named`, whether it is shown, and its columns."""
        items = self.state.items.at(time.time())
        row = items.catalog.frame.row(number, named=True)
        shown, columns = not bool(items.barred[number]), {name: row[name] for name in items.columns}
        return {**self.named(number), "shown": shown, "columns": columns}

    def _popular(self, state: State, ask: Ask, hidden: np.ndarray, mask: np.ndarray | None, k: int) -> Answer:
        """The most popular items: what a history without known items gets."""
        live = state.items
        refused = live.barred.copy() if mask is None else mask | live.barred
        refused[hidden] = True
        ids = live.popular(k, refused)
        scores = live.catalog.popularity[ids].astype(np.float32)
        if ask.ranked:
            assert state.ranker is not None
            past = Histories(jagged([ask.items]))
            (ids,), (scores,) = state.ranker.order([ask], ids[None], scores[None], self.settings.blend, past)
        return Answer(*_cut(ids, scores, ask.options), source="popular", ranked=ask.ranked)

    def _budget(self, asked: RecommendRequest) -> Budget:
        if asked.reasoning is None:
            return self.predictor.budget
        given = asked.reasoning.model_dump(exclude_none=True)
        with in_context("", public=True):
            budget = changed("budget", self.predictor.budget, given) if given else self.predictor.budget
        if budget != AS_TRAINED:
            check_budget(self.predictor.model, budget)
            check_most("reasoning steps", budget.steps or 0, max(self.settings.steps_most, self._own_steps))
        return budget

    def _timed(
        self, history: Past, numbers: ItemNumbers
    ) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"] | None, Sequence[int]]:
        """Known items and, for a model that reads them, their times, in order of time; where no event has one, as of
        now, a day between events. And their places, for a model that reads more."""
        if not self.reads_times and not self.features.reads.names:
            return numbers.known([item for item, *_ in history]), None, ()
        found = [numbers.get(item) for item, *_ in history]
        places = [place for place, number in enumerate(found) if number >= 0]
        if not self.reads_times:
            return np.array([found[place] for place in places], np.int64), None, places
        lacking = [item for item, moment, _ in history if moment is None]
        if 0 < len(lacking) < len(history):
            raise UserError(
                f"this model reads when events happened, and the event of {lacking[0]!r} has no time where others have "
                'one: give each event as {"item": id, "time": seconds}, or none of them a time',
                code="missing-times",
                public=True,
            )
        moments = even_times(np.array([len(history)])) if lacking else [moment or 0 for _, moment, _ in history]
        places.sort(key=lambda place: int(moments[place]))
        items, times = (np.array([int(one[place]) for place in places], np.int64) for one in (found, moments))
        return items, times, places

    def _explain(self, state: State, asks: Sequence[Ask], answers: Sequence[Answer]) -> None:
        """Put the reasons into the answers of requests that ask for them."""
        some = [row for row, ask in enumerate(asks) if ask.explain]
        if not some:
            return
        histories = histories_of([asks[row] for row in some], self.features)
        told = explain_lists(state.predictor, histories, [answers[row].ids for row in some])
        for row, explanation in zip(some, told, strict=True):
            answers[row].explanation = explanation


def given_history(asked: RecommendRequest) -> Past | None:
    """The history that a request brings; None where it brings none."""
    if asked.history is None:
        return None
    return [
        (one.item, one.time, one.features) if isinstance(one, PastEvent) else (one, None, None) for one in asked.history
    ]


def histories_of(asks: Sequence[Ask], features: ServedFeatures) -> Histories:
    """The histories of some requests, as far as a model that reads features reads them."""
    items = jagged([ask.items[features.last] for ask in asks])
    timed = [ask.times[features.last] for ask in asks if ask.times is not None]
    keys = UserKeys(partial(user_keys, pl.Series([ask.user for ask in asks], dtype=pl.String)))
    times = np.concatenate(timed) if len(timed) == len(asks) else None
    return Histories(items, times, keys=keys, features=features.of(asks))


def _hidden(ask: Ask) -> Int[np.ndarray, "p"]:
    """What one request is not shown: its own items, and those that it excludes."""
    if ask.options.seen == "keep":
        return ask.excluded
    return np.concatenate([ask.items, ask.excluded]) if len(ask.excluded) else ask.items


def _refused(ask: Ask, live: LiveItems) -> Bool[np.ndarray, "V"] | None:
    """What its filters and its `allow` refuse. Requests with the same filters share one array."""
    filters: Any = ask.options.filters  # of one request
    found = live.mask(filters) if filters else None
    if ask.allowed is None:
        return found
    only = np.ones(live.size, bool)
    only[ask.allowed] = False
    return only if found is None else only | found


def _cut(
    ids: Int[np.ndarray, "m"], scores: Float[np.ndarray, "m"], options: ListChoices
) -> tuple[list[int], list[float]]:
    """The first k places, where they are shown."""
    count = int(options.shown(ids, scores)[: options.k].sum())
    return ids[:count].tolist(), scores[:count].tolist()
