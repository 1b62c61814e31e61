"""The OpenAPI document: whole, and what the service answers."""

import json
import re

import pytest

from fullrank.serving import openapi
from fullrank.serving.client import Client


@pytest.fixture(scope="module")
def document(service: Client) -> dict:
    found = service.call("GET", "/openapi.json")
    return found


def test_every_reference_leads_somewhere(document: dict) -> None:
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert named and named <= set(document["components"]["schemas"])


def test_every_route_has_a_summary_an_answer_and_its_scope(document: dict) -> None:
    routes = {(method, path): one for path, some in document["paths"].items() for method, one in some.items()}
    assert len(routes) > 15 and set(routes) - set(forms(document)) == {("get", "/metrics")}
    names = [one["operationId"] for one in routes.values()]
    assert len(set(names)) == len(names) and all(name.isidentifier() for name in names)
    for (_, path), one in routes.items():
        assert " " in one["summary"] and set(one["responses"]) == {"200", "default"}
        assert ("security" in one) == path.startswith(("/v1", "/metrics"))


def test_answers_have_the_form_that_is_told(service: Client, document: dict) -> None:
    service.add_events([{"user": "form", "item": "i7"}])
    asked = {
        ("post", "/v1/recommend"): {"user": "form", "k": 2, "explain": True},
        ("post", "/v1/recommend:batch"): {"requests": [{"user": "form", "k": 2}, {}]},
        ("post", "/v1/events"): {"events": [{"user": "form", "item": "i9"}]},
        ("put", "/v1/users/{user}"): {"features": {"age": 3}},
        ("post", "/v1/items"): {"items": [{"id": "i3", "retired": False}]},
    }
    for (method, path), form in forms(document).items():
        if (method, path) in asked or method == "get":
            where = path.format(user="form", item="i7")
            body = service.call(method.upper(), where, asked.get((method, path)))
            assert not unknown(form, body), (path, unknown(form, body))


def forms(document: dict) -> dict:
    """(method, path) -> the form of its answer."""
    found = {}
    for path, operations in document["paths"].items():
        for method, one in operations.items():
            schema = one["responses"]["200"]["content"].get("application/json", {}).get("schema")
            if schema is not None:
                found[method, path] = getattr(openapi, schema["$ref"].rpartition("/")[2])
    return found


def unknown(form: type, body) -> set:
    """Members of an answer, at its top, that its form does not name; checks all of it against the form."""

    told = form.model_validate(body)
    if form.model_config.get("extra") == "allow":
        return set()
    return set(body) - set(told.model_dump(by_alias=True))
