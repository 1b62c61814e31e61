"""The service as processes: killed under load, told to stop, several on one port, started again."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fullrank.core.errors import UserError
from fullrank.serving.client import Client
from serving.conftest import Shop

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def served(run: Path, *options: object) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    words = [sys.executable, "-m", "fullrank", "serve", str(run), "--port", "0", *map(str, options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    said = ""
    while not (found := re.search(r"http://[\w.:]+", said)):
        line = process.stdout.readline()
        assert line, f"the service did not start: {said}"
        said += line
    threading.Thread(target=process.stdout.read, daemon=True).start()
    client = Client(found[0])
    try:
        ready(client)
        yield client, process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(40)


def ready(client: Client, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            client.call("GET", "/readyz")
            return
        except UserError:
            assert time.monotonic() < end, "not ready"
            time.sleep(0.1)


def until(what: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.05)
    return False


def test_killed_under_load_no_acknowledged_event_is_lost(shop: Shop, tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    acknowledged: list[tuple[str, str]] = []
    with served(shop.run.path, "--store", store) as (client, process):

        def write(user: str) -> None:
            own = Client(client.url, timeout=2)
            own._pool.connection_pool_kw["retries"] = False
            for number in range(100_000):
                event = {"user": user, "item": "i1", "event_id": f"{user}-{number}", "time": float(number)}
                try:
                    own.add_events([event])
                except UserError:
                    return
                acknowledged.append((user, f"{user}-{number}"))

        writers = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(8)]
        for writer in writers:
            writer.start()
        assert until(lambda: len(acknowledged) > 200, 30)
        process.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.join(20)
    assert len(acknowledged) > 200
    with served(shop.run.path, "--store", store) as (client, _):
        for user in {user for user, _ in acknowledged}:
            known = len(client.history(user, 1000)["events"])
            mine = sum(one == user for one, _ in acknowledged)
            assert known >= min(mine, 1000), f"{mine} events of {user} were acknowledged and {known} are there"
        resent = [{"user": user, "item": "i1", "event_id": name} for user, name in acknowledged[-50:]]
        assert client.add_events(resent)["duplicates"] == 50


def test_told_to_stop_it_answers_what_waits(shop: Shop) -> None:
    answers: list[int] = []
    with served(shop.run.path, "--store", "memory:") as (client, process):

        def ask() -> None:
            own = Client(client.url)
            for _ in range(40):
                try:
                    own.recommend(history=["i1", "i2"], k=3)
                    answers.append(200)
                except UserError as error:
                    answers.append(0 if error.code == "service-unreachable" else 500)
                    return

        callers = [threading.Thread(target=ask) for _ in range(4)]
        for caller in callers:
            caller.start()
        assert until(lambda: len(answers) > 10, 20)
        process.terminate()
        for caller in callers:
            caller.join(30)
        assert process.wait(30) == 0
    assert 500 not in answers


def test_several_processes_see_one_catalogue_and_keep_it(shop: Shop, tmp_path: Path) -> None:
    options = ("--store", tmp_path / "store.sqlite", "--workers", 2)
    with served(shop.run.path, *options) as (client, _):
        made = client.put_items([{"id": "shared", "title": "Mint cream number 500"}])["items"][0]
        client.put_items([{"id": made["neighbours"][1], "retired": True}])

        def everywhere() -> bool:
            # each call on a connection of its own, which either process may take
            lists = [Client(client.url).recommend(history=made["neighbours"][:1], k=200) for _ in range(10)]
            shown = [{one["item"] for one in answer["items"]} for answer in lists]
            return all("shared" in some and made["neighbours"][1] not in some for some in shown)

        begun = time.monotonic()
        assert until(everywhere, 5)
        assert time.monotonic() - begun < 2, "within a second of the change, and the time of asking"
    with served(shop.run.path, *options) as (client, _):
        shown = {one["item"] for one in client.recommend(history=made["neighbours"][:1], k=200)["items"]}
        assert "shared" in shown and made["neighbours"][1] not in shown


def test_processes_end_with_the_one_that_started_them(shop: Shop, tmp_path: Path) -> None:
    with served(shop.run.path, "--store", tmp_path / "store.sqlite", "--workers", 2) as (client, process):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) >= 2
        process.kill()
        assert until(lambda: not any(Path("/proc", child).exists() for child in children), 15)
        address = urlsplit(client.url)
        with socket.socket() as again:  # what was a connection may linger; nobody listens
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind((address.hostname, address.port))
            again.listen()


def test_a_port_that_is_taken_is_told(shop: Shop) -> None:
    with served(shop.run.path, "--store", "memory:") as (client, _):
        port = client.url.rpartition(":")[2]
        words = [sys.executable, "-m", "fullrank", "serve", str(shop.run.path), "--port", port, "--store", "memory:"]
        found = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2 and "cannot listen" in found.stderr


def test_why_several_processes_do_not_start_is_one_sentence(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fullrank", "serve", "nowhere", "--port", "0", "--workers", "2", "--json"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert found.returncode == 2 and json.loads(found.stdout)["code"] == "no-version"
    assert "Traceback" not in found.stderr
