"""Declared features of events, requests and users, by when they are known, which decides what a model may read.

- `event`    with the event and not before it (rating, dwell, price paid): read of events before an answer alone.
- `request`  with the request (device, place): read of past requests, and of the one that is answered.
- `user`     of the user at any time (country, birth year).

Fields are those of impressions (`data/impressions/schema.py`): categories, numbers, lists, fitted
on what training events hold.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from fullrank.core.checks import check_once
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec, by_kind
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.schema import AnyField, BagOf, Categorical, FieldSet, Numeric

Role = Literal["event", "request", "user"]
"""When a feature is known."""
ROLES: tuple[Role, ...] = get_args(Role)


class Inferred(Spec):
    """A feature whose kind `prepare` infers: from its column's type, and the first rows of text."""

    kind: Literal["auto"] = "auto"
    name: str = Field(min_length=1)
    """Column of the table."""


Feature = Annotated[
    Annotated[Categorical | Numeric | BagOf | Inferred, Field(discriminator="kind")],
    by_kind("kind of feature", Categorical, Numeric, BagOf, Inferred, text="name", usual="auto"),
]
"""A feature: a spec, a mapping, or the bare name of a column, whose kind is inferred."""


class Features(FieldSet):
    """Columns that are known of events, of requests and of users."""

    event: tuple[Feature, ...] = ()
    """Columns of the events, known with each event and not before: read only of events before the answer."""
    request: tuple[Feature, ...] = ()
    """Columns of the events, known before each event, when it was asked for what became the event."""
    user: tuple[Feature, ...] = ()
    """Columns of the table of users."""

    @field_validator("event", "request", "user", mode="before")
    @classmethod
    def _names(cls, names: Any) -> Any:
        """Split a text of column names with commas between them."""
        return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names

    @model_validator(mode="after")
    def _apart(self) -> Features:
        names = [feature.name for feature in self.all]
        check_once(
            names, "event, request and user features", "each has a role and a column of its own", code="repeated-field"
        )
        if not any(isinstance(feature, Inferred) for feature in self.all):
            self.check_shared()
        return self

    @property
    def all(self) -> tuple[Feature, ...]:
        """Every feature, in order."""
        return (*self.event, *self.request, *self.user)

    @property
    def declared(self) -> tuple[AnyField, ...]:
        """Every feature, in order. Raises `UserError` where the kind of one is still to be inferred."""
        for feature in self.all:
            if isinstance(feature, Inferred):
                raise UserError(
                    f"the feature {feature.name!r} has no kind: name one (categorical, numeric, bag)",
                    code="missing-kind",
                )
        fields: Any = self.all
        return fields

    @property
    def of_events(self) -> tuple[AnyField, ...]:
        """The features that are columns of the table of events, in order."""
        fields: Any = (*self.event, *self.request)
        return fields

    def of(self, role: Role) -> Features:
        """The features of one role."""
        return Features.model_validate({role: getattr(self, role)})


FeatureEncoder = FieldEncoder[Features]


@lru_cache(maxsize=64)  # a request asks several times
def encoder_of(encoder: FeatureEncoder, role: Role) -> FeatureEncoder:
    """The part of an encoder that is of one role."""
    return FieldEncoder(encoder.schema.of(role), encoder.lookups, encoder.fitted)
