"""What travels to another process, the store that it opens there, and the options that name an engine."""

import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fullrank.cli.sweep import ManyRuns
from fullrank.core import locks
from fullrank.data import sent_store
from fullrank.data.events.store import Store
from fullrank.data.sent_store import StoreAt
from fullrank.parallel import Local
from fullrank.parallel.processes import LocalProcesses
from fullrank.parallel.ray import RayEngine
from fullrank.run import Run
from fullrank.sweeps import schedule, work
from fullrank.sweeps.work import Work
from refusals import refused

from .conftest import Sweeps, tiny
from .test_engine import lasting

pytestmark = pytest.mark.usefixtures("cheap")


def sent(store: Any, out: Path) -> Work:
    back: Work = pickle.loads(pickle.dumps(Work(tiny("[sasrec]").jobs()[0], store, out)))
    return back


def test_the_path_of_the_store_travels_and_the_row_is_the_same(
    store: Store, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, real = list[Path](), sent_store.open_store
    monkeypatch.setattr(sent_store, "open_store", lambda path: opened.append(path) or real(path))
    one, disk = sent(store, out), tmp_path / "disk"
    assert len(pickle.dumps(one)) < 5000 < len(pickle.dumps(store))
    row = one.run("cpu", disk)
    here = Work(tiny("[sasrec]").jobs()[0], store, tmp_path / "here").run("cpu")
    assert lasting([row]) == lasting([here])
    place = tmp_path / "disk" / store.fingerprint[:16] / store.path.name
    assert opened == [place], "placed on the local disk"
    assert Run.open(out / "cells" / "sasrec-seed0").manifest["data"]["path"] == str(store.path), "where all find it"
    assert isinstance(one.store, StoreAt) and one.store.open(disk) and len(opened) == 1, "once in a process"
    sent_store._opened.cache_clear()
    (place / "mark").touch()
    one.store.open(disk)
    assert (place / "mark").exists(), "placed once on a disk"


def test_a_store_that_cannot_be_opened_is_told(store: Store, out: Path, tmp_path: Path) -> None:
    with refused("store-differs", "fingerprints differ"):
        sent(StoreAt(store.path, "f" * 64), out).run("cpu")
    with refused("missing-folder", "gone"):
        sent(StoreAt(tmp_path / "gone", store.fingerprint), out).run("cpu")
    assert not (out / "cells").exists()


def test_a_run_folder_is_waited_for(store: Store, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had it before is still ending; where it does not end, the row says who has it."""
    one = sent(store, out)
    place = out / "cells" / "sasrec-seed0"
    lock = locks._acquire(place, "sweep", 0)
    assert lock is not None
    monkeypatch.setattr(work, "LOCK_SECONDS", 0.1)
    with refused("folder-locked", "is being written by"):
        one.run("cpu")
    monkeypatch.setattr(work, "LOCK_SECONDS", 30.0)
    threading.Timer(0.3, lock.release).start()
    assert not one.run("cpu").get("error")


def test_options_name_an_engine_and_none_is_ignored() -> None:
    here = Path("out")
    assert ManyRuns(out=here, device="cpu").runner() == Local("cpu")
    assert ManyRuns(out=here, engine="processes", jobs=3, device="cpu").runner() == LocalProcesses(jobs=3, device="cpu")
    typed = {"jobs": 3, "ray": "host:1", "job_cpus": 2, "job_gpus": 0.5, "placed": here}
    assert ManyRuns(out=here, engine="ray", **typed).runner() == RayEngine("host:1", 3, 2, 0.5, "cuda", here)
    with refused("option-without-effect", "--jobs", "local"):
        ManyRuns(out=here, jobs=2).runner()
    with refused("option-without-effect", "--ray", "processes"):
        ManyRuns(out=here, engine="processes", jobs=2, ray="auto").runner()
    with refused("setting-out-of-range", "cpus=1.5"):
        RayEngine(cpus=1.5)


def test_an_engine_that_cannot_run_is_told_before_costs_are_measured(
    monkeypatch: pytest.MonkeyPatch, swept: Sweeps
) -> None:
    def measured(*_: Any, **__: Any) -> None:
        raise AssertionError("the costs were measured")

    monkeypatch.setattr(schedule, "measure_costs", measured)
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused("missing-package", "[ray]"):
        swept.outcome("[sasrec]", engine=RayEngine("local"))
    with refused("invalid-address", "'everywhere'", "HOST:PORT"):
        swept.outcome("[sasrec]", engine=RayEngine("everywhere"))
