"""Training on Ray Train, on two nodes of this machine (`make test MARK=cluster`), and what a worker goes on with."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fullrank.api import train
from fullrank.core.errors import UserError
from fullrank.core.files import whole_folder
from fullrank.core.readers import read_json
from fullrank.data.events.store import Store
from fullrank.data.sent_store import StoreAt
from fullrank.training import FIT_DEFAULTS, FitKeywords
from fullrank.training.mirror import Mirror
from fullrank.training.ray_train import WorkerTask, _ended_with, _has_begun, _identity
from refusals import refused
from tests.ray_nodes import two_nodes
from tests.training.conftest import column, same_weights, tiny
from tests.training.killed_once import KilledOnce
from tests.training.several import SMOOTH


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with two_nodes() as found:
        yield found


@pytest.mark.cluster
def test_a_killed_worker_changes_no_weight(market: Store, tmp_path: Path, cluster: Any) -> None:
    """Two workers, with dropout. Killed at the end of epoch 4, before its checkpoint: epoch 4 is trained again."""
    spec, how = tiny("training.max_epochs=6"), {"ray": cluster.address, "workers": 2, "progress": False}
    whole = train(spec, market, tmp_path / "whole", **how)
    url, note = f"file://{tmp_path}/elsewhere", tmp_path / "killed"
    broken = train(spec, market, tmp_path / "broken", **how, checkpoints=url, callbacks=[KilledOnce(note, 4)])
    assert note.exists(), "a worker was killed"
    assert same_weights(broken, whole) and column(broken) == column(whole) and len(column(whole)) == 6
    assert broken.manifest["finished"] is True and whole.manifest["threads"] == 1
    Mirror(url).restore(tmp_path / "copy")
    assert same_weights(tmp_path / "copy", whole)


@pytest.mark.cluster
def test_a_run_that_is_replaced_is_not_gone_on_with(market: Store, tmp_path: Path, cluster: Any) -> None:
    """Killed before the first checkpoint of the new run: the old one, of the same spec, is still in its place."""
    spec, how = tiny("training.max_epochs=2"), {"ray": cluster.address, "workers": 1, "progress": False}
    old = train(spec, market, tmp_path / "run", progress=False)
    before, note = read_json(old.path / "manifest.json"), tmp_path / "killed"
    run = train(spec, market, old.path, overwrite=True, **how, callbacks=[KilledOnce(note, 1)])
    assert note.exists() and len(column(run)) == 2
    assert run.manifest["files"] != before["files"], "trained anew: the seconds in its log are others"
    with refused("folder-holds-a-run", "resume=True"):
        train(spec, market, run.path, **how)


@pytest.mark.cluster
def test_fewer_workers_go_on_where_a_node_is_lost(
    market: Store, tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ray first waits this long for as many workers as there were, where it has not seen yet that the node is gone
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "30")
    spec = tiny("training.max_epochs=30", "training.patience=null", SMOOTH, dropout=0.0)
    one = train(spec, market, tmp_path / "one", progress=False)
    second, at = next(iter(cluster.worker_nodes)), tmp_path / "run" / "checkpoints" / "last.json"

    def kill() -> None:
        while not at.exists():
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)

    threading.Thread(target=kill, daemon=True).start()
    run = train(spec, market, tmp_path / "run", ray=cluster.address, workers=2, min_workers=1, progress=False)
    assert not cluster.worker_nodes, "the node is gone"
    assert column(run) == pytest.approx(column(one), rel=1e-5) and len(column(run)) == 30


@pytest.mark.cluster
def test_a_workers_own_error_is_told_before_what_the_others_made_of_it(tmp_path: Path) -> None:
    from ray.train.v2._internal.exceptions import UserExceptionWithTraceback
    from ray.train.v2.api.exceptions import WorkerGroupError

    lost = UserExceptionWithTraceback(UserError("process 0 has lost another one", code="peer-lost"), "")
    own = UserExceptionWithTraceback(UserError("the loss is nan", code="loss-not-finite"), "")
    assert _ended_with(WorkerGroupError("two errors", {0: lost, 1: own}), tmp_path).code == "loss-not-finite"
    bug = UserExceptionWithTraceback(KeyError("x"), "")
    told = _ended_with(WorkerGroupError("two errors", {0: lost, 1: bug}), tmp_path)
    assert told.code == "ray-training-failed" and "KeyError: 'x'" in str(told) and "resume=True" in str(told)


def task(out: Path, *, old: int | None = None, **how: Any) -> WorkerTask:
    options: FitKeywords = FIT_DEFAULTS | how  # type: ignore[assignment]
    return WorkerTask(tiny(), StoreAt(out, "fingerprint"), out, out, options, old, 1)


def write(out: Path, text: str) -> None:
    with whole_folder(out) as folder:
        (folder / "manifest.json").write_text(text)


def test_a_new_run_begins_and_goes_on_once_it_is_there(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert not _has_begun(task(out)) and _has_begun(task(out, resume=True))
    write(out, "{}")
    assert _has_begun(task(out))


def test_a_run_that_is_to_be_replaced_is_not_gone_on_with(tmp_path: Path) -> None:
    """Killed before the new run's first checkpoint, the old one is in its place; behind it, the new one is."""
    out = tmp_path / "run"
    write(out, "{}")
    one = task(out, old=_identity(out), overwrite=True)
    assert not _has_begun(one)
    write(out, '{"new": 1}')
    assert _has_begun(one)


def test_a_copy_is_gone_on_with_on_an_empty_disk(tmp_path: Path) -> None:
    run, url = tmp_path / "run", str(tmp_path / "copy")
    assert not _has_begun(task(tmp_path / "other", checkpoints=url))
    write(run, "{}")
    Mirror(url).push(run)
    assert _has_begun(task(tmp_path / "other", checkpoints=url))
