"""Errors as RFC 9457 bodies: by code to a status, pointers into bodies, and nothing of the machine's inside."""

import ast
import json
import logging
import re
from typing import Annotated

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from error_codes import SOURCE, codes_of
from fullrank.core.errors import UserError
from fullrank.serving.guard import Guard
from fullrank.serving.keys import Access
from fullrank.serving.messages import EventsRequest, RecommendRequest
from fullrank.serving.problems import INSIDE, NOT_VALID, STATUS, ProblemDetails, install, problem_of, without_paths


def told(form: type, tree: object) -> ProblemDetails:
    """What is told of a body that is none of this form."""
    with pytest.raises(ValidationError) as refusal:
        form.model_validate_json(json.dumps(tree))
    return problem_of(refusal.value)


MEMBERS = {"type", "title", "status", "detail", "code", "request_id"}


@pytest.mark.parametrize(
    ("error", "method", "status", "code"),
    [
        (UserError("no", code="invalid-list-length", public=True), "POST", 422, "invalid-list-length"),
        (UserError("no", code="unknown-item", public=True), "GET", 404, "unknown-item"),
        (UserError("no", code="unknown-item", public=True), "POST", 422, "unknown-item"),
        (UserError("no", code="unknown-version", public=True), "POST", 404, "unknown-version"),
        (UserError("no", code="overloaded", public=True), "POST", 429, "overloaded"),
        (UserError("no", code="deadline", public=True), "POST", 503, "deadline"),
        (UserError("no", code="body-too-large", public=True), "POST", 413, "body-too-large"),
        (UserError("redis://u:p@h/0 is away", code="store-unavailable"), "POST", 503, "store-unavailable"),
        (UserError("/srv/run is torn", code="file-damaged"), "POST", 500, "file-damaged"),
        (UserError("no", code="key-missing", public=True), "GET", 401, "key-missing"),
        (UserError("no", code="scope-missing", public=True), "GET", 403, "scope-missing"),
        (KeyError("x"), "POST", 500, "internal"),
        (OSError(2, "no such file", "/srv/run"), "POST", 500, "internal"),
    ],
)
def test_status_and_body(error: Exception, method: str, status: int, code: str) -> None:
    problem = problem_of(error, method=method, request_id="r1")
    body = json.loads(problem.response("r1").body)
    assert (problem.status, body["status"], body["code"]) == (status, status, code)
    assert set(body) == MEMBERS and body["request_id"] == "r1" and body["type"].endswith(f":{code}")
    assert ("Retry-After" in problem.headers) == (status in (429, 503))
    assert ("WWW-Authenticate" in problem.headers) == (status == 401)
    assert "/srv" not in str(body) and "redis" not in str(body)


def test_an_error_says_itself_when_to_come_back() -> None:
    error = UserError("too fast", code="rate-exceeded", public=True)
    error.retry_after = 2.3
    assert problem_of(error).headers["Retry-After"] == "3"


def test_a_bug_tells_its_id_alone_and_the_log_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    def inner() -> None:
        raise RuntimeError("secret of /srv/model")

    with caplog.at_level(logging.ERROR):
        try:
            inner()
        except RuntimeError as error:
            body = problem_of(error, request_id="r7").body("r7")
    assert body["detail"] == INSIDE and "secret" not in str(body)
    assert "r7" in caplog.text and "secret of /srv/model" in caplog.text and "in inner" in caplog.text


class Inner(BaseModel):
    item: int | str
    weights: dict[str, float] = {}


class Asked(BaseModel):
    k: int = Field(10, ge=1, le=100)
    history: list[int | Inner] = []


def test_a_body_that_does_not_fit() -> None:
    tree = {"k": 1000, "history": [1, {"item": [], "weights": {"a/b~c": "a secret"}}, "a secret"]}
    problem = told(Asked, tree)
    pointers = {error["pointer"]: error["detail"] for error in problem.errors}
    assert problem.status == 422 and problem.code == "invalid-request"
    assert pointers["#/k"] == "input should be less than or equal to 100"
    assert "#/history/1/weights/a~1b~0c" in pointers and "#/history/2" in pointers
    assert "a secret" not in problem.response(None).body.decode() and "; or " in pointers["#/history/2"]


def test_many_mistakes_are_cut() -> None:
    problem = told(Asked, {"history": ["x"] * 5000})
    assert len(problem.errors) == 20 and len(problem.response(None).body) < 20_000 and "4999 more" in problem.detail


def client_of_an_app() -> TestClient:
    app = FastAPI()
    install(app)
    app.add_middleware(Guard, access=Access(None))

    @app.post("/v1/recommend")
    def asked(body: Asked, limit: int = 3) -> dict:
        if limit == 7:
            raise UserError("no such list", code="invalid-list-length", public=True)
        return {"k": body.k}

    app.post("/v1/versions/check")(lambda: {})
    return TestClient(app)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/recommend", b'{"k": 3}', 200, None),
        ("POST", "/v1/recommend", b'{"k": ', 400, "invalid-json"),
        ("POST", "/v1/recommend", b"", 422, "invalid-request"),
        ("POST", "/v1/recommend", b'{"k": "x"}', 422, "invalid-request"),
        ("POST", "/v1/recommend?limit=x", b'{"k": 1}', 422, "invalid-request"),
        ("POST", "/v1/recommend?limit=7", b'{"k": 1}', 422, "invalid-list-length"),
        ("GET", "/none", b"", 404, "not-found"),
    ],
)
def test_an_app_that_it_is_installed_in(method: str, path: str, body: bytes, status: int, code: str | None) -> None:
    headers = {"content-type": "application/json"}
    answer = client_of_an_app().request(method, path, content=body, headers=headers)
    assert answer.status_code == status
    if code is not None:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == code and set(answer.json()) - {"errors"} == MEMBERS
        if path == "/v1/recommend?limit=x":
            assert [(e["parameter"], e["in"]) for e in answer.json()["errors"]] == [("limit", "query")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cannot read /srv/runs/a b: it", "cannot read ... b: it"),
        ("'/srv/my runs/a' is no run", "'...' is no run"),
        ("'~/runs' and ~/x/y", "'...' and ..."),
        ("C:\\runs\\a is", "... is"),
        ("redis://user:pass@host:6379/0 is away", "... is away"),
        ("see https://user:pass@host/x", "see ..."),
        ("see https://example.org/x", "see https://example.org/x"),
        ("ask GET /v1/items/{id}", "ask GET /v1/items/{id}"),
        ("no item 'a/b', 3/4 or and/or", "no item 'a/b', 3/4 or and/or"),
    ],
)
def test_without_paths(text: str, told: str) -> None:
    assert without_paths(text) == told


NAMES = re.compile(r"path|folder|file|place|\bout\b|where|\bhome\b|\broot\b|_dir\b")
"""Expressions in a sentence that are places on a disk."""
RAISING = ("UserError", "no_such", "unknown", "in_context", "super().__init__")
VERSIONS = {"version-refused", "version-changed"}
"""The folder's name is the version's, and what is told of it is without places."""


def public_sentences() -> list[tuple[str, ast.Call]]:
    """Where the source makes an error that the service tells."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in RAISING:
                if any(k.arg == "public" and ast.unparse(k.value) == "True" for k in node.keywords):
                    found.append((f"{file.relative_to(SOURCE).as_posix()}:{node.lineno}", node))
    return found


def test_no_sentence_that_names_a_file_is_told() -> None:
    found, told = public_sentences(), []
    assert len(found) > 40
    for where, node in found:
        codes = {code for k in node.keywords if k.arg == "code" for code in codes_of(k.value)}
        parts = [ast.unparse(part.value) for part in ast.walk(node) if isinstance(part, ast.FormattedValue)]
        if not codes & VERSIONS and any(NAMES.search(part) for part in parts):
            told.append((where, codes))
    assert not told, f"public sentences that name places: {told}"


def test_an_error_is_secret_until_it_says_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(text: str) -> str:
        raise UserError(f"{text} of the owner", code="brand-new")

    class Model(BaseModel):
        name: Annotated[str, AfterValidator(refuse)]

    with caplog.at_level(logging.ERROR):
        problem = problem_of(UserError("a word of the owner", code="brand-new"), request_id="r9")
    assert (problem.status, problem.detail, problem.headers) == (500, INSIDE, {})
    assert "r9" in caplog.text and "a word of the owner" in caplog.text
    assert told(Model, {"name": "x"}).errors == ({"pointer": "#/name", "detail": NOT_VALID},)
    public = problem_of(UserError("a word of the owner", code="brand-new", public=True))
    assert (public.status, public.detail) == (422, "a word of the owner")


def test_every_code_is_one_that_is_raised() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py") if file.name != "problems.py")
    made = {"invalid-json", "unknown-version"}  # from pydantic, and from unknown()
    assert [code for code in sorted(STATUS.keys() - made) if f'"{code}"' not in text] == []


def test_a_field_that_is_not_there_is_told_beside_those_that_are() -> None:
    problem = told(RecommendRequest, {"history": [{"item": 1, "tme": 3}], "kk": 5})
    errors = {error["pointer"]: error["detail"] for error in problem.errors}
    assert set(errors) == {"#/history/0/tme", "#/kk"}  # and not that the event is no text either
    assert "'time'" in errors["#/history/0/tme"] and "exclude" in errors["#/kk"]


def test_milliseconds_are_told() -> None:
    problem = told(EventsRequest, {"events": [{"user": 1, "item": 2, "time": 1_700_000_000_000}]})
    assert problem.errors[0]["pointer"] == "#/events/0/time" and "1000" in problem.detail


def test_what_no_route_takes_is_no_matter_of_keys() -> None:
    client = client_of_an_app()
    for method, path, code in (
        ("POST", "/v1/recomend", "not-found"), ("PUT", "/v1/recommend", "method-not-allowed"),
        ("POST", "/v1/versions/check", "admin-off"),
    ):  # fmt: skip
        assert client.request(method, path).json()["code"] == code
