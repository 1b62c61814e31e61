"""Folders whose hashes agree with what was done to them: a hostile writer's, or those of versions without hashes.

So each check of a reader stands for itself: without this every change would be found by its hash.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from fullrank.data.manifest import SEAL, content, sealed


def reseal(folder: Path, *, sizes: bool = False) -> Path:
    """Make the hashes in a folder's manifest, and with `sizes` the sizes too, those of the files as they are.

    Of a file, such as a saved evaluation: make its seal its own.
    """
    path = folder if folder.is_file() else folder / "manifest.json"
    tree = json.loads(path.read_text())
    files = tree.get("files")
    if isinstance(files, dict):
        for name, entry in files.items():
            if isinstance(entry, dict) and (folder / name).is_file():
                entry["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
                entry |= {"bytes": (folder / name).stat().st_size} if sizes else {}
        if "content" in tree and all(isinstance(entry, dict) and "sha256" in entry for entry in files.values()):
            tree["content"] = content(files)
    return _write(path, sealed(tree))


def rewrite(folder: Path, changes: dict[str, Any]) -> Path:
    """Change values of a folder's manifest, also inside of its objects (None takes a key out); its hashes agree."""

    def merge(tree: dict[str, Any], changes: dict[str, Any]) -> None:
        for key, value in changes.items():
            if value is None:
                del tree[key]
            elif isinstance(value, dict) and isinstance(tree.get(key), dict):
                merge(tree[key], value)
            else:
                tree[key] = value

    tree = json.loads((folder / "manifest.json").read_text())
    merge(tree, changes)
    return reseal(_write(folder / "manifest.json", tree))


def unsealed(folder: Path) -> Path:
    """A store or codes as versions wrote them whose manifests had no seal."""
    tree = json.loads((folder / "manifest.json").read_text())
    return _write(folder / "manifest.json", {key: value for key, value in tree.items() if key != SEAL})


def as_format_2(run: Path) -> Path:
    """A run as versions wrote it whose manifests held no hashes but those of an encoder."""
    tree = json.loads((run / "manifest.json").read_text())
    files = tree.pop("files")
    if "encoder.json" in files:
        tree["encoder"] = {name: files[name]["sha256"] for name in ("encoder.json", "vocabulary.parquet")}
    del tree["finished"], tree[SEAL]
    return _write(run / "manifest.json", tree | {"format_version": 2})


def flip(path: Path) -> None:
    """One bit in the middle of a file is another."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def store_moved(run: Path, to: Path) -> None:
    """Make the manifest of a run name another place of its store."""
    path = run / "manifest.json"
    tree = json.loads(path.read_text())
    tree["data"]["path"] = str(to)
    path.write_text(json.dumps(tree))
    reseal(run)


def _write(path: Path, tree: dict[str, Any]) -> Path:
    path.write_text(json.dumps(tree))
    return path.parent
