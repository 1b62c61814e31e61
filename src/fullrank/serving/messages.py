"""Bodies of requests: their fields and bounds, with examples for the OpenAPI document.

Bounds here are those of any service; the tighter ones of this one (`ServeSettings.k_most`, `history_most`,
`batch_most`) are checked where a request is read.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from fullrank.core.constraints import MOST_PARTS
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject as JsonObject
from fullrank.inference.list_options import ListChoices

LATEST = 10**11
"""Latest time, in seconds: milliseconds of any day since March 1973 lie behind it."""
BOUNDS: dict[str, Any] = {"minimum": -LATEST, "maximum": LATEST}
MOST_IDS = 100_000
"""Ids in one list of a request."""
MOST_ROWS = 1_000_000
"""Rows of one request."""
LONGEST_TEXT = 4096
"""Characters of a text in a column."""
Text = Annotated[StrictStr, Field(min_length=1, max_length=512)]
Parts = Annotated[StrictInt, Field(ge=1, le=MOST_PARTS)]
Word = Annotated[str, Field(min_length=1, max_length=256)]
"""The name of a column, or of a version."""
Whole = Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]


def _addressable(name: str) -> str:
    """An id that an address can name. Raises `UserError` for what browsers and clients fold away there."""
    if name in (".", ".."):
        raise UserError(f"{name!r} is no id, since no address can name it", code="invalid-id", public=True)
    return name


Name = Annotated[Text, AfterValidator(_addressable)]
"""An id as text, in a body or in an address (`serving/guard.py`): what can be stored can be read and erased."""
Id = Whole | Name
"""An external id as the data had it; a number and its text are the same id."""
Ids = Annotated[list[Id], Field(max_length=MOST_IDS)]


def _seconds(seconds: float) -> float:
    """A time in seconds. Raises `UserError` for milliseconds, which JavaScript's clock gives."""
    if abs(seconds) > LATEST:
        raise UserError(
            f"a time is in seconds since 1970, at most {LATEST:,} (the year 5138); milliseconds are to be divided by "
            "1000",
            code="not-seconds",
            public=True,
        )
    return seconds


Moment = Annotated[StrictFloat, Field(allow_inf_nan=False, json_schema_extra=BOUNDS), AfterValidator(_seconds)]
"""Seconds since 1970."""
Number = Annotated[StrictFloat, Field(allow_inf_nan=False)]
Scalar = StrictBool | Whole | Number | Annotated[StrictStr, Field(max_length=LONGEST_TEXT)]
Value = Scalar | None | Annotated[list[Scalar], Field(max_length=1000)]
"""A value of a column."""
Columns = Annotated[dict[Word, Value], Field(max_length=256)]


class Body(BaseModel):
    """Base of every body: a key that is not known is refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


def _typed(name: str, default: Any = None) -> Any:
    """Features, whose names and kinds follow from the run: its document has them under this name."""
    return Field(default, json_schema_extra={"allOf": [{"$ref": f"#/components/schemas/{name}"}]})


class PastEvent(Body):
    """An event of a history that a request brings."""

    item: Id
    time: Moment | None = None
    """Seconds since 1970; of all events or of none (models that read times then take them as of now, a day apart)."""
    features: Columns | None = _typed("EventFeatures")
    """What is known of it and of the request that it answered, for models that read it."""


class Reasoning(Body):
    """How long a model that reasons may think (`fr.load(...).recommend(budget=)`)."""

    steps: Annotated[StrictInt, Field(ge=0, le=MOST_PARTS)] | None = None
    streams: Parts | None = None
    adaptive: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    patience: Parts | None = None


class RecommendRequest(ListChoices, Body):
    """A list for one user, or for one history."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"history": ["B004756YJA", "B004ZT0SSG"], "k": 5}, {"user": "42", "k": 10}]}
    )
    user: Id | None = None
    """Whose stored history is read (unless `history` is given), and whose stored features."""
    history: Annotated[list[Id | PastEvent], Field(max_length=MOST_IDS)] | None = None
    """Items, oldest first; used in place of the stored ones."""
    k: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 10
    """Length of the list."""
    exclude: Ids | None = None
    """Items that are not to be shown."""
    allow: Ids | None = None
    """The only items that may be shown."""
    filters: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    """Columns of items and what they must hold: a value, a list of values, or {"min": x, "max": y}."""
    features: Columns | None = _typed("Features")
    """What is known of the user and of this request, for models that read it: over what was put for the user."""
    time: Moment | None = None
    """When this is asked, for models that read it: seconds since 1970, by default now."""
    context: Columns | None = None
    """Fields of this request that the ranker reads, such as the hour: over those that `features` have too."""
    reasoning: Reasoning | None = None
    explain: StrictBool = False
    """Whether to say which events of the history an item is like, and where attention went."""
    titles: StrictBool = False
    """Whether items come with their titles."""
    version: Word | None = None
    """The version that answers; by default the one that the user's share of the split says."""
    ranker: StrictBool | None = None
    """False leaves the ranker out."""


class PredictRequest(Body):
    """Rows whose click probabilities are asked for: impressions, with the columns that the model reads."""

    rows: Annotated[
        list[dict[str, Any]],
        Field(min_length=1, max_length=MOST_ROWS, json_schema_extra={"items": {"$ref": "#/components/schemas/Row"}}),
    ]
    """Each gives every column, null where it is missing."""
    user: Id | None = None
    """Whose share of the split says which version answers."""
    version: Word | None = None
    """The version that answers; by default the one that the user's share of the split says."""


class BatchRequest(Body):
    """Several requests at once."""

    requests: Annotated[list[RecommendRequest], Field(min_length=1, max_length=10_000)]


class NewEvent(Body):
    """Something that a user did."""

    user: Id
    item: Id
    event_id: Text | None = None
    """Sent twice, it is stored once. Without one, an event with a time is known by user, item and time."""
    time: Moment | None = None
    """Seconds since 1970; by default now."""
    features: Columns | None = _typed("EventFeatures")
    """What is known of it and of the request that it answered."""


class EventsRequest(Body):
    """Events to store."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"events": [{"user": "42", "item": "B004ZT0SSG", "event_id": "e-1"}]}]}
    )
    events: Annotated[list[NewEvent], Field(min_length=1, max_length=10_000)]


class ItemChange(Body):
    """An item to add, or what changes of one that is there; what is left out stays as it is."""

    id: Id
    title: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    text: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    """What is known of it in words: read by models whose items are made of text, else to find like items."""
    features: Columns | None = None
    """Values of its columns."""
    like: Annotated[list[Id], Field(min_length=1, max_length=100)] | None = None
    """Known items that it is like: its first vector is the mean of theirs."""
    retired: StrictBool | None = None
    """Whether it is no longer shown."""
    expires_at: Moment | None = None
    """Seconds since 1970 from which it is no longer shown; null: never."""


class ItemsRequest(Body):
    """Items to add or to change."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"items": [{"id": "new-1", "title": "Rose hand cream, 50 ml"}]}]}
    )
    items: Annotated[list[ItemChange], Field(min_length=1, max_length=10_000)]


class UserRequest(Body):
    """Features of a user for the model and its ranker."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"features": {"age": 35, "city": "Delft"}}]})
    features: Columns = _typed("UserFeatures", ...)
    """What is known of the user, for models that read it, and fields of a ranker."""


class SplitRequest(Body):
    """Which share of the users each version answers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"split": {"monday": 0.9, "tuesday": 0.1}}]})
    split: Annotated[
        dict[Annotated[str, Field(max_length=256)], Annotated[StrictFloat, Field(gt=0, le=1)]],
        Field(min_length=1, max_length=16),
    ]
