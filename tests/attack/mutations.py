"""Ways to damage a file: of any file, and of each kind of file by what its format can get wrong.

A mutation writes a file where there is none, from what the whole file held. All are functions of the file and of a
seed: a case that failed can be run again by its name.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.attack.damage import Evil, Mutation, Write, put_bytes
from tests.attack.damage_binary import of_npy, of_parquet, of_safetensors
from tests.attack.damage_text import of_json, of_jsonl


def mutations(kind: str, file: Path, twin: Path | None, seed: int = 0) -> Iterator[Mutation]:
    """Every damage of a file of this kind (`KINDS`); `twin` is the same file of another folder of its format."""
    yield from _of_any(file, twin, random.Random(f"{seed} {file.name}"))
    yield from KINDS[kind](file, random.Random(f"{seed} {kind} {file.name}"))


def _of_any(file: Path, twin: Path | None, draw: random.Random) -> Iterator[Mutation]:
    whole = file.read_bytes()
    size = len(whole)
    yield Mutation("missing", lambda path: None)
    yield Mutation("empty", put_bytes(b""))
    for part in (0.02, 0.5, 0.97):
        yield Mutation(f"truncated at {part:.0%}", put_bytes(whole[: int(size * part)]))
    yield Mutation("last byte lacks", put_bytes(whole[:-1]))
    yield Mutation("a byte more", put_bytes(whole + b"\0"))
    for at in sorted(draw.sample(range(size), min(6, size))):
        bit = draw.randrange(8)
        yield Mutation(f"bit {bit} of byte {at}", put_bytes(_flipped(whole, at, bit)))
    if twin is not None and twin.read_bytes() != whole:
        yield Mutation("that of another folder", put_bytes(twin.read_bytes()))
    yield Mutation("a folder", lambda path: path.mkdir())
    yield Mutation("a link to itself", lambda path: path.symlink_to(path.name))
    yield Mutation("a link to nowhere", lambda path: path.symlink_to("nowhere"))
    yield Mutation("a pipe", lambda path: os.mkfifo(path))
    yield Mutation("random bytes", put_bytes(draw.randbytes(min(size, 4096))))
    yield Mutation("zeros", put_bytes(bytes(size)))
    yield Mutation("a pickle", put_bytes(pickle.dumps(Evil())))
    yield Mutation("a zip", put_bytes(_zip(pickle.dumps(Evil()))))
    if os.geteuid() != 0:  # root reads what nobody may read
        yield Mutation("unreadable", _unreadable(whole))


KINDS: dict[str, Callable[[Path, random.Random], Iterator[Mutation]]] = {
    "json": of_json, "jsonl": of_jsonl, "npy": of_npy, "parquet": of_parquet, "safetensors": of_safetensors,
    "other": lambda file, draw: iter(()),
}  # fmt: skip


def damage(folder: Path, file: str, mutation: Mutation) -> None:
    """Put the damaged file into a folder that is whole."""
    place = folder / file
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()
    mutation.write(place)


def reseal(folder: Path, file: str) -> None:
    """Give a manifest (or the page of an evaluation) that can be read the hash of a file as it is, and its own seal."""
    page = folder / "evaluation.json"
    place, damaged = page if page.exists() else folder / "manifest.json", folder / file
    if not place.is_file():
        return  # a pipe would be waited for
    try:
        tree = json.loads(place.read_bytes())
    except (OSError, ValueError, RecursionError):
        return  # nothing to put right
    if not isinstance(tree, dict):
        return
    listed = tree.get("files")
    entry = listed.get(file) if isinstance(listed, dict) else None
    if isinstance(entry, dict) and damaged.is_file():
        whole = damaged.read_bytes()
        entry |= {"bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    if file.startswith("per_") and damaged.is_file():
        tree["rows_sha256"] = hashlib.sha256(damaged.read_bytes()).hexdigest()
    if "content" in tree and isinstance(listed, dict):
        if all(isinstance(one, dict) and "sha256" in one for one in listed.values()):
            lines = "".join(f"{name} {listed[name]['sha256']}\n" for name in sorted(listed))
            tree["content"] = hashlib.sha256(lines.encode()).hexdigest()
    if "seal" in tree:
        own = json.dumps(
            {key: value for key, value in tree.items() if key != "seal"}, sort_keys=True, separators=(",", ":")
        )
        tree["seal"] = hashlib.sha256(own.encode()).hexdigest()
    place.unlink()
    place.write_text(json.dumps(tree))


def of_folder(folder: Path, twin: Path | None) -> Iterator[Mutation]:
    """Every damage of a whole folder; `write` is given the folder itself."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    first = names[0] if names else "manifest.json"
    yield Mutation("a stranger's file", lambda it: (it / "notes.txt").write_text("mine"))
    yield Mutation("a stranger's folder", lambda it: (it / "old" / "older").mkdir(parents=True))
    yield Mutation("a file that a killed writer left", lambda it: (it / f".{first}.4194999.part").write_bytes(b"half"))
    yield Mutation("a folder that a killed writer left", lambda it: (it / f".{first}.4194999-1.part").mkdir())
    yield Mutation("a link to itself inside", lambda it: (it / "loop").symlink_to("loop"))
    yield Mutation("a pipe inside", lambda it: os.mkfifo(it / "pipe"))
    yield Mutation("nothing in it", lambda it: _emptied(it))
    yield Mutation("every file empty", lambda it: [path.write_bytes(b"") for path in it.rglob("*") if path.is_file()])
    yield Mutation("a file", lambda it: (shutil.rmtree(it), it.write_bytes(b"1")))
    yield Mutation("a link to itself", lambda it: (shutil.rmtree(it), it.symlink_to(it.name)))
    yield Mutation("a pipe", lambda it: (shutil.rmtree(it), os.mkfifo(it)))
    yield Mutation("missing", lambda it: shutil.rmtree(it))
    yield Mutation("reached by a link", lambda it: (it.rename(it.with_name("real")), it.symlink_to("real")))
    if twin is not None:
        shared = [name for name in names if (twin / name).is_file()]
        for name in shared:
            if name.endswith(".jsonl") or (twin / name).read_bytes() == (folder / name).read_bytes():
                continue  # what came out would be the other folder, whole but for its log
            others = [other for other in shared if other != name]
            yield Mutation(f"all but {name} of another folder", _taken(twin, others))
    for one, other in zip(names, names[1:], strict=False):
        yield Mutation(f"{one} and {other} changed places", _exchanged(one, other))


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _taken(twin: Path, names: list[str]) -> Write:
    return lambda it: [shutil.copyfile(twin / name, it / name) for name in names]


def _exchanged(one: str, other: str) -> Write:
    def write(folder: Path) -> None:
        (folder / one).rename(folder / "aside")
        (folder / other).rename(folder / one)
        (folder / "aside").rename(folder / other)

    return write


def _unreadable(content: bytes) -> Write:
    def write(path: Path) -> None:
        path.write_bytes(content)
        path.chmod(0)

    return write


def _flipped(whole: bytes, at: int, bit: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]


def _zip(content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", content)
    return archive.getvalue()
