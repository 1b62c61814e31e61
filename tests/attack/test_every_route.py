"""Every route of the service, found in its document: numbers of any size, values of any type, addresses, methods."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import urllib3

from fullrank.serving import watching
from fullrank.serving.client import Client
from fullrank.serving.keys import add_key
from seals import reseal
from serving.conftest import Shop, click_run, shop
from serving.running import running

__all__ = ["click_run", "shop"]  # the fixtures

PLACE = "a secret place"
"""Folder of runs and keys; no answer names it."""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/recommend": {
        "user": "u1", "history": [{"item": "i1", "time": 5}, "i2"], "k": 3, "exclude": ["i3"], "allow": ["i4", "i5"],
        "filters": {"price": {"min": 0, "max": 9}, "category": "soap", "in_stock": [True]}, "seen": "keep",
        "explain": False, "titles": True, "ranker": False,
    },
    "/v1/recommend:batch": {"requests": [{"filters": {"price": [1, 2]}, "k": 1}, {"filters": {"price": 3}}]},
    "/v1/events": {"events": [{"user": "u1", "item": "i1", "event_id": "e", "time": 7}]},
    "/v1/items": {"items": [{"id": "i1", "title": "soap", "features": {"price": 3, "weight": 2.5, "sizes": [1, 2]},
                             "retired": False, "expires_at": 90000000000, "like": ["i1"]}]},
    "/v1/users/{user}": {"features": {"age": 3, "scores": [0.5, 1]}},
    "/v1/predict": {"rows": [{"city": 1, "Place": "p1", "age": 3, "price": 2.5, "genres": ["war"], "seen": [1, 2]}]},
    "/v1/versions/split": {"split": {"first": 0.5}},
}  # fmt: skip
"""Path -> a body that names each field once."""
NUMBERS = ["0", "-1", "1.5", "-0.0", "5e-324", "1e39", "1e308", "-1e308", "1e309", "-1e400", "NaN", "-Infinity",
           str(2**53 + 1), str(2**63 - 1), str(2**63), str(-(2**63) - 1), str(2**64), "1" + "0" * 308, "9" * 309,
           "-" + "9" * 400, "9" * 4300, "9" * 4301, "9" * 50_000]  # fmt: skip
OTHERS = ["true", "false", "null", '"12"', '"true"', '""', "[]", "{}", "[[]]", '{"min": true}', '["12", 1]']
FORWARDED = {"x-forwarded-for": "9.9.9.9", "x-forwarded-proto": "https", "forwarded": "for=9.9.9.9;proto=https"}


@pytest.fixture(scope="module", params=["lists", "probabilities"])
def run(request: pytest.FixtureRequest) -> Path:
    """A run of each family that is served."""
    if request.param == "probabilities":
        return request.getfixturevalue("click_run")  # type: ignore[no-any-return]
    found: Shop = request.getfixturevalue("shop")
    return found.run.path


@pytest.fixture(scope="module")
def home(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("routes") / PLACE


@pytest.fixture(scope="module")
def service(run: Path, home: Path) -> Iterator[Client]:
    """A service with every scope open to its client, whose paths were given as they are from where it was started."""
    shutil.copytree(run, home / "watch" / "first")
    secret, _ = add_key(home / "keys.json", "all", ("read", "write", "admin"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home.parent)
        with running(run=f"{PLACE}/watch/first", watch=f"{PLACE}/watch", keys=f"{PLACE}/keys.json",
                     auto_activate=False) as plain:  # fmt: skip
            yield Client(plain.url, key=secret)


def bodies(service: Client) -> dict[str, tuple[str, dict[str, Any]]]:
    """Path -> method and body, of the routes that take one."""
    takes = {path: one for path, some in routes(service).items() for one in some if one in ("POST", "PUT")}
    without = {"/v1/versions/check", "/v1/versions/rollback", "/v1/versions/{name}/activate"}
    assert takes.keys() - BODIES.keys() == without, "a new route that takes a body needs one in BODIES"
    return {path: (takes[path], body) for path, body in BODIES.items() if path in takes}


def routes(service: Client) -> dict[str, list[str]]:
    """Path -> methods."""
    document = service.call("GET", "/openapi.json")
    return {path: [method.upper() for method in some] for path, some in document["paths"].items()}


def ask(service: Client, method: str, path: str, body: str | None = None, **headers: str) -> urllib3.BaseHTTPResponse:
    return service._pool.request(
        method, service.url + path, body=body, headers={**service._headers, **headers}, retries=False
    )


def places(tree: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to every value inside a body."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*way, key)
        yield from places(value, (*way, key))


def put(tree: Any, way: tuple[Any, ...], literal: str) -> str:
    """A body as JSON with this literal in one place."""
    copy = json.loads(json.dumps(tree))
    inside = copy
    for key in way[:-1]:
        inside = inside[key]
    inside[way[-1]] = "HERE"
    return json.dumps(copy).replace('"HERE"', literal)


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_every_number_and_type_in_every_place_is_taken_or_refused(service: Client) -> None:
    for path, (method, body) in bodies(service).items():
        assert ask(service, method, path.format(user="u1"), json.dumps(body)).status in (200, 404, 422), path
        for way in places(body):
            for literal in (*NUMBERS, *OTHERS):
                answer = ask(service, method, path.format(user="u1"), put(body, way, literal))
                what = f"{path} {way} = {literal[:40]}: {answer.data[:300]!r}"
                assert answer.status in (200, 400, 404, 409, 422), what
                told = json.loads(answer.data, parse_constant=no_constant)
                assert not any(one.get("score", 0) is None for one in told.get("items", [])), what
                assert None not in told.get("probabilities", ()), what
    for path in ("/v1/items?limit=", "/v1/items/i1/similar?k=", "/v1/users/u1/history?limit="):
        for literal in (*NUMBERS, *OTHERS, "+1", " 1 ", "1e3", "٣"):
            assert ask(service, "GET", path + quote(literal, safe="")).status in (200, 404, 422), literal


def test_no_number_is_read_from_what_is_none(service: Client) -> None:
    """Where the document names numbers alone, true and "12" are refused."""
    schemas = service.call("GET", "/openapi.json")["components"]["schemas"]

    def types(schema: dict[str, Any]) -> set[str]:
        inner = [one for key in ("anyOf", "oneOf") for one in schema.get(key, [])]
        named = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        own = named.get("type", "any")
        return set().union(*map(types, inner)) if inner else set(own if isinstance(own, list) else [own])

    checked = 0
    for path, (method, body) in bodies(service).items():
        for way in places(body):
            kind = {"$ref": "/" + reference(service, path, method)}
            for key in way:  # the schema of this place
                options = [kind, *kind.get("anyOf", [])]
                options = [schemas[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in options]
                nexts = [one["properties"][key] for one in options if key in one.get("properties", {})]
                nexts += [one["items"] for one in options if isinstance(key, int) and "items" in one]
                nexts += [one["additionalProperties"] for one in options
                          if isinstance(one.get("additionalProperties"), dict) and isinstance(key, str)]  # fmt: skip
                kind = nexts[0] if nexts else {}
            if types(kind) - {"null"} and types(kind) <= {"number", "integer", "null"}:
                checked += 1
                for literal in ("true", "false", '"12"', '""'):
                    answer = ask(service, method, path.format(user="u1"), put(body, way, literal))
                    assert answer.status == 422, f"{path} {way} = {literal}: {answer.data[:200]!r}"
    assert checked


def reference(service: Client, path: str, method: str) -> str:
    operation = service.call("GET", "/openapi.json")["paths"][path][method.lower()]
    found: str = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return found


def test_methods_and_addresses(service: Client) -> None:
    """A 405 names all methods of its path; no address is redirected, with or without a key."""
    for path, methods in routes(service).items():
        where = re.sub(r"\{\w+\}", "u1", path)
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            answer = ask(service, method, where)
            if answer.status == 405:
                allowed = set(answer.headers["allow"].split(", "))
                assert method not in allowed and allowed - {"HEAD"} == set(methods), (method, path)
            else:
                assert method in methods or method == "HEAD", (method, path, answer.status)
            for other in (f"{where}/", f"/{where}", f"{where}//"):
                for headers in ({}, {"authorization": "none"}):
                    answer = ask(service, method, other, host="evil.example", **FORWARDED, **headers)
                    assert answer.status >= 400 and "location" not in answer.headers, (method, other)
                    assert b"evil" not in answer.data


def test_no_answer_names_a_place(service: Client, run: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are damaged in every file, in a folder that was given by a relative path with spaces."""
    monkeypatch.setattr(watching, "SETTLE", 0.0)
    watch = home / "watch"
    for file in [one.name for one in run.iterdir() if one.is_file()]:
        for how in ("short", "other", "sealed"):  # the last is found out when it is opened
            name = f"{how}-{file.replace('.', '-')}"
            data = (shutil.copytree(run, watch / name) / file).read_bytes()
            (watch / name / file).write_bytes(data[:-7] if how == "short" else b"\xff" * 9 + data[9:])
            if how == "sealed" and file != "manifest.json":
                reseal(watch / name)
    (watch / "linked").symlink_to(run)
    said = [ask(service, "POST", "/v1/versions/check")]
    names = [one["name"] for one in json.loads(said[0].data)["versions"] if one["name"] != "first"]
    assert len(names) > 8
    for name in names:
        said += [
            ask(service, "POST", f"/v1/versions/{name}/activate"),
            ask(service, "GET", f"/v1/model?version={name}"),
        ]
    said += [
        ask(service, "GET", path) for path in ("/v1/versions", "/v1/model", "/readyz", "/openapi.json", "/metrics")
    ]
    assert {409, 200} <= {answer.status for answer in said} and not any(answer.status >= 500 for answer in said)
    for answer in said:
        text = answer.data.decode()
        assert PLACE not in text and "place/" not in text and str(home.parent) not in text, text
        assert not re.search(r"watch/\w", text), text


@pytest.mark.parametrize(("proxies", "statuses"), [((), {429}), (("127.0.0.0/8",), {200}), (("10.0.0.0/8",), {429})])
def test_who_calls_is_said_by_trusted_proxies_alone(
    shop: Shop, proxies: tuple[str, ...], statuses: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level("INFO", "fullrank.serving.access"),
        running(run=str(shop.run.path), rate=0.01, burst=2, proxies=list(proxies), access_log=True) as client,
    ):
        found = [
            ask(client, "GET", "/v1/items", None, **FORWARDED | {"x-forwarded-for": f"1.2.3.4, 9.9.9.{n}"}).status
            for n in range(6)
        ]
    assert set(found[3:]) == statuses
    lines = [json.loads(record.message) for record in caplog.records if record.name == "fullrank.serving.access"]
    assert {line["client"] for line in lines[-3:]} == (
        {f"9.9.9.{n}" for n in (3, 4, 5)} if 200 in statuses else {"127.0.0.1"}
    )
