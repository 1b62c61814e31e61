"""Manifests: the description of a folder that lies in it, and the checks that the folder agrees.

Stores of events, stores of impressions, folders of semantic ids and runs share these. No file is
trusted, none can run code. A manifest holds the SHA-256 of each file and, as its seal, that of
itself. They find damage and mix-ups, not malice: whoever can write the folder can write new hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from fullrank import __version__
from fullrank.core.errors import UserError, reason_line
from fullrank.core.files import JsonObject, write_json
from fullrank.core.readers import cannot_open, cannot_read, missing_file, read_json, read_json_text
from fullrank.core.registry import PROBLEMS, Problem
from fullrank.core.spec import error_sentence

PARTS = "fullrank.parts"
"""The format of a store of events in parts (`data/events/parts.py`)."""
IMPRESSION_PARTS = "fullrank.impressions_parts"
"""The format of a store of impressions in parts."""
FORMATS: Mapping[Problem, tuple[str, str]] = {
    "retrieval": ("fullrank.store", PARTS),
    "ranking": ("fullrank.impressions", IMPRESSION_PARTS),
}
"""The formats of the stores of each problem, in one and in parts."""
STORES = dict.fromkeys(FORMATS["retrieval"], "is a store of events") | dict.fromkeys(
    FORMATS["ranking"], "is a store of impressions"
)
"""Format -> words for it in sentences."""
NAME = "manifest.json"
SEAL = "seal"
"""The key of a manifest that holds the hash of all its others."""
AGAIN = "prepare the data again"
RUN_AGAIN = "take another copy of the run, or train it again"
"""The advice where a file of a run is damaged."""
HASHED_WHEN_OPENED = 2**30
"""Bytes of the largest file of a store whose hash is compared when it is opened: less than a second of reading."""
SETTLED = 2.0
"""Seconds after which the times of a file show every further write: file systems count time in steps."""
TRIES = 20
"""How often it is tried to open a .npy file: numpy parses the header of an array as Python, and threads that parse at
one time confuse the depth that Python 3.11 counts, with a rare `SystemError` (python/cpython#106905)."""
_UNREADABLE = (
    ValueError,
    TypeError,
    ArithmeticError,
    OSError,
    EOFError,
    SyntaxError,
    RecursionError,
    MemoryError,
    TokenError,
)
"""Errors of numpy for a damaged .npy file."""
Count = Annotated[int, Field(ge=0, strict=True)]
"""A number of things, as a manifest has it."""


def describe_files(folder: Path) -> dict[str, JsonObject]:
    """Size, hash, dtype and shape of each file of a store that is being written."""
    files = hash_files(folder, sorted(path.name for path in folder.iterdir()))
    for path in (folder / name for name in files):
        if path.suffix == ".npy":
            array = map_npy(path)
            files[path.name] |= {"dtype": array.dtype.str, "shape": list(array.shape)}
    return files


def hash_files(folder: Path, names: Iterable[str]) -> dict[str, JsonObject]:
    """Size and hash of files of a folder that is being written."""
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_file(folder / name)} for name in names}


def content(files: Mapping[str, JsonObject]) -> str:
    """One hash for all files of a store."""
    lines = "".join(f"{name} {files[name]['sha256']}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file, read once in a process for as long as the file stays as it is.

    One that was written in the last seconds is read each time. Raises `UserError`
    where it cannot be read.
    """
    try:
        at = path.stat()
        if time.time() - max(at.st_mtime, at.st_ctime) < SETTLED:
            return sha256_file(path)
        return _hash_of(str(path.resolve()), at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
    except OSError as error:
        raise cannot_read(path, error) from None


@lru_cache(maxsize=4096)
def _hash_of(path: str, *state: int) -> str:
    return sha256_file(Path(path))


def sealed(tree: JsonObject) -> JsonObject:
    """A manifest with its seal: the SHA-256 of all its other keys, as JSON with
    sorted keys and without spaces."""
    unsealed = {key: entry for key, entry in tree.items() if key != SEAL}
    as_read = read_json_text(json.dumps(unsealed))  # keys that are numbers become text
    text = json.dumps(as_read, sort_keys=True, separators=(",", ":"))
    return unsealed | {SEAL: hashlib.sha256(text.encode()).hexdigest()}


def write_manifest(folder: Path, form: FolderFormat, facts: JsonObject, files: dict[str, JsonObject]) -> None:
    """Write the manifest of a folder that holds all its other files."""
    header = {"format": form.name, "format_version": form.version, "library_version": __version__}
    tree = header | facts | {"content": content(files), "files": files}
    write_json(folder / NAME, sealed(tree), indent=1, ensure_ascii=False)


def check_seal(tree: JsonObject, path: Path, again: str = AGAIN) -> None:
    """Raise `UserError` where the manifest `path`, as read, has a seal that is not
    its own. Older ones have none."""
    if SEAL in tree and tree[SEAL] != sealed(tree)[SEAL]:
        raise damaged_file(path, "it is not as it was written (its seal differs)", again)


def is_store(folder: Path, *problems: Problem) -> bool:
    """Whether a folder's manifest is that of a store (of any version), for one of
    `problems` where any are named."""
    named = format_of(folder)
    return any(named in FORMATS[problem] for problem in problems or PROBLEMS)


def is_described(folder: Path) -> bool:
    """Whether a folder's manifest lists all of its files: a store, or codes."""
    return format_of(folder).startswith("fullrank.")


def format_of(folder: Path) -> str:
    """The format that a folder's manifest names, of any version; empty where there is none that can be read."""
    try:
        return str(load_manifest(folder).get("format")) if (folder / NAME).is_file() else ""
    except UserError:
        return ""


def require_elsewhere(out: Path, *read: Path) -> None:
    """Raise `UserError` where the folder `out` would be written over one that is read."""
    if os.path.realpath(out) in map(os.path.realpath, read):
        raise UserError(f"{str(out)!r} is what is read; name another folder", code="same-folder")


def require_outside_stores(out: Path) -> None:
    """Raise `UserError` where a folder would be written into a store or a folder of
    codes: it could not be replaced."""
    for around in Path(os.path.realpath(out)).parents:
        if is_described(around):
            raise UserError(
                f"{str(out)!r} is inside {str(around)!r}, which is prepared data; name a folder elsewhere",
                code="inside-a-store",
            )


def require_no_store(out: Path, what: str) -> None:
    """Raise `UserError` where files would be put into a store or a folder of codes: it could not be replaced."""
    if is_described(out):
        raise UserError(
            f"{str(out)!r} is prepared data, which holds nothing else; name another folder for the {what}",
            code="folder-of-others",
        )
    require_outside_stores(out)


@dataclass(frozen=True)
class FolderFormat:
    """A kind of folder that a manifest can describe."""

    what: str
    make: str
    """Advice how to make such a folder."""
    name: str
    version: int
    again: str = AGAIN
    """Advice where a folder is damaged or of another version."""


def read_header(folder: Path, *forms: FolderFormat) -> JsonObject:
    """The manifest of a folder of one of these forms. Raises `UserError` for another folder, form or version."""
    form = forms[0]
    if not folder.exists():
        raise UserError(f"there is no {form.what} at {str(folder)!r}; {form.make}", code="missing-folder")
    described = (folder / NAME).is_file()
    manifest = load_manifest(folder, form.again) if described else {}
    named = manifest.get("format")
    form = next((other for other in forms if other.name == named), form)
    if named != form.name:
        what = "is a run" if (folder / "spec.json").is_file() else f"has the format {named!r}, not {form.name!r}"
        what = STORES.get(str(named), what) if described else f"has no {NAME}"
        raise UserError(f"{str(folder)!r} is not a {form.what}, it {what}; {form.make}", code="wrong-folder")
    if manifest.get("format_version") != form.version:
        raise UserError(
            f"{NAME} of {str(folder)!r} has format version {manifest.get('format_version')!r}; this library reads "
            f"{form.version}: {form.again}, or use the library version that wrote it",
            code="wrong-format-version",
        )
    check_seal(manifest, folder / NAME, form.again)
    return manifest


def map_npy(path: Path) -> np.memmap:
    """A .npy file mapped read-only, of any dtype and shape. Raises the errors of numpy."""
    for _ in range(TRIES):
        with suppress(SystemError):
            return np.lib.format.open_memmap(path, mode="r")  # np.load would look into archives too
    return np.lib.format.open_memmap(path, mode="r")


def map_array(path: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A .npy file mapped read-only. Raises `UserError` unless it is exactly this dtype, shape and size."""
    try:
        with np.errstate(over="raise"):  # a shape whose size wraps around
            array = map_npy(path)
    except _UNREADABLE as error:
        raise cannot_open(path, error) or damaged_file(path, reason_line(error)) from None
    if array.dtype.str != dtype or array.shape != shape or not array.flags.c_contiguous:
        order = "" if array.flags.c_contiguous else " by columns"
        raise damaged_file(path, f"it holds {array.dtype} {array.shape}{order}, expected {np.dtype(dtype)} {shape}")
    if path.stat().st_size != array.offset + array.nbytes:
        raise damaged_file(path, "its size does not fit its header")
    return array


def verify_hashes(folder: Path, manifest: JsonObject, again: str = AGAIN, *, verify: bool | None = True) -> None:
    """Read the files and compare their hashes. Raises `UserError` for the first that differs.

    `verify=None` leaves out those above `HASHED_WHEN_OPENED`, and those compared before in this
    process.
    """
    if verify is False:
        return
    for name, entry in manifest["files"].items():
        if verify or entry["bytes"] <= HASHED_WHEN_OPENED:
            check_hash(folder, name, entry, again, sha256_file if verify else file_hash)
    if content(manifest["files"]) != manifest["content"]:
        raise damaged_file(folder / NAME, "its content hash is not that of its files", again)


def check_hash(
    folder: Path, name: str, entry: JsonObject, again: str = AGAIN, read: Callable[[Path], str] = file_hash
) -> None:
    """Raise `UserError` unless a file has the hash that the manifest's entry of it says."""
    if read(folder / name) != entry["sha256"]:
        raise damaged_file(folder / name, "its hash is not the one in the manifest", again)


def checked_file(folder: Path, name: str, again: str = AGAIN) -> Path:
    """The path of one file of a folder, its hash compared where the folder's manifest holds it."""
    if (folder / NAME).is_file():
        manifest = load_manifest(folder, again)
        check_seal(manifest, folder / NAME, again)
        files = manifest.get("files")
        if isinstance(files, dict) and name in files:
            check_files(folder, {name: files[name]}, {name}, set(), again)
            check_hash(folder, name, files[name], again)
    return folder / name


def damaged_file(path: Path, reason: str, again: str = AGAIN) -> UserError:
    """The error for a damaged file of a folder."""
    return UserError(f"{str(path)!r} is damaged: {reason.rstrip('.')[:200]}; {again}", code="file-damaged")


def incomplete_manifest(folder: Path, what: str, again: str = AGAIN) -> UserError:
    """The error for a manifest that lacks something; `what` says it behind the
    manifest's name ("lacks 'split'")."""
    return UserError(f"{NAME} of {str(folder)!r} {what}; {again}", code="manifest-incomplete")


def require_keys(folder: Path, tree: JsonObject, kinds: Mapping[str, Any], again: str = AGAIN) -> None:
    """Raise `UserError` unless a manifest has these keys, each valid for its
    annotation (`kinds`, by pydantic)."""
    for key, kind in kinds.items():
        try:
            _adapter(kind).validate_python(tree.get(key))
        except ValidationError as error:
            reason = f"has no sound {key!r}: {error_sentence(error)}"
            raise incomplete_manifest(folder, reason, again) from None


_adapter = lru_cache(maxsize=64)(TypeAdapter)
"""The reader of an annotation, made once: compiling one takes longer than a manifest."""


def load_manifest(folder: Path, again: str = AGAIN) -> JsonObject:
    """The manifest of any store as JSON; nothing of it is checked. Raises `UserError` where it cannot be read."""
    try:
        return read_json(folder / NAME)
    except UserError as error:
        raise error if error.code != "file-damaged" else UserError(f"{error}; {again}", code=error.code) from None


def check_files(folder: Path, files: JsonObject, allowed: set[str], needed: set[str], again: str = AGAIN) -> None:
    """Raise `UserError` unless all files listed are `allowed` and there, of the stated size, and
    all `needed` are listed."""
    for name, entry in files.items():
        # Names are ours or refused: a manifest cannot point out of its folder.
        if name not in allowed:
            raise UserError(
                f"{NAME} of {str(folder)!r} lists {name!r}, which is no file of such a folder; {again}",
                code="foreign-files",
            )
        if not (isinstance(entry, dict) and is_count(entry.get("bytes")) and isinstance(entry.get("sha256"), str)):
            raise incomplete_manifest(folder, f"lacks the size or the hash of {name}", again)
        path = folder / name
        if not path.is_file():
            raise missing_file(path, again)
        if path.stat().st_size != entry["bytes"]:
            raise damaged_file(
                path, f"it has {path.stat().st_size:,} bytes, the manifest says {entry['bytes']:,}", again
            )
    for name in sorted(needed):
        if name not in files:
            raise incomplete_manifest(folder, f"does not list {name}", again)


def is_count(entry: Any) -> bool:
    """Whether an entry of a manifest is a whole number of at least 0."""
    return isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0
