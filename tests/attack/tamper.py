"""Damaged folders: one file of a folder is damaged (`damage`), a verb reads it, its answer is compared.

An answer is what the verb prints with --json and the files that it writes, less what no two calls share. Equal to that
of the whole folder, or refused in a sentence: survived. Another answer with exit 0 is `silent`, unless `may_differ`
says why it cannot be told. Whatever happens, the code that hostile files carry must not run.
"""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.attack.damage import CANARY, Damage, apply, damages, kinds_of_files, of_folder, reseal
from tests.attack.frame import Outcome, Said, call, outcome_of, own_folder, said_by, steady, told
from tests.attack.worlds import encode_text, located, world


@dataclass(frozen=True)
class Reader:
    """Something that reads a folder of the world: a command line on `~it` that writes below `~out`, or a function."""

    specimen: str
    """The folder that is damaged. `resealed:`: its manifest is given the hashes of the damaged files, since a
    stranger's folder may be whole and still be hostile. Its answers are its own, so nothing is compared."""
    twin: str
    """Another one of its format, whose files are put into it."""
    verb: str
    draws: int
    """Damages of each kind of file that it meets."""
    ask: str | Callable[[Path, Path], Any]

    @property
    def name(self) -> str:
        return f"{self.specimen}-{self.verb}".replace(" ", "_")

    @property
    def folder(self) -> Path:
        return Path(world(self.specimen.removeprefix("resealed:")))

    @property
    def hashed(self) -> bool:
        """Whether it is of a format with hashes: then every change of a file is found or does not matter."""
        return not self.specimen.startswith(("resealed:", "golden"))

    @property
    def writes(self) -> bool:
        """Whether it writes into the folder that it reads."""
        return self.verb in ("resume", "sweep", "tune")

    def said(self, folder: Path) -> Said:
        if isinstance(self.ask, str):
            return call(*located(self.ask.split(), folder), "--json")
        function = partial(self.ask, folder / "it", folder / "out")
        return said_by(partial(told, function), (self.verb, "--json"))


def _compared(it: Path, out: Path) -> Any:
    import fullrank as fr
    from fullrank.evaluation.result import EvaluationResult

    found = EvaluationResult.load(it)
    clicks = "auc" in found.metrics
    other = EvaluationResult.load(Path(world("evaluation_of_clicks" if clicks else "evaluation_twin")))
    return [vars(fr.compare(found, other, "auc" if clicks else "ndcg@10")), found.dump()]


FUNCTIONS: dict[str, Callable[[Path, Path], Any]] = {
    "COMPARE": _compared,
    "TEXTS": lambda it, out: encode_text(world("shop"), it, out / "codes").codes.tolist(),
}
"""What no command line reads."""
WORDS = {
    "INTO": "--out ~out/made", "ROWS": "--out ~out/d.jsonl", "ITEM_TO_ITEM": "item_to_item --data ~it --out ~out/made",
    "ON": "--data @shop --out", "HISTORIES": "--histories @histories.csv", "SEED": "--out ~out/made --set seed=2",
    "CODED": "--vectors @vectors.parquet --levels 2 --size 4 --set limits.collisions=1 --out ~out/made",
    "WITH": "--items @goods.parquet --users @people.parquet --context hour=20 --user user --item item --out ~out/made",
    "EPOCH": "--set training.max_epochs=1 --set training.batch_size=128 --out ~out/made",
    "SMALL": "--set model.dim=8 --set model.encoder.layers=1", "PREDICTIONS": "--out ~out/p.parquet",
    "NEW": "@golden_new_impressions.parquet",
}  # fmt: skip
"""Short for some words of `READERS`."""
TABLE = """
shop twin
    evaluate         9 evaluate @run --data ~it
    train a baseline 9 train ITEM_TO_ITEM
    subset           9 subset ~it --share 0.5 INTO
    encode           4 encode ~it CODED
    train            2 train sasrec --data ~it EPOCH SMALL
    diagnose         2 diagnose @run --data ~it --users 20 ROWS
    attention        2 attention @run --data ~it
    verify           6 verify ~it
    check            3 check ~it --all
shown shown_twin
    evaluate         9 evaluate @dcnv2 --data ~it
    train            4 train lr --data ~it EPOCH
    diagnose         2 diagnose @dcnv2 --data ~it --impressions 50 ROWS
    cascade          2 cascade @run @dcnv2 --impressions ~it WITH
    verify           6 verify ~it
    check            3 check ~it --all
run run_twin
    recommend        8 recommend ~it HISTORIES
    evaluate         4 evaluate ~it --data @shop
    verify           6 verify ~it
    diagnose         2 diagnose ~it --users 20 ROWS
    train --from     4 train --from ~it --data @shop SEED
    resume           4 train @run/spec.json ON ~it --resume
    attention        2 attention ~it
    report           1 report ~it --users 20 --out ~out/r.html
    grow             4 grow ~it --items @new_items.csv --start mean INTO
item_to_item run
    recommend        8 recommend ~it HISTORIES
    evaluate         4 evaluate ~it --data @shop
    verify           6 verify ~it
plr run
    recommend        8 recommend ~it HISTORIES
    evaluate         4 evaluate ~it --data @shop
    verify           6 verify ~it
rpg run
    recommend        8 recommend ~it HISTORIES
    evaluate         4 evaluate ~it --data @shop
    verify           6 verify ~it
srt run
    recommend        8 recommend ~it HISTORIES
    evaluate         4 evaluate ~it --data @shop
    verify           6 verify ~it
grown run
    recommend        8 recommend ~it HISTORIES
    verify           6 verify ~it
cut_off cut_off_twin
    recommend        8 recommend ~it HISTORIES
    evaluate         4 evaluate ~it --data @shop
    verify           6 verify ~it
    resume          12 train @cut_off/spec.json ON ~it --resume
dcnv2 dcnv2_twin
    predict          8 predict ~it @unseen.parquet PREDICTIONS
    evaluate         4 evaluate ~it --data @shown
    verify           6 verify ~it
    train --from     4 train --from ~it --data @shown SEED
    cascade          2 cascade @run ~it WITH
rankmixer dcnv2
    predict          8 predict ~it @unseen.parquet PREDICTIONS
    evaluate         4 evaluate ~it --data @shown
    verify           6 verify ~it
codes codes_twin
    encode --grow   18 encode @more --grow ~it INTO
    train            3 train rpg --data @shop --set model.items.codes=~it EPOCH SMALL
    verify           6 verify ~it
evaluation evaluation_twin
    compare         24 COMPARE
evaluation_of_clicks
    compare         16 COMPARE
sweep
    sweep            5 sweep @grid.yaml ON ~it
tuned
    tune            10 tune @trials.yaml ON ~it --sampler tpe
vectors
    encode          25 TEXTS
golden_sasrec run
    recommend       20 recommend ~it --histories @golden_histories.parquet
    evaluate         8 evaluate ~it --data @golden_events
    train --from     3 train --from ~it --data @golden_events SEED
    verify           6 verify ~it
golden_dcnv2 dcnv2
    predict         20 predict ~it NEW --data @golden_impressions PREDICTIONS
    verify           6 verify ~it
golden_cut_off cut_off
    resume           8 train @golden_cut_off/spec.json --data @golden_events --out ~it --resume
golden_impressions shown
    predict          6 predict @golden_dcnv2 NEW --data ~it PREDICTIONS
golden_codes codes
    encode --grow   12 encode @gold --grow ~it INTO
    verify           6 verify ~it
resealed:shop twin
    evaluate         8 evaluate @run --data ~it
    train a baseline 8 train ITEM_TO_ITEM
    subset           6 subset ~it --share 0.5 INTO
    verify           6 verify ~it
resealed:shown shown_twin
    evaluate        10 evaluate @dcnv2 --data ~it
    train            6 train lr --data ~it EPOCH
    verify           6 verify ~it
resealed:run run_twin
    recommend       10 recommend ~it HISTORIES
    train --from     3 train --from ~it --data @shop SEED
    verify           6 verify ~it
resealed:rpg run
    recommend       10 recommend ~it HISTORIES
resealed:dcnv2 dcnv2_twin
    predict         10 predict ~it @unseen.parquet PREDICTIONS
    verify           6 verify ~it
resealed:codes codes_twin
    encode --grow   16 encode @more --grow ~it INTO
    verify           6 verify ~it
resealed:evaluation evaluation_twin
    compare         24 COMPARE
resealed:evaluation_of_clicks
    compare         16 COMPARE
"""
"""A folder of the world and its twin; below it its readers: verb, damages of each kind of file, command line."""


def _readers() -> Iterator[Reader]:
    for block in re.split(r"\n(?=\S)", TABLE.strip()):
        head, *lines = block.split("\n")
        for line in lines:
            verb, draws, words = re.fullmatch(r" +(.+?) +(\d+) (.+)", line).groups()  # type: ignore[union-attr]
            ask = FUNCTIONS.get(words) or " ".join(WORDS.get(word, word) for word in words.split())
            yield Reader(*head.partition(" ")[::2], verb, int(draws), ask)


ALL = [*_readers()]


def cases(reader: Reader) -> tuple[int, SearchStrategy[tuple[str, Damage]]]:
    """How many kinds of files a specimen has, with itself as one; and damages of one of them, or of itself (`.`)."""
    folder, twin = reader.folder, Path(world(reader.twin)) if reader.twin else None
    damaged = {file: damages(folder / file, twin and twin / file) for file in kinds_of_files(folder)}
    damaged["."] = of_folder(folder, twin)
    return len(damaged), st.one_of([st.tuples(st.just(file), damage) for file, damage in damaged.items()])


def furnish(reader: Reader, folder: Path) -> Path:
    """A copy of a specimen, a folder to write into, and the vectors that golden codes name."""
    (folder / "out").mkdir()
    (folder / "vectors.parquet").symlink_to(world("gold_vectors.parquet"))
    return Path(shutil.copytree(reader.folder, folder / "it"))


def tampered(reader: Reader, drawn: tuple[str, Damage], folder: Path) -> Outcome:
    """Damage a file of a copy of the specimen, let the verb read it, and judge its answer."""
    (file, damage), it = drawn, furnish(reader, folder)
    apply(it, file, damage)
    if reader.specimen.startswith("resealed:") and file != ".":
        reseal(it, file)
    before = inode(it / file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CANARY, str(folder / "canary"))
        said = reader.said(folder)
    if (folder / "canary").exists():
        return Outcome("native", "code of the folder was run")
    outcome = outcome_of(said)
    if outcome.code in ("unknown-verb", "unknown-option", "usage"):  # a draw that asked nothing shows nothing
        return Outcome("bug", f"the command line itself is wrong: {outcome.detail}")
    if outcome.kind != "ok" or not reader.hashed or may_differ(reader, file, damage):
        return outcome
    if reader.verb == "verify":
        wrong = wrongly_sound(said.json, reader.folder, it)
        return Outcome("silent", f"{', '.join(wrong)} said to be sound") if wrong else outcome
    wanted, found = whole_answer(reader), answer(reader, said, folder)
    if inode(it / file) == before:  # it was not written again: that nobody read it is no other answer
        wanted, found = ([*tree[:2], {k: v for k, v in tree[2].items() if k != file}] for tree in (wanted, found))
    if found == wanted:
        return outcome
    lines = [json.dumps(tree, indent=0, default=str).splitlines() for tree in (wanted, found)]
    differing = (f"{old} and now {new}" for old, new in zip_longest(*lines) if old != new)
    return Outcome("silent", next(differing, "of another type"))


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


def may_differ(reader: Reader, file: str, damage: Damage) -> str:
    """Why another answer is no fault here; empty where it is one."""
    if file.endswith(("metrics.jsonl", "diagnosis.jsonl")) and reader.verb in ("report", "resume", "sweep", "tune"):
        return "a log grows in place: what shows its rows shows those that are there"
    if file.endswith("rows.jsonl"):
        return "rows are measurements: a row that was taken out is measured again, one that is there is told"
    gone = damage.name in ("missing", "a link to nowhere") or (file, damage.name) == (".", "a folder")
    if gone and reader.writes and file in ("checkpoints/last.json", "."):
        return "what is not there is begun anew, as the answer says"
    if reader.specimen == "cut_off" and file in ("weights.safetensors", "."):
        return "training has not ended: the weights are the best so far, nothing is hashed yet, and a note says so"
    return ""


VOLATILE = re.compile(r"seconds|_per_s$|_ms$|memory|hours|^date$|^taken$|created|^code$|environment|^load_average$")
"""Keys of figures that no two calls share."""


def answer(reader: Reader, said: Said, folder: Path) -> Any:
    """What was said and written, with the names of folders that differ from call to call replaced."""
    text = said.out.replace(json.dumps(str(folder))[1:-1], "FOLDER")
    tree = json.loads(text.replace("FOLDER/real", "FOLDER/it"))  # where a link leads
    return [steady(tree, VOLATILE), written(folder / "out"), written(folder / "it") if reader.writes else {}]


def written(folder: Path) -> dict[str, str]:
    """Hash of every table, tensor and array below a folder."""
    kept = (".parquet", ".safetensors", ".npy", ".csv")
    paths = sorted(path for path in folder.rglob("*") if path.suffix in kept and path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths}


@cache
def whole_answer(reader: Reader) -> Any:
    """The answer to the folder as it was made."""
    with own_folder() as folder:
        furnish(reader, folder)
        said = reader.said(folder)
        assert said.code == 0, f"{reader.name} of the whole folder: {said.err[-500:]}"
        return answer(reader, said, folder)


def inode(path: Path) -> tuple[int, int] | None:
    """Which file lies there, and when it was written; None where there is none."""
    try:
        return path.lstat().st_ino, path.lstat().st_mtime_ns
    except OSError:
        return None
