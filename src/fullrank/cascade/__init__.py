"""Two stages: a retriever finds candidates in the whole catalogue, a ranker puts them in order.

    Cascade("runs/sasrec", "runs/dcnv2", items="movies.parquet").recommend({"me": [2, 3, 5]}, context={"hour": 20})
    Cascade("runs/sasrec", "runs/dcnv2").evaluate("test").differences["ndcg@10"]

The retriever is any run that ranks a catalogue, the ranker any ranking model. What the ranker reads
of a user, of an item and of the context is encoded once for each of them; a pair (user, candidate)
is a gather. Pairs exist in chunks alone: U users and C candidates never make a table of U x C rows
of features. R pairs of a chunk, B users of a block.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import polars as pl
from jaxtyping import Int

from fullrank.cascade.evaluate import CascadeResult, evaluate_cascade
from fullrank.cascade.field_sources import Context, FieldPlan, fields_of_callers, id_column, plan_fields
from fullrank.cascade.rerank import (
    EncodedFields,
    Reranker,
    best_candidates,
    blocks,
    check_candidates,
    encode_fields,
    past_features,
)
from fullrank.cascade.stages import RankingStage, RetrievalStage
from fullrank.core.checks import (
    check_choice,
    check_overrides,
    check_type,
    keywords_checked,
    takes,
    with_defaults,
)
from fullrank.core.errors import UserError
from fullrank.core.log import Progress, untold
from fullrank.data.column_names import EventColumns
from fullrank.data.impressions.joined import KeyedTable
from fullrank.data.impressions.store import AnyStore
from fullrank.data.impressions.vocabulary import UNKNOWN, Vocabulary, canonical
from fullrank.data.values import none_known
from fullrank.inference.features import OtherReads
from fullrank.inference.list_options import RECOMMEND_DEFAULTS, ListOptions, RecommendKeywords
from fullrank.inference.predictor import Predictor
from fullrank.inference.recommend import RANKER, long_frame
from fullrank.inference.requests import HistoryInput, RequestBatch, read_filters
from fullrank.inference.stored_users import Users
from fullrank.run import Run


class StageKeywords(TypedDict, total=False):
    """The two stores, where they were moved since the training, and where the models run.

    The store of impressions is needed by runs of format 1 alone.
    """

    store: AnyStore | str | Path | None
    impressions: AnyStore | str | Path | None
    device: str


STAGE_DEFAULTS: StageKeywords = {"store": None, "impressions": None, "device": "auto"}


@keywords_checked
class Cascade:
    """A retriever and a ranker, opened once.

    `retriever` and `ranker` are run folders, runs, or `RetrievalStage` and `RankingStage` of models
    in memory. `users` and `items` are tables (a path or a DataFrame) with a row per id and the
    columns that the ranker reads; without them those of the retriever's store and catalogue are
    taken. `user` and `item` name the columns of the ranker's schema that hold the ids (else the
    group column, and `user`, `user_id`, `item`, `item_id`); in a table, the id column has that name
    or the usual one. `store` and `impressions` are the two stores, where they were moved since the
    training (that of impressions is needed by runs of format 1 alone). Raises `UserError` where one
    of these is not what it should be.
    """

    @takes(StageKeywords, STAGE_DEFAULTS)
    def __init__(
        self,
        retriever: RetrievalStage | Run | str | Path,
        ranker: RankingStage | Run | str | Path,
        *,
        users: Any = None,
        items: Any = None,
        user: str | None = None,
        item: str | None = None,
        **options: Unpack[StageKeywords],
    ):
        stage_options = with_defaults(options, STAGE_DEFAULTS)
        self.retriever = RetrievalStage.of(retriever, stage_options["store"])
        self.ranker = RankingStage.of(ranker, stage_options["impressions"])
        evaluation, catalog = self.retriever.evaluation, self.retriever.catalog
        self.encoder = self.ranker.encoder
        self._past = past_features(catalog.features, self.encoder)
        schema = self.encoder.schema
        self.user, self.item = id_column(schema, "user", user), id_column(schema, "item", item)
        if self.user == self.item:
            raise UserError(
                f"user={self.user!r} and item={self.item!r} are the same column; name two", code="repeated-column"
            )
        self._user_keys = tuple(dict.fromkeys([self.user, "user_id", "user"]))
        self.users = None
        if users is not None:
            self.users = KeyedTable(users, "users", self._user_keys)
        elif self.retriever.store is not None:
            self.users = KeyedTable(self.retriever.store.users.drop("user"), "users", ("user_id",))
        if items is not None:
            self.items = KeyedTable(items, "items", tuple(dict.fromkeys([self.item, "item_id", "item"])))
        else:
            self.items = KeyedTable(catalog.frame.drop("item"), "items", ("item_id",))
        self._encoded_items: dict[tuple[str, ...], EncodedFields] = {}
        caller_fields = fields_of_callers(schema, self.user, self.item, self.items.columns, self._past)
        self.predictor = Predictor(
            self.retriever.model,
            catalog,
            device=stage_options["device"],
            budget=evaluation.reasoning,
            decoding=evaluation.decoding,
            name=self.retriever.name,
            other=OtherReads(tuple(self._past), caller_fields),
        )
        self.device = self.predictor.device
        self.ranker.model.to(self.device).eval()

    def __repr__(self) -> str:
        return f"Cascade({self.retriever.name!r} -> {self.ranker.name!r}, on {self.device})"

    @takes(RecommendKeywords, RECOMMEND_DEFAULTS)
    def recommend(
        self,
        histories: HistoryInput | None = None,
        *,
        users: Users | None = None,
        unknown_users: str = "error",
        candidates: int = 100,
        context: Any = None,
        blend: float = 0.0,
        bare: str = "error",
        progress: Progress | None = None,
        **options: Unpack[RecommendKeywords],
    ) -> Any:
        """The ranker's k best of each user's `candidates` best items: user, item, score, rank, source.

        The source is "ranker"; the columns are those of `fr.recommend`.

        Histories as in `fr.recommend`, and so are filters and policies; or `users`, ids of the
        retriever's store, with all their events there (`unknown_users` as there too). In a list of
        item lists nobody is named: what is read of users is missing. Sequences that are called like
        an event feature of the retriever's store are those of the past events, from the store or
        from columns of a table of histories. `context` has what the ranker reads beside user and
        item: {"hour": 20} for all, or a table with a row for each user. `features` as in
        `fr.recommend`, for both: a field of the ranker that they name has their value, over that of
        the context and of the table of users. The score is the click probability, and that of
        `blend` > 0 a mix with the retriever's order (`blend_scores`). Users for whom the retriever
        finds nothing are an error, or skipped (`bare`).
        """
        wanted = ListOptions.of(options)
        check_candidates(wanted.k, candidates, blend)
        check_choice("bare", bare, ("error", "skip"))
        catalog, store = self.predictor.catalog, None if users is None else self.retriever.require_store()
        request = self.predictor.request_of(
            histories, users, store, unknown_users, wanted, EventColumns.of(options), options.get("features")
        )
        stated = () if request.features is None else tuple(request.features.present)
        reranker, filters = self.ordering(context, stated), read_filters(wanted, request, catalog)
        deep = wanted.model_copy(update={"k": candidates})
        unnamed = pl.Series("user", [None] * len(request), dtype=pl.String)
        everybody = unnamed if request.names is None else request.names
        reranker.require_some(everybody)
        ids = np.full((len(request), wanted.k), -1)  # which stays where items are fewer
        scores = np.full(ids.shape, -np.inf)
        for low, high in blocks(len(request), candidates):
            part = request.part(low, high)
            lists = self.predictor.lists(part, deep, filters.take(np.arange(low, high)))
            if bare == "error":
                _refuse_empty(part, lists.ids)
            scored = reranker(everybody[low:high], part.histories, lists.ids, lists.scores, blend, part.features)
            best, value = best_candidates(scored, lists.ids, wanted.k)
            ids[low:high, : best.shape[1]], scores[low:high, : best.shape[1]] = best, value
            if progress is not None:
                progress(high, len(request))
        source = np.full(len(request), RANKER)
        return request.to_caller(long_frame(request.names, ids, scores, catalog, wanted, source=source))

    def evaluate(
        self,
        split: Literal["validation", "test"] = "test",
        *,
        candidates: int = 100,
        context: Any = None,
        blend: float = 0.0,
        set: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> CascadeResult:
        """Measure the retriever's lists and the re-ranked ones on the same users, with paired differences.

        `set` changes the retriever's evaluation (`"ks=[10]"`), the rest is as in `recommend`. Warns
        where the ranker may have been trained on the targets (`leakage`).
        """
        spec = self.retriever.evaluation.override(*check_overrides(set))
        check_type("split", split, str, "'validation' or 'test'")
        return evaluate_cascade(
            self.retriever,
            self.ordering(context),
            split,
            spec,
            candidates=candidates,
            blend=blend,
            progress=progress or untold,
        )

    def ordering(self, context: Any, said: Collection[str] = ()) -> Reranker:
        """A reranker for one `context`, and for features that callers say of users and requests (`said`: their names).

        Raises `UserError` where a field has no source. The catalogue is encoded once for each
        choice of the items' columns, not once for each call.
        """
        names = [field.name for field in self.encoder.schema.fields]
        context_fields = Context(context, names, self._user_keys)
        columns = {*context_fields.columns, *(() if self.users is None else self.users.columns)}
        known = (*context_fields.columns, *(name for name in names if name in said and name not in columns))
        plan = plan_fields(self.encoder.schema, self.user, self.item, self.users, self.items, known, self._past)
        if plan.items not in self._encoded_items:
            self._encoded_items[plan.items] = self._encode_items(plan)
        return Reranker(
            self.ranker, self.users, self.user, plan, context_fields, self._encoded_items[plan.items], self._past
        )

    def _encode_items(self, plan: FieldPlan) -> EncodedFields:
        """The catalogue as the ranker reads it: the fields of `plan.items`, a row for each item."""
        ids = self.retriever.catalog.ids
        columns = self.items.gather([name for name in plan.items if name != self.item], ids)
        if columns:
            self.items.require_some(ids, "items of the catalogue")
        item_ids = [ids.alias(self.item)] if self.item in plan.items else []
        if item_ids:
            field = next(field for field in self.encoder.schema.fields if field.name == self.item)
            lookup = self.encoder.lookup(field)
            if isinstance(lookup, Vocabulary) and not (lookup.ids(canonical(ids, "items")) > UNKNOWN).any():
                raise none_known(ids, f"items of {self.retriever.name}", self.ranker.name, lookup.values)
        return encode_fields(self.encoder, [*item_ids, *columns], len(ids), "the items")


def _refuse_empty(request: RequestBatch, ids: Int[np.ndarray, "B C"]) -> None:
    """Raise `UserError` for users for whom the retriever found nothing."""
    empty = ~(ids >= 0).any(1)
    if empty.any():
        first = request.users.filter(pl.Series(empty))[0]
        raise UserError(
            f"the retriever has no candidates for {int(empty.sum()):,} users, the first is {first!r} (every item "
            "is seen, excluded or not allowed): seen='keep' recommends seen ones again, bare='skip' leaves users out",
            code="no-candidates",
        )


__all__ = ["Cascade", "RankingStage", "CascadeResult", "RetrievalStage"]
