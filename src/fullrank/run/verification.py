"""Verify a folder: read every file of a store, of codes or of a run, and compare it with the hash in its manifest.

Hashes find damage and mix-ups, not malice: whoever can write the folder can write new hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fullrank.core.checks import check_path
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, foreign_files
from fullrank.data import manifest as manifests
from fullrank.data.events import parts
from fullrank.data.impressions.store import open_store
from fullrank.run import Run
from fullrank.run.checkpoint import read_checkpoint
from fullrank.run.manifest import ENCODER, FORMAT, HASHED, RUN_FILES, is_sealed, sealed_files
from fullrank.semantic_ids.folder import FORMAT as CODES
from fullrank.semantic_ids.reader import Codes

State = Literal["ok", "differs", "missing", "unreadable", "not hashed"]
SOUND = ("ok", "not hashed")
KINDS = {
    **dict.fromkeys(manifests.FORMATS["retrieval"], "store"),
    **dict.fromkeys(manifests.FORMATS["ranking"], "store of impressions"),
    CODES: "codes",
    "fullrank.export": "export",
}
"""Format in the manifest -> kind of folder, in our words; a run's manifest names no format."""


@dataclass(frozen=True)
class FileCheck:
    """The state of one file: whether it is as its hash in the manifest says."""

    name: str
    state: State
    bytes: int | None = None
    """Its size; None where it is missing."""


@dataclass(frozen=True)
class Verification:
    """The states of all files of a folder, and whether it can be opened."""

    path: Path
    kind: str
    """`store`, `store of impressions`, `codes`, `export` or `run`."""
    files: tuple[FileCheck, ...]
    notes: tuple[str, ...] = ()
    """Parts that could not be checked, and why."""
    problem: str | None = None
    """Why the folder cannot be opened although its hashes agree."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with what could be checked."""
        return self.problem is None and all(file.state in SOUND for file in self.files)

    def require_ok(self) -> None:
        """Raise `UserError` that names the files that are not as they were written."""
        if not self.ok:
            wrong = [f"{file.name} ({file.state})" for file in self.files if file.state not in SOUND]
            more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            reason = ", ".join(wrong[:5]) + more or f"its hashes agree, but it cannot be opened: {self.problem}"
            raise UserError(
                f"the {self.kind} {str(self.path)!r} is damaged: {reason}; take another copy, or make it again",
                code="file-damaged",
            )

    def dump(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        files = [{"name": file.name, "state": file.state, "bytes": file.bytes} for file in self.files]
        return {"path": self.path, "kind": self.kind, "ok": self.ok, "files": files, "notes": list(self.notes)}


def verify(folder: str | Path) -> Verification:
    """Read all files of a store, of codes or of a run, compare them with its manifest, and try to open it.

    Files above the size that opening a store hashes are read here too, and so is a run's
    checkpoint. Raises `UserError` for a folder that is none of these; what is wrong with one that
    is stands in the result (`Verification.require_ok`).
    """
    path, manifest, kind = manifest_of(folder)
    notes = []
    files = [_manifest_check(path, manifest), *_listed(path, manifest), *_of_parts(path, manifest)]
    if files[0].state == "not hashed":
        notes.append(f"{manifests.NAME} has no seal, an older version wrote it: damage to it may stay unnoticed")
    if kind == "run":
        notes += _notes_of_run(manifest)
        files += [*_unlisted(path, {file.name for file in files}), *_checkpoint(path)]
    known = {file.name.partition("/")[0] for file in files}.union(RUN_FILES if kind == "run" else ())
    if others := foreign_files(path, known.__contains__):
        notes.append(f"not of the {kind}, and not checked: {', '.join(others[:5])}{' ...' * (len(others) > 5)}")
    sound = all(file.state in SOUND for file in files)
    return Verification(path, kind, tuple(files), tuple(notes), _problem(path, kind) if sound else None)


def manifest_of(folder: str | Path) -> tuple[Path, dict[str, Any], str]:
    """The folder, its manifest and its kind.

    Raises `UserError` for a folder that cannot be verified.
    """
    path = check_path("the folder", folder)
    manifest = manifests.load_manifest(path) if (path / manifests.NAME).is_file() else {}
    kind = KINDS.get(str(manifest.get("format")), "run" if "format_version" in manifest else None)
    if kind is None:
        raise UserError(
            f"{str(path)!r} has no {manifests.NAME} of what can be verified: a store, codes, or a run",
            code="wrong-folder",
        )
    return path, manifest, kind


def _manifest_check(path: Path, manifest: JsonObject) -> FileCheck:
    state: State = "ok"
    if manifests.SEAL not in manifest:
        state = "not hashed"
    else:
        try:
            manifests.check_seal(manifest, path / manifests.NAME)
        except UserError:
            state = "differs"
    return FileCheck(manifests.NAME, state, (path / manifests.NAME).stat().st_size)


def _listed(path: Path, manifest: JsonObject) -> Iterator[FileCheck]:
    """Files whose hashes the manifest holds; in run format 2 those of the encoder alone."""
    listed = manifest.get("files")
    if isinstance(listed, dict):
        hashes = {str(name): entry.get("sha256") if isinstance(entry, dict) else None for name, entry in listed.items()}
    else:
        encoder = manifest.get("encoder")
        hashes = {name: encoder.get(name) for name in ENCODER} if isinstance(encoder, dict) else {}
    for name, expected in hashes.items():
        if Path(name).name == name or is_sealed(name):  # a manifest cannot point out of its folder
            yield _compared(path, name, expected)
        else:
            yield FileCheck(name, "differs")


def _of_parts(path: Path, manifest: JsonObject) -> Iterator[FileCheck]:
    """The files of each part of a store in parts."""
    if not parts.is_parts(manifest):
        return
    for folder in parts.part_folders(path, manifest):
        if not (folder / manifests.NAME).is_file():
            yield FileCheck(f"{folder.name}/{manifests.NAME}", "missing")
            continue
        part_manifest = manifests.load_manifest(folder)
        for file in (_manifest_check(folder, part_manifest), *_listed(folder, part_manifest)):
            yield replace(file, name=f"{folder.name}/{file.name}")


def _compared(path: Path, name: str, expected: Any) -> FileCheck:
    file = path / name
    if not file.is_file():
        return FileCheck(name, "missing")
    try:
        same = manifests.sha256_file(file) == expected
    except OSError:
        return FileCheck(name, "unreadable", file.stat().st_size)
    return FileCheck(name, "ok" if same else "differs", file.stat().st_size)


def _notes_of_run(manifest: JsonObject) -> list[str]:
    if manifest.get("format_version") not in range(HASHED, FORMAT + 1):
        return [f"run format {manifest.get('format_version')!r} holds no hashes of weights, items and spec"]
    if manifest.get("finished") is False:
        return ["training has not ended: the hashes of weights and metrics come at its end"]
    return []


def _unlisted(path: Path, listed: set[str]) -> Iterator[FileCheck]:
    """Files of a run that are there, and of which the manifest holds no hash."""
    for name in sealed_files(path):
        if name not in listed:
            yield FileCheck(name, "not hashed", (path / name).stat().st_size)


def _checkpoint(path: Path) -> Iterator[FileCheck]:
    if not (path / "checkpoints" / "last.json").exists():
        return
    try:
        checkpoint = read_checkpoint(path)
    except UserError:
        yield FileCheck("checkpoints", "differs")
        return
    yield FileCheck("checkpoints", "ok" if checkpoint is not None and checkpoint.state.files else "not hashed")


def _problem(path: Path, kind: str) -> str | None:
    """The reason why the readers refuse the folder; None where they take it."""
    # an export is a graph of another library, which is not run to look at it
    readers: dict[str, Callable[[Path], object]] = {
        "run": _read_run,
        "codes": Codes.open,
        "export": manifests.load_manifest,
    }
    try:
        readers.get(kind, open_store)(path)
    except UserError as error:
        return str(error)
    return None


def _read_run(path: Path) -> None:
    run = Run.open(path)
    run.rows()
    if (path / "weights.safetensors").is_file() or run.manifest.get("finished") is not False:
        run.model()
