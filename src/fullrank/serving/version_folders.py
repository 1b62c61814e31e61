"""Versions on disk: the runs below a watched folder, by name, and whether each is whole yet.

A version is a folder directly below the watched one, its name the folder's. Only names that a listing gave are known,
so nothing of a request becomes a path. Links out of the watched folder are refused. A run that is still copied or
trained is waited for: it is whole when its manifest is sealed and every file that it lists has the size that it says.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fullrank.core.errors import UserError
from fullrank.core.readers import read_bytes, read_json_text

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
"""Names of versions; others are passed over."""
MOST_NAMES = 10_000
"""Folders that are looked at in a watched folder."""
SETTLED = 60.0
"""Seconds without a change after which a run that is not whole is no copy on its way, but damaged."""


@dataclass(frozen=True)
class VersionFolder:
    """A folder that is a version, or may become one."""

    name: str
    path: Path
    state: Literal["whole", "waiting", "refused"]
    reason: str = ""
    """Why it is not whole."""
    manifest: str = ""
    """SHA-256 of its manifest: which run this is, whatever its folder is called."""
    identity: str = ""
    """The manifest and the sizes and times of the files: what was refused is looked at again when one changes."""
    time: float = 0.0
    """When its manifest came here: not when it was written, which a copy may tell too."""


def list_versions(folder: Path) -> dict[str, VersionFolder]:
    """Name -> version, of every folder below a watched one that may be a version. Empty where it is not there."""
    try:
        with os.scandir(folder) as entries:
            places = [entry for entry in entries if entry.is_dir(follow_symlinks=False) or entry.is_symlink()]
            names = sorted(entry.name for entry in places if NAME.fullmatch(entry.name))
    except OSError:
        return {}
    return {name: examine(folder / name, inside=folder) for name in names[:MOST_NAMES]}


def examine(path: Path, *, inside: Path | None = None) -> VersionFolder:
    """What one folder is. With `inside`, links that lead out of that folder are refused."""
    name = path.name
    try:
        if inside is not None and path.is_symlink():
            return VersionFolder(name, path, "refused", "it is a link; copy the run into the watched folder")
        if inside is not None and (link := _link_outside(path, inside)):
            return VersionFolder(name, path, "refused", f"its file {link} is a link out of the watched folder")
        file = path / "manifest.json"
        if not path.is_dir():
            return VersionFolder(name, path, "waiting", "there is no such folder")
        if not file.is_file():
            return VersionFolder(name, path, "waiting", "it is no run folder yet (it has no manifest.json)")
        there, data = file.stat().st_ctime, read_bytes(file)
        manifest = hashlib.sha256(data).hexdigest()
        sizes = [(entry.name, entry.stat()) for entry in sorted(os.scandir(path), key=lambda entry: entry.name)]
        stamp = repr([(name, s.st_size, s.st_mtime_ns) for name, s in sizes if stat.S_ISREG(s.st_mode)])
        identity = f"{manifest}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
        changed = max([path.stat().st_mtime, *(s.st_mtime for _, s in sizes)])
        missing = _missing(path, data)
    except (OSError, UserError) as error:
        return VersionFolder(name, path, "waiting", f"it cannot be read yet ({error})")
    damaged = missing != _TRAINING and time.time() - changed > SETTLED  # the check will say what is wrong with it
    whole = damaged or not missing
    return VersionFolder(name, path, "whole" if whole else "waiting", missing, manifest, identity, there)


_TRAINING = "its training has not ended"


def _missing(path: Path, data: bytes) -> str:
    """What a run lacks to be whole; empty where it lacks nothing."""
    tree: Any = None
    with suppress(UserError):
        tree = read_json_text(data)
    if not isinstance(tree, dict):
        return "its manifest is not whole"
    if tree.get("finished") is False:
        return _TRAINING
    files = tree.get("files")  # older formats list none: opening them says what is wrong
    for name, entry in files.items() if isinstance(files, dict) else ():
        size = entry.get("bytes") if isinstance(entry, dict) else None
        if os.path.basename(name) != name:
            return f"its manifest lists {name!r}"
        try:
            found = (path / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if size is not None and found != size:
            return f"{name} has {found:,} of {size:,} bytes"
    return ""


def _link_outside(path: Path, inside: Path) -> str | None:
    """The first file of a run that is a link out of the watched folder."""
    root = os.path.realpath(inside)
    for entry in os.scandir(path):
        if entry.is_symlink() and os.path.commonpath([root, os.path.realpath(entry.path)]) != root:
            return entry.name
    return None
