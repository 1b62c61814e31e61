"""Forms of answers, and the OpenAPI document that clients are made from."""

from __future__ import annotations

import json
from typing import Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

from fullrank.serving import messages
from fullrank.serving.keys import scope_of
from fullrank.serving.messages import JsonObject

ItemId = int | str
Band = Literal["head", "middle", "tail"]


class Form(BaseModel):
    """Base of every form. A later release may add members, so a client passes over those that it does not know."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Like(Form):
    item: ItemId
    title: str | None
    similarity: float


class Place(Form):
    """One place of a list."""

    item: ItemId
    score: float
    title: str | None = None
    """With `titles` or `explain`, as are the two that follow."""
    popularity: Band | None = None
    """Which third of the training events it belongs to, the most popular items first."""
    because: list[Like] | None = None
    """With `explain`: events of the history that it is like."""
    moved: dict[str, float] | None = None
    """With `explain`: what each known feature (`request.device`) adds to the model's score, over its being missing."""


class Attended(Form):
    item: ItemId
    title: str | None
    shares: list[float]
    """Layer by layer, the share of attention that this event got."""


class RecommendAnswer(Form):
    """A list, best first."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "request_id": "1305ef6c1a-6",
                    "version": "sasrec",
                    "source": "model",
                    "ranked": False,
                    "items": [{"item": "B004ZT0SSG", "score": 12.2}],
                }
            ]
        }
    )
    request_id: str
    version: str
    """The version that answered."""
    source: Literal["model", "popular"]
    """`popular` where the history holds no item that the model knows: scores are then counts of training events."""
    ranked: bool
    """Whether the ranker put the list in order, and scores are its own (the source `ranker` of a cascade's frames)."""
    items: list[Place]
    steps: int | None = None
    """Steps that a reasoner took, where it stops by itself."""
    untimed: bool | None = None
    """True where the model reads times and the history had none: it was taken as of now, a day between events."""
    not_given: list[str] | None = None
    """Features that the model reads and nobody gave: they count as missing."""
    attention: list[Attended] | None = None
    """With `explain`: the last events of the history and the attention that each got."""


class Mistake(Form):
    pointer: str | None = None
    """JSON pointer into the body."""
    parameter: str | None = None
    detail: str


class Problem(Form):
    """An error (RFC 9457). A program goes by `code`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str | None
    errors: list[Mistake] | None = None


class BatchAnswer(Form):
    answers: list[RecommendAnswer | Problem]
    """In the order of the requests."""


class PredictAnswer(Form):
    """Click probabilities."""

    request_id: str
    version: str
    """The version that answered."""
    probabilities: list[float]
    """In the order of the rows."""


class EventsAnswer(Form):
    stored: int
    duplicates: int
    """Events that were known already."""
    unknown_items: list[ItemId]
    """Items that the version which answers does not have; their events are stored all the same."""


class PastAnswer(Form):
    item: ItemId
    time: float
    title: str | None
    features: JsonObject | None = None
    """What was stored with it, where something was."""


class HistoryAnswer(Form):
    user: str
    events: list[PastAnswer]
    """Oldest first."""


class UserAnswer(Form):
    user: str
    features: JsonObject


class ForgottenAnswer(Form):
    user: str
    events: int
    """Events that were deleted."""
    features: bool
    """Whether there were features."""
    answers: int
    """Logged answers that were deleted."""


class ItemAnswer(Form):
    item: ItemId
    title: str | None
    popularity: Band
    shown: bool
    """False where it is retired or expired."""
    columns: JsonObject


class FoundItems(Form):
    items: list[ItemAnswer]


class SimilarAnswer(Form):
    item: ItemId
    version: str
    items: list[Place]


class TakenItem(Form):
    item: ItemId
    new: bool
    origin: str
    """What its vector was made of: `trained`, or one of `like`, `features`, `title`."""
    neighbours: list[ItemId]
    """The items that its first vector was made from."""
    note: str | None = None
    """What to know of it, such as that a model of counts has none of it."""

    model_config = ConfigDict(alias_generator=lambda name: "from" if name == "origin" else name)


class TakenItems(Form):
    items: list[TakenItem]


class Alive(Form):
    status: Literal["ok"]


class Ready(Form):
    status: Literal["ok", "degraded", "starting"]
    problems: list[str] | None = None
    version: str | None = None
    items: int | None = None
    store: str | None = None
    """What survives once an event was acknowledged."""
    columns: int | None = None
    """Columns that a ranking model reads."""


class Version(Form):
    name: str
    state: str
    share: float
    open: bool
    reason: str
    verdict: JsonObject | None


class VersionsAnswer(Form):
    active: str
    split: dict[str, float]
    previous: dict[str, float] | None
    watching: bool
    auto_activate: bool
    checking: str | None
    detail: str | None
    versions: list[Version]


class Card(Form):
    """Sizes, what the version can be asked, and its figures."""

    version: str | None
    recipe: str
    parameters: int
    items: int | None = None
    """Of a recommender, as is `has_ranker`."""
    has_ranker: bool | None = None

    model_config = ConfigDict(extra="allow")


REFERENCE = "#/components/schemas/{model}"
PROBLEM: JsonObject = {
    "description": "An error: `code` says which.",
    "content": {"application/problem+json": {"schema": {"$ref": REFERENCE.format(model="Problem")}}},
}
"""The response of every route where it does not answer."""


def describe(app: FastAPI) -> None:
    """Have the app answer `/openapi.json` with the whole document; made when it is first asked for."""
    routes_document = app.openapi

    def document() -> JsonObject:
        if app.openapi_schema is None:
            app.openapi_schema = completed(routes_document(), app.state.service.body_schemas())
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def completed(document: JsonObject, bodies: JsonObject) -> JsonObject:
    """FastAPI's document with what it cannot know: the bodies, which routes read themselves, and the scopes of keys.

    `bodies` are schemas that bodies refer to and that follow from the run.
    """
    text = json.dumps(document["paths"])
    kinds = [kind for name, kind in sorted(vars(messages).items()) if f'"{REFERENCE.format(model=name)}"' in text]
    _, schemas = models_json_schema([(kind, "validation") for kind in [*kinds, Problem]], ref_template=REFERENCE)
    components = document["components"]
    components["schemas"] |= schemas["$defs"] | bodies
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": "Needed with --keys."}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["summary"] = operation["description"].split(".")[0].replace("\n", " ")
            scope = scope_of(method.upper(), path)
            if scope is not None:
                operation["security"] = [{"key": []}] if scope == "admin" else [{}, {"key": []}]
                operation["description"] += f" Scope: {scope}."
    return document
