"""The service as a process: refused, killed under load, told to stop, several on one port, started again.

One that does not start leaves nothing: no store, no index, no promise, whatever it was refused for.
"""

import asyncio
import gc
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fullrank.cli import main
from fullrank.core.errors import UserError
from fullrank.serving.client import Client
from fullrank.serving.server import build_app, failure_report, report_failure
from fullrank.serving.settings import ServeSettings
from serving.conftest import Shop
from serving.running import items_of, until


def test_whatever_is_refused_leaves_no_file_and_no_promise(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    damaged, place = tmp_path / "damaged", tmp_path / "place"
    shutil.copytree(shop.run.path, damaged)
    with (damaged / "weights.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x00\x01\x02\x03")
    place.mkdir()
    monkeypatch.chdir(place)
    run, taken = str(shop.run.path), socket.create_server(("127.0.0.1", 0))
    taken_port = [run, "--port", str(taken.getsockname()[1])]
    refusals = [
        ("not-a-run", [str(shop.store.path)]), ("not-a-run", ["nowhere"]),
        ("no-version", [str(damaged)]), ("no-version", [run, "--ranker", run]),
        ("address-in-use", taken_port), ("exposed-without-keys", [run, "--host", "0.0.0.0"]),
        ("file-unreadable", [run, "--keys", "keys.json"]), ("not-a-folder", [run, "--watch", "runs"]),
        ("no-version", [run, "--set", "exported=nowhere"]),
        ("setting-without-effect", [run, "--set", "rows_most=5"]),
        ("invalid-setting", [run, "--set", "keep=0"]), ("unknown-setting", [run, "--set", "kep=1"]),
        ("unknown-store-address", [run, "--store", "nonsense://somewhere"]),
        ("not-a-history-store", [run, "--store", str(tmp_path)]),
        ("store-of-one-process", [run, "--store", "memory:", "--workers", "2"]),
    ]  # fmt: skip
    for code, words in refusals:
        for check in ([], ["--check"]) if words is not taken_port else ([],):  # a check listens on no port
            port = [] if "--port" in words else ["--port", "0"]
            assert main(["serve", *words, *port, *check, "--json"]) == 2, words
            said = capfd.readouterr()
            assert json.loads(said.out)["code"] == code, said
            assert "survives" not in said.out + said.err and "Traceback" not in said.err, said
            assert not list(place.iterdir()), (words, list(place.iterdir()))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "uvicorn", None)
        without.delitem(sys.modules, "fullrank.serving.server", raising=False)
        assert main(["serve", run]) == 2 and not list(place.iterdir())
    assert main(["serve", run, "--check"]) == 0  # what starts has a store
    assert "survives" in capfd.readouterr().err and (place / "fullrank-serve.sqlite").exists()
    taken.close()


def test_the_parent_of_several_processes_hears_why() -> None:
    with failure_report() as failure:
        assert failure().code == "not-started"
        report_failure(UserError("the run is gone", code="no-version"))
        assert (str(failure()), failure().code) == ("the run is gone", "no-version")


def test_what_is_kept_from_the_collector_is_given_back(shop: Shop, tmp_path: Path) -> None:
    """What stays frozen when Python ends is told as dozens of leaks by bindings such as triton's."""
    app = build_app(ServeSettings.parse({"run": str(shop.run.path), "store": str(tmp_path / "events.sqlite")}))

    async def life() -> None:
        async with app.router.lifespan_context(app):
            assert gc.get_freeze_count() > 0

    gc.unfreeze()  # of the tests, who keep what they imported from the collector
    asyncio.run(life())
    assert gc.get_freeze_count() == 0
    gc.freeze()


ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def served(run: Path, *options: object) -> Iterator:
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
        assert until(lambda: is_ready(client), 60), "not ready"
        yield client, process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(40)


def is_ready(client: Client) -> bool:
    try:
        return bool(client.call("GET", "/readyz"))
    except UserError:
        return False


@pytest.mark.slow
def test_killed_under_load_no_acknowledged_event_is_lost(shop: Shop, tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    acknowledged = []
    with served(shop.run.path, "--store", store) as (client, process):

        def write(user: str) -> None:
            own = Client(client.url, timeout=2)
            own._pool.connection_pool_kw["retries"] = False
            with suppress(UserError):
                for number in range(100_000):
                    own.add_events(
                        [{"user": user, "item": "i1", "event_id": f"{user}-{number}", "time": float(number)}]
                    )
                    acknowledged.append((user, f"{user}-{number}"))

        with ThreadPoolExecutor(8) as writers:
            writing = writers.map(write, [f"w{n}" for n in range(8)])
            assert until(lambda: len(acknowledged) > 200, 30)
            process.kill()
        list(writing)
    with served(shop.run.path, "--store", store) as (client, _):
        for user, mine in Counter(user for user, _ in acknowledged).items():
            known = len(client.history(user, 1000)["events"])
            assert known >= min(mine, 1000), f"{mine} events of {user} were acknowledged and {known} are there"
        resent = [{"user": user, "item": "i1", "event_id": name} for user, name in acknowledged[-50:]]
        assert client.add_events(resent)["duplicates"] == 50


@pytest.mark.slow
def test_told_to_stop_it_answers_what_waits(shop: Shop) -> None:
    answers = []
    with served(shop.run.path, "--store", "memory:") as (client, process):

        def ask() -> None:
            own = Client(client.url)
            try:
                for _ in range(40):
                    own.recommend(history=["i1", "i2"], k=3)
                    answers.append("answered")
            except UserError as error:
                answers.append(error.code)

        with ThreadPoolExecutor(4) as callers:
            asking = [callers.submit(ask) for _ in range(4)]
            assert until(lambda: len(answers) > 10, 20)
            process.terminate()
        assert process.wait(30) == 0 and not any(one.exception() for one in asking)
    assert set(answers) <= {"answered", "service-unreachable"}


@pytest.mark.slow
def test_several_processes_see_one_catalogue_and_keep_it(shop: Shop, tmp_path: Path) -> None:
    options = ("--store", tmp_path / "store.sqlite", "--workers", 2)
    with served(shop.run.path, *options) as (client, _):
        made = client.put_items([{"id": "shared", "title": "Mint cream number 500"}])["items"][0]
        client.put_items([{"id": made["neighbours"][1], "retired": True}])

        def is_told(answer: dict) -> bool:
            return "shared" in items_of(answer) and made["neighbours"][1] not in items_of(answer)

        def everywhere() -> bool:
            # each call on a connection of its own, which either process may take
            lists = [Client(client.url).recommend(history=made["neighbours"][:1], k=200) for _ in range(10)]
            return all(map(is_told, lists))

        begun = time.monotonic()
        assert until(everywhere, 5)
        assert time.monotonic() - begun < 2, "within a second of the change, and the time of asking"
    with served(shop.run.path, *options) as (client, _):
        assert is_told(client.recommend(history=made["neighbours"][:1], k=200))


@pytest.mark.slow
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


@pytest.mark.slow
def test_why_several_processes_do_not_start_is_one_sentence(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fullrank", "serve", "nowhere", "--port", "0", "--workers", "2", "--json"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert found.returncode == 2 and json.loads(found.stdout)["code"] == "not-a-run"
    assert "Traceback" not in found.stderr
