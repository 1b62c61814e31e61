"""ServedRanker: candidates of several requests in a ranking model's order.

Fields of the items come from the catalogue's columns, encoded once; those of the user and of the
request from what was put for the user and from the request's context. A behaviour sequence that
these do not give is the history that the request is answered for, or a feature of its events. Any
other field that nobody gives is missing, as in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from fullrank.cascade.field_sources import id_column
from fullrank.cascade.rerank import (
    EncodedFields,
    PairFeatures,
    PastFeature,
    behind,
    best_candidates,
    blend_scores,
    encode_fields,
    history_bags,
    past_features,
    probabilities,
)
from fullrank.cascade.stages import RankingStage
from fullrank.core.device import resolve_device
from fullrank.core.errors import UserError, in_context, unknown
from fullrank.core.jagged import Jagged
from fullrank.data.events.catalog import Catalog
from fullrank.data.histories import Histories
from fullrank.data.impressions.schema import SequenceOf
from fullrank.inference.list_options import ListOptions
from fullrank.run import Run
from fullrank.serving.requests import Query, jagged
from fullrank.serving.settings import ServeSettings


@dataclass(frozen=True)
class ServedRanker:
    """A ranking model, and the catalogue as it reads items."""

    stage: RankingStage
    user: str
    """The schema's column of user ids."""
    item: str
    items: EncodedFields
    run: Run
    past: Mapping[str, PastFeature] = field(default_factory=dict)
    """Features of past events that are its sequences."""

    @classmethod
    def open(cls, settings: ServeSettings, catalog: Catalog) -> ServedRanker:
        """The ranker of the settings.

        Raises `UserError` for a run that is no ranking model, or that reads nothing of an item.
        """
        assert settings.ranker is not None
        run = Run.open(settings.ranker)
        stage = RankingStage.of(run)
        schema = stage.encoder.schema
        user, item = id_column(schema, "user", settings.user_field), id_column(schema, "item", settings.item_field)
        stage.model.to(resolve_device(settings.device)).eval()
        past = past_features(catalog.features, stage.encoder)
        ranker = cls(stage, user, item, _no_items(), run, past).with_items(catalog)
        ranker.require_whole_histories()
        return ranker

    of_items: frozenset[str] = frozenset()
    """The schema's columns that are filled from items."""

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The columns of users and requests: the names that `features` and `context` may have."""
        return tuple(name for name in _names(self.stage) if name not in self.of_items and name != self.user)

    @cached_property
    def of_history(self) -> tuple[str, ...]:
        """The sequences that are filled from the history of a request which does not give them."""
        return tuple(
            field.name
            for field in self.stage.encoder.schema.fields
            if isinstance(field, SequenceOf) and (field.shares in self.of_items or field.name in self.past)
        )

    def events_read(self, most: int) -> int:
        """Last events of a history that its sequences are made of.

        That is all `most` where a sequence leaves out missing values, since older events then move
        up.
        """
        several, groups = self.stage.encoder.multivalued, self.stage.model.parallel
        aligned = {several[number].name for group in groups for number in group}
        filled = [field for field in several if isinstance(field, SequenceOf) and field.name in self.of_history]
        if any(not field.keep_missing and field.name not in aligned for field in filled):
            return most
        return max((field.max_length for field in filled), default=0)

    def require_whole_histories(self) -> None:
        """Raise `UserError` where the items lack a column that a history is read
        by, beside one that they have."""
        several = self.stage.encoder.multivalued
        for group in self.stage.model.parallel:
            names = [several[number].name for number in group]
            lost = [several[number] for number in group if several[number].name not in self.of_history]
            if lost and len(lost) < len(names):
                lacks = (
                    f"the retriever's store declares no event feature {lost[0].name!r} with a vocabulary: prepare it "
                    "with one"
                    if lost[0].shares is None
                    else f"the items have no column {lost[0].shares!r} to fill {lost[0].name!r} from: prepare the "
                    "retriever's items with it"
                )
                raise UserError(
                    f"the ranker reads {', '.join(names)} of the same events, and {lacks}", code="missing-column"
                )

    def with_items(self, catalog: Catalog, rows: Int[np.ndarray, "m"] | None = None) -> ServedRanker:
        """The ranker with the items of another catalogue; `rows` are those that differ (None: all)."""
        names = [name for name in _names(self.stage) if name in catalog.columns and name not in (self.user, self.item)]
        of_items = frozenset([*names, self.item])
        whole = rows is None or of_items != self.of_items
        rows = np.arange(catalog.size) if rows is None or whole else rows
        columns = [*(catalog.frame[name] for name in names), catalog.ids.alias(self.item)]
        items = encode_fields(self.stage.encoder, [column.gather(rows) for column in columns], len(rows), "the items")
        return replace(self, items=items if whole else self.items.updated(rows, items), of_items=of_items)

    def order(
        self,
        queries: Sequence[Query],
        ids: Int[np.ndarray, "B C"],
        scores: Float[np.ndarray, "B C"],
        blend: float,
        histories: Histories,
    ) -> tuple[Int[np.ndarray, "B C"], Float[np.ndarray, "B C"]]:
        """Candidates (-1 in empty places) by click probability, mixed with the retriever's order by `blend`.

        `histories` are those of the requests, as far as they are read, with features of their
        events.
        """
        pairs = PairFeatures(self.stage.encoder, self._users(queries, histories), self.items)
        blended = blend_scores(probabilities(self.stage.model, pairs, ids), scores, blend)
        return best_candidates(blended, ids, ids.shape[1])

    def check_names(self, fields: Iterable[str]) -> None:
        """Raise `UserError` for a field that is not the ranker's."""
        for name in fields:
            if name not in self.fields:
                raise unknown("context field", name, self.fields, public=True)

    def check(self, fields: Mapping[str, Any]) -> None:
        """Raise `UserError` for fields that are not the ranker's, or of a type that it refuses."""
        self.check_names(fields)
        nothing = Histories(jagged([np.zeros(0, np.int64)]))
        self._users([Query(nothing.items.values, ListOptions(), fields=fields)], nothing)

    def _users(self, queries: Sequence[Query], histories: Histories) -> EncodedFields:
        names = [name for name in self.fields if any(name in query.fields for query in queries)]
        columns = [_column(name, [query.fields.get(name) for query in queries]) for name in names]
        if self.user in _names(self.stage):
            columns.append(pl.Series(self.user, [query.user for query in queries], dtype=pl.String))
        with in_context("", public=True):
            encoded = encode_fields(self.stage.encoder, columns, len(queries), "the request")
        return replace(encoded, bags=encoded.bags | self._histories(queries, histories, encoded.bags))

    def _histories(
        self, queries: Sequence[Query], histories: Histories, sent: Mapping[int, Jagged]
    ) -> dict[int, Jagged]:
        """The sequences that are filled from histories; a request that gives one itself
        keeps it, as `sent` has it."""
        if not self.of_history:
            return {}
        past = {name: feature.ids(histories) for name, feature in self.past.items()}
        bags = history_bags(self.stage, self.of_history, self.items, histories.items, past)
        for number, bag in bags.items():
            if number in sent:
                name, rows = self.stage.encoder.multivalued[number].name, np.arange(len(queries))
                sends = np.array([name in query.fields for query in queries])
                bags[number] = behind(bag, sent[number]).take(np.where(sends, len(queries) + rows, rows))
        return bags


def _column(name: str, values: list[Any]) -> pl.Series:
    """A column of values from JSON; mixed types are text, and lists are bags."""
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, pl.exceptions.PolarsError):
        return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)


def _names(stage: RankingStage) -> list[str]:
    return [field.name for field in stage.encoder.schema.fields]


def _no_items() -> EncodedFields:
    return EncodedFields(np.zeros((0, 0), np.int32), [], np.zeros((0, 0), np.float32), [], {})
