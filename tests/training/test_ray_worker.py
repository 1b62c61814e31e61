"""What a worker of Ray goes on with when it is started again, without a cluster."""

from pathlib import Path
from typing import Any

from fullrank.core.files import whole_folder
from fullrank.data.sent_store import StoreAt
from fullrank.training import DEFAULTS, FitOptions
from fullrank.training.mirror import Mirror
from fullrank.training.ray_train import WorkerTask, _has_begun, _identity
from tests.training.conftest import tiny


def task(out: Path, *, old: int | None = None, **how: Any) -> WorkerTask:
    options: FitOptions = DEFAULTS | how  # type: ignore[assignment]
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
