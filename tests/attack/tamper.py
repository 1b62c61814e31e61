"""Damaged folders: one file of a folder is damaged (`mutations`), a verb reads it, its answer is compared.

An answer is what the verb prints with --json and the files that it writes, less what no two calls share. Equal to that
of the whole folder, or refused in a sentence: survived. Another answer with exit 0 is `silent`, unless one of the rules
of `may_differ` says why it cannot be told. Whatever happens, the code that hostile files carry must not run.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.attack import specimens
from tests.attack.damage import CANARY, Mutation
from tests.attack.frame import Case, Outcome, Said, outcome_of, own_place, shared
from tests.attack.mutations import damage, mutations, of_folder, reseal
from tests.attack.specimens import SPECIMENS, Specimen
from tests.attack.tamper_verbs import Verb, verbs_of

FOLDER = "."
"""In the place of a file: the whole folder is damaged."""


def cases() -> Iterator[Case]:
    """A case for each specimen, verb, kind of file and slot. Which damage a slot holds is known when the files are."""
    for specimen in SPECIMENS:
        for at, verb in enumerate(verbs_of(specimen)):
            for pattern in (FOLDER, *specimen.patterns):
                if pattern != FOLDER and not any(fnmatch.fnmatchcase(pattern, some) for some in verb.reads):
                    continue
                for slot in range(verb.slots):
                    name = f"{specimen.name} {pattern} {slot:02d}"
                    yield Case("tamper", verb.name, name, _runner(specimen, at, pattern, slot))


def _runner(specimen: Specimen, at: int, pattern: str, slot: int) -> Callable[[Path], Outcome]:
    return lambda place: attack(specimen, at, pattern, slot, place)


def attack(specimen: Specimen, at: int, pattern: str, slot: int, place: Path) -> Outcome:
    """Damage a file of a copy of the specimen, let the verb read it, and judge its answer."""
    home, verbs = world(), verbs_of(specimen)
    file = file_of(specimen, pattern)
    every = damages(specimen, file)
    here = slot * len(verbs) + at  # neighbours in the list of damages go to different verbs
    mutation = every[here * len(every) // (verbs[at].slots * len(verbs)) % len(every)]
    it = place / specimen.name
    shutil.copytree(home / specimen.name, it)
    if file == FOLDER:
        mutation.write(it)
    else:
        damage(it, file, mutation)
        if specimen.resealed:
            reseal(it, file)
    found = judged(specimen, verbs[at], file, mutation, home, it, place)
    return Outcome(found.kind, f"[{file}: {mutation.name}] {found.detail}", found.code)


def judged(specimen: Specimen, verb: Verb, file: str, mutation: Mutation, home: Path, it: Path, place: Path) -> Outcome:
    """What the verb makes of a folder that is damaged."""
    furnish(place, home)
    before = inode(it / file)
    with canary(place / "canary"):
        said = verb.ask(home, it, place / "out")
    if (place / "canary").exists():
        return Outcome("native", "code of the folder was run")
    outcome = outcome_of(said)
    if outcome.kind != "ok" or not specimen.hashed or may_differ(specimen, verb, file, mutation):
        return outcome
    if verb.name == "verify":
        wrong = wrongly_sound(said.json, home / specimen.name, it)
        return Outcome("silent", f"{', '.join(wrong)} said to be sound") if wrong else outcome
    wanted, found = whole_answer(specimen, verb), answer(verb, said, it, place)
    if inode(it / file) == before:  # it was not written again: that nobody read it is no other answer
        wanted, found = ([*one[:2], {k: v for k, v in one[2].items() if k != file}] for one in (wanted, found))
    if found != wanted:
        return Outcome("silent", first_difference(wanted, found))
    return outcome


def furnish(place: Path, home: Path) -> None:
    """What verbs find in their working directory: a folder to write into, and the vectors that codes name."""
    (place / "out").mkdir()
    (place / "vectors.parquet").symlink_to(home / "more_vectors.parquet")


def wrongly_sound(said: Any, whole: Path, it: Path) -> list[str]:
    """Files that `verify` calls sound although they hold something else than those of the whole folder."""
    sound = [file["name"] for file in said["files"] if file["state"] == "ok"]
    named = [name for name in sound if (whole / name).is_file()]
    if "checkpoints" in sound:
        named += [str(path.relative_to(whole)) for path in whole.glob("checkpoints/**/*") if path.is_file()]
    return [name for name in named if content(it / name) != content(whole / name)]


def content(path: Path) -> Any:
    """What a file says: of JSON the tree, however it is written; of the pointer to a checkpoint where it points."""
    if path.suffix == ".json":
        with contextlib.suppress(ValueError):
            tree = json.loads(path.read_text("utf-8-sig"))
            return [tree.get(key) for key in ("folder", "state_sha256")] if path.name == "last.json" else tree
    return path.read_bytes()


def may_differ(specimen: Specimen, verb: Verb, file: str, mutation: Mutation) -> str:
    """Why another answer is no fault here; empty where it is one."""
    for rule in (_is_log, _is_row, _is_gone):
        if reason := rule(verb, file, mutation):
            return reason
    if specimen.unfinished and file in ("weights.safetensors", FOLDER):
        return "training has not ended: the weights are the best so far, nothing is hashed yet, and a note says so"
    return ""


def _is_log(verb: Verb, file: str, mutation: Mutation) -> str:
    shown = verb.name in ("report", "resume", "sweep", "tune")
    log = file.endswith(("metrics.jsonl", "diagnosis.jsonl"))
    return "a log grows in place: what shows its rows shows those that are there" if log and shown else ""


def _is_row(verb: Verb, file: str, mutation: Mutation) -> str:
    rows = file.endswith("rows.jsonl")
    return (
        "rows are measurements: a row that was taken out is measured again, one that is there is told" if rows else ""
    )


def _is_gone(verb: Verb, file: str, mutation: Mutation) -> str:
    gone = mutation.name in ("missing", "a link to nowhere", "nothing in it")
    begins = verb.writes and file in ("checkpoints/last.json", FOLDER)
    return "what is not there is begun anew, as the answer says" if gone and begins else ""


# Answers

VOLATILE = re.compile(r"seconds|_per_s$|_ms$|memory|hours|^date$|^taken$|created|^code$|environment|^load_average$")
"""Keys of figures that no two calls share."""


def answer(verb: Verb, said: Said, it: Path, place: Path) -> Any:
    """What was said and written, with the names of folders that differ from call to call replaced."""
    text = said.out.replace(str(it), "IT").replace(str(place), "PLACE")
    return [without_volatile(json.loads(text)), written(place / "out"), written(it) if verb.writes else {}]


def without_volatile(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: without_volatile(value) for key, value in tree.items() if not VOLATILE.search(key)}
    return [without_volatile(value) for value in tree] if isinstance(tree, list) else tree


def written(folder: Path) -> dict[str, str]:
    """Hash of every table, tensor and array below a folder."""
    kept = (".parquet", ".safetensors", ".npy", ".csv")
    paths = sorted(path for path in folder.rglob("*") if path.suffix in kept and path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths}


@cache
def whole_answer(specimen: Specimen, verb: Verb) -> Any:
    """The answer to the folder as it was made."""
    with own_place("whole") as place:
        it = place / specimen.name
        shutil.copytree(world() / specimen.name, it)
        furnish(place, world())
        said = verb.ask(world(), it, place / "out")
        assert said.code == 0, f"{verb.name} of the whole {specimen.name}: {said.err[-500:]}"
        return answer(verb, said, it, place)


def inode(path: Path) -> tuple[int, int] | None:
    """Which file lies there, and when it was written; None where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def first_difference(a: Any, b: Any, where: str = "") -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            if a.get(key) != b.get(key):
                return first_difference(a.get(key), b.get(key), f"{where}.{key}")
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for at, (one, other) in enumerate(zip(a, b, strict=True)):
            if one != other:
                return first_difference(one, other, f"{where}[{at}]")
    return f"{where}: {str(a)[:80]} and now {str(b)[:80]}"


@contextlib.contextmanager
def canary(path: Path) -> Iterator[None]:
    os.environ[CANARY] = str(path)
    try:
        yield
    finally:
        del os.environ[CANARY]


# The world


WORLD = "tamper-world"


@cache
def world() -> Path:
    return shared("tamper", _made).with_name(WORLD)


def _made(mark: Path) -> None:
    home = mark.with_name(WORLD)  # not `mark`, which is moved in the end: runs hold the paths of their stores
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    specimens.make(home)


@cache
def file_of(specimen: Specimen, pattern: str) -> str:
    """The first file of a specimen that fits a pattern."""
    if pattern == FOLDER:
        return FOLDER
    return next(name for name in specimens.files(specimen, world()) if specimens.fits(name, pattern))


@cache
def damages(specimen: Specimen, file: str) -> list[Mutation]:
    """Every damage of a file, in an order in which neighbours are of different ways."""
    home = world()
    whole, twin = home / specimen.name, home / specimen.twin if specimen.twin else None
    if file == FOLDER:
        return list(of_folder(whole, twin))
    other = None if twin is None or not (twin / file).is_file() else twin / file
    return list(mutations(specimens.files(specimen, home)[file], whole / file, other))
