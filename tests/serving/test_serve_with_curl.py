"""The day with curl of the examples: against a service of a generated shop, and on amazon-beauty."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fullrank as fr
from fullrank.serving.keys import add_key
from fullrank.serving.stores import Forgotten
from fullrank.serving.stores.memory import MemoryStore
from serving.conftest import SMALL, Shop
from serving.running import running

SCRIPT = Path(__file__).parents[2] / "examples" / "serve_with_curl.sh"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="curl or bash is not installed"),
]


def a_day(url: str, *words: str, key: str = "") -> subprocess.CompletedProcess:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHON": sys.executable, "FULLRANK_KEY": key}
    return subprocess.run(
        ["bash", str(SCRIPT), url, *words], capture_output=True, text=True, timeout=300, env=environment
    )


def test_in_a_shop(shop: Shop) -> None:
    with running(run=str(shop.run.path)) as client:
        for words in ([], ["rose soap"]):
            found = a_day(client.url, *words)
            assert found.returncode == 0, found.stdout + found.stderr
            assert (
                "done: every promise held" in found.stdout
                and found.stdout.count("  ok: ") == 17
                and "place" in found.stdout
            )


def test_with_keys(shop: Shop, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    both, _ = add_key(keys, "both", ("read", "write"))
    read, _ = add_key(keys, "read", ("read",))
    with running(run=str(shop.run.path), keys=str(keys)) as client:
        assert a_day(client.url, key=both).returncode == 0
        refused = a_day(client.url, key=read)
        assert refused.returncode == 1 and "scope-missing" in refused.stderr and read not in refused.stderr


def test_a_promise_that_is_broken_is_noticed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def keeps_it(self: MemoryStore, user: str) -> Forgotten:
        return Forgotten(2, False)

    monkeypatch.setattr(MemoryStore, "delete_user", keeps_it)
    with running(run=str(shop.run.path)) as client:
        found = a_day(client.url)
    assert found.returncode == 1 and "NOT SO: both events are gone" in found.stderr


def test_on_amazon_beauty(real_data: Callable, tmp_path: Path) -> None:
    folder = real_data("amazon-beauty")
    store = fr.prepare(folder / "events.parquet", tmp_path / "beauty", items=folder / "items.parquet")
    run = fr.train("sasrec", store, tmp_path / "run", set=[*SMALL[:2], "training.batch_size=4096"])
    with running(run=str(run.path)) as client:
        found = a_day(client.url, "nail lacquer")
    assert found.returncode == 0, found.stdout + found.stderr
