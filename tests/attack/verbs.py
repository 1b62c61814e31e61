"""The verbs that write, each as one small command line: what it reads, where it writes, what was there before.

`world()` is a folder of stores, runs, codes and tables for all of them, made once. `Verb.begin` lays out an empty
folder as the verb finds it; `snapshot` is what a reader of its outputs sees, without times of day and durations.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.attack.forks import forks
from tests.attack.frame import shared

SHOP = ("--set", "source.users=60", "--set", "source.items=40")
TINY = ("--set", "model.dim=8", "--set", "model.encoder.layers=1", "--set", "training.max_epochs=2",
        "--set", "evaluation.bootstrap=5")  # fmt: skip
"""sasrec in a third of a second."""
CLICKS = ("--set", "model.embedding.dim=4", "--set", "training.max_epochs=2")
MEASURED = ("--set", "bootstrap=5")
SEEN = (*MEASURED, "--data", "@shop")


@dataclass(frozen=True)
class Verb:
    """A command line that writes. Paths of `words` that begin with `@` lie in the world, others in its own folder."""

    name: str
    words: tuple[Any, ...]
    out: str
    """What it writes: a file or a folder."""
    old: tuple[tuple[str, str], ...] = ()
    """What is there before it starts: (in the world, in its folder)."""
    again: tuple[Any, ...] = ()
    """How it is started again when it was killed; by default as it was."""
    marker: str = ""
    """A folder of several files counts from the moment that it holds this one."""
    pair: bool = False
    """It writes an evaluation, two files that are checked against each other: a kill between them may cost both."""
    kind: str = "whole"
    """`whole`: its output is the old one or the new one at any time; `train`, `rows`, `part`: it grows."""
    once: bool = False
    """It refuses a folder that holds anything, also what it has written itself."""
    kills: int = 6
    """Places at which the suite kills it: all of them where it has fewer."""

    def begin(self, home: Path) -> Path:
        """Lay out its folder."""
        home.mkdir(parents=True, exist_ok=True)
        (home / "tmp").mkdir(exist_ok=True)
        for source, place in self.old:
            target = home / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if (world() / source).is_dir():
                shutil.copytree(world() / source, target)
            else:
                shutil.copyfile(world() / source, target)
        return home

    def line(self, *, again: bool = False) -> list[Any]:
        """The words with the places of the world; what is replaced whole may be there already."""
        words = [_placed(word) for word in (self.again if again and self.again else self.words)]
        return [*words, *["--overwrite"] * (self.kind == "whole" and not self.once)]

    @property
    def fresh(self) -> bool:
        return not any(place == self.out for _, place in self.old)


def _placed(word: Any) -> Any:
    if isinstance(word, dict):
        return {key: _placed(value) for key, value in word.items()}
    return str(world() / word[1:]) if isinstance(word, str) and word.startswith("@") else word


RUN = [("run", "run")]
VERBS = (
    Verb("prepare", ("prepare", "@events.csv", "--items", "@goods.csv", "--out", "st"), "st",
         kills=10),
    Verb("prepare-over", ("prepare", "@events.csv", "--out", "st"), "st", (("other", "st"),), kills=10),
    Verb("clicks", ("prepare-impressions", "@clicks.csv", "--out", "st"), "st", kills=13),
    Verb("clicks-over", ("prepare-impressions", "@clicks.csv", "--out", "st"), "st",
         (("clicks-old", "st"),), kills=4),
    Verb("subset", ("subset", "@shop", "--share", "0.5", "--out", "st"), "st", (("other", "st"),),
         kills=5),
    Verb("encode", ("encode", "@shop", "--vectors", "@vectors.parquet", "--learner", "rq_kmeans", "--levels", "2",
                    "--size", "4", "--collisions", "extra_digit", "--out", "codes"), "codes", kills=4),
    Verb("encode-over", ("encode", "@shop", "--vectors", "@vectors.parquet", "--learner", "rq_kmeans", "--levels", "2",
                         "--size", "4", "--collisions", "extra_digit", "--out", "codes"), "codes",
         (("codes-old", "codes"),), kills=5),
    Verb("grow-codes", ("encode", "@grown", "--vectors", "@vectors.parquet", "--grow", "@codes", "--out", "codes"),
         "codes", kills=4),
    Verb("train", ("train", "sasrec", "--data", "@shop", "--out", "run", *TINY), "run", kind="train", kills=20,
         again=("train", "sasrec", "--data", "@shop", "--out", "run", *TINY, "--resume")),
    Verb("train-over", ("train", "sasrec", "--data", "@shop", "--out", "run", *TINY, "--overwrite"), "run",
         (("run-old", "run"),), kind="train", kills=20),
    Verb("train-resume", ("train", "sasrec", "--data", "@shop", "--out", "run", *TINY, "--resume"), "run",
         (("run-cut", "run"),), kind="train", kills=10),
    Verb("train-clicks", ("train", "lr", "--data", "@clicks", "--out", "run", *CLICKS[2:], "--overwrite"), "run",
         (("click-run", "run"),), kind="train", kills=5),
    Verb("train-baseline", ("train", "popularity", "--data", "@shop", "--out", "run", "--overwrite"), "run",
         (("run-old", "run"),), kind="train", kills=10),
    Verb("grow-run", ("tests.attack.verbs:grow_run", {"run": "@run", "new_items": "@new.csv", "out": "run",
         "start": "mean"}),
         "run", once=True, kills=5),
    Verb("fill-run", ("fullrank:fill_unseen", {"run": "@run-cold", "out": "run", "start": "mean"}), "run",
         once=True, kills=5),
    Verb("predict-parquet", ("predict", "@click-run", "@today.csv", "--out", "p.parquet"), "p.parquet",
         (("p.parquet", "p.parquet"),), kills=5),
    Verb("predict-csv", ("predict", "@click-run", "@today.csv", "--out", "p.csv"), "p.csv", (("p.csv", "p.csv"),),
         kills=4),
    Verb("predict-jsonl", ("predict", "@click-run", "@today.csv", "--out", "deep/p.jsonl"), "deep/p.jsonl", kills=4),
    Verb("recommend-parquet", ("recommend", "@run", "--histories", "@events.csv", "--out", "r.parquet"), "r.parquet",
         (("p.parquet", "r.parquet"),), kills=4),
    Verb("recommend-jsonl", ("recommend", "@run", "--histories", "@events.csv", "--out", "r.jsonl"), "r.jsonl",
         kills=4),
    Verb("evaluate", ("evaluate", "@run", *SEEN, "--out", "ev"), "ev", (("ev-old", "ev"),),
         marker="evaluation.json", pair=True, kills=4),
    Verb("evaluate-into-run", ("evaluate", "run", *SEEN, "--out", "run"), "run", (("run", "run"),),
         pair=True, kills=4),
    Verb("diagnose", ("diagnose", "run", "--data", "@shop"), "run", (("run", "run"),), kills=4),
    Verb("report", ("report", "@run", *SEEN, "--out", "page.html"), "page.html", (("p.csv", "page.html"),),
         kills=4),
    Verb("cascade", ("cascade", "@run", "@click-run", "--users", "@people.csv", "--user", "user", "--item", "item",
                     "--context", "hour=3", *MEASURED, "--store", "@shop",
                     "--impressions", "@clicks", "--candidates", "20", "--out", "both"), "both",
         marker="cascade.json", kills=4),
    Verb("schema", ("schema", "--kind", "transformer", "--out", "s.json"), "s.json", (("grid.yaml", "s.json"),),
         kills=4),
    Verb("scale", ("scale", "growth", "@shop", "--out", "growth"), "growth", marker="growth.json", kills=4),
    Verb("sweep", ("sweep", "@grid.yaml", "--data", "@shop", "--out", "grid", "--results", "kept.json"), "grid",
         kind="rows", kills=5),
    Verb("tune", ("tune", "@space.yaml", "--data", "@shop", "--out", "tuned"), "tuned", kind="rows", kills=4),
    Verb("grow", ("grow", "@run", "--items", "@new.csv", "--start", "mean", "--out", "grown"), "grown", once=True,
         kills=4),
    Verb("calibrate", ("calibrate", "@click-run", "--data", "@clicks", "--out", "calibrated"), "calibrated", once=True,
         kills=4),
    Verb("fisher", ("fisher", "@run", "--data", "@shop", "--batches", "2", "--out", "f.safetensors"), "f.safetensors",
         (("p.parquet", "f.safetensors"),), kills=4),
    Verb("finetune", ("finetune", "@run", "--data", "@shop", "--out", "run", "--stages", "0", *TINY[4:]), "run",
         kind="train", kills=4,
         again=("finetune", "@run", "--data", "@shop", "--out", "run", "--stages", "0", *TINY[4:], "--resume")),
    Verb("pretrain", ("pretrain", "sasrec", "--data", "@shop", "--data", "@other", "--out", "run", "--joined", "both",
                      *TINY, "--overwrite"), "run", kind="train", kills=4),
    Verb("similar", ("similar", "@run", "--item", "5", "--out", "s.jsonl"), "s.jsonl", (("p.csv", "s.jsonl"),),
         kills=4),
    Verb("vectors", ("vectors", "@run", "--out", "v.parquet"), "v.parquet", (("p.parquet", "v.parquet"),), kills=4),
    Verb("export", ("export", "@run", "--to", "faiss", "--out", "ex"), "ex", kills=4),
    Verb("download", ("download", "frappe", "--set", "base_url=URL", "--out", "files"), "files", kind="part",
         kills=4),
    Verb("keys-add", ("keys", "add", "keys.json", "--name", "shop"), "keys.json", (("keys.json", "keys.json"),),
         once=True, kills=5),
)  # fmt: skip
BY_NAME = {verb.name: verb for verb in VERBS}


def served(verb: Verb, url: str) -> Verb:
    """The verb with the address of a server in the place of URL."""
    return replace(verb, words=tuple(w.replace("URL", url) if isinstance(w, str) else w for w in verb.words))


def world() -> Path:
    """Stores, runs, codes and tables, made once."""
    return shared("kills-world", _make_world)


def grow_run(run: str, **given: Any) -> None:
    """`grow_catalog` of a run by its folder."""
    import fullrank as fr

    fr.grow_catalog(fr.Run.open(run), **given)


def write_vectors(out: str) -> None:
    """A vector for every item, in four heaps."""
    import polars as pl

    draw = random.Random(1)
    ids = [*range(36), *range(900, 904)]
    vectors = [[(i % 4 == d) * 3.0 + draw.random() for d in range(8)] for i in ids]
    pl.DataFrame({"item_id": ids, "vector": vectors}).write_parquet(out)


def _make_world(home: Path) -> None:
    _tables(home)
    _folders(home)


def _tables(home: Path) -> None:
    draw = random.Random(0)
    lines = {(f"u{u:02}", draw.randrange(36)): None for u in range(30) for _ in range(12)}
    events = "".join(f"{user},{item},{1_600_000_000 + n}\n" for n, (user, item) in enumerate(lines))
    (home / "events.csv").write_text("user_id,item_id,timestamp\n" + events)
    shop = "".join(f"{item},shelf{item % 4},thing {item}\n" for item in range(36))
    (home / "goods.csv").write_text("item_id,shelf,title\n" + shop)
    (home / "new.csv").write_text("item_id,shelf,title\n900,shelf1,new thing\n901,shelf2,newer thing\n")
    rest = "".join(f"u{u:02},{item},{1_600_009_000 + item}\n" for u in range(3) for item in range(900, 904))
    (home / "more.csv").write_text("user_id,item_id,timestamp\n" + events + rest)
    (home / "people.csv").write_text("user,age\n" + "".join(f"u{u:02},{20 + u}\n" for u in range(30)))
    for name, count, label in (("clicks.csv", 400, True), ("old.csv", 200, True), ("today.csv", 150, False)):
        rows = [
            f"u{draw.randrange(30):02},{draw.randrange(36)},{draw.randrange(24)}"
            + (f",{int(draw.random() < 0.4)}" if label else "")
            for _ in range(count)
        ]
        (home / name).write_text("user,item,hour" + (",label" if label else "") + "\n" + "\n".join(rows) + "\n")
    small = {"model.dim": 8, "model.encoder.layers": 1, "training.max_epochs": 2, "evaluation.bootstrap": 5}
    cells = [{"name": "sasrec", "recipe": "sasrec", "set": small}, "popularity"]
    (home / "grid.yaml").write_text(json.dumps({"cells": cells, "seeds": [0, 1], "evaluate": ["test"]}))
    space = {"cells": [cells[0]], "space": {"training.lr": {"log": [0.001, 0.1]}}, "trials": 2}
    (home / "space.yaml").write_text(json.dumps(space))


def _folders(home: Path) -> None:
    def do(*words: Any) -> None:
        done = forks().run(words, home)
        assert done.code == 0, f"{words}: {done.code} {done.err}"

    do("prepare", "events.csv", "--items", "goods.csv", "--out", "shop")
    do("prepare", "planted", *SHOP, "--out", "other")
    do("prepare", "more.csv", "--out", "grown")
    do("subset", "shop", "--hide-items", "0.2", "--out", "cold")
    do("prepare-impressions", "clicks.csv", "--out", "clicks")
    do("prepare-impressions", "old.csv", "--out", "clicks-old")
    do("tests.attack.verbs:write_vectors", {"out": str(home / "vectors.parquet")})
    rq = ("--learner", "rq_kmeans", "--levels", "2", "--size", "4", "--collisions", "extra_digit")
    do("encode", "shop", "--vectors", "vectors.parquet", *rq, "--out", "codes")
    do("encode", "shop", "--vectors", "vectors.parquet", *rq, "--set", "seed=3", "--out", "codes-old")
    do("train", "sasrec", "--data", "shop", "--out", "run", *TINY)
    do("train", "sasrec", "--data", "shop", "--out", "run-old", *TINY, "--set", "seed=7")
    do("train", "sasrec", "--data", "cold", "--out", "run-cold", *TINY)
    do("train", "lr", "--data", "clicks", "--out", "click-run", *CLICKS[2:])
    do("evaluate", "run-old", "--data", "shop", *MEASURED, "--out", "ev-old")
    do("keys", "add", "keys.json", "--name", "first")
    for name in ("p.parquet", "p.csv"):
        do("predict", "click-run", "old.csv", "--out", name)
    _cut(home)
    shutil.rmtree(home / "tmp", ignore_errors=True)


def _cut(home: Path) -> None:
    """`run-cut`: a run that was killed behind the checkpoint of its first epoch."""
    words = ("train", "sasrec", "--data", "shop", "--out", "run-cut", *TINY)
    places = forks().run(words, home, places=True).places
    shutil.rmtree(home / "run-cut")
    second = [n for n, place in enumerate(places, 1) if place == "open run-cut/metrics.jsonl"][1]
    assert forks().run(words, home, at=second).code == -9


VOLATILE = re.compile(
    r"seconds$|_per_s$|hours|^pace$|^seal$|^taken$|^estimate$|^since$|^created|^command$|^resumed_at_step$|^load|^code$"
    r"|^key_sha256$"
)
"""Keys whose values no two runs have in common; `code` is the commit, which a developer may make meanwhile, and
`key_sha256` the hash of a key, which is drawn."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:")


def snapshot(home: Path, out: str) -> dict[str, str]:
    """File -> a hash of what it says, of everything at or below `out` that is not hidden; empty where it is absent."""
    place = home / out
    files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    shown = [p for p in files if not any(part.startswith(".") for part in p.relative_to(home).parts)]
    return {str(p.relative_to(home)): _said(p, home) for p in shown}


def listing(home: Path) -> list[str]:
    """Every path below a folder, hidden ones too."""
    return sorted(str(p.relative_to(home)) for p in home.rglob("*"))


def _said(path: Path, home: Path) -> str:
    content = path.read_bytes()
    try:
        if path.suffix == ".json":
            content = _plain(json.loads(content), home)
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in content.splitlines()]
            # a sweep adds a row for a run that failed, and another one when that run is done again
            content = b"\n".join(_plain(row, home) for row in rows if not (isinstance(row, dict) and row.get("error")))
    except ValueError:
        return "torn"
    if path.suffix == ".html":
        content = content.replace(str(home).encode(), b"HOME")
    return hashlib.sha256(content).hexdigest()[:16]


def _plain(tree: Any, home: Path) -> bytes:
    return json.dumps(_steady(tree), sort_keys=True).replace(str(home), "HOME").encode()


def _steady(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        kept = {key: value for key, value in tree.items() if not VOLATILE.search(str(key))}
        return {key: _steady(value) for key, value in kept.items() if not (key.endswith(".jsonl"))}
    if isinstance(tree, str) and MOMENT.match(tree):
        return "a moment"
    return [_steady(value) for value in tree] if isinstance(tree, list) else tree
