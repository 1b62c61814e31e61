"""What reads each damaged folder: command lines, and functions of the library that no verb calls."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tests.attack import specimens
from tests.attack.frame import SECONDS, Said, call, captured, limited
from tests.attack.specimens import Specimen

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
        with captured() as streams, limited(SECONDS) as clock:
            try:
                answer = jsonable(function(home, it, out))
            except BaseException as error:
                told = explained(error)
                code, answer = told.status, {"error": told.sentence, "code": told.code}
        last = f"Error: {answer['error']}\n" if code else ""
        return Said(
            (name, "--json"),
            code,
            json.dumps(answer),
            streams.read()[1] + last,
            time.perf_counter() - begun,
            clock.rang,
        )

    return Verb(name, ask, slots)


def _grown(home: Path, it: Path, out: Path) -> Any:
    import fullrank as fr

    run = fr.grow_catalog(fr.Run.open(it), home / "new_items.parquet", out / "grown", start="mean")
    return fr.recommend(run, pl.read_parquet(home / "histories.parquet"), k=3).to_dicts()


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
SETTINGS = tuple(word for setting in specimens.TINY for word in ("--set", setting))
ONE_EPOCH = ("--set", "training.max_epochs=1", "--set", "training.batch_size=128")
ON_EVENTS, INTO = ("--data", "{home}/events"), ("--out", "{out}/made")
ON_IMPRESSIONS = ("--data", "{home}/impressions")
ROWS = ("--out", "{out}/d.jsonl")
PREDICTIONS = ("--out", "{out}/p.parquet")
GOLDEN = ("--data", "{home}/golden_events")
CONTEXT = (
    "--items", "{home}/goods.parquet", "--users", "{home}/people.parquet", "--context", "hour=20", "--user", "user",
    "--item", "item",
)  # fmt: skip
AGAIN = ("train", "{home}/sasrec/spec.json")
VERIFY = cli("verify", "verify", "{it}", slots=6)
ASKED = ("--histories", "{home}/histories.parquet")
VERBS: dict[str, tuple[Verb, ...]] = {
    "events": (
        cli("evaluate", "evaluate", "{home}/sasrec", "--data", "{it}"),
        cli("train a baseline", "train", "item_to_item", "--data", "{it}", *INTO),
        cli("subset", "subset", "{it}", "--share", "0.5", *INTO),
        cli("encode", "encode", "{it}", *CODED, *INTO, slots=4),
        cli("train", "train", "sasrec", "--data", "{it}", *INTO, *SETTINGS, slots=2),
        cli("diagnose", "diagnose", "{home}/sasrec", "--data", "{it}", "--users", "20", *ROWS, slots=2),
        cli("attention", "attention", "{home}/sasrec", "--data", "{it}", slots=2),
        VERIFY,
    ),
    "impressions": (
        cli("evaluate", "evaluate", "{home}/dcnv2", "--data", "{it}"),
        cli("train", "train", "lr", "--data", "{it}", *INTO, *ONE_EPOCH, slots=4),
        cli("diagnose", "diagnose", "{home}/dcnv2", "--data", "{it}", "--impressions", "50", *ROWS, slots=2),
        cli("cascade", "cascade", "{home}/sasrec", "{home}/dcnv2", "--impressions", "{it}", *CONTEXT, *INTO, slots=2),
        VERIFY,
    ),
    "a recommender": (
        cli("recommend", "recommend", "{it}", *ASKED, slots=8),
        cli("evaluate", "evaluate", "{it}", *ON_EVENTS, slots=4),
        VERIFY,
    ),
    "sasrec": (
        cli("diagnose", "diagnose", "{it}", "--users", "20", *ROWS, slots=2),
        cli("train --from", "train", "--from", "{it}", *ON_EVENTS, *INTO, "--set", "seed=2", slots=4),
        cli("resume", *AGAIN, *ON_EVENTS, "--out", "{it}", "--resume", slots=4),
        cli("attention", "attention", "{it}", slots=2),
        cli("report", "report", "{it}", "--users", "20", "--out", "{out}/r.html", slots=1),
        api("grow", _grown, slots=4),
    ),
    "a ranking model": (
        cli("predict", "predict", "{it}", "{home}/new_impressions.parquet", *PREDICTIONS, slots=8),
        cli("evaluate", "evaluate", "{it}", *ON_IMPRESSIONS, slots=4),
        VERIFY,
    ),
    "dcnv2": (
        cli("train --from", "train", "--from", "{it}", *ON_IMPRESSIONS, *INTO, "--set", "seed=2", slots=4),
        cli("cascade", "cascade", "{home}/sasrec", "{it}", *CONTEXT, *INTO, slots=2),
    ),
    "cut_off": (
        cli("resume", "train", "{home}/cut_off/spec.json", *ON_EVENTS, "--out", "{it}", "--resume", slots=12),
    ),
    "codes": (
        cli("encode --grow", "encode", "{home}/more", "--grow", "{it}", *INTO, slots=18),
        cli("train", "train", "rpg", *ON_EVENTS, *INTO, "--set", "model.items.codes={it}",
            *SETTINGS, slots=3),
        VERIFY,
    ),
    "evaluation": (api("compare", _compared, slots=24),),
    "evaluation_of_clicks": (api("compare", _compared, slots=16),),
    "sweep": (cli("sweep", "sweep", "{home}/grid.yaml", *ON_EVENTS, "--out", "{it}", slots=5),),
    "tuned": (
        cli("tune", "tune", "{home}/space.yaml", *ON_EVENTS, "--out", "{it}", "--sampler", "tpe",
            slots=20, reads=("rows.jsonl", "plan.json")),
    ),
    "vectors": (api("encode", _encoded, slots=25),),
    "golden_sasrec": (
        cli("recommend", "recommend", "{it}", *ASKED, slots=20),
        cli("evaluate", "evaluate", "{it}", *GOLDEN, slots=8),
        cli("train --from", "train", "--from", "{it}", *GOLDEN, *INTO, slots=3),
        VERIFY,
    ),
    "golden_dcnv2": (
        cli("predict", "predict", "{it}", "{home}/golden_new.parquet", "--data", "{home}/golden_impressions",
            *PREDICTIONS, slots=20),
        VERIFY,
    ),
    "golden_cut_off": (
        cli("resume", "train", "{home}/golden_cut_off/spec.json", *GOLDEN, "--out", "{it}", "--resume", slots=8),
    ),
    "golden_impressions": (
        cli("predict", "predict", "{home}/golden_dcnv2", "{home}/golden_new.parquet", "--data", "{it}", *PREDICTIONS,
            slots=6),
    ),
    "golden_codes": (
        cli("encode --grow", "encode", "{home}/more", "--grow", "{it}", *INTO, slots=12),
        VERIFY,
    ),
}  # fmt: skip
"""Specimen -> what reads it; `a recommender` and `a ranking model` are read by all runs of the kind."""
RANKING = ("dcnv2", "rankmixer")
RECOMMEND = (cli("recommend", "recommend", "{it}", *ASKED, slots=10),)
RESEALED: dict[str, tuple[Verb, ...]] = {
    "events": (
        cli("evaluate", "evaluate", "{home}/sasrec", "--data", "{it}", slots=8),
        cli("train a baseline", "train", "item_to_item", "--data", "{it}", *INTO, slots=8),
        cli("subset", "subset", "{it}", "--share", "0.5", *INTO, slots=6),
        VERIFY,
    ),
    "impressions": (
        cli("evaluate", "evaluate", "{home}/dcnv2", "--data", "{it}", slots=10),
        cli("train", "train", "lr", "--data", "{it}", *INTO, *ONE_EPOCH, slots=6),
        VERIFY,
    ),
    "sasrec": (
        *RECOMMEND, cli("train --from", "train", "--from", "{it}", *ON_EVENTS, *INTO, "--set", "seed=2", slots=3),
        VERIFY,
    ),
    "rpg": RECOMMEND,
    "dcnv2": (cli("predict", "predict", "{it}", "{home}/new_impressions.parquet", *PREDICTIONS, slots=10), VERIFY),
    "codes": (cli("encode --grow", "encode", "{home}/more", "--grow", "{it}", *INTO, slots=16), VERIFY),
    "evaluation": VERBS["evaluation"],
    "evaluation_of_clicks": VERBS["evaluation_of_clicks"],
}  # fmt: skip
"""What reads the specimens that are sealed again."""


def verbs_of(specimen: Specimen) -> tuple[Verb, ...]:
    if specimen.resealed:
        return RESEALED[specimen.resealed]
    own = VERBS.get(specimen.name, ())
    if specimen.format != "run" or specimen.name.startswith("golden"):
        return own
    shared = VERBS["a ranking model" if specimen.name in RANKING else "a recommender"]
    without = ("evaluate",) if specimen.name == "grown" else ()  # no store has its items
    return (*(verb for verb in shared if verb.name not in without), *own)
