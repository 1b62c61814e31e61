"""Versions: what is worse or damaged is refused, swaps lose nothing, all processes follow, a restart goes on."""

import asyncio
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fullrank as fr
from fullrank.run import Run
from fullrank.serving import version_checks, versions
from fullrank.serving.requests import Answer
from fullrank.serving.stores import HistoryStore, open_history_store
from fullrank.serving.version_checks import CanarySettings, examine, list_versions, read_body
from fullrank.serving.versions import ActiveVersions, Split, Versions, Watched
from refusals import refused
from seals import flip
from serving.served import with_store
from tests.serving.served import Served, Version, copied, fill, first_run, here, histories, items_of, shuffled

SOON = 5.0
"""Seconds: well below one on a machine with nothing else to do."""
SETTINGS = CanarySettings(k=10, requests=60)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return first_run(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "SETTLE", 0.02)
    monkeypatch.setattr(versions, "LOOK", 0.05)


@pytest.fixture
def watched(run: Run, tmp_path: Path) -> Path:
    """A folder with one version, `may`."""
    (tmp_path / "runs").mkdir()
    return copied(run, tmp_path / "runs" / "may").parent


class Fake(Version):
    """A model that opens at once and answers every request with its own name."""

    def __init__(self, path: Path):
        self.name, self.items = path.name, items_of(Run.open(path).catalog)

    def answer(self, asks) -> list:
        free = [np.setdiff1d(np.arange(80), np.concatenate([ask.items, ask.excluded]))[: ask.k] for ask in asks]
        return [Answer(ids.tolist(), [0.0] * len(ids)) for ids in free]


def opened(opener: Callable, watched: Watched, keep: int = 2) -> Versions:
    return Versions(opener, watched, keep=keep, run=here, adopt=lambda model: None, changed=lambda: None)


@asynccontextmanager
async def serving(store: HistoryStore, folder: Path, opener=Fake, keep: int = 2, **settings):
    """Versions over a store whose documents are polled, as the service does it."""
    watched = Watched(**{"base": folder / "may", "folder": folder, "settings": SETTINGS, **settings})
    versions = opened(opener, watched, keep)
    await versions.begin(await store.documents())
    await versions.start(store)

    async def poll() -> None:
        last = 0
        while True:
            for document in await store.documents(last):
                versions.follow(document)
                last = document.sequence
            await asyncio.sleep(0.02)

    task = asyncio.create_task(poll())
    try:
        yield versions
    finally:
        task.cancel()
        await versions.close()


async def until(holds: Callable, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def state_of(versions: Versions, name: str) -> str:
    return next((one["state"] for one in versions.describe()["versions"] if one["name"] == name), "absent")


def test_worse_and_damaged_runs_are_refused_and_a_good_one_answers(run: Run, watched: Path) -> None:
    users = histories(fr.Store.open(run.path.parent / "store"), 70)

    async def work(store: HistoryStore) -> None:
        await fill(store, users)
        async with serving(store, watched, Served) as versions:
            assert versions.active.name == "may" and state_of(versions, "may") == "serving"
            shuffled(run, watched / "worse")
            await until(lambda: state_of(versions, "worse") == "refused")
            assert "hit@10" in versions.describe()["versions"][1]["reason"] and versions.active.name == "may"
            copied(run, watched / ".flipped")
            flip(watched / ".flipped" / "weights.safetensors")
            (watched / ".flipped").rename(watched / "flipped")
            await until(lambda: state_of(versions, "flipped") == "refused")
            with refused("unknown-version", "flipped"):
                versions.named("flipped")
            with refused("version-refused", "flipped", "weights.safetensors"):
                await versions.activate("flipped")
            assert versions.active.name == "may" and len(versions.models()) == 1
            assert str(watched) not in json.dumps(versions.describe()), "paths are nobody's business"
            copied(run, watched / "june")
            await until(lambda: versions.active.name == "june")
            assert versions.describe()["previous"] == {"may": 1.0}
            before = time.perf_counter()
            await versions.rollback()
            assert versions.active.name == "may" and time.perf_counter() - before < 0.5
            await asyncio.sleep(0.3)
            assert versions.active.name == "may", "what was taken back does not come back by itself"

    with_store("memory:", work)


def test_a_copy_on_its_way_is_waited_for(run: Run, watched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = watched / "june"
    slow.mkdir()
    assert examine(slow).state == "waiting"
    for name in sorted(path.name for path in run.path.iterdir() if path.is_file()):
        whole = (run.path / name).read_bytes()
        (slow / name).write_bytes(whole[: len(whole) // 2])
        assert examine(slow).state == "waiting"
        (slow / name).write_bytes(whole)
    assert examine(slow).state == "whole"
    (slow / "weights.safetensors").write_bytes(b"half")
    assert examine(slow).state == "waiting" and "weights" in examine(slow).reason
    monkeypatch.setattr(version_checks, "SETTLED", -1.0)
    assert examine(slow).state == "whole", "nothing comes any more: the check says that it is damaged"
    tree = json.loads((slow / "manifest.json").read_text())
    (slow / "manifest.json").write_text(json.dumps({**tree, "finished": False}))
    assert examine(slow).state == "waiting", "still in training, however long it takes"


def test_names_come_from_the_listing_alone(run: Run, watched: Path, tmp_path: Path) -> None:
    outside = copied(run, tmp_path / "outside")
    (watched / "link").symlink_to(outside)
    inside = copied(run, watched / "inside")
    (inside / "weights.safetensors").unlink()
    (inside / "weights.safetensors").symlink_to(outside / "weights.safetensors")
    (watched / ".hidden").mkdir()
    (watched / "a b").mkdir()
    found = list_versions(watched)
    assert {name: one.state for name, one in found.items()} == {"may": "whole", "link": "refused", "inside": "refused"}

    async def work(store: HistoryStore) -> None:
        async with serving(store, watched) as versions:
            for name in ("../outside", str(outside), ".hidden", "a b", "", "may/../may", "runs\0"):
                with refused("unknown-version"):
                    await versions.activate(name)
            for name in ("link", "inside"):
                with refused("version-not-whole", name):
                    await versions.activate(name)

    with_store("memory:", work)


def test_two_runs_of_one_name_are_refused(run: Run, watched: Path, tmp_path: Path) -> None:
    with refused("version-name-taken", "may"):
        opened(Fake, Watched(copied(run, tmp_path / "may"), watched))


def test_swaps_while_threads_ask(run: Run, watched: Path) -> None:
    for name in ("june", "july"):
        copied(run, watched / name)
    done = threading.Event()

    def ask(versions: Versions, answered: Counter) -> None:
        while not done.is_set():
            model = versions.for_user("ada")
            time.sleep(0.001)
            answered[model.name] += len(model.answer([SimpleNamespace(items=np.arange(3), excluded=np.arange(0), k=5)]))

    async def work(store: HistoryStore) -> None:
        async with serving(store, watched, auto_activate=False) as versions:
            counts = [Counter() for _ in range(4)]
            with ThreadPoolExecutor(4) as threads:
                asking = [threads.submit(ask, versions, count) for count in counts]
                for swap in range(20):
                    name = ("june", "july", "may")[swap % 3]
                    await versions.activate(name)
                    assert versions.for_user("ada").name == name
                    await asyncio.sleep(0.01)
                done.set()
            for thread in asking:
                thread.result()
            total = sum(counts, Counter())
            assert set(total) == {"may", "june", "july"}
            assert len(versions.models()) == 2, "older ones are let go"

    with_store("memory:", work)


def test_the_state_survives_a_restart_and_a_lost_version(run: Run, watched: Path, tmp_path: Path) -> None:
    copied(run, watched / "june")
    address = tmp_path / "store.sqlite"

    async def first(store: HistoryStore) -> None:
        async with serving(store, watched, auto_activate=False) as versions:
            assert versions.active.name == "may" and versions.detail is None
            await versions.activate("june")
            await versions.set_split({"june": 3, "may": 1})

    async def again(store: HistoryStore) -> None:
        async with serving(store, watched) as versions:
            assert versions.state.shares == {"june": 0.75, "may": 0.25} and versions.detail is None

    async def lost(store: HistoryStore) -> None:
        async with serving(store, watched) as versions:
            assert versions.state.shares == {"may": 1.0} and "june" in (versions.detail or "")
            copied(run, watched / "june")
            versions._retry_at = 0.0
            await until(lambda: versions.detail is None)
            assert versions.state.shares == {"june": 0.75, "may": 0.25}, "it is back, and so is the split"

    with_store(address, first)
    with_store(address, again)
    shutil.rmtree(watched / "june")
    with_store(address, lost)


def test_the_newest_that_opens_answers_first(run: Run, watched: Path) -> None:
    (watched / "may").rename(watched / "april")
    for name in ("may", "june"):
        time.sleep(0.02)
        copied(run, watched / name)
    flip(watched / "june" / "weights.safetensors")

    async def work(store: HistoryStore) -> None:
        async with serving(store, watched, Served, base=watched / "gone") as versions:
            assert versions.active.name == "may" and "june" in versions.detail
            await versions.check_now()
            assert state_of(versions, "april") == "unchecked", "older runs wait for somebody to name them"

    with_store("memory:", work)


def test_the_later_of_two_changes_at_one_moment_holds(run: Run, watched: Path) -> None:
    """What another process wrote behind ours was followed before our own write returned."""
    copied(run, watched / "june")

    async def work(store: HistoryStore) -> None:
        async with serving(store, watched, auto_activate=False, keep=3) as versions:
            await versions.activate("june")
            theirs = ActiveVersions(versions.state.split, versions.state.previous)
            await versions.activate("may")
            put = store.put_documents

            async def put_before_others(kind: str, bodies) -> int:
                ours = await put(kind, bodies)
                await put(kind, {"active": asdict(theirs)})
                for document in await store.documents():
                    versions.follow(document)
                return ours

            store.put_documents = put_before_others
            await versions.set_split({"may": 0.5, "june": 0.5})
            assert versions.state.split == theirs.split
            assert read_body(ActiveVersions, versions.documents["active"]) == theirs

    with_store("memory:", work)


def test_shares_hold_and_users_stay() -> None:
    users = [f"user-{n}" for n in range(10_000)]
    split = Split({"a": 0.7, "b": 0.2, "c": 0.1})
    first = {user: split.of(user) for user in users}
    counts = Counter(first.values())
    assert all(abs(counts[name] / len(users) - share) < 0.01 for name, share in split.shares.items())
    assert first == {user: Split({"c": 0.1, "b": 0.2, "a": 0.7}).of(user) for user in users}
    moved = [user for user in users if Split({"a": 0.6, "b": 0.3, "c": 0.1}).of(user) != first[user]]
    assert len(moved) < 1200, "a tenth changes hands, and no more than have to"
    drawn = Counter(split.of(None) for _ in range(10_000))
    assert abs(drawn["a"] / 10_000 - 0.7) < 0.02


def test_two_watchers_of_one_store_agree(run: Run, watched: Path, tmp_path: Path) -> None:
    """As two processes do: each has its own connection; one of them checks, both answer with what it found."""

    async def work(store: HistoryStore) -> None:
        second = open_history_store(str(tmp_path / "store.sqlite"))
        await second.open()
        async with serving(store, watched) as one, serving(second, watched) as two:
            copied(run, watched / "june")
            await until(lambda: one.active.name == two.active.name == "june")
            (verdict,) = [document for document in await store.documents() if document.key == "verdict:june"]
            assert verdict.body["ok"]
            await two.rollback()
            await until(lambda: one.active.name == "may", SOON)
            assert state_of(one, "june") == state_of(two, "june") == "ready"
            await one.set_split({"june": 0.5, "may": 0.5})
            await until(lambda: two.state.shares == {"june": 0.5, "may": 0.5}, SOON)
            for user in (f"u{n}" for n in range(100)):
                assert one.for_user(user).name == two.for_user(user).name
        await second.close()

    with_store(tmp_path / "store.sqlite", work)


def test_models_that_answer_badly_are_refused(run: Run, watched: Path) -> None:
    """Not finite, short, seen items, an exception, a poor index: never a version."""
    faults = {
        "nan": lambda one: Answer(one.ids, [float("nan")] * len(one.ids)),
        "short": lambda one: Answer(one.ids[:-1], one.scores[:-1]),
        "seen": lambda one: Answer([*one.ids[:-1], one.ids[0]], one.scores),
        "raises": lambda one: 1 // 0,
    }

    class Faulty(Fake):
        def __init__(self, path: Path):
            super().__init__(path)
            if path.name == "index":
                self.recall = 0.9
            if path.name == "opener":
                raise ZeroDivisionError

        def answer(self, asks) -> list:
            return [faults.get(self.name, lambda one: one)(one) for one in super().answer(asks)]

    for name in (*faults, "index", "opener"):
        copied(run, watched / name)

    async def work(store: HistoryStore) -> None:
        async with serving(store, watched, Faulty, auto_activate=False) as versions:
            words = {**dict.fromkeys(faults, "answers"), "index": "recall", "opener": "opens"}
            for name, word in words.items():
                with refused("version-refused", name, word):
                    await versions.activate(name)
            assert versions.active.name == "may" and len(versions.models()) == 1
            with refused("version-refused", "nan"):
                await versions.set_split({"may": 1, "nan": 1})
            with refused("no-former-version"):
                await versions.rollback()

    with_store("memory:", work)
