"""Targets of chosen types: events selected by one of their features, in training as in evaluation.

    evaluation.targets={feature: type, values: [purchase]}    the next purchase, given everything before it
    evaluation.targets={feature: type}                        whatever comes next, with metrics by its type

Histories keep events of all types. The type of a target decides whether it is asked
for; a model never reads it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool
from pydantic import Field, field_validator

from fullrank.core.constraints import MOST_ENTRIES, Names
from fullrank.core.errors import UserError, no_such
from fullrank.core.files import JsonObject
from fullrank.core.jagged import Jagged
from fullrank.core.parted import stretches
from fullrank.core.spec import Spec
from fullrank.data.events.features import FeatureEncoder, encoder_of
from fullrank.data.events.store import Store
from fullrank.data.features import HistoryFeatures
from fullrank.data.histories import EvalSet
from fullrank.data.impressions.vocabulary import Vocabulary


class Targets(Spec):
    """Events that are asked for, by an event feature of categories."""

    feature: str = Field(min_length=1)
    """Event feature of the store that says what was done: view, cart, purchase."""
    values: Names = ()
    """Types that are asked for; empty asks for all, and tells metrics by type."""

    @field_validator("values", mode="before")
    @classmethod
    def _as_text(cls, values: Any) -> Any:
        """One value as a list; whole numbers and booleans as the text that they are stored as."""
        several = values if isinstance(values, list | tuple) else [values]
        return [str(entry).lower() if isinstance(entry, int) else entry for entry in several]

    def known(self, encoder: FeatureEncoder | None) -> tuple[int, list[str], Bool[np.ndarray, "n"]]:
        """The column of the feature among the categorical ones, the labels of its ids, and which ids are asked for.

        One more label at the end is for users with targets of several types.

        Raises `UserError` for a feature that is not there or has more than 1,000 values,
        and for an unknown value.
        """
        fields = () if encoder is None else encoder_of(encoder, "event").categorical
        lookups = {} if encoder is None else encoder.lookups
        vocabularies = {name: lookup for name, lookup in lookups.items() if isinstance(lookup, Vocabulary)}
        names = [field.name for field in fields]
        columns = [name for name in names if name in vocabularies and vocabularies[name].size <= MOST_ENTRIES]
        if self.feature not in columns:
            what = "evaluation.targets: the store has no such event feature of categories,"
            raise no_such(what, self.feature, columns, code="unknown-feature")
        values = vocabularies[self.feature].values.to_list()
        for value in self.values:
            if value not in values:
                raise no_such(f"evaluation.targets: {self.feature!r} never is", value, values, code="unknown-type")
        labels = ["(missing)", "(unknown)", *values, "(several)"]
        return names.index(self.feature), labels, np.isin(labels, self.values or labels)

    def in_training(self, store: Store) -> Jagged:
        """Whether each training event is asked for, of each user of the store."""
        column, _, wanted = self.known(store.features)
        assert store.event_features is not None
        flags = [wanted[block[:, column]] for block in stretches(store.event_features.categorical)]
        return Jagged(np.concatenate(flags), store.offsets[:-1], store.bounds[:, 0])

    def of_users(self, users: EvalSet, encoder: FeatureEncoder | None) -> EvalSet:
        """The users who have such targets, with these alone and all events before the first of them as history.

        Raises `UserError` where there are users and none has one.
        """
        column, labels, wanted = self.known(encoder)
        past, known, targets = users.histories, users.histories.features, users.targets
        assert known is not None and known.event is not None
        places, owner = targets.places(), targets.row_of()
        types = known.event.categorical.take(places, axis=0)[:, column]
        chosen = wanted[types]
        places, owner, types = places[chosen], owner[chosen], types[chosen]
        rows, begins, counts = np.unique(owner, return_index=True, return_counts=True)
        if len(users) and not len(rows):
            raise UserError(
                f"evaluation.targets: no target of the split has such a {self.feature}: name other values, or prepare "
                "the store with another split",
                code="no-users-in-split",
            )
        first, several = places[begins], np.minimum.reduceat(types, begins) < np.maximum.reduceat(types, begins)
        person = known.user and known.user.take(rows)
        features = HistoryFeatures.of(known.event, known.request, person, past.times, first)
        past = past.take(rows)
        return EvalSet(
            replace(past, items=replace(past.items, ends=first), features=features),
            Jagged.from_lengths(targets.values[places], counts),
            np.where(several, len(labels) - 1, types[begins]),
        )


def evaluated_users(store: Store, protocol: JsonObject) -> EvalSet:
    """Users of the split that an evaluation was made on, with the targets that it asked for."""
    whole = store.eval_set(protocol["split"], without_history=True)
    if (types := protocol.get("target_types")) is None:
        return whole
    return Targets(feature=types["feature"], values=types["values"]).of_users(whole, store.features)
