"""The OpenAPI document: bodies and answers of every route, errors, keys; clients are made from it."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from fullrank.serving import answer_forms as forms
from fullrank.serving import messages
from fullrank.serving.keys import scope_of

REFERENCE = "#/components/schemas/{model}"
ANSWERS: dict[tuple[str, str], type[BaseModel]] = {
    ("post", "/v1/recommend"): forms.RecommendAnswer,
    ("post", "/v1/recommend:batch"): forms.BatchAnswer,
    ("post", "/v1/predict"): forms.PredictAnswer,
    ("post", "/v1/events"): forms.EventsAnswer,
    ("get", "/v1/users/{user}/history"): forms.HistoryAnswer,
    ("put", "/v1/users/{user}"): forms.UserAnswer,
    ("delete", "/v1/users/{user}"): forms.ForgottenAnswer,
    ("get", "/v1/items"): forms.FoundItems,
    ("post", "/v1/items"): forms.TakenItems,
    ("get", "/v1/items/{item}"): forms.ItemAnswer,
    ("get", "/v1/items/{item}/similar"): forms.SimilarAnswer,
    ("get", "/v1/model"): forms.Card,
    ("get", "/v1/versions"): forms.VersionsAnswer,
    ("post", "/v1/versions/check"): forms.VersionsAnswer,
    ("post", "/v1/versions/rollback"): forms.VersionsAnswer,
    ("put", "/v1/versions/split"): forms.VersionsAnswer,
    ("post", "/v1/versions/{name}/activate"): forms.VersionsAnswer,
    ("get", "/healthz"): forms.Alive,
    ("get", "/readyz"): forms.Ready,
}
"""(method, path) -> the form of its answer."""


def describe(app: FastAPI) -> None:
    """Have the app answer `/openapi.json` with the whole document; made when it is first asked for."""
    made = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = completed(made(), app.state.service.body_schemas())
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def completed(document: dict[str, Any], bodies: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's document with what it cannot know: bodies that routes read themselves, answers, errors, keys.

    `bodies` are schemas that bodies refer to and that follow from the run.
    """
    routes = [(method, path) for path, operations in document["paths"].items() for method in operations]
    named = {name for name in vars(messages) if f'"{REFERENCE.format(model=name)}"' in json.dumps(document["paths"])}
    asked: list[type[BaseModel]] = [getattr(messages, name) for name in sorted(named)]
    kinds: list[type[BaseModel]] = [*asked, *(ANSWERS[route] for route in routes if route in ANSWERS), forms.Problem]
    _, schemas = models_json_schema([(kind, "validation") for kind in dict.fromkeys(kinds)], ref_template=REFERENCE)
    document["components"] = {
        "schemas": schemas["$defs"] | bodies,
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "Needed with --keys."}},
    }
    problem = {"application/problem+json": {"schema": {"$ref": REFERENCE.format(model="Problem")}}}
    for path, operations in document["paths"].items():
        for method, one in operations.items():
            one["summary"] = one["description"].split(".")[0].replace("\n", " ")
            one["responses"] = {"200": _answer(ANSWERS.get((method, path)))}
            one["responses"]["default"] = {"description": "An error: `code` says which.", "content": problem}
            scope = scope_of(method.upper(), path)
            if scope is not None:
                one["security"] = [{"key": []}] if scope == "admin" else [{}, {"key": []}]
                one["description"] += f" Scope: {scope}."
    return document


def _answer(form: type[BaseModel] | None) -> dict[str, Any]:
    if form is None:
        return {"description": "Text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    schema = {"$ref": REFERENCE.format(model=form.__name__)}
    told = (
        (form.__doc__ or "").splitlines()[0] if form.__doc__ and form.__doc__ != forms.Form.__doc__ else "The answer."
    )
    return {"description": told, "content": {"application/json": {"schema": schema}}}
