"""A SQLite store under faults: killed writers, several processes, full and foreign disks, damaged and lost files."""

import asyncio
import random
import resource
import sqlite3
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from folders import limited
from fullrank.core.file_system import network_file_system
from fullrank.serving.stores import Event, HistoryStore, StoreUnavailable, open_history_store, sqlite_file
from refusals import refused
from serving.served import call, with_store
from store_writer import acknowledged, check, started


@pytest.mark.process
@pytest.mark.parametrize("kills", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_sigkill_under_load_loses_no_acknowledged_event(tmp_path: Path, kills: int) -> None:
    acked = []
    draw = random.Random(kills)
    for n in range(kills):
        process = started(str(tmp_path / "x.db"), f"{n}")
        time.sleep(draw.uniform(0.05, 0.5))
        process.kill()
        acked += acknowledged(process)
        found = with_store(tmp_path / "x.db", partial(check, acked=acked))
    assert len(acked) > 100 * kills and found >= len(acked)
    with pytest.raises(AssertionError, match="lost"):
        with_store(tmp_path / "x.db", partial(check, acked=[*acked, "never/0"]))


def test_a_file_that_another_process_holds_for_a_moment_is_opened_after_it(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    sqlite_file.prepare_file(path)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(path, timeout=0.0).execute("PRAGMA synchronous=FULL")
    leaves = threading.Timer(0.2, other.close)
    leaves.start()
    sqlite_file.connect(path).close()
    leaves.join()


@pytest.mark.process
def test_two_processes_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    processes = [started(str(path), name, "600") for name in "ab"]

    async def meanwhile(store: HistoryStore) -> list:
        """A third one reads and writes."""
        waits = []
        for n in range(40):
            begin = time.perf_counter()
            await store.add_events(call(f"c-{n}", "other"))
            waits.append(time.perf_counter() - begin)
            await store.history("0", 50)
        return waits

    waits = with_store(path, meanwhile)
    acked = [event_id for process in processes for event_id in acknowledged(process)]
    assert len(acked) == 2 * 600 * 3 == with_store(path, lambda store: check(store, acked))
    assert max(waits) < 3.0, "a writer was kept waiting"


async def fill(store: HistoryStore) -> list:
    """Calls until the disk is full; what was acknowledged."""
    acked = []
    with refused("store-unavailable", store.address):
        for n in range(100_000):
            events = [Event(f"{n}/{part}", f"{n % 4}", "x" * 300, float(n)) for part in range(3)]
            await store.add_events(events)
            acked += [event.event_id for event in events]
    return acked


async def not_ready(store: HistoryStore) -> None:
    """That a store which takes no event says so when it is asked, as often as it is."""
    for _ in range(3):
        with refused("store-unavailable"):
            await store.ping()
        with refused("store-unavailable"):
            await store.add_events([Event("x", "new", "x" * 300, 1.0)])


def test_a_full_disk_loses_nothing_and_the_store_goes_on(tmp_path: Path) -> None:
    """A limit on the size of a file stands for a full disk, in the log and in the file itself."""

    async def work(store: HistoryStore) -> None:
        await store.add_events(call("before"))
        with limited(resource.RLIMIT_FSIZE, 400_000):
            acked = await fill(store)
            for _ in range(3):
                with refused("store-unavailable"):
                    await store.add_events([Event(f"big {n}", "0", "x" * 10_000, 1.0) for n in range(100)])
                await check(store, acked)
            await not_ready(store)
            assert len(await store.history("u", 5)) == 3
        await store.ping()
        assert acked and await store.add_events(call("after")) == [True] * 3
        await check(store, acked)

    with_store(tmp_path / "x.db", work)


def test_a_disk_without_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
        reason = done.stderr.strip() if done.returncode else ""
    except OSError as error:
        reason = str(error)
    if reason:
        pytest.skip(f"no disk of a given size can be made here: {reason}")
    try:

        async def work(store: HistoryStore) -> list:
            await store.add_events(call("before"))
            acked = await fill(store)
            await not_ready(store)
            assert len(await store.history("u", 5)) == 3
            assert acked
            subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
            await store.ping()
            assert await store.add_events(call("after")) == [True] * 3
            return acked

        acked = with_store(disk / "x.db", work)
        with_store(disk / "x.db", lambda store: check(store, acked))
    finally:
        subprocess.run(["umount", "-l", str(disk)], capture_output=True)


def test_a_file_that_has_gone_is_not_written_to(tmp_path: Path) -> None:
    """Its name may be another file's by now: what is written to the old one is lost with it."""

    async def work(store: HistoryStore) -> None:
        await store.add_events(call("a"))
        (tmp_path / "x.db").rename(tmp_path / "y.db")
        for ask in (store.add_events(call("b")), store.ping()):
            with refused("store-unavailable", "removed or replaced"):
                await ask
        (tmp_path / "y.db").rename(tmp_path / "x.db")
        assert await store.add_events(call("c")) == [True] * 3

    with_store(tmp_path / "x.db", work)


def test_a_lock_that_stays_is_told_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "WAIT", 0.2)

    async def work(store: HistoryStore) -> None:
        await store.add_events(call("a"))
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        begin = time.monotonic()
        with refused("store-unavailable", "locked"):
            await store.add_events(call("b"))
        assert time.monotonic() - begin < 1
        assert len(await store.history("u", 5)) == 3, "readers wait for nobody"
        asyncio.get_running_loop().call_later(0.1, other.execute, "ROLLBACK")
        assert await store.add_events(call("b")) == [True] * 3
        other.close()

    with_store(tmp_path / "x.db", work)


def test_one_call_that_cannot_be_written_harms_no_other(tmp_path: Path) -> None:
    """They were one transaction."""

    async def work(store) -> None:
        def bad(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO event (user) VALUES (1)")

        calls = [store.add_events(call(f"{n}")) for n in range(10)]
        found = await asyncio.gather(*calls[:5], store._writer.write(bad), *calls[5:], return_exceptions=True)
        assert isinstance(found.pop(5), StoreUnavailable) and found == [[True] * 3] * 10
        assert len(await store.history("u", 100)) == 30

    with_store(tmp_path / "x.db", work)


def test_who_is_forgotten_is_overwritten(tmp_path: Path) -> None:
    """No byte of a deleted user stays in the file or in its log."""

    async def work(store: HistoryStore) -> None:
        for n in range(300):
            user = "SECRET" if n % 3 == 0 else f"other {n % 7}"
            await store.add_events([Event(f"{user} event {n}", user, f"{user} item", float(n))])
        await store.put_user("SECRET", {"name": "SECRET name"})
        assert b"SECRET" in _bytes(tmp_path)
        assert (await store.delete_user("SECRET")).events == 100
        assert b"SECRET" not in _bytes(tmp_path) and b"other" in _bytes(tmp_path)

    with_store(tmp_path / "x.db", work)


def _bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()) if not file.name.endswith("-shm"))


def test_older_events_leave_the_disk(tmp_path: Path) -> None:
    async def work(store) -> None:
        for n in range(60):
            await store.add_events([Event(f"{n}-{m}", f"{m % 2}", m, float(n)) for m in range(100)])
        count = store._read(lambda connection: connection.execute("SELECT count(*) FROM event").fetchone()[0])
        assert 200 <= count < 6000 / 3

    with_store(tmp_path / "x.db", work, keep=100)


def test_foreign_newer_and_damaged_files_are_refused(tmp_path: Path) -> None:
    async def nothing(store: HistoryStore) -> None:
        await store.add_events([Event(f"{n}", f"{n % 50}", n, 1.0) for n in range(2000)])

    (tmp_path / "text").write_text("events\n" * 100)
    with refused("not-a-history-store", tmp_path / "text"):
        with_store(tmp_path / "text", nothing)
    with refused("not-a-history-store", tmp_path):
        with_store(tmp_path, nothing)
    with sqlite3.connect(tmp_path / "other") as other:
        other.execute("CREATE TABLE x (y)")
    with refused("not-a-history-store", "another program"):
        with_store(tmp_path / "other", nothing)
    with_store(tmp_path / "newer", nothing)
    with sqlite3.connect(tmp_path / "newer") as newer:
        newer.execute("PRAGMA user_version=2")
    with refused("newer-history-store", "format 2"):
        with_store(tmp_path / "newer", nothing)
    with_store(tmp_path / "damaged", nothing)
    whole = (tmp_path / "damaged").read_bytes()
    for broken in (whole[:5000] + b"\xff" * 9000 + whole[14000:], whole[: len(whole) // 2], whole[:50]):
        (tmp_path / "damaged").write_bytes(broken)
        with refused("history-store-damaged", tmp_path / "damaged"):
            with_store(tmp_path / "damaged", nothing)
    (tmp_path / "empty").touch()
    with_store(tmp_path / "empty", nothing)
    with_store(tmp_path / "new" / "deep" / "x.db", nothing)


def test_a_network_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / /mnt/a\\040b rw,relatime shared:1 - nfs4 host:/x rw\n"
        "3 1 0:3 / /mnt/a\\040b/c rw - tmpfs none rw\nnonsense\n"
    )
    assert network_file_system(Path("/mnt/a b/x/y.db"), mounts) == "nfs4"
    for local in ("/mnt/a b/c/x.db", "/mnt/a bc", "/x.db"):
        assert network_file_system(Path(local), mounts) is None
    assert network_file_system(Path("/x"), tmp_path / "missing") is None
    monkeypatch.setattr(sqlite_file, "network_file_system", lambda path: "nfs4")
    with refused("network-disk", "nfs4", tmp_path):
        with_store(tmp_path / "x.db", lambda store: store.ping())
    assert not (tmp_path / "x.db").exists()


def test_addresses() -> None:
    for address in ("x.db", "sqlite:x.db", "./a:b/x.db", "SQLITE:x.db", "shop:1.db"):
        assert type(open_history_store(address)).__name__ == "SqliteStore", address
    assert "'memory:'" in repr(open_history_store("memory:"))
    for address in ("", " ", "sqlite:", "mysql://me:SECRET@host/x", "http://x", "a\0b"):
        with refused("unknown-store-address") as told:
            open_history_store(address)
        assert "SECRET" not in str(told)
