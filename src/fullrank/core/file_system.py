"""Check what a file system can do: rename, flush, exchange, lock."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fullrank.core.errors import UserError, reason_line
from fullrank.core.files import exchange, flush
from fullrank.core.locks import folder_lock

NEEDED = ("rename", "flush")
"""Without these nothing can be promised of what is written; without the others less."""


def check_file_system(folder: Path) -> dict[str, str | None]:
    """Each ability -> None, or why it is lacking, tried out in a new folder below `folder`.

    `rename`: one file takes another's place in one step. `flush`: a file and a folder reach the
    disk when asked. `exchange`: two folders change places in one step (without it an older folder
    is aside for the time of two renames). `lock`: a second process is refused. Raises `OSError`
    where nothing can be written there.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fullrank-doctor-") as home:
        return {name: _tried(check, Path(home) / name) for name, check in CHECKS.items()}


def _tried(check: Callable[[Path], str | None], home: Path) -> str | None:
    home.mkdir()
    try:
        return check(home)
    except (OSError, UserError) as error:
        return reason_line(error)


def _rename(home: Path) -> str | None:
    (home / "old").write_text("old")
    (home / "new").write_text("new")
    (home / "new").replace(home / "old")
    return None if (home / "old").read_text() == "new" else "the old content is there after a rename"


def _flush(home: Path) -> str | None:
    (home / "file").write_text("x")
    flush(home / "file")
    flush(home)
    return None


def _exchange(home: Path) -> str | None:
    for name in ("one", "other"):
        (home / name).mkdir()
        (home / name / name).touch()
    if not exchange(home / "one", home / "other"):
        return "two folders cannot change places in one step"
    return None if (home / "one" / "other").exists() else "two folders did not change places"


def _lock(home: Path) -> str | None:
    def second() -> bool:
        try:
            with folder_lock(home / "folder", "doctor"):
                return False
        except UserError:
            return True

    with folder_lock(home / "folder", "doctor"), ThreadPoolExecutor(1) as others:  # a thread is another holder
        return None if others.submit(second).result() else "a second holder of a lock is not refused"


CHECKS: dict[str, Callable[[Path], str | None]] = {
    "rename": _rename,
    "flush": _flush,
    "exchange": _exchange,
    "lock": _lock,
}


NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "ocfs2", "gfs2",
    "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.cephfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone",
    "fuse.goofys", "fuse.mount-s3", "fuse.juicefs",
})  # fmt: skip
"""Types of file systems that other machines may write to at the same time."""


def network_file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The network file system below a path (`nfs4`); None for a local or an unknown one."""
    target, kind, deepest = os.path.realpath(path), "", -1
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no Linux
        return None
    for line in lines:
        before, _, behind = line.partition(" - ")
        if len(before.split()) < 5 or not behind.split():
            continue
        point = before.split()[4].encode().decode("unicode_escape", "replace")  # a space is written \040
        if (target == point or target.startswith(point.rstrip("/") + "/")) and len(point) >= deepest:
            kind, deepest = behind.split()[0], len(point)  # of two at one place the later one is on top
    return kind if kind in NETWORK else None
