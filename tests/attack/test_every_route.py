"""Every route of the service, found in its document: numbers of any size, values of any type, addresses, methods."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import urllib3
from jsonschema_rs import Draft202012Validator

from fullrank.serving import versions
from fullrank.serving.client import Client
from fullrank.serving.keys import add_key
from seals import reseal
from serving.conftest import Shop, click_run, shop
from serving.running import running
from tests.attack.frame import paths_in

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


@pytest.fixture(scope="module", params=["shop", "click_run"])
def run(request: pytest.FixtureRequest) -> Path:
    """A run of each family that is served."""
    found: Any = request.getfixturevalue(request.param)
    return found.run.path if isinstance(found, Shop) else found  # type: ignore[no-any-return]


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


@pytest.fixture(scope="module")
def document(service: Client) -> Any:
    return service.call("GET", "/openapi.json")


def ask(service: Client, method: str, path: str, body: str | None = None, **headers: str) -> urllib3.BaseHTTPResponse:
    return service._pool.request(
        method, service.url + path.format(user="u1"), body=body, headers=service._headers | headers, retries=False
    )


def put(tree: Any, way: tuple[Any, ...], literal: str) -> str:
    """A body as JSON with this literal in one place."""
    copy = inside = json.loads(json.dumps(tree))
    for key in way[:-1]:
        inside = inside[key]
    inside[way[-1]] = "HERE"
    return json.dumps(copy).replace('"HERE"', literal)


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_every_number_and_type_in_every_place_is_taken_or_refused(service: Client, document: Any) -> None:
    """What the document allows may be taken; what it does not is refused: no number is read from true or "12"."""
    takes = {(path, method): told["requestBody"] for path, some in document["paths"].items()
             for method, told in some.items() if "requestBody" in told}  # fmt: skip
    assert {path for path, _ in takes} <= BODIES.keys(), "a new route that takes a body needs one in BODIES"
    for (path, method), told in takes.items():
        schema = told["content"]["application/json"]["schema"] | {"components": document["components"]}
        allows, body = Draft202012Validator(schema).is_valid, BODIES[path]
        assert ask(service, method, path, json.dumps(body)).status in (200, 404, 422), path
        for way in paths_in(body):
            for literal in (*NUMBERS, *OTHERS):
                changed = put(body, way, literal)
                answer = ask(service, method, path, changed)
                what = f"{path} {way} = {literal[:40]}: {answer.data[:300]!r}"
                assert answer.status in (200, 400, 404, 409, 422), what
                assert answer.status in (400, 422) or literal not in OTHERS or allows(json.loads(changed)), what
                told = json.loads(answer.data, parse_constant=no_constant)
                assert not any(one.get("score", 0) is None for one in told.get("items", [])), what
                assert None not in told.get("probabilities", ()), what
    for path in ("/v1/items?limit=", "/v1/items/i1/similar?k=", "/v1/users/u1/history?limit="):
        for literal in (*NUMBERS, *OTHERS, "+1", " 1 ", "1e3", "٣"):
            assert ask(service, "GET", path + quote(literal, safe="")).status in (200, 404, 422), literal


def test_methods_and_addresses(service: Client, document: Any) -> None:
    """A 405 names all methods of its path; no address is redirected, with or without a key."""
    for path, told in document["paths"].items():
        where, methods = re.sub(r"\{\w+\}", "u1", path), {method.upper() for method in told}
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            answer = ask(service, method, where)
            if answer.status == 405:
                allowed = {*answer.headers["allow"].split(", ")}
                assert method not in allowed and allowed - {"HEAD"} == methods, (method, path)
            else:
                assert method in methods | {"HEAD"}, (method, path, answer.status)
            for other in (f"{where}/", f"/{where}", f"{where}//"):
                for headers in ({}, {"authorization": "none"}):
                    answer = ask(service, method, other, host="evil.example", **FORWARDED, **headers)
                    assert answer.status >= 400 and "location" not in answer.headers, (method, other)
                    assert b"evil" not in answer.data


def test_no_answer_names_a_place(service: Client, run: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are damaged in every file, in a folder that was given by a relative path with spaces."""
    monkeypatch.setattr(versions, "SETTLE", 0.0)
    watch = home / "watch"
    for file in (path.name for path in run.iterdir() if path.is_file()):
        for how in ("short", "other", "sealed"):  # the last is found out when it is opened
            damaged = shutil.copytree(run, watch / f"{how}-{file.replace('.', '-')}") / file
            data = damaged.read_bytes()
            damaged.write_bytes(data[:-7] if how == "short" else b"\xff" * 9 + data[9:])
            if how == "sealed" and file != "manifest.json":
                reseal(damaged.parent)
    (watch / "linked").symlink_to(run)
    said = [ask(service, "POST", "/v1/versions/check")]
    names = {version["name"] for version in json.loads(said[0].data)["versions"]} - {"first"}
    assert len(names) > 8
    said += [ask(service, "POST", f"/v1/versions/{name}/activate") for name in names]
    reads = (*(f"/v1/model?version={name}" for name in names), "/v1/versions", "/v1/model", "/readyz", "/openapi.json",
             "/metrics")  # fmt: skip
    said += [ask(service, "GET", path) for path in reads]
    assert {409, 200} <= {answer.status for answer in said} and all(answer.status < 500 for answer in said)
    for text in (answer.data.decode() for answer in said):
        assert not re.search(rf"{PLACE}|place/|{home.parent}|watch/\w", text), text


def test_who_calls_is_said_by_trusted_proxies_alone(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    for proxies, status in (([], 429), (["127.0.0.0/8"], 200), (["10.0.0.0/8"], 429)):
        with (
            caplog.at_level("INFO", "fullrank.serving.access"),
            running(run=str(shop.run.path), rate=0.01, burst=2, proxies=proxies, access_log=True) as client,
        ):
            callers = [f"9.9.9.{n}" for n in range(6)]
            told = [FORWARDED | {"x-forwarded-for": f"1.2.3.4, {caller}"} for caller in callers]
            statuses = [ask(client, "GET", "/v1/items", **headers).status for headers in told]
        assert {*statuses[3:]} == {status}
        lines = [json.loads(record.message) for record in caplog.records if record.name == "fullrank.serving.access"]
        wanted = callers[3:] if status == 200 else ["127.0.0.1"] * 3
        assert [line["client"] for line in lines[-3:]] == wanted
