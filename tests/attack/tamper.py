"""Damaged folders: one file of a folder is damaged (`mutations`), a verb reads it, its answer is compared.

An answer is what the verb prints with --json and the files that it writes, less what no two calls share. Equal to that of
the whole folder, or refused in a sentence: survived. Another answer with exit 0 is `silent`, unless one of the rules of
`may_differ` says why it cannot be told. Whatever happens, the code that hostile files carry must not run.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.attack import specimens
from tests.attack.frame import Case, Outcome, Said, call, captured, limited, outcome_of, shared
from tests.attack.mutations import CANARY, Mutation, damage, mutations
from tests.attack.specimens import LITTER, SPECIMENS, Specimen

Ask = Callable[[Path, Path, Path], Said]
"""(whole folders, the damaged one, an empty folder to write into) -> what was said."""


@dataclass(frozen=True)
class Verb:
    """Something that reads a folder."""

    name: str
    ask: Ask
    slots: int = 9
    """Mutations of each file that it meets; those of its neighbours are others."""
    reads: tuple[str, ...] = ("*",)
    """Patterns of the files that it may read."""
    writes: bool = False
    """Whether it writes into the folder that it reads."""


def cli(name: str, *words: str, slots: int = 9, reads: tuple[str, ...] = ("*",)) -> Verb:
    """A command line, in which {it}, {home} and {out} are folders."""
    writes = name in ("resume", "sweep", "tune")

    def ask(home: Path, it: Path, out: Path) -> Said:
        return call(*(word.format(home=home, it=it, out=out) for word in words), "--json")

    return Verb(name, ask, slots, reads, writes)


def api(name: str, function: Callable[[Path, Path, Path], Any], slots: int = 9) -> Verb:
    """A function of the library that no verb calls, told of as a verb would."""

    def ask(home: Path, it: Path, out: Path) -> Said:
        from fullrank.cli.errors import explained
        from fullrank.core.files import jsonable

        begun, code = time.perf_counter(), 0
        with captured() as streams, limited(20) as clock:
            try:
                answer = jsonable(function(home, it, out))
            except BaseException as error:
                told = explained(error)
                code, answer = told.status, {"error": told.sentence, "code": told.code}
        last = f"Error: {answer['error']}\n" if code else ""
        return Said((name, "--json"), code, json.dumps(answer), streams.read()[1] + last, time.perf_counter() - begun, clock.rang)

    return Verb(name, ask, slots)


def _grown(home: Path, it: Path, out: Path) -> Any:
    import fullrank as fr

    run = fr.grow_catalog(fr.Run.open(it), home / "new_items.parquet", out / "grown", start="mean")
    return fr.recommend(run, home / "histories.parquet", k=3).to_dicts()


def _compared(home: Path, it: Path, out: Path) -> Any:
    import fullrank as fr
    from fullrank.evaluation.result import EvaluationResult

    clicks = "clicks" in it.name
    other = EvaluationResult.load(home / ("evaluation_of_clicks" if clicks else "evaluation_twin"))
    found = EvaluationResult.load(it)
    return [vars(fr.compare(found, other, "auc" if clicks else "ndcg@10")), found.dump()]


def _encoded(home: Path, it: Path, out: Path) -> Any:
    return specimens.encode_text(home / "events", it, out / "codes").codes.tolist()


VECTORS = ("--set", "vectors={{kind: file, path: {home}/more_vectors.parquet}}", "--set", "limits.collisions=1")
CODED = (*VECTORS[:2], "--learner", "rq_kmeans", "--levels", "2", "--size", "4", *VECTORS[2:])
ASKED = ("--histories", "{home}/histories.parquet")
VERBS: dict[str, tuple[Verb, ...]] = {
    "events": (
        cli("evaluate", "evaluate", "{home}/sasrec", "--data", "{it}"),
        cli("train a baseline", "train", "item_to_item", "--data", "{it}", "--out", "{out}/run"),
        cli("subset", "subset", "{it}", "--share", "0.5", "--out", "{out}/store"),
        cli("encode", "encode", "{it}", *CODED, "--out", "{out}/codes", slots=4),
        cli("train", "train", "sasrec", "--data", "{it}", "--out", "{out}/run", *(w for s in specimens.TINY for w in ("--set", s)), slots=2),
        cli("diagnose", "diagnose", "{home}/sasrec", "--data", "{it}", "--users", "20", "--out", "{out}/d.jsonl", slots=2),
        cli("attention", "attention", "{home}/sasrec", "--data", "{it}", slots=2),
    ),
    "impressions": (
        cli("evaluate", "evaluate", "{home}/dcnv2", "--data", "{it}"),
        cli("train", "train", "lr", "--data", "{it}", "--out", "{out}/run", "--set", "training.max_epochs=1", "--set", "training.batch_size=128", slots=4),
        cli("diagnose", "diagnose", "{home}/dcnv2", "--data", "{it}", "--impressions", "50", "--out", "{out}/d.jsonl", slots=2),
        cli("cascade", "cascade", "{home}/sasrec", "{home}/dcnv2", "--impressions", "{it}", "--items", "{home}/goods.parquet",
            "--users", "{home}/people.parquet", "--context", "hour=20", "--user", "user", "--item", "item", "--out", "{out}/c", slots=2),
    ),
    "a recommender": (
        cli("recommend", "recommend", "{it}", *ASKED, slots=14),
        cli("evaluate", "evaluate", "{it}", "--data", "{home}/events", slots=7),
    ),
    "sasrec": (
        cli("diagnose", "diagnose", "{it}", "--users", "20", "--out", "{out}/d.jsonl", slots=2),
        cli("train --from", "train", "--from", "{it}", "--data", "{home}/events", "--out", "{out}/run", "--set", "seed=2", slots=4),
        cli("resume", "train", "{home}/sasrec/spec.json", "--data", "{home}/events", "--out", "{it}", "--resume", slots=4),
        cli("attention", "attention", "{it}", slots=2),
        cli("report", "report", "{it}", "--users", "20", "--out", "{out}/r.html", slots=1),
        api("grow", _grown, slots=4),
    ),
    "a ranking model": (
        cli("predict", "predict", "{it}", "{home}/new_impressions.parquet", "--out", "{out}/p.parquet", slots=14),
        cli("evaluate", "evaluate", "{it}", "--data", "{home}/impressions", slots=7),
    ),
    "dcnv2": (
        cli("train --from", "train", "--from", "{it}", "--data", "{home}/impressions", "--out", "{out}/run", "--set", "seed=2", slots=4),
        cli("cascade", "cascade", "{home}/sasrec", "{it}", "--items", "{home}/goods.parquet",
            "--users", "{home}/people.parquet", "--context", "hour=20", "--user", "user", "--item", "item", "--out", "{out}/c", slots=2),
    ),
    "cut_off": (
        cli("resume", "train", "{home}/cut_off/spec.json", "--data", "{home}/events", "--out", "{it}", "--resume", slots=12),
    ),
    "codes": (
        cli("encode --grow", "encode", "{home}/events", "--grow", "{it}", *VECTORS[:2], "--out", "{out}/codes", slots=18),
        cli("train", "train", "rpg", "--data", "{home}/events", "--out", "{out}/run", "--set", "model.items.codes={it}",
            *(w for s in specimens.TINY for w in ("--set", s)), slots=3),
    ),
    "evaluation": (api("compare", _compared, slots=24),),
    "evaluation_of_clicks": (api("compare", _compared, slots=16),),
    "sweep": (cli("sweep", "sweep", "{home}/grid.yaml", "--data", "{home}/events", "--out", "{it}", slots=5),),
    "tuned": (
        cli("tune", "tune", "{home}/space.yaml", "--data", "{home}/events", "--out", "{it}", "--sampler", "tpe", slots=20,
            reads=("rows.jsonl", "plan.json")),
    ),
    "vectors": (api("encode", _encoded, slots=25),),
    "golden_sasrec": (
        cli("recommend", "recommend", "{it}", *ASKED, slots=20),
        cli("evaluate", "evaluate", "{it}", "--data", "{home}/golden_events", slots=8),
        cli("train --from", "train", "--from", "{it}", "--data", "{home}/golden_events", "--out", "{out}/run", slots=3),
    ),
    "golden_dcnv2": (
        cli("predict", "predict", "{it}", "{home}/golden_new.parquet", "--data", "{home}/golden_impressions", "--out", "{out}/p.parquet", slots=20),
    ),
    "golden_cut_off": (
        cli("resume", "train", "{home}/golden_cut_off/spec.json", "--data", "{home}/golden_events", "--out", "{it}", "--resume", slots=8),
    ),
    "golden_impressions": (
        cli("predict", "predict", "{home}/golden_dcnv2", "{home}/golden_new.parquet", "--data", "{it}", "--out", "{out}/p.parquet", slots=6),
    ),
    "golden_codes": (
        cli("encode --grow", "encode", "{home}/golden_events", "--grow", "{it}", *VECTORS[:2], "--out", "{out}/codes", slots=12),
    ),
}  # fmt: skip
"""Specimen -> what reads it; `a recommender` and `a ranking model` are read by all runs of the kind."""
RANKING = ("dcnv2", "rankmixer")


def verbs_of(specimen: Specimen) -> tuple[Verb, ...]:
    own = VERBS.get(specimen.name, ())
    if specimen.format != "run" or specimen.name.startswith("golden"):
        return own
    return (*VERBS["a ranking model" if specimen.name in RANKING else "a recommender"], *own)


def cases() -> Iterator[Case]:
    """A case for each specimen, verb, kind of file and slot. Which damage a slot holds is known when the files are."""
    for specimen in SPECIMENS:
        for at, verb in enumerate(verbs_of(specimen)):
            for pattern in specimen.patterns:
                if not any(fnmatch.fnmatchcase(pattern, some) for some in verb.reads):
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
    damage(it, file, mutation)
    found = judged(specimen, verbs[at], file, mutation, home, it, place)
    return Outcome(found.kind, f"[{file}: {mutation.name}] {found.detail}", found.code)


def judged(
    specimen: Specimen, verb: Verb, file: str, mutation: Mutation, home: Path, it: Path, place: Path
) -> Outcome:
    """What the verb makes of a folder that is damaged."""
    (place / "out").mkdir()
    before = inode(it / file)
    with canary(place / "canary"):
        said = verb.ask(home, it, place / "out")
    if (place / "canary").exists():
        return Outcome("native", "code of the folder was run")
    outcome = outcome_of(said)
    if outcome.kind != "ok" or not specimen.hashed or may_differ(specimen, verb, file, mutation):
        return outcome
    wanted, found = whole_answer(specimen, verb), answer(verb, said, it, place)
    if inode(it / file) == before:  # it was not written again: that nobody read it is no other answer
        wanted, found = ([*one[:2], {k: v for k, v in one[2].items() if k != file}] for one in (wanted, found))
    if found != wanted:
        return Outcome("silent", first_difference(wanted, found))
    return outcome


def may_differ(specimen: Specimen, verb: Verb, file: str, mutation: Mutation) -> str:
    """Why another answer is no fault here; empty where it is one."""
    for rule in (_is_log, _is_row, _is_gone):
        if reason := rule(verb, file, mutation):
            return reason
    return ""


def _is_log(verb: Verb, file: str, mutation: Mutation) -> str:
    shown = verb.name in ("report", "resume", "sweep", "tune")
    log = file.endswith(("metrics.jsonl", "diagnosis.jsonl"))
    return "a log grows in place: what shows its rows shows those that are there" if log and shown else ""


def _is_row(verb: Verb, file: str, mutation: Mutation) -> str:
    rows = file.endswith("rows.jsonl")
    return "rows are measurements: a row that was taken out is measured again, one that is there is told" if rows else ""


def _is_gone(verb: Verb, file: str, mutation: Mutation) -> str:
    pointer = file == "checkpoints/last.json" and mutation.name in ("missing", "a link to nowhere")
    return "without a checkpoint training begins anew" if pointer and verb.name == "resume" else ""


# Answers

VOLATILE = re.compile(r"seconds|_per_s$|_ms$|memory|hours|^date$|^when$|^taken$|created|^code$|environment")
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
    from tests.attack.frame import own_place

    with own_place("whole") as place:
        it = place / specimen.name
        shutil.copytree(world() / specimen.name, it)
        (place / "out").mkdir()
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

@cache
def world() -> Path:
    return shared("tamper", specimens.make)


@cache
def file_of(specimen: Specimen, pattern: str) -> str:
    """The first file of a specimen that fits a pattern."""
    return next(name for name in specimens.files(specimen, world()) if specimens.fits(name, pattern))


@cache
def damages(specimen: Specimen, file: str) -> list[Mutation]:
    """Every damage of a file, in an order in which neighbours are of different ways."""
    home = world()
    twin = home / specimen.twin / file if specimen.twin else None
    return list(mutations(specimens.files(specimen, home)[file], home / specimen.name / file, twin if twin and twin.is_file() else None))
