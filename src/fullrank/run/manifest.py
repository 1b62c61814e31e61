"""The manifest of a run, and its seal: the hashes of all files that are final.

It is written without weights when training begins, which makes the folder a run, and anew, last,
when training has ended. A run that was cut off between the two opens and can be resumed; its
weights have no hash yet.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from fullrank.core.checks import check_path
from fullrank.core.errors import UserError, brief
from fullrank.core.files import write_json
from fullrank.core.log import logger
from fullrank.core.readers import JsonObject, read_json
from fullrank.data import manifest as manifests
from fullrank.data.events import feature_files
from fullrank.data.impressions import encoder_files
from fullrank.data.manifest import damaged_file
from fullrank.models.sequential.baselines.blend import MEMBER_NAME

log = logger(__name__)

FORMAT = 6
"""Newest version of the run folder. A reader refuses what is newer than itself and reads all that is older.

1: a ranking model has fields.json in place of its encoder, so it needs the store that it was trained on.
2: the manifest holds no hashes but those of the encoder's files.
3: every run that was not calibrated and knows no features.
4: a ranking model has calibration.json, without which a reader would give other probabilities.
5: a recommender has features.json, of events, requests and users, with their vocabulary.parquet.
6: a blend has the folders of its runs in members/, features.json where it reads some.
"""
HASHED = 3
"""The first version whose manifest holds hashes."""
CALIBRATED, FEATURED = 4, 5
WEIGHTS, METRICS, SPEC, ITEMS = "weights.safetensors", "metrics.jsonl", "spec.json", "items.parquet"
ENCODER = (encoder_files.NAME, encoder_files.VOCABULARY)
FEATURES = (feature_files.NAME, encoder_files.VOCABULARY)
CALIBRATION = "calibration.json"
LATE = (WEIGHTS, METRICS, CALIBRATION)
"""Files that are final when training has ended."""
SEALED = (SPEC, ITEMS, *ENCODER, feature_files.NAME, *LATE)
"""Files whose hashes the manifest holds, with all of the members of a blend."""
MEMBERS = "members"
_OF_MEMBER = re.compile(rf"{MEMBERS}/{MEMBER_NAME}/({'|'.join(map(re.escape, (*SEALED, manifests.NAME)))})")
RUN_FILES = (
    "checkpoints",
    "logs",
    METRICS,
    WEIGHTS,
    SPEC,
    ITEMS,
    "fields.json",
    encoder_files.NAME,
    feature_files.NAME,
    encoder_files.VOCABULARY,
    CALIBRATION,
    manifests.NAME,
    "diagnosis.jsonl",
    MEMBERS,
)
"""Files and folders of a run, in the order in which `training.run_folder.clear_run` removes them."""
AGAIN = manifests.RUN_AGAIN


def is_sealed(name: str) -> bool:
    """Whether a file of this name may be listed by a manifest: no name points out of the folder."""
    return name in SEALED or _OF_MEMBER.fullmatch(name) is not None


def sealed_files(folder: Path) -> list[str]:
    """The names of a run folder's files that a manifest lists, those of members too."""
    inside = sorted(path.relative_to(folder).as_posix() for path in folder.glob(f"{MEMBERS}/*/*"))
    return [name for name in (*SEALED, *inside) if is_sealed(name) and (folder / name).is_file()]


def open_manifest(path: str | Path) -> tuple[Path, JsonObject]:
    """A run folder's path, and its manifest once seal, files, their sizes and spec are checked.

    Formats 1 and 2 hold no hashes, which is logged. Raises `UserError` for another folder, a
    newer format, and damage.
    """
    folder = check_path("the run", path)
    store = manifests.is_store(folder)
    if store or not (folder / manifests.NAME).is_file():
        what = "is a prepared store" if store else "has no manifest.json"
        raise UserError(f"{folder} is not a run folder (it {what}); `fullrank train` makes one", code="not-a-run")
    manifest = read_json(folder / manifests.NAME)
    version = manifest.get("format_version")
    if type(version) is not int or not 1 <= version <= FORMAT:
        raise UserError(
            f"{folder} has run format {brief(version, 40)}; this version of fullrank reads formats 1 to {FORMAT}",
            code="unknown-format",
        )
    manifests.check_seal(manifest, folder / manifests.NAME, AGAIN)
    _check_manifest(manifest, folder)
    if version >= HASHED:
        _check_listed(manifest, folder)
    else:
        note_once(f"{folder} is of run format {version}, which holds no hashes: damage may stay unnoticed")
    return folder, manifest


def _check_manifest(manifest: JsonObject, folder: Path) -> None:
    data = manifest.get("data")
    whole = isinstance(data, dict) and all(isinstance(data.get(key), str) for key in ("path", "split_fingerprint"))
    parameters = manifest.get("parameters")
    if not whole or type(parameters) is not int:
        reason = (
            f"it says data={brief(data, 120)} and parameters={brief(parameters, 80)}, not a path with a "
            "split_fingerprint, and a count"
        )
        raise damaged_file(folder / manifests.NAME, reason, AGAIN)
    source = manifest.get("init_from")
    if not isinstance(source, str | None):
        raise damaged_file(
            folder / manifests.NAME, f"its init_from is {brief(source, 80)}, not the path of a run, or null", AGAIN
        )


def _check_listed(manifest: JsonObject, folder: Path) -> None:
    """Raise `UserError` unless the manifest is sealed and its files are there, in their sizes."""
    files = manifest.get("files")
    if manifests.SEAL not in manifest or not isinstance(files, dict) or type(manifest.get("finished")) is not bool:
        raise manifests.incomplete_manifest(folder, "lacks 'files', 'finished' or its 'seal'", AGAIN)
    read = {name: entry for name, entry in files.items() if name != METRICS}
    manifests.check_files(
        folder,
        read,
        {name for name in read if is_sealed(name)},
        {SPEC, WEIGHTS} if manifest["finished"] else {SPEC},
        AGAIN,
    )
    manifests.check_hash(folder, SPEC, files[SPEC], AGAIN)
    metrics = files.get(METRICS, {"sha256": ""})
    if not isinstance(metrics, dict) or not isinstance(metrics.get("sha256"), str):
        raise manifests.incomplete_manifest(folder, f"lacks the size or the hash of {METRICS}", AGAIN)


@lru_cache(maxsize=1024)
def note_once(sentence: str) -> None:
    """Log what a person should know of a folder, once in a process."""
    log.info(sentence)


def seal_run(path: Path) -> None:
    """Write the manifest anew, with the hashes of weights and metrics: training has ended.

    A run that is sealed already stays as it is, and so does one of format 1 or 2.
    """
    manifest = read_json(path / manifests.NAME)
    if manifest["format_version"] >= HASHED and not manifest["finished"]:
        write_manifest(path, manifest, finished=True)


def reopen_run(path: Path) -> None:
    """Mark a run as in training, before its weights and metrics change again.

    One of format 2 becomes one of this format. A ranking run of format 1 stays what it is: it has
    no encoder to hash. Raises `UserError` where a file that stays is not as it was written: it is
    about to be hashed anew.
    """
    manifest = read_json(path / manifests.NAME)
    known = manifest["files"] if manifest["format_version"] >= HASHED else _encoder_of_format_2(manifest)
    for name in known:
        if name not in LATE:
            manifests.check_hash(path, name, known[name], AGAIN)
    if (path / ITEMS).is_file() or (path / encoder_files.NAME).is_file():
        write_manifest(path, manifest, finished=False)
    (path / CALIBRATION).unlink(missing_ok=True)  # it was of the weights so far


def _encoder_of_format_2(manifest: JsonObject) -> dict[str, JsonObject]:
    hashes = manifest.get("encoder")
    return {name: {"sha256": hashes.get(name)} for name in ENCODER} if isinstance(hashes, dict) else {}


def write_manifest(path: Path, facts: JsonObject, *, finished: bool) -> None:
    """Write the manifest of a run folder: `facts` (a copied run's will do) and its files."""
    of_format = ("format_version", "finished", "files", "encoder", manifests.SEAL)
    rest = {key: value for key, value in facts.items() if key not in of_format}  # those of a copied run are not ours
    files = manifests.hash_files(path, [name for name in sealed_files(path) if finished or name not in LATE])
    version = CALIBRATED if CALIBRATION in files else HASHED
    if feature_files.NAME in files:
        version = FEATURED
    if any(name.startswith(f"{MEMBERS}/") for name in files):
        version = FORMAT
    tree = {"format_version": version, "finished": finished, **rest, "files": files}
    write_json(path / manifests.NAME, manifests.sealed(tree))
