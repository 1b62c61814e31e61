"""The guard around an app: names, keys, rates, bodies and headers, on a small app of its own."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from fullrank.core.errors import UserError
from fullrank.serving.guard import CLIENT_GONE, SAFE, Guard
from fullrank.serving.keys import Access, Keys, add_key
from fullrank.serving.limits import HostRule, LimitedBody, RateLimit, caller_of, check_exposure
from fullrank.serving.problems import install
from fullrank.serving.telemetry import Telemetry
from refusals import refused

fastapi = pytest.importorskip("fastapi")


class Counted(Telemetry):
    """What a guard tells its telemetry."""

    def __init__(self) -> None:
        self.requests = []
        self.sheds = []
        self.store_errors = Mock()

    def request(self, *request) -> None:
        *named, seconds = request
        assert 0 <= seconds < 60
        self.requests.append(tuple(named))

    def shed(self, reason: str) -> None:
        self.sheds.append(reason)


def made(**given) -> tuple:
    """A client of a small app behind a guard, and what was counted."""
    from fastapi.testclient import TestClient

    app, counted = fastapi.FastAPI(), Counted()
    install(app)
    given = {"access": Access(None), "telemetry": counted} | given
    app.add_middleware(Guard, **given)

    @app.get("/")
    def page():
        return fastapi.Response(PAGE, media_type="text/html")

    @app.get("/healthz")
    def health() -> dict:
        return {}

    @app.post("/v1/recommend")
    async def recommend(request: fastapi.Request) -> dict:
        body = await request.json()
        if "fail" in body:
            raise {"bug": RuntimeError("/srv/secret"), "late": UserError("late", code="deadline", public=True),
                   "store": UserError("redis://h is away", code="store-unavailable")}[body["fail"]]  # fmt: skip
        key = request.state.key
        return {"bytes": len(await request.body()), "id": request.state.request_id, "key": key and key.name}

    @app.post("/v1/versions/check")
    def check() -> dict:
        return {}

    @app.post("/v1/events")
    def events(body: dict) -> dict:
        return body

    @app.get("/v1/items/{id}")
    def item(id: str) -> dict:
        return {"item": id}

    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False), counted


PAGE = "<html><style>a{}</style><script>let a = '</p>';\nb()</script><body>ö<script type='module'>2</script></html>"
POLICY = "default-src 'none'; script-src 'sha256-x'; frame-ancestors 'none'"


def code_of(answer) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    return str(answer.json()["code"])


def test_a_request_goes_through_with_an_id_of_its_own_or_the_callers() -> None:
    client, counted = made()
    first, second = (client.post("/v1/recommend", json={}) for _ in range(2))
    assert first.json()["id"] == first.headers["x-request-id"] != second.headers["x-request-id"]
    assert client.get("/v1/items/3", headers={"x-request-id": "trace-7"}).headers["x-request-id"] == "trace-7"
    for bad in ("a b", "x" * 65, '{"a":1}', ""):
        assert client.get("/v1/items/3", headers={"x-request-id": bad}).headers["x-request-id"] != bad
    assert counted.requests[:3] == [("/v1/recommend", "POST", 200)] * 2 + [("/v1/items/{id}", "GET", 200)]


def test_what_ends_in_an_error() -> None:
    client, counted = made()
    for fail, status, code in (
        ("bug", 500, "internal"),
        ("late", 503, "deadline"),
        ("store", 503, "store-unavailable"),
    ):
        answer = client.post("/v1/recommend", json={"fail": fail})
        assert (answer.status_code, code_of(answer)) == (status, code)
        assert ("retry-after" in answer.headers) == (status == 503)
        assert "srv" not in answer.text and "redis" not in answer.text
    assert client.get("/v1/none").status_code == 404
    assert counted.requests[-1] == ("unmatched", "GET", 404)
    assert counted.sheds == ["deadline"] and counted.store_errors.inc.call_count == 1


def test_every_answer_has_the_headers_that_keep_browsers_safe() -> None:
    client, _ = made(pages={"/": POLICY})
    answers = [client.get("/"), client.get("/v1/items/3"), client.get("/v1/none"), client.post("/v1/recommend"),
               client.post("/v1/versions/check")]  # fmt: skip
    for answer in answers:
        for name, value in SAFE:
            assert answer.headers[name.decode()] == value.decode()
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "sha256-" in answers[0].headers["content-security-policy"]
    assert all(a.headers["content-security-policy"].startswith("default-src 'none'; frame") for a in answers[1:])
    assert all(a.headers["cache-control"] == "no-store" for a in answers[1:])


def test_keys(tmp_path: Path) -> None:
    scopes = {"reader": ["read"], "shop": ["read", "write"], "owner": ["admin"]}
    texts = {name: add_key(tmp_path / "k.json", name, scopes[name])[0] for name in scopes}
    client, _ = made(access=Access(Keys(tmp_path / "k.json")))

    def ask(name: str | None, method: str, path: str) -> int:
        headers = {} if name is None else {"authorization": f"Bearer {texts.get(name, name)}"}
        answer = client.request(method, path, headers=headers, json={} if method == "POST" else None)
        codes = {401: "key-unknown" if name else "key-missing", 403: "scope-missing"}
        assert answer.status_code == 200 or code_of(answer) == codes[answer.status_code]
        assert texts.get(name, "frk_") not in answer.text and "wrong" not in answer.text
        assert (answer.headers.get("www-authenticate") == "Bearer") == (answer.status_code == 401)
        return int(answer.status_code)

    for path in ("/", "/healthz"):
        assert ask(None, "GET", path) == 200
    assert ask("wrong", "POST", "/v1/recommend") == 401
    for path, scope in (("/v1/recommend", "read"), ("/v1/events", "write"), ("/v1/versions/check", "admin")):
        assert ask(None, "POST", path) == 401
        allowed = {name: 200 if scope in scopes[name] else 403 for name in scopes}
        assert {name: ask(name, "POST", path) for name in scopes} == allowed
    answer = client.post("/v1/recommend", json={}, headers={"authorization": f"Bearer {texts['reader']}"})
    assert answer.json()["key"] == "reader"


def test_a_name_that_is_not_this_services() -> None:
    client, _ = made(access=Access(None, HostRule(["shop.local"])))
    for host in ("localhost", "localhost:8000", "LOCALHOST", "127.0.0.1:80", "127.3.2.1", "[::1]:8000", "shop.local."):
        assert client.get("/v1/items/3", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "192.168.0.7", "[::2]", "::1"):
        answer = client.get("/v1/items/3", headers={"host": host})
        assert (answer.status_code, code_of(answer)) == (421, "wrong-host"), host


def test_a_page_of_another_site_can_not_post() -> None:
    client, _ = made(access=Access(None, HostRule()))
    for headers, status in (
        ({}, 200), ({"origin": "http://localhost:8000"}, 200), ({"origin": "http://127.0.0.1:8000"}, 200),
        ({"origin": "https://evil.example"}, 403), ({"origin": "null"}, 403), ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://localhost.evil.example"}, 403),
    ):  # fmt: skip
        assert client.post("/v1/recommend", json={}, headers=headers).status_code == status, headers
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link to the page


def chunked(*parts: bytes) -> Iterator:
    yield from parts


@pytest.mark.parametrize("path", ["/v1/recommend", "/v1/events"])
def test_a_body_that_is_too_large_by_whatever_framing(path: str) -> None:
    client, counted = made(body_most=2000)
    fits, large = json.dumps({"x": "y" * 1900}).encode(), json.dumps({"x": "y" * 3000}).encode()
    headers = {"content-type": "application/json"}
    for body, status in ((fits, 200), (large, 413)):
        assert client.post(path, content=body, headers=headers).status_code == status
        answer = client.post(path, content=chunked(body[:500], body[500:1500], body[1500:]), headers=headers)
        assert answer.status_code == status
    assert code_of(answer) == "body-too-large" and answer.headers["connection"] == "close"
    assert counted.sheds == ["body"] * 2 and [one[2] for one in counted.requests] == [200, 200, 413, 413]
    lie = client.post(path, content=b"{}", headers=headers | {"content-length": "9" * 30})
    assert lie.status_code == 413


def test_a_body_that_comes_too_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullrank.serving.guard.BODY_SECONDS", 0.05)

    async def scene() -> list:
        sent = []

        async def receive():
            await asyncio.sleep(0 if not sent else 5)
            sent.append(None)
            return {"type": "http.request", "body": b"{", "more_body": True}

        async def app(scope, receive, send) -> None:
            while True:
                await receive()

        out = []
        guard = Guard(app, access=Access(None))
        await guard(http("POST", "/v1/events", [(b"transfer-encoding", b"chunked")]), receive, told(out))
        return out

    out = asyncio.run(scene())
    assert out[0]["status"] == 408 and json.loads(out[1]["body"])["code"] == "body-too-slow"


async def nothing(*_): ...


def told(out: list) -> Callable:
    """An end that notes what is sent to it."""

    async def send(message) -> None:
        out.append(message)

    return send


def http(method: str, path: str, headers: list = ()) -> dict:
    return {"type": "http", "method": method, "path": path, "headers": list(headers), "client": ("1.2.3.4", 5)}


def test_what_runs_at_once_is_bounded_and_health_is_answered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullrank.serving.guard.IN_FLIGHT", 3)

    async def scene() -> list:
        gate, out = asyncio.Event(), []

        async def app(scope, receive, send) -> None:
            if scope["path"] != "/healthz":
                await gate.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        guard = Guard(app, access=Access(None))
        tasks = [asyncio.create_task(guard(http("GET", "/v1/model"), nothing, told(out))) for _ in range(5)]
        await asyncio.sleep(0.01)
        await guard(http("GET", "/healthz"), nothing, told(out))
        gate.set()
        await asyncio.gather(*tasks)
        await guard(http("GET", "/v1/model"), nothing, told(out))
        assert guard.running == 0
        return [message["status"] for message in out if "status" in message]

    assert asyncio.run(scene()) == [429, 429, 200, 200, 200, 200, 200]


def test_a_client_that_leaves_and_a_response_that_breaks_off() -> None:
    async def scene() -> Counted:
        class ClientDisconnect(Exception): ...

        async def app(scope, receive, send) -> None:
            if scope["path"] == "/v1/model":
                raise ClientDisconnect
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise RuntimeError("in the middle")

        counted = Counted()
        guard = Guard(app, access=Access(None), telemetry=counted)

        await guard(http("GET", "/v1/model"), nothing, nothing)
        with pytest.raises(RuntimeError):
            await guard(http("GET", "/v1/items"), nothing, nothing)
        return counted

    assert [one[2] for one in asyncio.run(scene()).requests] == [CLIENT_GONE, 200]


def test_the_rate_of_each_caller(tmp_path: Path) -> None:
    texts = {name: add_key(tmp_path / "k.json", name, ["read"])[0] for name in ("a", "b")}
    client, counted = made(access=Access(Keys(tmp_path / "k.json")), rate=RateLimit(0.01, 3, clock=lambda: 0.0))

    def ask(name: str):
        return client.get("/v1/items/3", headers={"authorization": f"Bearer {texts.get(name, name)}"})

    assert [ask("a").status_code for _ in range(5)] == [200] * 3 + [429] * 2
    assert [ask("b").status_code for _ in range(2)] == [200] * 2
    assert [ask("guess").status_code for _ in range(5)] == [401] * 3 + [429] * 2
    answer = ask("a")
    assert code_of(answer) == "rate-exceeded" and int(answer.headers["retry-after"]) == 100
    assert client.get("/healthz").status_code == 200 and set(counted.sheds) == {"rate"}


def test_token_bucket() -> None:
    now = [0.0]
    limit = RateLimit(rate=2.0, burst=4, most=100, clock=lambda: now[0])
    assert [limit.take("a") for _ in range(4)] == [0.0] * 4
    assert limit.take("a") == pytest.approx(0.5)
    now[0] = 0.5
    assert limit.take("a") == 0.0 and limit.take("a") == pytest.approx(0.5)
    now[0] = 1000.0
    assert [limit.take("a") for _ in range(5)] == [0.0] * 4 + [pytest.approx(0.5)]
    for caller in range(1000):
        limit.take(f"c{caller}")
    assert len(limit._buckets) == 100


def test_an_ipv6_caller_counts_with_its_network() -> None:
    assert caller_of("2001:db8:1:2::7") == caller_of("2001:db8:1:2:ffff::1") != caller_of("2001:db8:1:3::7")
    assert caller_of("::ffff:1.2.3.4") == "1.2.3.4" == caller_of("1.2.3.4")
    assert caller_of("fe80::1%eth0") == caller_of("fe80::2") and caller_of(":x:") == ":x:"


def test_only_this_machine_without_keys() -> None:
    for host in ("127.0.0.1", "::1", "[::1]", "localhost", "127.9.9.9"):
        check_exposure(host, None)
    for host in ("0.0.0.0", "::", "", "192.168.0.1", "shop.example"):
        check_exposure(host, "keys.json")
        with refused("exposed-without-keys"):
            check_exposure(host, None)


def test_a_body_is_read_to_its_end_and_then_no_longer_timed() -> None:
    async def scene() -> list:
        messages = iter([{"type": "http.request", "body": b"ab", "more_body": True},
                         {"type": "http.request", "body": b"c"}, {"type": "http.disconnect"}])  # fmt: skip

        async def receive():
            return next(messages)

        body = LimitedBody(receive, 3, 0.02)
        first = [await body(), await body()]
        await asyncio.sleep(0.04)
        return [*first, await body(), body.error]

    out = asyncio.run(scene())
    assert [one and one["type"] for one in out] == ["http.request", "http.request", "http.disconnect", None]
