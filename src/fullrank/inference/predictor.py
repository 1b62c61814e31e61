"""Predictor: inference with a trained model that is opened once and shared by many threads.

It owns the model, its device, the ids that the model reads (the catalogue of a recommender,
the encoder of a ranking model) and what is searched (item vectors, a graph of items), made
once. Nothing of it changes with a call: seen policy, filters, budget and decoding are
arguments, so threads may share one. One file although it is long: every call that a trained
model takes stands in one place.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
import polars as pl
import torch
from jaxtyping import Float

from fullrank.core.checks import check_choice, check_one_way, keywords_checked, takes
from fullrank.core.device import resolve_device
from fullrank.core.errors import UserError, no_effect
from fullrank.core.log import Progress, untold
from fullrank.core.registry import Problem
from fullrank.data.column_names import EventColumns
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.values import take
from fullrank.inference.batches import BLOCK, score_batches, score_pairs
from fullrank.inference.exact import top_k
from fullrank.inference.features import FeatureInput, OtherReads, Reads, missing_note
from fullrank.inference.filters import Filters
from fullrank.inference.list_options import (
    RECOMMEND_DEFAULTS,
    SCORE_DEFAULTS,
    ColumnFilters,
    ItemLists,
    ListKeywords,
    ListOptions,
    RecommendKeywords,
    ScoreKeywords,
)
from fullrank.inference.predict import PredictionFile, predict, predict_file
from fullrank.inference.recommend import long_frame, rank_requests, sources
from fullrank.inference.requests import (
    HistoryInput,
    RequestBatch,
    read_candidates,
    read_filters,
    read_histories,
    require_known_items,
    require_some,
)
from fullrank.inference.search import Decoding, Search, search_of
from fullrank.inference.stored_users import UNKNOWN_USERS, Users, read_users, refuse_table_columns
from fullrank.metrics import RankedLists
from fullrank.models import AS_TRAINED, Budget, DenseScorer

K = TypeVar("K", Catalog, FieldEncoder)
UNSET = object()
MAX_SEARCHES = 4
"""Most searches kept between calls: a graph of items is as large as the catalogue."""


@keywords_checked
class Predictor:
    """A trained model and its catalogue or encoder, safe from many threads. `fullrank.load(run)` opens a run as one.

    A recommender (a `models.Model`) comes with its catalogue, a ranking model (`RankingModule`)
    with its fitted encoder. It is moved to `device` (`auto`: CUDA where there is one) and put in
    evaluation mode. `budget` and `decoding` are what a call has where it says nothing: of a run,
    those of its evaluation. `name` is for messages. `index` is what the model's `index_items` gave,
    where the caller has it already. `other` is what another model reads of the same requests. A
    method for the other problem raises `UserError`.
    """

    def __init__(
        self,
        model: Any,
        known: Catalog | FieldEncoder,
        *,
        device: str | torch.device = "auto",
        budget: Budget | None = None,
        decoding: Decoding | None = None,
        name: str = "this model",
        index: Any = None,
        other: OtherReads = OtherReads(),
    ):
        self.device, self.name, self.other = resolve_device(device), name, other
        # The problem follows from `known` and not from the model, which may be any `models.Model`.
        self.problem: Problem = "ranking" if isinstance(known, FieldEncoder) else "retrieval"
        self._vocabulary = known
        self.model: Any = model.to(self.device).eval() if isinstance(model, torch.nn.Module) else model
        self.budget, self.decoding = budget or AS_TRAINED, decoding or Decoding()
        self._lock = threading.Lock()
        self._searches: dict[str, Search] = {}
        self._index: Any = UNSET if index is None else index

    def __repr__(self) -> str:
        known = self._vocabulary
        what = f"{known.size:,} items" if isinstance(known, Catalog) else f"{len(known.fields)} fields"
        return f"Predictor({self.name!r}: {self.problem}, {what}, on {self.device})"

    @property
    def catalog(self) -> Catalog:
        """The items that a recommender ranks, in the order of its table."""
        return self._known(Catalog)

    @property
    def encoder(self) -> FieldEncoder:
        """The encoder of a ranking model's impressions: schema, vocabularies, scales."""
        return self._known(FieldEncoder)

    def _known(self, kind: type[K]) -> K:
        """The catalogue or the encoder; raises `UserError` for a model of the other problem."""
        if isinstance(self._vocabulary, kind):
            return self._vocabulary
        ranking = self.problem == "ranking"
        answers = (
            "gives the probability of a click and ranks no catalogue: use `predict`, or a recommender"
            if ranking
            else "recommends items; `predict` is of ranking models, use `recommend`"
        )
        raise UserError(f"{self.name} {answers}", code="not-a-recommender" if ranking else "not-a-ranking-model")

    @takes(RecommendKeywords, RECOMMEND_DEFAULTS)
    def recommend(
        self,
        histories: HistoryInput | None = None,
        *,
        users: Users | None = None,
        data: Store | str | Path | None = None,
        unknown_users: str = "error",
        **options: Unpack[RecommendKeywords],
    ) -> Any:
        """The k best items for each history, or for each of `users`, best first.

        Histories hold external ids: {user: items}, a list of item lists, or a DataFrame or the path
        of a file, whose columns of user, item and time are named by `user_col`, `item_col` and
        `time_col`, or all by `columns` (events are put in order of time where it has that column,
        else they are read in the order given; so they are with `time_col=None`).

        `users` are ids of users of the store `data`, each with all their events there.
        `unknown_users`, whom the store does not have, are an error, get the most popular items
        ("popular"), or are left out ("skip").

        `seen`: the history's own items are kept out of its list ("exclude") or ranked like any
        other ("keep"). `exclude` and `allow` are item ids, one list for all or one per history (a
        list of lists, or {user: items}): what is not to be shown, and all that may be. `filters`
        are on columns of the items, one mapping for all or a list with one for each history:
        {"in_stock": True, "genre": ["Comedy", "Drama"], "year": {"min": 2000}}. An item without a
        value passes no filter on that column. Columns are those that the run keeps of its items,
        and those of `item_table`, a path or a DataFrame with a row for each item. All of these hold
        before a list is cut, so that it stays full while enough items remain, whatever searches it.
        `unknown`: items that the catalogue does not have are left out of the history ("skip"), or
        are an error. `empty`: a history without known items gets the most popular items
        ("popular"), or is an error. A model that reads times takes them from the table, numbers in
        `time_unit`; `untimed`: histories without times are taken as of now, a day between events
        ("even"), or are an error ("error"); left out ("auto"), lists are taken so with a note, and
        a table is an error. `budget` is how many steps a reasoner computes, such as {"steps": 1} or
        {"adaptive": 10} (an error for a model without one); with adaptive stopping a column `steps`
        says how long for each user. `decoding` is the search among semantic ids, such as {"kind":
        "graph"} (an error for a model that does not generate them).

        A model that reads features finds those of events and of past requests in columns of the
        table, or in the store. `features` are those of users and of the requests that are answered:
        {user: {name: value}}, a list with a mapping for each history, or a table with the user
        column; `asked_at` is when a request is asked (now). They stand over what a store knows of
        its users. What nobody gives is missing, and told in a note.

        Returns user, item, score, rank (from 1), source, and title where `titles` is asked for and
        known: polars unless a frame was given. `source` is `model`, or `popular` where the history
        holds no item that the model knows: then scores are counts of training events, which no
        score of a model compares with. Raises `UserError` for what cannot be done as asked.
        """
        lists = ListOptions.of(options).with_settings(self.budget, self.decoding)
        columns = EventColumns.of(options)
        request = self.request_of(histories, users, data, unknown_users, lists, columns, options.get("features"))
        if request.unknown_only and lists.empty == "popular" and not self.model.allows_empty:
            warnings.warn(
                f"{request.unknown_only:,} of {len(request):,} histories hold no item that the model knows: they get "
                "the most popular items (empty='error' refuses them)",
                stacklevel=2,
            )
        filters = read_filters(lists, request, self.catalog, columns.names[1])
        return request.to_caller(self.list_frame(request, lists, filters))

    def list_frame(self, request: RequestBatch, options: ListOptions, filters: Filters) -> pl.DataFrame:
        """The long frame of requests that are read already."""
        ranked = self.lists(request, options, filters)
        source = sources(self.model, request.histories)
        return long_frame(request.names, ranked.ids, ranked.scores, self.catalog, options, ranked.steps, source)

    def lists(self, request: RequestBatch, options: ListOptions, filters: Filters | None = None) -> RankedLists:
        """The lists of requests that are read already, as arrays of item numbers."""
        options = options.with_settings(self.budget, self.decoding)
        search = self._search(options.decoding_of(self.decoding))
        return rank_requests(self.model, self.catalog, request, options, filters, index=self.index, search=search)

    @takes(ScoreKeywords, SCORE_DEFAULTS)
    def score(self, histories: HistoryInput, candidates: ItemLists, **options: Unpack[ScoreKeywords]) -> Any:
        """The score of each candidate for each history: user, item, score, in the order given.

        `candidates` are item ids, one list for all histories or one per history, as in
        `recommend`, and so are the other arguments; steps are those of `budget` for everybody.
        Seen items are scored like any other. The score is null for an item that the model does not
        know. Raises `UserError` for a history without known items, unless the model can score
        items without one (popularity).
        """
        settings = ListOptions.of(options)
        budget = self._fixed(settings)
        columns, features = EventColumns.of(options), options.get("features")
        request = self.request_of(histories, None, None, "error", settings, columns, features)
        rows, items = read_candidates(candidates, request)
        if not self.model.allows_empty:
            remedy = "leave them out, or use recommend, which gives them the most popular items"
            require_known_items(request.histories.lengths == 0, remedy)
        ids = self.catalog.lookup(items)
        scores = score_pairs(self.model, request.histories, rows, ids, budget=budget, index=self.index)
        users, known = take(request.users, rows, "user"), pl.Series(scores).fill_nan(None)
        return request.to_caller(pl.DataFrame({"user": users, "item": items, "score": known}))

    def similar(
        self,
        items: Any,
        k: int = 10,
        *,
        exclude: Sequence[Any] | pl.Series | None = None,
        allow: Sequence[Any] | pl.Series | None = None,
        filters: ColumnFilters = None,
        item_table: Any = None,
        titles: bool = False,
    ) -> pl.DataFrame:
        """The k items most like each of `items` (an id, or several): item, similar, score, rank, and title if asked.

        The score is the cosine of item vectors; of `item_to_item`, how often both occur together,
        and of `transition_graph`, its link to the other item. An item is not like itself. `exclude`
        and `allow` are lists of item ids, `filters` and `item_table` as in `recommend`. Raises
        `UserError` for an id that the model does not know, and for a model without a similarity of
        items (popularity, recency).
        """
        keywords = ListKeywords(
            k=k, exclude=exclude, allow=allow, filters=filters, item_table=item_table, titles=titles
        )
        options = ListOptions.of(keywords)
        several = isinstance(items, list | tuple | np.ndarray | pl.Series)
        queries = pl.Series("item", list(items) if several else [items], strict=False)
        ids = self.catalog.lookup(queries)
        if (ids < 0).any():
            first = queries[int(np.argmax(ids < 0))]
            raise UserError(f"the model does not know the item {first!r}", code="unknown-item")
        request = read_histories([[item] for item in queries.to_list()], self.catalog)
        item_filters = read_filters(options, request, self.catalog)
        with torch.inference_mode():
            scorer = self.model.similar(torch.from_numpy(ids).to(self.device), self.index)
            hidden = item_filters.of_batch(request.histories.items, self.device)
            scores, neighbours = top_k(scorer, min(k, self.catalog.size), filters=hidden)
        frame = long_frame(queries, neighbours.cpu().numpy(), scores.cpu().numpy(), self.catalog, options)
        return frame.rename({"user": "item", "item": "similar"})

    def predict(
        self,
        impressions: Any,
        *,
        users: Any = None,
        column: str = "probability",
        list_separator: str | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """The click probability of each impression (a file or a DataFrame): its own columns, and one more, `column`.
        The frame is of the caller's type; of a file and of a lazy frame, polars.

        Values are read as in training: one that training did not see is unknown, a null is missing.
        Text of bags and sequences is cut where the schema of the training says, or at
        `list_separator`. Labels are not needed. Fields that the impressions lack are columns of the
        table `users`, found by the schema's group. `progress` is called with (rows done, rows in
        all). Raises `UserError` where a field's column is missing or holds what the schema refuses,
        and where `column` is there already.
        """
        encoder, progress = self.encoder.with_separator(list_separator), progress or untold
        return predict(self.model, encoder, impressions, users=users, column=column, progress=progress)

    def predict_file(
        self,
        impressions: Any,
        out: str | Path,
        *,
        users: Any = None,
        column: str = "probability",
        list_separator: str | None = None,
        progress: Progress | None = None,
    ) -> PredictionFile:
        """Write the table of `predict` to `out` (.parquet, .csv or .jsonl) in the memory of one chunk of rows.

        The file appears whole or not at all. The result says how many rows it has,
        and the mean probability.
        """
        encoder, progress = self.encoder.with_separator(list_separator), progress or untold
        return predict_file(self.model, encoder, impressions, out, users=users, column=column, progress=progress)

    def item_vectors(self) -> Float[np.ndarray, "V D"]:
        """The vector of every item, in the order of `catalog.ids`: its inner product with a user's is the score.

        Raises `UserError` for a model that does not score by inner products
        (semantic ids, item_to_item).
        """
        # Any history does: all scorers share these vectors.
        request = read_histories(
            [[self.catalog.ids[0]]], self.catalog, ListOptions(unknown="error", untimed="even"), reads=self.reads
        )
        return self._dense(request)[1].table.detach().float().cpu().numpy().copy()  # not the weights themselves

    def item_vector_table(self) -> pl.DataFrame:
        """`item_vectors` as a frame: item_id, vector (an array of D numbers), rows in
        the order of `catalog.ids`."""
        return _vector_frame(self.catalog.ids.alias("item_id"), self.item_vectors())

    @takes(ScoreKeywords, SCORE_DEFAULTS)
    def user_vectors(
        self,
        histories: HistoryInput | None = None,
        *,
        users: Users | None = None,
        data: Store | str | Path | None = None,
        unknown_users: str = "error",
        **options: Unpack[ScoreKeywords],
    ) -> tuple[pl.Series, Float[np.ndarray, "U D"]]:
        """Users, and a vector for each of their histories: its inner product with an item's vector is the score.

        Arguments as in `recommend`. Raises `UserError` for a history without items that the
        model knows (`unknown_users="skip"` leaves such users out) and for a model that does not
        score by inner products.
        """
        settings = ListOptions.of(options)
        budget = self._fixed(settings)
        columns, features = EventColumns.of(options), options.get("features")
        request = self.request_of(histories, users, data, unknown_users, settings, columns, features)
        return request.users, self._dense(request, budget)[0]

    def user_vector_table(self, histories: HistoryInput | None = None, **how: Any) -> pl.DataFrame:
        """`user_vectors` as a frame: user, vector (an array of D numbers). Arguments as there."""
        return _vector_frame(*self.user_vectors(histories, **how))

    @property
    def index(self) -> Any | None:
        """The vectors of all items, made once (`Model.index_items`); None for a model that has none."""
        if self._index is UNSET:
            with self._lock:
                if self._index is UNSET:
                    self._index = self.model.index_items()
        return self._index

    def _dense(
        self, request: RequestBatch, budget: Budget | None = None
    ) -> tuple[Float[np.ndarray, "U D"], DenseScorer]:
        """The vectors of some users, and the last scorer that they came from."""
        require_some(len(request), "histories")
        table: np.ndarray | None = None
        last: DenseScorer | None = None
        for at, scorer in score_batches(self.model, request.histories, budget=budget, index=self.index):
            if not isinstance(scorer, DenseScorer):
                raise UserError(
                    "this model does not score by inner products, so users and items have no vectors in it",
                    code="no-vectors",
                )
            vectors = (scorer.vectors / scorer.temperature).float().cpu().numpy()
            table = np.zeros((len(request), vectors.shape[1]), np.float32) if table is None else table
            table[at], last = vectors, scorer
        assert table is not None and last is not None
        return table, last

    def request_of(
        self,
        histories: HistoryInput | None,
        users: Users | None,
        data: Store | str | Path | None,
        unknown_users: str,
        options: ListOptions,
        columns: EventColumns,
        features: FeatureInput = None,
    ) -> RequestBatch:
        """The histories of a call, or those of its users, read; a note where features are missing.

        Raises `UserError` for both and for neither, for `data` or `unknown_users` beside histories,
        and for what cannot be read.
        """
        ways = {"histories": histories, "users= of a store": users}
        check_one_way(ways, needed=True, code="histories-or-users")
        check_choice("unknown_users", unknown_users, UNKNOWN_USERS)
        reads = self.reads
        if users is None:
            if data is not None or unknown_users != "error":
                raise no_effect("data or unknown_users", "on histories, since it is about users= of a store")
            request = read_histories(histories, self.catalog, options, columns=columns, features=features, reads=reads)
        else:
            refuse_table_columns(columns, user=features is None)
            request = read_users(users, data, self.catalog, options, unknown_users, columns, features, reads)
        if request.lacking:
            warnings.warn(missing_note(request.lacking), stacklevel=3)
        return request

    @property
    def reads(self) -> Reads:
        """Times and features that the model reads of histories."""
        return Reads.of(self.model, self.catalog.features, self.other)

    def _fixed(self, options: ListOptions) -> Budget:
        """A budget without adaptive stopping, which compares ranked lists."""
        default = self.budget.model_copy(update={"adaptive": None, "patience": None})
        fixed = options.budget_of(default)
        if fixed.adaptive is not None:
            raise UserError(
                "adaptive stopping compares ranked lists, and none is ranked here: give steps instead",
                code="adaptive-needs-full-lists",
            )
        return fixed

    def _search(self, decoding: Decoding) -> Search | None:
        """The search of a decoding, made once; None for exact scores,
        which need nothing to be made."""
        if decoding.kind == "exact":
            return None
        name = str(decoding.described())
        search = self._searches.get(name)
        if search is None:
            with self._lock:  # the first thread makes it, the others wait
                search = self._searches.get(name)
                if search is None:
                    while len(self._searches) >= MAX_SEARCHES:
                        del self._searches[next(iter(self._searches))]
                    search = self._searches[name] = search_of(self.model, decoding, BLOCK)
        return search


def _vector_frame(ids: pl.Series, vectors: Float[np.ndarray, "n D"]) -> pl.DataFrame:
    return pl.DataFrame([ids, pl.Series("vector", vectors, dtype=pl.Array(pl.Float32, vectors.shape[1]))])
