"""The service under faults: swaps and overflow under load, bad models, a store that goes away, odd requests."""

import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from folders import limited
from fullrank.core.errors import UserError
from fullrank.run import Run, write_copy
from fullrank.serving.client import Client
from fullrank.serving.keys import add_key
from fullrank.serving.stores import sqlite
from redis_servers import BINARIES, Server, missing
from refusals import refused
from seals import flip
from serving.conftest import SMALL, Shop
from serving.running import items_of, running, scores_of

LEARNT = [
    *SMALL[:1], "training.max_epochs=25", "training.batch_size=32", "training.lr=0.01", "training.patience=25",
    "model.encoder.dropout=0.1", "model.encoder.input_dropout=0.1",
]  # fmt: skip
"""Training that learns what comes next in the shop."""


def test_many_threads_get_what_recommend_gives(shop: Shop) -> None:
    draw = np.random.default_rng(1)
    histories = [draw.choice(shop.ids, draw.integers(1, 30)).tolist() for _ in range(200)]
    own = fr.load(shop.run).recommend(histories, k=10).partition_by("user", maintain_order=True)
    with running(run=str(shop.run.path)) as client, ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda history: client.recommend(history=history, k=10), histories))
    for answer, expected in zip(answers, own, strict=True):
        assert items_of(answer) == expected["item"].to_list()
        assert scores_of(answer) == pytest.approx(expected["score"].to_list(), abs=1e-5)


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


def put(run: Run, folder: Path, name: str, *, damage: bool = False) -> None:
    """A version appears, whole at once: a copy of a run, its item vectors mixed up by `damage`."""
    tensors, draw = run.tensors(), np.random.default_rng(0)
    for key, tensor in tensors.items() if damage else ():
        if key.startswith("items.") and tensor.is_floating_point() and tensor.ndim == 2:
            tensors[key] = tensor[draw.permutation(len(tensor))]
    write_copy(run, folder / name, run.catalog, tensors, {})


@contextmanager
def watched(run: Run, home: Path, *names: str, **settings) -> Iterator:
    """A service of `first`, a copy of the run, in a folder that it watches with other copies of these names."""
    for name in ("first", *names):
        put(run, home / "versions", name)
    secret, _ = add_key(home / "keys.json", "all", ("read", "write", "admin"))
    given = {"watch": str(home / "versions"), "keys": str(home / "keys.json"), **settings}
    with running(run=str(home / "versions" / "first"), **given) as plain:
        yield Client(plain.url, key=secret)


@pytest.mark.slow
def test_ten_thousand_requests_over_twenty_swaps(shop: Shop, tmp_path: Path) -> None:
    answered, failed = [], []
    with watched(shop.run, tmp_path, "second", auto_activate=False, log=str(tmp_path / "answers")) as client:
        client.call("POST", "/v1/versions/second/activate")
        stop = threading.Event()

        def ask(number: int) -> None:
            own, count = Client(client.url), 0
            own._headers = client._headers
            while count < 1300 and not (stop.is_set() and len(answered) >= 10_000):
                count += 1
                try:
                    answer = own.recommend(history=[shop.ids[(number + count) % 100]], k=3)
                    answered.append((answer["version"], len(answer["items"])))
                except UserError as error:
                    failed.append(error.code)

        with ThreadPoolExecutor(8) as callers:
            waiting = callers.map(ask, range(8))
            slowest = 0.0
            for swap in range(20):
                time.sleep(0.3)
                begun = time.monotonic()
                client.call("POST", f"/v1/versions/{'second/activate' if swap % 2 else 'rollback'}")
                slowest = max(slowest, time.monotonic() - begun)
            stop.set()
            list(waiting)
    assert not failed and len(answered) >= 10_000 and set(answered) == {("first", 3), ("second", 3)}
    assert slowest < 5, "a rollback takes less than 5 seconds"
    logged = pl.read_parquet(tmp_path / "answers" / "*.parquet")
    assert len(logged) == len(answered), "every answer is logged"


@pytest.mark.slow
def test_a_corrupt_and_a_worse_model_are_refused(shop: Shop, tmp_path: Path) -> None:
    good, folder = fr.train("sasrec", shop.store, tmp_path / "good", set=LEARNT), tmp_path / "versions"
    with watched(good, tmp_path) as client:

        def becomes(name: str, state: str) -> None:
            for _ in range(200):
                client.call("POST", "/v1/versions/check")
                states = {one["name"]: one["state"] for one in client.call("GET", "/v1/versions")["versions"]}
                if states.get(name) == state:
                    return
                time.sleep(0.05)
            raise AssertionError(f"{name} is not {state}: {states}")

        events = [
            {"user": f"u{user}", "item": shop.ids[item], "time": float(at)}
            for user, row in enumerate(shop.store.events.items)
            for at, item in enumerate(row.tolist())
        ]
        for low in range(0, len(events), 100):
            client.add_events(events[low : low + 100])
        before = client.recommend(history=["i7", "i13"], k=5)
        put(good, folder, "worse", damage=True)
        put(good, folder, "corrupt")
        flip(folder / "corrupt" / "weights.safetensors")
        for name in ("worse", "corrupt"):
            becomes(name, "refused")
            with refused("version-refused"):
                client.call("POST", f"/v1/versions/{name}/activate")
        after = client.recommend(history=["i7", "i13"], k=5)
        assert after["version"] == "first" and after["items"] == before["items"]
        put(good, folder, "good")
        becomes("good", "serving")
        assert client.recommend(history=["i7"], k=5)["version"] == "good"


def test_users_are_divided_between_versions(shop: Shop, tmp_path: Path) -> None:
    with watched(shop.run, tmp_path, "second", auto_activate=False) as client:
        client.call("PUT", "/v1/versions/split", {"split": {"first": 0.5, "second": 0.5}})
        requests = [{"user": f"s{number}", "k": 1} for number in range(100)]
        first, again = ([one["version"] for one in client.recommend_batch(requests)] for _ in range(2))
        assert first == again and 25 < first.count("second") < 75
        assert client.recommend(user="s1", version="second", k=1)["version"] == "second"


def test_answers_are_logged_and_forgotten(shop: Shop, tmp_path: Path) -> None:
    log = tmp_path / "answers"
    with running(run=str(shop.run.path), log=str(log)) as client:
        for number in range(5):
            client.recommend(user="dee", history=[f"i{number}"], k=3)
        client.recommend(user="eve", history=["i1"], k=3)
        assert client.forget("dee")["answers"] == 5
    frame = pl.read_parquet(log / "*.parquet")
    assert frame["user"].to_list() == ["eve"] and frame["items"].list.len().to_list() == [3]


@pytest.mark.slow
@pytest.mark.redis
def test_redis_stopped_and_back(shop: Shop, tmp_path: Path) -> None:
    binary = next((name for name in BINARIES if not missing(name)), None)
    if binary is None:
        pytest.skip(missing(BINARIES[0]))
    event = {"user": "fay", "item": "i7", "event_id": "1"}
    with (
        Server(tmp_path, binary, appendfsync="always") as server,
        running(run=str(shop.run.path), store=server.address) as client,
    ):
        client.add_events([event])
        server.kill()
        begun = time.monotonic()
        with refused("store-unavailable"):
            client.recommend(user="fay", k=3)
        assert time.monotonic() - begun < 10
        assert client.recommend(history=["i7"], k=3)["source"] == "model", "what needs no store is answered"
        assert client.call("GET", "/readyz")["status"] == "degraded"
        server.start()
        assert client.recommend(user="fay", k=3)["source"] == "model", "and what was acknowledged is there"
        assert client.add_events([event])["duplicates"] == 1


def test_a_service_whose_disk_is_full_is_not_ready(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the size of a file stands for a full disk: what refuses every event says so, until it takes them."""
    monkeypatch.setattr(sqlite, "PROBE", 0.0)
    with running(run=str(shop.run.path), store=str(tmp_path / "store.sqlite")) as client:
        assert client.call("GET", "/readyz")["status"] == "ok"
        with limited(resource.RLIMIT_FSIZE, 300_000):
            for events in ([{"user": "gus", "item": "x" * 400}] * 20, [{"user": "gus", "item": "x"}]):
                with refused("store-unavailable"):  # a page that is begun may still take a short event
                    for _ in range(1000):
                        client.add_events(events)
            for _ in range(3):
                found = client.call("GET", "/readyz")
                assert found["status"] == "degraded" and "takes no events" in found["problems"][0]
                assert str(tmp_path) not in str(found)
            assert client.recommend(history=["i7"], k=3)["source"] == "model", "what needs no store is answered"
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
