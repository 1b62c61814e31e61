"""The small marketplace that everything is thrown at: tables, stores, runs, codes, grids, each made when first named.

`world("sasrec")` is the path of what `LINES` says of it, made by its command line on what that names with an `@`; all
processes of a test run share it. What a test may damage is a copy.
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fullrank.cli import main
from tests.attack.frame import shared
from tests.golden import tables

USERS, ITEMS, ROWS = 60, 40, 300
NEW = (900001, 900002)
START = 1_700_000_000
DAY = 86_400
HOSTILE = "\x1b[31m\x9b2J\u202e"
"""In titles and in the name of a column: what a terminal would obey. No verb may print it (`frame.outcome_of`)."""
TINY = ("training.max_epochs=1", "training.batch_size=64")
DIM = ("model.dim=8", "model.encoder.layers=1")
BOMB = (
    "{a: &a [x,x,x,x,x,x,x,x,x,x], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b],"
    " d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c], e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d], f: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]}"
)
"""YAML of a few hundred characters for a million values."""
GOLDEN = Path(__file__).parents[1] / "golden" / "folders"


def set_of(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def events(users: int = USERS, seed: int = 0) -> pl.DataFrame:
    """Users who walk the catalogue in steps of their own; user_id is text, item_id a whole number."""
    draw = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        for step in range(6 + user % 5):
            item = (user + step * (1 + user % 3) + int(draw.integers(2))) % ITEMS
            rows.append((f"u{user}", item, START + DAY * step + user))
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


def weighted(seed: int) -> pl.DataFrame:
    """Events with a weight and a type."""
    n = np.arange(events().height)
    return events(seed=seed).with_columns(
        weight=pl.Series(0.5 + n % 7 / 4), what=pl.Series(["view", "buy"]).gather(n % 5 // 4)
    )


def with_new_items() -> pl.DataFrame:
    rows = [(f"u{user}", item, START + 9 * DAY + user) for item in NEW for user in range(9)]
    return pl.concat([events(), pl.DataFrame(rows, schema=events(1).schema, orient="row")])


def items(*ids: int) -> pl.DataFrame:
    numbers = ids or range(ITEMS)
    return pl.DataFrame({"item_id": numbers, "title": [f"thing {n % 7} {n}{HOSTILE}" for n in numbers],
                         "price": [1.5 * (n % 999) for n in numbers],
                         HOSTILE: [f"{HOSTILE}{n % 3}" for n in numbers]})  # fmt: skip


def people() -> pl.DataFrame:
    return pl.DataFrame({"user_id": [f"u{n}" for n in range(USERS)], "age": [20 + n for n in range(USERS)]})


def impressions(rows: int = ROWS, seed: int = 1) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    return pl.DataFrame(
        {"label": draw.integers(2, size=rows), "user_id": [f"u{n}" for n in draw.integers(USERS, size=rows)],
         "item_id": draw.integers(ITEMS, size=rows), "hour": draw.integers(24, size=rows),
         "price": draw.random(rows).round(3), "timestamp": START + np.arange(rows) * 60}
    )  # fmt: skip


def numbered(frame: pl.DataFrame) -> pl.DataFrame:
    """Item ids of the golden tables as those of `events`."""
    number = pl.element().str.strip_prefix("i").cast(pl.Int64)
    if "history" in frame.columns:
        frame = frame.with_columns(pl.col("history").list.eval(number))
    return frame.with_columns(pl.col("item").str.strip_prefix("i").cast(pl.Int64)) if "item" in frame.columns else frame


def shown(rows: int, seed: int = 0) -> pl.DataFrame:
    """Impressions with every kind of field."""
    frame = numbered(tables.impressions(rows, seed=seed))
    return frame.with_columns(at=START + pl.int_range(pl.len()) * 60)


def vectors() -> pl.DataFrame:
    ids = [*range(ITEMS), *NEW]
    draw = np.random.default_rng(2).standard_normal((len(ids), 6)).astype(np.float32)
    return pl.DataFrame({"item_id": ids, "v": draw})


def scaling_rows() -> pl.DataFrame:
    """Runs on a power law: four sizes on four data sets, two moments each."""
    rows = []
    for n in np.geomspace(1e5, 1e8, 4):
        for t in np.geomspace(1e4, 1e7, 4):
            best = 0.2 - 4 * n**-0.3 - 3 * t**-0.4
            rows.append({"run": f"{n:.0f}-{t:.0f}", "dataset": f"{t:.0f}", "n_total_params": n,
            "n_nonemb_params": n / 2,
                         "interactions": t, "epoch_flops": 6 * n * t, "ndcg_ep1": best * 0.6,
                         "ndcg_ep2": best})  # fmt: skip
    return pl.DataFrame(rows)


SCHEMA = """label: label
fields: [user_id, item_id, hour, {kind: numeric, name: price}]
group: user_id
split: {kind: random, shares: [0.6, 0.2, 0.2]}
"""
GRID = "name: small\ncells: [popularity, item_to_item]\nseeds: [0]\n"
FEW = "set: {training.max_epochs: 1, training.batch_size: 64, model.dim: 8, model.encoder.layers: 1}\n"
SPACE = "name: small\ncells: [{name: a, recipe: sasrec}]\ntrials: 2\nspace: {training.lr: {log: [0.001, 0.01]}}\n"
SPACE += FEW
FILES: dict[str, Callable[[], Any]] = {
    "events.csv": events, "shop.csv": lambda: weighted(0), "twin.csv": lambda: weighted(1), "more.csv": with_new_items,
    "lists.csv": lambda: events().unique(["user_id", "item_id"]).rename({"timestamp": "rank"}),
    "taken.csv": lambda: pl.DataFrame({"user_id": ["u1", "u2"], "item_id": [2, 9], "timestamp": [1500, 1501]}),
    "items.csv": items, "new_items.csv": lambda: items(*NEW), "people.csv": people,
    "histories.csv": lambda: events().filter(pl.col("user_id").is_in(["u1", "u2", "u3"])),
    "impressions.parquet": impressions, "old.parquet": lambda: impressions(200, 2),
    "today.csv": lambda: impressions(40).drop("label"), "vectors.parquet": vectors, "scaling.csv": scaling_rows,
    "shown.parquet": lambda: shown(400), "shown_twin.parquet": lambda: shown(400, 1),
    "unseen.parquet": lambda: shown(30, 2).drop("label"), "schema.yaml": lambda: SCHEMA, "grid.yaml": lambda: GRID,
    "space.yaml": lambda: SPACE, "shown.yaml": lambda: json.dumps(tables.SCHEMA | {"time": "at"}),
    "goods.parquet": lambda: numbered(tables.goods(ITEMS)), "people.parquet": lambda: numbered(tables.people()),
    "gold.parquet": lambda: tables.events(60, 43), "gold_vectors.parquet": lambda: tables.vectors(43),
    "cells.yaml": lambda: f"cells:\n- {{name: a, recipe: sasrec, {FEW[:-1]}}}\n- popularity\nseeds: [0, 1]\n",
    "trials.yaml": lambda: "cells: [{recipe: item_to_item}]\ntrials: 6\nspace: {model.decay: {uniform: [0.1, 0.9]}}\n",
}  # fmt: skip
"""File -> its table or its text."""
SMALL = " ".join(set_of(*DIM, "training.max_epochs=2", "evaluation.bootstrap=5"))
"""sasrec in a third of a second."""
CLICKS = " ".join(
    set_of("model.embedding.dim=4", "training.max_epochs=1", "training.batch_size=128", "evaluation.bootstrap=10")
)
QUICK = " ".join(set_of(*TINY, *DIM))
ENCODE = "--levels 2 --size 4 --set learner.rounds=2 --set limits.collisions=1"
SHOP = "--items @items.csv --users @people.csv --set columns.weight=weight --set columns.type=what"
TITLES = '--set model.items.fields=[{"column":"title"}] --set model.items.vocabulary=60'
LINES: dict[str, str] = {
    "store": "prepare @events.csv --items @items.csv --users @people.csv",
    "store2": "subset @store --share 0.5",
    "shop": f"prepare @shop.csv {SHOP}",
    "twin": f"prepare @twin.csv {SHOP}",
    "more": "prepare @more.csv",
    "gold": "prepare @gold.parquet",
    "cold": "subset @shop --hide-items 0.2",
    "clicks": "prepare-impressions @impressions.parquet --schema @schema.yaml",
    "clicks_old": "prepare-impressions @old.parquet --schema @schema.yaml",
    "shown": "prepare-impressions @shown.parquet --schema @shown.yaml",
    "shown_twin": "prepare-impressions @shown_twin.parquet --schema @shown.yaml",
    "popularity": "train popularity --data @store",
    "sasrec": f"train sasrec --data @store {QUICK}",
    "thinker": f"train sasrec --data @store {QUICK} --set model.task=last_item --set model.reasoner=plr"
    " --set model.reasoner.steps=2",
    "lr": "train lr --data @clicks --set training.max_epochs=1 --set training.batch_size=64 --set model.embedding.l2=0",
    "run": f"train sasrec --data @shop {SMALL}; diagnose ~out --users 20",
    "run_twin": f"train sasrec --data @shop {SMALL} --set seed=1",
    "run_cold": f"train sasrec --data @cold {SMALL}",
    "item_to_item": "train item_to_item --data @shop",
    "plr": f"train plr --data @shop {SMALL} --set model.reasoner.steps=1",
    "rpg": f"train rpg --data @shop {SMALL} --set model.items.codes=@codes",
    "srt": f"train srt --data @shop {SMALL} {TITLES}",
    "dcnv2": f"train dcnv2 --data @shown {CLICKS} --set model.ranker.deep.hidden=[8]",
    "dcnv2_twin": f"train dcnv2 --data @shown {CLICKS} --set model.ranker.deep.hidden=[8] --set seed=1",
    "rankmixer": f"train rankmixer --data @shown {CLICKS} --set model.ranker.tokens=4 --set model.ranker.width=8",
    "grown": "grow @run --items @new_items.csv --start mean",
    "codes": f"encode @shop --vectors @vectors.parquet {ENCODE}",
    "codes_twin": f"encode @shop --vectors @vectors.parquet {ENCODE} --set seed=1",
    "evaluation": "evaluate @run --set bootstrap=5",
    "evaluation_twin": "evaluate @run_twin --set bootstrap=5",
    "evaluation_of_clicks": "evaluate @dcnv2 --set bootstrap=5",
    "sweep": "sweep @grid.yaml --data @shop",
    "tuned": "tune @trials.yaml --data @shop --sampler tpe",
    "keys.json": "keys add ~out --name shop",
    "old.csv": "predict @lr @old.parquet",
}
"""Name -> its command lines, to which `--out` and its own path are added where they do not hold `~out`."""


def world(name: str) -> str:
    """The path of a part of the world, or of a file in one (`run/spec.json`)."""
    top, slash, rest = name.partition("/")
    return f"{shared(top, lambda path: _make(top, path))}{slash}{rest}"


def known(name: str) -> bool:
    """Whether the world has it."""
    top = name.partition("/")[0]
    return top in FILES or top in LINES or top in MADE or top.startswith("golden_")


def located(words: Sequence[Any], folder: Path | None = None) -> list[Any]:
    """Words with ``@x`` as a path of the world (also behind ``NAME=``) and ``~x`` as one below a folder."""
    return [_located(word, folder) for word in words]


def _located(word: Any, folder: Path | None) -> Any:
    if isinstance(word, dict):
        return {key: _located(value, folder) for key, value in word.items()}
    match = re.fullmatch(r"(?s)(|[\w.]+=)([@~])(.+)", word) if isinstance(word, str) else None
    head, sign, name = match.groups() if match else ("", "", "")
    if sign == "@" and known(name):
        return head + world(name)
    return f"{head}{folder / name}" if sign == "~" and folder is not None else word


def _make(name: str, path: Path) -> None:
    if name in FILES:
        content = FILES[name]()
        if isinstance(content, str):
            path.write_text(content)
        else:
            content.write_csv(path) if path.suffix == ".csv" else content.write_parquet(path)
    elif name in MADE:
        MADE[name](path)
    elif name.startswith("golden_"):
        source = GOLDEN / name.removeprefix("golden_")
        shutil.copytree(source, path) if source.is_dir() else shutil.copy(source, path)
    else:
        for line in LINES[name].split("; "):
            words = located(line.replace("~out", str(path)).split())
            words += [] if str(path) in words else ["--out", str(path)]
            assert main(words) == 0, f"the world could not be made: {line}"


def _cut_off(*settings: str) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        import fullrank as fr
        from tests.golden.record import Cut, CutOff

        words = [word for word in SMALL.split() if word != "--set"]
        with suppress(CutOff):
            fr.train("sasrec", world("shop"), path, set=[*words, "training.checkpoint_minutes=0", *settings],
                     callbacks=[Cut(2)], progress=False)  # fmt: skip

    return make


def encode_text(store: Path | str, cache: Path, out: Path) -> Any:
    """Codes of titles by a stand-in for a sentence model, whose vectors are kept in the folder `cache`."""
    import pytest

    import fullrank as fr
    from fullrank.semantic_ids.vectors import text as text_vectors
    from tests.coded import Sentences

    settings = ["vectors={kind: text, model: letters}", "learner.levels=2", "learner.size=4", "limits.collisions=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_vectors, "load_encoder", Sentences().load)
        patch.setattr(text_vectors, "model_identity", lambda name: name)
        return fr.encode(store, out, set=settings, cache=cache)


def _answers(path: Path) -> None:
    """What a service logged of four answers."""
    path.mkdir()
    columns = {"time": [1000.0] * 4, "user": ["u1", "u2", "u3", None], "version": ["a", "b", "a", "b"]}
    logged = pl.DataFrame(columns | {"source": ["model"] * 4, "k": [2] * 4, "items": [[1, 2]] * 4})
    logged.with_columns(pl.col("k").cast(pl.Int32)).write_parquet(path / "answers-1.parquet")


MADE: dict[str, Callable[[Path], object]] = {
    "answers": _answers,
    "cut_off": _cut_off(), "cut_off_twin": _cut_off("seed=1"),
    "vectors": lambda path: encode_text(world("shop"), path, path.with_name("text_codes")),
}  # fmt: skip
"""What no command line makes."""
