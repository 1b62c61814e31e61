"""Rerank candidates by click probability: features of (user, item) pairs, their probabilities, and the blend.

Each side of a pair is encoded once, and a pair is a gather of both. The encoding is the ranker's
own (`data.impressions.encoding`): what `predict` gives for the joined table of pairs is what is
given here, an unknown value is id 1 and a missing one id 0. B users of a block, C candidates of
each, R pairs of a chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int

from fullrank.cascade.field_sources import Context, FieldPlan, constant_column
from fullrank.cascade.stages import RankingStage
from fullrank.core.checks import check_number, check_whole
from fullrank.core.constraints import MOST_LIST
from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Impressions
from fullrank.data.events.features import FeatureEncoder, encoder_of
from fullrank.data.histories import Histories
from fullrank.data.impressions.encoding import FieldEncoder, to_tensors
from fullrank.data.impressions.joined import KeyedTable
from fullrank.data.impressions.schema import SequenceOf
from fullrank.data.impressions.vocabulary import MISSING, UNKNOWN, Vocabulary, canonical
from fullrank.inference.features import RequestFeatures, merged
from fullrank.inference.predict import predict_batch
from fullrank.models.ranking import ClickModel

BATCH = 1 << 14
"""Pairs given to the ranker at once; a ranker's evaluation takes as many."""
PAIRS = 1 << 17
"""Most pairs (user, candidate) alive at once."""
TINY = 1e-12
"""Distance at which probabilities are kept from 0 and 1 where logits are blended."""
CandidateScores = Float[np.ndarray, "B C"]
"""A score of each user's candidates; -inf in empty places."""


@dataclass(frozen=True)
class Reranker:
    """A ranker, where it reads users, and the catalogue as it reads items."""

    ranker: RankingStage
    users: KeyedTable | None
    user: str
    """The schema's column of user ids."""
    plan: FieldPlan
    context: Context
    items: EncodedFields
    past: Mapping[str, PastFeature]

    def __call__(
        self,
        users: pl.Series,
        histories: Histories,
        ids: Int[np.ndarray, "B C"],
        scores: CandidateScores,
        blend: float,
        stated: RequestFeatures | None = None,
    ) -> CandidateScores:
        """Scores of each user's candidates (internal ids, -1 in empty places), to which the retriever gave `scores`.

        `users` are external ids, null where nobody is named; `histories` have items by internal
        ids, oldest first; `stated` has the features that a caller gave of these users and requests.
        """
        clicks = probabilities(self.ranker.model, self.pairs(users, histories, stated), ids)
        return blend_scores(clicks, scores, blend)

    def require_some(self, users: pl.Series) -> None:
        """Raise `UserError` where a table that is read knows none of these users: asked once, for all of them."""
        self.context.require_some(users)
        if self.users is not None and self._names:
            self.users.require_some(users, "users")

    def pairs(self, users: pl.Series, histories: Histories, stated: RequestFeatures | None = None) -> PairFeatures:
        """The features of these users with every item; `stated` wins over the context and the users' table."""
        columns = self.context.gather(users)
        if self._names:
            assert self.users is not None
            columns += self.users.gather(self._names, users)
        if self.user in self.plan.users:
            columns.append(users.alias(self.user))
        encoder = self.ranker.encoder
        here = {column.name for column in columns}
        columns += [constant_column(name, None, len(users)) for name in self.plan.context if name not in here]
        encoded = encode_fields(encoder, columns, len(users), "the users")
        if stated is not None:
            encoded = with_stated(encoder, encoded, stated)
        past = {
            name: event_feature.ids(histories) for name, event_feature in self.past.items() if name in self.plan.history
        }
        bags = history_bags(self.ranker, self.plan.history, self.items, histories.items, past)
        return PairFeatures(encoder, replace(encoded, bags=encoded.bags | bags), self.items)

    @property
    def _names(self) -> list[str]:
        """The columns read of the users' table."""
        return [name for name in self.plan.users if name != self.user]


@dataclass(frozen=True)
class EncodedFields:
    """Values of c categorical, n numeric and some multivalued fields, of N users or N items."""

    categorical: Int[np.ndarray, "N c"]
    categorical_at: list[int]
    """The position of each column among the categorical fields of the ranker; `numeric_at` likewise."""
    numeric: Float[np.ndarray, "N n"]
    numeric_at: list[int]
    bags: dict[int, Jagged]
    """Bag number -> the ids of each row."""

    def updated(self, rows: Int[np.ndarray, "m"], other: EncodedFields) -> EncodedFields:
        """A copy with the m rows of `other` (of the same fields) at `rows`; rows behind the last are added.

        `rows` are different, in rising order, and leave no gap behind the last.
        """
        # source[n]: where row n of the copy stands in the N rows of these, then the m rows of
        # `other`
        size = max(len(self.categorical), int(rows.max(initial=-1)) + 1)
        source = np.arange(size)
        source[rows] = len(self.categorical) + np.arange(len(rows))
        return EncodedFields(
            np.concatenate([self.categorical, other.categorical])[source],
            self.categorical_at,
            np.concatenate([self.numeric, other.numeric])[source],
            self.numeric_at,
            {number: behind(bag, other.bags[number]).take(source) for number, bag in self.bags.items()},
        )


def behind(first: Jagged, second: Jagged) -> Jagged:
    """The rows of `first`, then those of `second`."""
    lengths = np.concatenate([first.lengths, second.lengths])
    return Jagged.from_lengths(np.concatenate([first.flat(), second.flat()]), lengths)


def encode_fields(encoder: FieldEncoder, columns: Sequence[pl.Series], rows: int, what: str) -> EncodedFields:
    """The fields that these columns hold, of `rows` rows.

    Raises `UserError` for values that the schema refuses.
    """
    by_name = {column.name: column for column in columns}
    names = [field.name for field in encoder.schema.fields]
    frame = pl.DataFrame([by_name[name] if name in by_name else constant_column(name, None, rows) for name in names])
    encoded = encoder.encode(frame, what)
    columns_at = [at for at, field in enumerate(encoder.categorical) if field.name in by_name]
    numbers_at = [at for at, field in enumerate(encoder.numeric) if field.name in by_name]
    bags = {at: bag for at, bag in enumerate(encoded.bags) if encoder.multivalued[at].name in by_name}
    return EncodedFields(
        encoded.categorical[:, columns_at], columns_at, encoded.numeric[:, numbers_at], numbers_at, bags
    )


def with_stated(encoder: FieldEncoder, known: EncodedFields, stated: RequestFeatures) -> EncodedFields:
    """A copy of the fields of users with the `stated` values in their place; it may have other fields besides."""
    columns = [column for column in stated.frame if column.name in stated.present]
    new = encode_fields(encoder, columns, len(stated.frame), stated.what)
    categorical, numeric, bags = known.categorical.copy(), known.numeric.copy(), dict(known.bags)
    for fields, old, old_at, ids, places in (
        (encoder.categorical, categorical, known.categorical_at, new.categorical, new.categorical_at),
        (encoder.numeric, numeric, known.numeric_at, new.numeric, new.numeric_at),
    ):
        for column, index in enumerate(places):
            is_stated = stated.present[fields[index].name]
            old[is_stated, old_at.index(index)] = ids[is_stated, column]
    for number, bag in new.bags.items():
        bags[number] = merged(known.bags[number], bag, stated.present[encoder.multivalued[number].name])
    return replace(known, categorical=categorical, numeric=numeric, bags=bags)


@dataclass(frozen=True)
class PastFeature:
    """An event feature of the retriever's store that is a sequence of the ranker."""

    column: int
    """Index among the categories of events (`FeatureTable.categorical`)."""
    known: Int[np.ndarray, "V"]
    """The ranker's id of each of the store's V ids."""

    def ids(self, histories: Histories) -> Int[np.ndarray, "n"]:
        """The ranker's id of each event, history after history; missing where nothing is known of events."""
        events, table = histories.items.places(), None if histories.features is None else histories.features.event
        return np.zeros(len(events), np.int32) if table is None else self.known[table.categorical[events, self.column]]


def past_features(theirs: FeatureEncoder | None, encoder: FieldEncoder) -> dict[str, PastFeature]:
    """The event features of a retriever's catalogue that the ranker's `encoder` reads as sequences, by name:
    those with a vocabulary."""
    read = {
        field.name: field for field in encoder.multivalued if isinstance(field, SequenceOf) and field.shares is None
    }
    features: dict[str, PastFeature] = {}
    for column, field in enumerate(() if theirs is None else encoder_of(theirs, "event").categorical):
        values = None if theirs is None else theirs.lookups.get(field.name)
        if field.name in read and isinstance(values, Vocabulary):
            ids = encoder.lookup(read[field.name]).ids(canonical(values.values, "the values of an event feature"))
            features[field.name] = PastFeature(column, np.concatenate([[MISSING, UNKNOWN], ids]))
    return features


def history_bags(
    ranker: RankingStage,
    names: Collection[str],
    items: EncodedFields,
    histories: Jagged,
    past: Mapping[str, Int[np.ndarray, "n"]] = MappingProxyType({}),
) -> dict[int, Jagged]:
    """Bag number -> the sequence of a field in `names`: the ranker's id of the field's value at each event.

    `items` has these fields, `histories` internal item ids, oldest first; `past` has the ids
    of event features, beside the items. A missing value is left out, as in training, but
    where the sequence keeps it or the model reads sequences event by event: there it is an
    event of the missing value.
    """
    encoder = ranker.encoder
    aligned = {number for group in ranker.model.parallel for number in group}
    places = {field.name: at for at, field in enumerate(encoder.categorical)}
    bags: dict[int, Jagged] = {}
    for number, field in enumerate(encoder.multivalued):
        if field.name in names:
            rows = histories.row_of()
            if field.shares is None:
                values = past[field.name]
            else:
                column = items.categorical_at.index(places[field.shares])
                values = items.categorical[histories.flat(), column]
            if number not in aligned and not field.keep_missing:
                rows, values = rows[values != MISSING], values[values != MISSING]
            counts = np.bincount(rows, minlength=len(histories))
            bags[number] = Jagged.from_lengths(values, counts).last(field.max_length)
    return bags


@dataclass(frozen=True)
class PairFeatures:
    """All fields of any pair of a user and an item: rows of the two sides, gathered."""

    encoder: FieldEncoder
    users: EncodedFields
    items: EncodedFields

    def batch(self, users: Int[np.ndarray, "R"], items: Int[np.ndarray, "R"]) -> Impressions:
        """The impressions of user users[r] with item items[r], R rows."""
        categorical = np.zeros((len(users), len(self.encoder.categorical)), np.int32)
        numeric = np.full((len(users), len(self.encoder.numeric)), np.nan, np.float32)
        without = Jagged.from_lengths(np.zeros(0, np.int32), np.zeros(len(users), np.int64))
        bags = [without] * len(self.encoder.multivalued)
        for side, rows in ((self.users, users), (self.items, items)):
            categorical[:, side.categorical_at] = side.categorical[rows]
            numeric[:, side.numeric_at] = side.numeric[rows]
            for number, bag in side.bags.items():
                bags[number] = bag.take(rows)
        return to_tensors(categorical, numeric, bags, labels=None, groups=None, rows=np.arange(len(users)))


def probabilities(model: ClickModel, pairs: PairFeatures, ids: Int[np.ndarray, "B C"]) -> CandidateScores:
    """The click probability of each user's candidates; -inf in empty places (id -1)."""
    users, places = np.nonzero(ids >= 0)
    scores = np.full(ids.shape, -np.inf)
    for low in range(0, len(users), BATCH):
        chunk = slice(low, low + BATCH)
        at = users[chunk], places[chunk]
        scores[at] = predict_batch(model, pairs.batch(at[0], ids[at]))
    return scores


def blend_scores(ranker: CandidateScores, retriever: CandidateScores, share: float) -> CandidateScores:
    """The scores that candidates are ordered by: probabilities, or (1 - share) z(logit) + share z(retriever's score).

    z is standardised over the user's candidates (mean 0, deviation 1), because the two scales have
    nothing in common. Empty places are -inf in both and stay so.
    """
    if share == 0:
        return ranker
    filled = ranker > -np.inf
    clipped = np.where(filled, ranker, 0.5).clip(TINY, 1 - TINY)
    logits = np.log(clipped) - np.log1p(-clipped)
    mixed = (1 - share) * _standardised(logits, filled) + share * _standardised(retriever, filled)
    return np.where(filled, mixed, -np.inf)


def best_candidates(
    scores: CandidateScores, ids: Int[np.ndarray, "B C"], k: int
) -> tuple[Int[np.ndarray, "B k"], Float[np.ndarray, "B k"]]:
    """The k best candidates of each user and their scores; equal scores keep the retriever's order."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)


def blocks(users: int, candidates: int) -> list[tuple[int, int]]:
    """Ranges of users whose candidates are at most `PAIRS`."""
    size = max(PAIRS // candidates, 1)
    return [(low, min(low + size, users)) for low in range(0, users, size)]


def check_candidates(k: int, candidates: int, blend: float) -> None:
    """Raise `UserError` for a list longer than the candidates, and for a blend that is no share."""
    check_whole("candidates", candidates, 1, MOST_LIST)
    check_number("blend", blend)
    if k > candidates:
        raise UserError(
            f"k={k} items cannot be chosen from candidates={candidates}: raise candidates, or lower k",
            code="too-few-candidates",
        )
    if not 0 <= blend <= 1:
        raise UserError(
            f"blend={blend} is not between 0 (the ranker's order) and 1 (the retriever's)", code="share-out-of-range"
        )


def _standardised(scores: CandidateScores, there: Bool[np.ndarray, "B C"]) -> CandidateScores:
    """Each row minus its mean, divided by its deviation, over the candidates
    that are `there`; 0 elsewhere."""
    filled = np.where(there, scores, 0.0).astype(np.float64)
    count = np.maximum(there.sum(1, keepdims=True), 1)
    away = np.where(there, filled - filled.sum(1, keepdims=True) / count, 0.0)
    deviation = np.sqrt((away**2).sum(1, keepdims=True) / count)
    return away / np.where(deviation > 0, deviation, 1.0)
