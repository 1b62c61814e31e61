"""The service under faults: swaps and overflow under load, bad models, a store that goes away, odd requests."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fullrank as fr
from fullrank.core.errors import UserError
from fullrank.run import Run, write_copy
from fullrank.serving.client import Client
from fullrank.serving.keys import add_key
from fullrank.serving.stores import sqlite
from serving.conftest import SMALL, Shop
from serving.running import running

LEARNT = [
    *SMALL[:1], "training.max_epochs=25", "training.batch_size=32", "training.lr=0.01", "training.patience=25",
    "model.encoder.dropout=0.1", "model.encoder.input_dropout=0.1",
]  # fmt: skip
"""Training that learns what comes next in the shop."""


def items(answer: dict[str, Any]) -> list[str]:
    return [one["item"] for one in answer["items"]]


def test_many_threads_get_what_recommend_gives(shop: Shop) -> None:
    draw = np.random.default_rng(1)
    histories = [draw.choice(shop.ids, draw.integers(1, 30)).tolist() for _ in range(200)]
    own = fr.load(shop.run).recommend(histories, k=10).partition_by("user", maintain_order=True)
    with running(run=str(shop.run.path)) as client, ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda history: client.recommend(history=history, k=10), histories))
    for answer, expected in zip(answers, own, strict=True):
        assert items(answer) == expected["item"].to_list()
        assert [one["score"] for one in answer["items"]] == pytest.approx(expected["score"].to_list(), abs=1e-5)


@pytest.mark.slow
def test_overflow_is_shed_and_passes(shop: Shop) -> None:
    with running(run=str(shop.run.path), queue=4, max_batch=1) as client:
        own = Client(client.url)
        own._pool.connection_pool_kw.update(maxsize=64, retries=False)

        def ask(_: int) -> str:
            try:
                return str(own.call("POST", "/v1/recommend", {"history": shop.ids[:50], "k": 100})["source"])
            except UserError as error:
                return error.code

        with ThreadPoolExecutor(64) as threads:
            found = list(threads.map(ask, range(600)))
        assert set(found) == {"model", "overloaded"}, "more than the queue holds is told to come back, and nothing else"
        assert ask(0) == "model", "and then it answers again"
        assert b'reason="queue"' in client._pool.request("GET", client.url + "/metrics").data


@pytest.fixture
def versions(shop: Shop, tmp_path: Path) -> Path:
    """A folder to watch, with the shop's run as `first`."""
    folder = tmp_path / "versions"
    folder.mkdir()
    shutil.copytree(shop.run.path, folder / "first")
    return folder


@pytest.fixture
def admin(tmp_path: Path) -> dict[str, str]:
    secret, _ = add_key(tmp_path / "keys.json", "all", ("read", "write", "admin"))
    return {"path": str(tmp_path / "keys.json"), "key": secret}


def put(run: Run, folder: Path, name: str, *, damage: float = 0.0) -> None:
    """A version appears, whole at once: a copy of a run, its item vectors mixed up by `damage`."""
    tensors, draw = run.tensors(), np.random.default_rng(0)
    if damage:
        for key, tensor in tensors.items():
            if key.startswith("items.") and tensor.is_floating_point() and tensor.ndim == 2:
                tensors[key] = tensor[draw.permutation(len(tensor))]
    write_copy(run, folder / name, run.catalog, tensors, {})


def states(client: Client) -> dict[str, str]:
    return {one["name"]: one["state"] for one in client.call("GET", "/v1/versions")["versions"]}


@pytest.mark.slow
def test_ten_thousand_requests_over_twenty_swaps(shop: Shop, versions: Path, admin: dict[str, str]) -> None:
    put(shop.run, versions, "second")
    answered: dict[str, int] = {}
    failed: list[str] = []
    with running(run=str(versions / "first"), watch=str(versions), keys=admin["path"], auto_activate=False) as plain:
        client = Client(plain.url, key=admin["key"])
        client.call("POST", "/v1/versions/second/activate")
        stop = threading.Event()

        def ask(number: int) -> None:
            own, count = Client(plain.url, key=admin["key"]), 0
            while count < 1300 and not (stop.is_set() and sum(answered.values()) >= 10_000):
                count += 1
                try:
                    version = own.recommend(history=[shop.ids[(number + count) % 100]], k=3)["version"]
                except UserError as error:
                    failed.append(error.code)
                    continue
                answered[version] = answered.get(version, 0) + 1

        callers = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for caller in callers:
            caller.start()
        slowest = 0.0
        for swap in range(20):
            time.sleep(0.3)
            begun = time.monotonic()
            if swap % 2:
                client.call("POST", "/v1/versions/second/activate")
            else:
                client.call("POST", "/v1/versions/rollback")
            slowest = max(slowest, time.monotonic() - begun)
        stop.set()
        for caller in callers:
            caller.join()
    assert not failed and sum(answered.values()) >= 10_000 and set(answered) == {"first", "second"}
    assert slowest < 5, "a rollback takes less than 5 seconds"


@pytest.mark.slow
def test_a_corrupt_and_a_worse_model_are_refused(shop: Shop, versions: Path, admin: dict[str, str]) -> None:
    good = fr.train("sasrec", shop.store, versions.parent / "good", set=LEARNT)
    shutil.rmtree(versions / "first")
    shutil.copytree(good.path, versions / "first")
    with running(run=str(versions / "first"), watch=str(versions), keys=admin["path"]) as plain:
        client = Client(plain.url, key=admin["key"])
        events = shop.store.events
        told = [
            {"user": f"u{user}", "item": shop.ids[item], "time": float(at)}
            for user, row in enumerate(events.items)
            for at, item in enumerate(row.tolist())
        ]
        for low in range(0, len(told), 100):
            client.add_events(told[low : low + 100])
        before = client.recommend(history=["i7", "i13"], k=5)
        put(good, versions, "worse", damage=1.0)
        put(good, versions, "corrupt")
        weights = versions / "corrupt" / "weights.safetensors"
        data = bytearray(weights.read_bytes())
        data[-100] ^= 1
        weights.write_bytes(data)
        for _ in range(200):
            client.call("POST", "/v1/versions/check")
            found = states(client)
            if found.get("worse") == found.get("corrupt") == "refused":
                break
            time.sleep(0.05)
        assert (found["worse"], found["corrupt"], found["first"]) == ("refused", "refused", "serving")
        after = client.recommend(history=["i7", "i13"], k=5)
        assert after["version"] == "first" and after["items"] == before["items"]
        for name in ("worse", "corrupt"):
            with pytest.raises(UserError) as refused:
                client.call("POST", f"/v1/versions/{name}/activate")
            assert refused.value.code == "version-refused"
        put(good, versions, "good")
        for _ in range(200):
            client.call("POST", "/v1/versions/check")
            if states(client).get("good") == "serving":
                break
            time.sleep(0.05)
        assert client.recommend(history=["i7"], k=5)["version"] == "good"
        client.call("POST", "/v1/versions/rollback")
        assert client.recommend(history=["i7"], k=5)["version"] == "first"


def test_users_are_divided_between_versions(shop: Shop, versions: Path, admin: dict[str, str]) -> None:
    put(shop.run, versions, "second")
    with running(run=str(versions / "first"), watch=str(versions), keys=admin["path"], auto_activate=False) as plain:
        client = Client(plain.url, key=admin["key"])
        client.call("PUT", "/v1/versions/split", {"split": {"first": 0.5, "second": 0.5}})
        asked = [{"user": f"s{number}", "k": 1} for number in range(100)]
        first, again = ([one["version"] for one in client.recommend_batch(asked)] for _ in range(2))
        assert first == again and 25 < first.count("second") < 75
        assert client.recommend(user="s1", version="second", k=1)["version"] == "second"


def test_answers_are_logged_and_forgotten(shop: Shop, tmp_path: Path) -> None:
    log = tmp_path / "answers"
    with running(run=str(shop.run.path), log=str(log)) as client:
        for number in range(5):
            client.recommend(user="dee", history=[f"i{number}"], k=3)
        client.recommend(user="eve", history=["i1"], k=3)
        assert client.forget("dee")["answers"] == 5
    import polars as pl

    frame = pl.read_parquet(log / "*.parquet")
    assert frame["user"].to_list() == ["eve"] and frame["items"].list.len().to_list() == [3]


@pytest.mark.slow
def test_redis_stopped_and_back(shop: Shop, tmp_path: Path) -> None:
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def start() -> subprocess.Popen[bytes]:
        words = [
            binary,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(tmp_path),
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL)

    server = start()
    try:
        time.sleep(0.5)
        with running(run=str(shop.run.path), store=f"redis://127.0.0.1:{port}/0") as client:
            client.add_events([{"user": "fay", "item": "i7", "event_id": "1"}])
            server.kill()
            server.wait()
            begun = time.monotonic()
            with pytest.raises(UserError) as away:
                client.recommend(user="fay", k=3)
            assert away.value.code == "store-unavailable" and time.monotonic() - begun < 10
            assert client.recommend(history=["i7"], k=3)["source"] == "model", "what needs no store is answered"
            assert client.call("GET", "/readyz")["status"] == "degraded"
            server = start()
            for _ in range(100):
                try:
                    answer = client.recommend(user="fay", k=3)
                    break
                except UserError:
                    time.sleep(0.1)
            assert answer["source"] == "model", "and what was acknowledged is there"
            assert client.add_events([{"user": "fay", "item": "i7", "event_id": "1"}])["duplicates"] == 1
    finally:
        server.kill()


def test_a_service_whose_disk_is_full_is_not_ready(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the size of a file stands for a full disk: what refuses every event says so, until it takes them."""
    monkeypatch.setattr(sqlite, "PROBE", 0.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with running(run=str(shop.run.path), store=str(tmp_path / "store.sqlite")) as client:
        assert client.call("GET", "/readyz")["status"] == "ok"
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        try:
            for events in ([{"user": "gus", "item": "x" * 400}] * 20, [{"user": "gus", "item": "x"}]):
                with pytest.raises(UserError) as full:  # a page that is begun may still take a short event
                    for _ in range(1000):
                        client.add_events(events)
                assert full.value.code == "store-unavailable"
            for _ in range(3):
                found = client.call("GET", "/readyz")
                assert found["status"] == "degraded" and "takes no events" in found["problems"][0]
                assert str(tmp_path) not in str(found)
            assert client.recommend(history=["i7"], k=3)["source"] == "model", "what needs no store is answered"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert client.call("GET", "/readyz")["status"] == "ok"
        assert client.add_events([{"user": "gus", "item": "i7"}])["stored"] == 1


@pytest.mark.slow
def test_requests_of_any_shape_are_no_fault_of_ours(shop: Shop, tmp_path: Path) -> None:
    """schemathesis makes requests from the OpenAPI document, valid and not: none ends in a 5xx."""
    with running(run=str(shop.run.path)) as client:
        words = [
            str(Path(sys.executable).parent / "schemathesis"), "run", f"{client.url}/openapi.json",
            "--checks", "not_a_server_error", "--max-examples", "25", "--seed", "1", "--suppress-health-check", "all",
        ]  # fmt: skip
        found = subprocess.run(words, capture_output=True, text=True, timeout=500, cwd=tmp_path)
        assert found.returncode == 0, found.stdout[-4000:]
        assert client.recommend(history=["i1"], k=2)["source"] == "model"
