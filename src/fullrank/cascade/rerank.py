"""Rerank candidates by click probability: features of (user, item) pairs, their probabilities, and the blend.

Each side of a pair is encoded once, and a pair is a gather of both. The encoding is the ranker's own
(`data.impressions.encoding`): what `predict` gives for the joined table of pairs is what is given here, an unknown
value is id 1 and a missing one id 0. B users of a block, C candidates of each, R pairs of a chunk.
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
"""Probabilities are kept so far from 0 and 1 where logits are blended."""
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
        given: RequestFeatures | None = None,
    ) -> CandidateScores:
        """Scores of each user's candidates (internal ids, -1 in empty places), to which the retriever gave `scores`.

        `users` are external ids, null where nobody is named; `histories` have items by internal ids, oldest first;
        `given` is what a caller says of these users and requests.
        """
        found = probabilities(self.ranker.model, self.pairs(users, histories, given), ids)
        return blend_scores(found, scores, blend)

    def require_some(self, users: pl.Series) -> None:
        """Raise `UserError` where a table that is read knows none of these users: asked once, for all of them."""
        self.context.require_some(users)
        if self.users is not None and self._names:
            self.users.require_some(users, "users")

    def pairs(self, users: pl.Series, histories: Histories, given: RequestFeatures | None = None) -> PairFeatures:
        """The features of these users with every item; what is `given` stands over the context and the users' table."""
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
        if given is not None:
            encoded = with_given(encoder, encoded, given)
        past = {name: one.ids(histories) for name, one in self.past.items() if name in self.plan.history}
        bags = history_bags(self.ranker, self.plan.history, self.items, histories.items, past)
        return PairFeatures(encoder, replace(encoded, bags=encoded.bags | bags), self.items)

    @property
    def _names(self) -> list[str]:
        """The columns read of the users' table."""
        return [name for name in self.plan.users if name != self.user]


@dataclass(frozen=True)
class EncodedFields:
    """Some of the fields for N users or N items; places are those among the ranker's fields of that kind."""

    categorical: Int[np.ndarray, "N c"]
    categorical_at: list[int]
    numeric: Float[np.ndarray, "N n"]
    numeric_at: list[int]
    bags: dict[int, Jagged]
    """Bag number -> the ids of each row."""

    def updated(self, rows: Int[np.ndarray, "m"], other: EncodedFields) -> EncodedFields:
        """With the m rows of `other`, which has the same fields, in place of these; what lies behind the last is added.

        `rows` are different, in rising order, and leave no gap behind the last.
        """
        size = max(len(self.categorical), int(rows.max(initial=-1)) + 1)
        place = np.arange(size)
        place[rows] = len(self.categorical) + np.arange(len(rows))
        return EncodedFields(
            np.concatenate([self.categorical, other.categorical])[place],
            self.categorical_at,
            np.concatenate([self.numeric, other.numeric])[place],
            self.numeric_at,
            {number: behind(bag, other.bags[number]).take(place) for number, bag in self.bags.items()},
        )


def behind(first: Jagged, second: Jagged) -> Jagged:
    """The rows of one, then those of the other."""
    lengths = np.concatenate([first.lengths, second.lengths])
    return Jagged.from_lengths(np.concatenate([first.flat(), second.flat()]), lengths)


def encode_fields(encoder: FieldEncoder, columns: Sequence[pl.Series], rows: int, what: str) -> EncodedFields:
    """The fields that these columns hold, of `rows` rows. Raises `UserError` for values that the schema refuses."""
    own = {column.name: column for column in columns}
    names = [field.name for field in encoder.schema.fields]
    frame = pl.DataFrame([own[name] if name in own else constant_column(name, None, rows) for name in names])
    found = encoder.encode(frame, what)
    columns_at = [at for at, field in enumerate(encoder.categorical) if field.name in own]
    numbers_at = [at for at, field in enumerate(encoder.numeric) if field.name in own]
    bags = {at: bag for at, bag in enumerate(found.bags) if encoder.multivalued[at].name in own}
    return EncodedFields(found.categorical[:, columns_at], columns_at, found.numeric[:, numbers_at], numbers_at, bags)


def with_given(encoder: FieldEncoder, known: EncodedFields, given: RequestFeatures) -> EncodedFields:
    """The fields of some users, those that are `given` in their place. It may say something of other fields too."""
    columns = [column for column in given.frame if column.name in given.present]
    new = encode_fields(encoder, columns, len(given.frame), given.what)
    categorical, numeric, bags = known.categorical.copy(), known.numeric.copy(), dict(known.bags)
    for fields, old, old_at, ids, places in (
        (encoder.categorical, categorical, known.categorical_at, new.categorical, new.categorical_at),
        (encoder.numeric, numeric, known.numeric_at, new.numeric, new.numeric_at),
    ):
        for column, place in enumerate(places):
            who = given.present[fields[place].name]
            old[who, old_at.index(place)] = ids[who, column]
    for number, bag in new.bags.items():
        bags[number] = merged(known.bags[number], bag, given.present[encoder.multivalued[number].name])
    return replace(known, categorical=categorical, numeric=numeric, bags=bags)


@dataclass(frozen=True)
class PastFeature:
    """An event feature of the retriever's store that is a sequence of the ranker."""

    column: int
    """Among the categories of events (`FeatureTable.categorical`)."""
    known: Int[np.ndarray, "V"]
    """The ranker's id of each of the store's."""

    def ids(self, histories: Histories) -> Int[np.ndarray, "n"]:
        """The ranker's id of each event, history after history; missing where nothing is known of events."""
        places, table = histories.items.places(), None if histories.features is None else histories.features.event
        return np.zeros(len(places), np.int32) if table is None else self.known[table.categorical[places, self.column]]


def past_features(theirs: FeatureEncoder | None, encoder: FieldEncoder) -> dict[str, PastFeature]:
    """The event features of a retriever's catalogue that the ranker's `encoder` reads as sequences, by name: those
    with a vocabulary."""
    read = {one.name: one for one in encoder.multivalued if isinstance(one, SequenceOf) and one.shares is None}
    found: dict[str, PastFeature] = {}
    for column, field in enumerate(() if theirs is None else encoder_of(theirs, "event").categorical):
        values = None if theirs is None else theirs.lookups.get(field.name)
        if field.name in read and isinstance(values, Vocabulary):
            ids = encoder.lookup(read[field.name]).ids(canonical(values.values, "the values of an event feature"))
            found[field.name] = PastFeature(column, np.concatenate([[MISSING, UNKNOWN], ids]))
    return found


def history_bags(
    ranker: RankingStage,
    names: Collection[str],
    items: EncodedFields,
    histories: Jagged,
    past: Mapping[str, Int[np.ndarray, "n"]] = MappingProxyType({}),
) -> dict[int, Jagged]:
    """The sequences of `names` by the number of their bag: of each event the ranker's id of the shared field.

    `items` has these fields, `histories` internal item ids, oldest first; `past` has the ids of event features, beside
    the items. A missing value is left out, as in training, but where the sequence keeps it or the model reads sequences
    event by event: there it is an event of the missing value.
    """
    encoder = ranker.encoder
    aligned = {number for group in ranker.model.parallel for number in group}
    places = {field.name: at for at, field in enumerate(encoder.categorical)}
    found: dict[int, Jagged] = {}
    for number, field in enumerate(encoder.multivalued):
        if field.name in names:
            rows = histories.row_of()
            if field.shares is None:
                values = past[field.name]
            else:
                ids = items.categorical[:, items.categorical_at.index(places[field.shares])]
                values = ids[histories.flat()]
            if number not in aligned and not field.keep_missing:
                rows, values = rows[values != MISSING], values[values != MISSING]
            counts = np.bincount(rows, minlength=len(histories))
            found[number] = Jagged.from_lengths(values, counts).last(field.max_length)
    return found


@dataclass(frozen=True)
class PairFeatures:
    """All fields of any user with any item."""

    encoder: FieldEncoder
    users: EncodedFields
    items: EncodedFields

    def batch(self, users: Int[np.ndarray, "R"], items: Int[np.ndarray, "R"]) -> Impressions:
        """The impressions of user users[r] and item items[r], as rows of the two sides."""
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
    found = np.full(ids.shape, -np.inf)
    for low in range(0, len(users), BATCH):
        some = slice(low, low + BATCH)
        at = users[some], places[some]
        found[at] = predict_batch(model, pairs.batch(at[0], ids[at]))
    return found


def blend_scores(ranker: CandidateScores, retriever: CandidateScores, share: float) -> CandidateScores:
    """The scores that candidates are ordered by: probabilities, or (1 - share) z(logit) + share z(retriever's score).

    z is standardised over the user's candidates (mean 0, deviation 1), because the two scales have nothing in common.
    Empty places are -inf in both and stay so.
    """
    if share == 0:
        return ranker
    there = ranker > -np.inf
    kept = np.where(there, ranker, 0.5).clip(TINY, 1 - TINY)
    logits = np.log(kept) - np.log1p(-kept)
    mixed = (1 - share) * _standardised(logits, there) + share * _standardised(retriever, there)
    return np.where(there, mixed, -np.inf)


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
    """Raise `UserError` for a list longer than the candidates, and for a share that is none."""
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
    kept = np.where(there, scores, 0.0).astype(np.float64)
    count = np.maximum(there.sum(1, keepdims=True), 1)
    away = np.where(there, kept - kept.sum(1, keepdims=True) / count, 0.0)
    deviation = np.sqrt((away**2).sum(1, keepdims=True) / count)
    return away / np.where(deviation > 0, deviation, 1.0)
