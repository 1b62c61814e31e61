"""The file of keys, and what a request may do with one: hashed, private, whole, followed when it changes."""

import json
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fullrank.core.errors import UserError
from fullrank.serving.keys import Access, Keys, add_key, read_keys, remove_key, scope_of
from fullrank.serving.problems import problem_of
from refusals import refused


class Clock:
    """Time that stands still until it is told to pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def made(folder: Path, **keys: tuple) -> tuple:
    path = folder / "keys.json"
    return path, {name: add_key(path, name, scopes)[0] for name, scopes in (keys or {"shop": ("read",)}).items()}


def test_a_key_is_found_by_its_header_alone(tmp_path: Path) -> None:
    path, texts = made(tmp_path, shop=("read", "write"), ops=("admin",))
    keys = Keys(path)
    for name, text in texts.items():
        for header in (f"Bearer {text}", f"bearer {text} ", f"Bearer {text}".encode()):
            found = keys.find(header)
            assert found is not None and found.name == name
    shop = texts["shop"]
    wrong = ["", None, shop, f"Basic {shop}", f"Bearer {shop}x", f"Bearer {shop[:-1]}", "Bearer", "Bearer ",
             "Bearer " + "x" * 10**6, b"Bearer \xff\xfe", "Bearer \udcff"]  # fmt: skip
    assert [keys.find(header) for header in wrong] == [None] * len(wrong)


def test_no_key_is_stored_or_shown_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, texts = made(tmp_path)
    with caplog.at_level(logging.DEBUG):
        keys = Keys(path)
        key = keys.find(f"Bearer {texts['shop']}")
    secret = texts["shop"].removeprefix("frk_")
    assert len(secret) == 43  # 256 bits
    for text in (path.read_text(), repr(key), repr(vars(keys)), caplog.text):
        assert secret not in text


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
def test_only_the_owner_may_read_it_and_nobody_else_may_write(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path, _ = made(tmp_path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        add_key(path, "more", ["read"])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    path.chmod(0o666)
    with refused("keys-writable"):
        Keys(path)
    assert os.listdir(tmp_path) == ["keys.json"]


def test_changes_are_followed_and_looked_for_once_a_second(tmp_path: Path) -> None:
    path, texts = made(tmp_path)
    clock = Clock()
    keys = Keys(path, clock)
    new, _ = add_key(path, "new", ["read"])
    assert keys.find(f"Bearer {new}") is None
    clock.now = 1.5
    assert keys.find(f"Bearer {new}") is not None
    remove_key(path, "shop")
    assert keys.find(f"Bearer {texts['shop']}") is not None
    clock.now = 3.0
    assert keys.find(f"Bearer {texts['shop']}") is None and keys.find(f"Bearer {new}") is not None


def test_a_file_that_breaks_or_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, texts = made(tmp_path)
    clock, header = Clock(), f"Bearer {texts['shop']}"
    keys, whole = Keys(path, clock), path.read_text()
    path.write_text(whole[:-20])
    clock.now = 2.0
    assert keys.find(header) is not None and "hold on" in caplog.text
    path.unlink()
    clock.now = 4.0
    assert keys.find(header) is None and len(keys) == 0
    path.write_text(whole)
    path.chmod(0o600)
    clock.now = 6.0
    assert keys.find(header) is not None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda tree: tree | {"format": 2}, "not-a-keys-file"),
        (lambda tree: tree | {"keys": {}}, "not-a-keys-file"),
        (lambda tree: tree | {"keys": [1]}, "not-a-keys-file"),
        (lambda tree: tree | {"keys": tree["keys"] * 2}, "not-a-keys-file"),
        (lambda tree: {"keys": [tree["keys"][0] | {"scopes": ["root"]}], "format": 1}, "not-a-keys-file"),
        (lambda tree: {"keys": [tree["keys"][0] | {"scopes": []}], "format": 1}, "not-a-keys-file"),
        (lambda tree: {"keys": [tree["keys"][0] | {"key_sha256": "x" * 64}], "format": 1}, "not-a-keys-file"),
        (lambda tree: [tree], "file-damaged"),
    ],
)
def test_what_is_no_file_of_keys(change, code: str, tmp_path: Path) -> None:
    path, _ = made(tmp_path)
    tree = change(json.loads(path.read_text()))
    path.write_text(json.dumps(tree))
    for call in (Keys, lambda p: add_key(p, "more", ["read"]), lambda p: remove_key(p, "shop")):
        with refused(code):
            call(path)
    assert json.loads(path.read_text()) == tree


@pytest.mark.parametrize(
    ("name", "scopes", "code"),
    [("shop", ["read"], "key-exists"), ("a b", ["read"], "invalid-key-name"), ("", ["read"], "invalid-key-name"),
     ("x" * 65, ["read"], "invalid-key-name"), ("a\n", ["read"], "invalid-key-name"),
     ("new", ["raed"], "unknown-scope"), ("new", [], "missing-scope")],
)  # fmt: skip
def test_what_cannot_be_added(name: str, scopes: list, code: str, tmp_path: Path) -> None:
    path, _ = made(tmp_path)
    with refused(code):
        add_key(path, name, scopes)
    assert len(read_keys(path)) == 1


def test_no_key_is_lost_where_many_are_added_at_once(tmp_path: Path) -> None:
    path, _ = made(tmp_path, first=("read",))

    def one(number: int) -> int:
        try:
            add_key(path, f"k{number}", ["read"])
        except UserError as error:
            assert error.code == "folder-locked"
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        count = sum(pool.map(one, range(30)))
    assert len(read_keys(path)) == 1 + count


def test_without_keys_anybody_reads_and_writes_and_nobody_administers() -> None:
    access = Access(None)
    assert access.check(None, "read") is access.check("Bearer x", "write") is None
    with refused("admin-off") as denied:
        access.check("Bearer x", "admin")
    assert problem_of(denied.error).status == 403


SCOPE_OF = {
    "GET /": None, "GET /healthz": None, "GET /readyz": None, "GET /openapi.json": None, "GET /metrics": "read",
    "POST /v1/recommend": "read", "POST /v1/recommend:batch": "read", "GET /v1/items": "read",
    "GET /v1/items/3": "read", "GET /v1/items/3/similar": "read", "GET /v1/users/u/history": "read",
    "GET /v1/model": "read", "GET /v1/versions": "read", "POST /v1/events": "write", "POST /v1/items": "write",
    "PUT /v1/users/u": "write", "DELETE /v1/users/u": "write", "POST /v1/versions/a/activate": "admin",
    "POST /v1/versions/rollback": "admin", "PUT /v1/versions/split": "admin", "POST /v1/versions/check": "admin",
    "POST /": "admin", "DELETE /v1/items/3": "admin", "POST /v1/recommend/": "admin", "PATCH /v1/new": "admin",
}  # fmt: skip


@pytest.mark.parametrize("route", SCOPE_OF)
def test_scope_of_a_route(route: str) -> None:
    method, path = route.split()
    assert scope_of(method, path) == SCOPE_OF[route]
