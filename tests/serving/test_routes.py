"""Routes: every id is read and erased through each that names one; the page as a file; the OpenAPI document."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from http.client import HTTPConnection
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fullrank.core.errors import UserError
from fullrank.serving import openapi
from fullrank.serving.client import Client
from fullrank.serving.guard import BELOW, routed_path
from fullrank.serving.requests import ItemNumbers
from fullrank.serving.routes import PAGE, IdConvertor, Page
from serving.conftest import Shop
from serving.running import running

ODD = ["ann", "ann\nlee", "ann\n", "\n", "ann/history", "history", "similar", "a/similar", "/", "//", "a/", "/a",
       "a//b", "%", "%2F", "a%0Ab", "...", " ", "a b", "?", "#", "a?k=1", "+", "a:b", "\0", "\x1b[31m", "\u2028",
       "\u00e9", "e\u0301", "😀", "7", "-7", "007", "x" * 512, "..%2f..", "\\", "'", '"', "{user}", "null"]  # fmt: skip
IDS = st.one_of(
    st.sampled_from(ODD), st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
    st.text("/%\n.:ah", min_size=1, max_size=12),
).filter(lambda one: one not in (".", ".."))  # fmt: skip


@pytest.fixture(scope="module")
def kept(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """A service whose store is a file, as that of `fullrank serve` is."""
    with running(run=str(shop.run.path), store=str(tmp_path_factory.mktemp("store") / "ids.sqlite")) as client:
        yield client


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # the service draws beside
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@example(names=ODD)
@given(names=st.lists(IDS, min_size=5, max_size=25, unique=True))
def test_what_is_stored_is_read_and_erased(kept: Client, names: list) -> None:
    told = kept.add_events([{"user": name, "item": name, "time": at} for at, name in enumerate(names)])
    assert told["stored"] == len(names)
    made = kept.put_items([{"id": name, "title": "Rose cream"} for name in names])["items"]
    assert [one["item"] for one in made] == names
    for name in names:
        assert kept.put_user(name, {"age": 3})["user"] == name
        assert kept.recommend(user=name, k=1)["source"] == "model", "of its one event"
        assert kept.call("GET", f"/v1/items/{quote(name, safe='')}")["item"] == name
        assert kept.similar(name)["item"] == name
    for left, name in enumerate(names):
        assert [one["item"] for one in kept.history(name)["events"]] == [name], f"after {left} others were erased"
        gone = kept.forget(name)
        assert (gone["user"], gone["events"], gone["features"]) == (name, 1, True)
        assert kept.history(name)["events"] == []


def routes_of_ids(client: Client) -> list:
    """(method, path) of every route that names a user or an item."""
    document = client.call("GET", "/openapi.json")
    named = [(method, path) for path, some in document["paths"].items() for method in some if "{" in path]
    return [(method, path) for method, path in named if "{name}" not in path]  # versions are listed, not given ids


def test_every_route_takes_every_id_and_none_that_cannot_be_stored(kept: Client) -> None:
    routes = routes_of_ids(kept)
    assert len(routes) >= 5
    for method, path in routes:
        place = path[path.index("{") : path.index("}") + 1]
        for name in ODD:
            status, told = asked(kept, method, path.replace(place, quote(name, safe="")))
            assert status < 500 and told.get("code") not in ("not-found", "method-not-allowed"), (path, name, told)
            assert name in (told.get("user"), told.get("item")) or repr(name)[1:-1] in str(told), (path, name, told)
        for wrong in ("", "%2E", "%2E%2E", "x" * 513, "%FF", "%ED%A0%80"):
            status, told = asked(kept, method, path.replace(place, wrong))
            assert 400 <= status < 500 and told["code"] in ("not-found", "invalid-request", "invalid-address"), told
    for wrong in ("", ".", "..", "x" * 513, "\ud800"):
        for body in ({"events": [{"user": wrong, "item": "i1"}]}, {"events": [{"user": "u", "item": wrong}]}):
            with pytest.raises(UserError) as refused:
                kept.call("POST", "/v1/events", body)
            assert refused.value.code in ("invalid-request", "invalid-json")
        with pytest.raises(UserError):
            kept.put_items([{"id": wrong, "title": "Rose cream"}])


def asked(client: Client, method: str, address: str) -> tuple:
    """Status and body of an address as it is written."""
    connection = HTTPConnection(client.url.partition("//")[2], timeout=20)
    connection.request(method.upper(), address, json.dumps({"features": {}}) if method == "put" else None)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body


def test_an_erasure_of_something_else_is_none(kept: Client) -> None:
    kept.add_events([{"user": "bob", "item": "i1", "event_id": "1"}])
    for method in ("DELETE", "PUT", "POST"):
        status, told = asked(kept, method, "/v1/users/bob/history")
        assert (status, told["code"]) == (405, "method-not-allowed") and "(allowed: GET)" in told["detail"]
    assert len(kept.history("bob")["events"]) == 1


@given(name=IDS, below=st.sampled_from(["", *BELOW]))
def test_an_address_names_one_id(name: str, below: str) -> None:
    """Whatever part follows an id, encoded or with plain slashes, the id is the one that was written."""
    pattern = re.compile(f"^/v1/users/(?P<id>{IdConvertor.regex}){'/' + below if below else ''}$")
    find = lambda written: pattern.match(  # noqa: E731
        routed_path(f"/v1/users/{written}{'/' + below if below else ''}".encode())
    )
    found = find(quote(name, safe=""))
    assert found is not None and IdConvertor().convert(found["id"]) == name
    assert IdConvertor().to_string(name) == found["id"]
    plain = find(quote(name, safe="/"))
    if plain is None:
        assert name.startswith("/") or name.endswith(("/", *(f"/{last}" for last in BELOW)))
    else:
        assert IdConvertor().convert(plain["id"]) == name


LEAST = -(2**63)


@pytest.mark.parametrize(
    "given, number",
    [
        (7, 0), ("7", 0), (" 7 ", 0), ("-7", 1), (str(LEAST), 2), (LEAST, 2),
        # texts that are no numbers, or too large ones, are unknown and no error
        ("--7", -1), ("-", -1), ("", -1), ("+7", -1), ("\u0667", -1), ("\u00b2", -1), ("7.0", -1), (str(2**63), -1),
    ],
)  # fmt: skip
def test_a_number_and_its_text_are_one_id(given: int | str, number: int) -> None:
    numbers = ItemNumbers([7, -7, LEAST])
    assert numbers.get(given) == number
    assert numbers.known([given]).tolist() == ([] if number < 0 else [number])
    typed = numbers.typed(given)
    assert isinstance(typed, str) or LEAST <= typed < 2**63, "answers hold 64 bits"


def test_texts_that_look_like_numbers_stay_texts() -> None:
    numbers = ItemNumbers(["7", "07"])
    assert [numbers.get(given) for given in (7, "7", "07", "007")] == [0, 0, 1, -1]


TEXT = PAGE.read_text(encoding="utf-8")
MOST = 60_000


def test_it_is_small_and_needs_nothing_else() -> None:
    assert len(TEXT.encode()) < MOST
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=\"?(https?:)?//", TEXT)
    assert re.findall(r"https?://[^\s'\"]+", TEXT) and set(re.findall(r"https?://[^\s'\"]+", TEXT)) == {
        "http://www.w3.org/2000/svg"
    }
    assert "@import" not in TEXT and "url(" not in TEXT and "eval(" not in TEXT


def test_no_markup_is_made_of_text() -> None:
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"):
        assert way not in TEXT, f"{way} would let a title bring markup"
    assert not re.search(r"<[a-z]+[^>]*\s(style|on[a-z]+)=", TEXT.split("<script>")[0]), "the policy refuses these"


def test_the_policy_names_the_script_and_the_style_by_their_hashes() -> None:
    policy = Page().policy
    assert "unsafe" not in policy and "default-src 'none'" in policy and "connect-src 'self'" in policy
    for tag in ("script", "style"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", TEXT, re.S)
        digest = b64encode(sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_it_is_sent_as_it_lies() -> None:
    page = Page()
    assert page.body == PAGE.read_bytes() and page.etag.startswith('"') and page.etag != Page("ranking").etag


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
