"""Checkpoints elsewhere: the run folder, as it is at each checkpoint, at any URL that fsspec writes to.

    URL/last.json        the step, and for each file of the run folder its SHA-256
    URL/files/SHA-256    the files

Files that are new are uploaded, then the pointer is replaced in one step, then what it no longer
names is removed. A process killed at any time leaves a pointer to a whole run; half a file has a
name that no pointer holds. What is downloaded is compared with its hash. The manifest takes its
place last, so half a download is no run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from fullrank.core.checks import check_path, check_type
from fullrank.core.errors import UserError, brief, reason_line
from fullrank.core.files import JsonObject, whole_file
from fullrank.core.locks import folder_lock, is_leftover
from fullrank.core.log import logger
from fullrank.core.readers import read_json_text
from fullrank.data.manifest import NAME as MANIFEST
from fullrank.data.manifest import require_no_store, sha256_file
from fullrank.run.checkpoint import POINTER as OWN_POINTER
from fullrank.run.checkpoint import forget_other_checkpoints, steps_done

log = logger(__name__)

POINTER = "last.json"
"""The file that says which files are the run's."""
WAIT_SECONDS = 600.0
"""Seconds that a process waits for another one of its machine that downloads the run."""


class Mirror:
    """A run folder's copy at a URL, such as `s3://bucket/run`, `gs://...`, `file:///mnt/run` or a path."""

    def __init__(self, url: str):
        """Raises `UserError` for a URL of a kind that nothing here can write to."""
        import fsspec  # type: ignore[import-untyped]  # comes with torch

        check_path("checkpoints", check_type("checkpoints", url, str, "a URL, such as s3://bucket/run"))
        self.url = url
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UserError(
                f"checkpoints cannot be kept at {brief(url)} ({reason_line(error)})", code="unknown-file-system"
            ) from None
        self._root = root.rstrip("/")
        if "file" in self._files.protocol:
            require_no_store(Path(self._root), "checkpoints")

    def pointer(self) -> JsonObject | None:
        """The pointer's content, {"step": of the checkpoint, "files": path ->
        SHA-256}; None where there is none."""
        with self._reached():
            if not self._files.exists(f"{self._root}/{POINTER}"):
                return None
            tree = read_json_text(self._files.cat_file(f"{self._root}/{POINTER}"))
        files = tree.get("files") if isinstance(tree, dict) else None
        if not isinstance(files, dict) or type(tree.get("step")) is not int or not all(map(_is_inside, files)):
            raise self._damaged(POINTER, "does not hold a run's files")
        return tree

    def require_free(self, *, overwrite: bool) -> None:
        """Raise `UserError` where a run is there; `overwrite` forgets it, its files stay
        until the new one has some."""
        if self.pointer() is None:
            return
        if not overwrite:
            raise UserError(
                f"{self.url} holds the checkpoints of a run; continue it with resume=True, replace it with "
                "overwrite=True, or name another place",
                code="folder-holds-a-run",
            )
        with self._reached():
            self._files.rm_file(f"{self._root}/{POINTER}")

    def push(self, folder: Path) -> None:
        """Bring the copy to the state of the run folder, which the caller is the one to write."""
        before = self.pointer() or {"files": {}}
        files = {name: sha256_file(folder / name) for name in _names(folder)}
        known, wanted = set(before["files"].values()), set(files.values())
        tree = {"step": steps_done(folder), "files": files}
        with self._reached():
            self._files.makedirs(f"{self._root}/files", exist_ok=True)
            for name, digest in files.items():
                if digest not in known:
                    self._files.put_file(str(folder / name), f"{self._root}/files/{digest}")
                    known.add(digest)
            self._files.pipe_file(f"{self._root}/.{POINTER}", json.dumps(tree).encode())
            self._files.mv(f"{self._root}/.{POINTER}", f"{self._root}/{POINTER}")
            self._files.invalidate_cache()
            for path in self._files.ls(f"{self._root}/files", detail=False):  # also what a kill left
                if path.rpartition("/")[2] not in wanted:
                    self._files.rm_file(path)

    def restore(self, folder: Path, *, unless_behind: bool = False) -> None:
        """Bring the run folder to the state of the copy, if any; with `unless_behind` not if the folder has more steps.

        Files that are the same already are not downloaded. Raises `UserError`, also for a file
        that does not have its hash.
        """
        with folder_lock(folder, "restoring", wait=WAIT_SECONDS):
            pointer = self.pointer()
            if pointer is None or (unless_behind and steps_done(folder) > pointer["step"]):
                return
            # these come last, so that half a download is no run
            last = (OWN_POINTER, MANIFEST)
            for name in sorted(pointer["files"], key=lambda name: (last.index(name) + 1 if name in last else 0, name)):
                self._download(folder / name, pointer["files"][name])
            if OWN_POINTER in pointer["files"]:
                forget_other_checkpoints(folder / "checkpoints" / f"step-{pointer['step']:09d}")

    def _download(self, path: Path, digest: str) -> None:
        """Bring one file, unless it is there with this hash."""
        if path.is_file() and sha256_file(path) == digest:
            return
        with self._reached(), whole_file(path) as part:
            self._files.get_file(f"{self._root}/files/{digest}", str(part))
            if sha256_file(part) != digest:
                raise self._damaged(f"files/{digest}", "has not the hash in its name")

    def _damaged(self, name: str, what: str) -> UserError:
        return UserError(f"{self.url}/{name} {what}; it is damaged or not ours", code="file-damaged")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Raise `UserError` for what a file system raises: errors of types of its
        own, which have no common root."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"the checkpoints at {brief(self.url)} cannot be reached ({brief(reason_line(error, file=True))}); "
                "check the address, the rights and the network, and go on with resume=True",
                code="checkpoints-not-reached",
            ) from error


def _names(folder: Path) -> list[str]:
    """The files of a run folder, without what is half written and what loggers
    write, which grows all the time."""
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [p.as_posix() for p in paths if p.parts[0] != "logs" and not any(map(is_leftover, p.parts))]


def _is_inside(name: Any) -> bool:
    """Whether the name of a file stays inside the folder that it is downloaded into."""
    parts = PurePosixPath(name).parts if isinstance(name, str) and name else ("..",)
    return ".." not in parts and not PurePosixPath(name).is_absolute() and "\0" not in name and os.sep not in parts
