"""The small marketplace that bad input is thrown at: tables, stores, runs, codes, grids; made once a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

from fullrank.cli import main
from tests.attack.frame import shared

USERS, ITEMS, ROWS = 60, 40, 300
START = 1_700_000_000
DAY = 86_400
HOSTILE = "\x1b[31m\x9b2J\u202e"
"""In titles and in the name of a column: what a terminal would obey. No verb may print it (`frame.outcome_of`)."""
TINY = ("training.max_epochs=1", "training.batch_size=64")
DIM = ("model.dim=8", "model.encoder.layers=1")


@dataclass(frozen=True)
class World:
    """Paths below one folder, by the names that base commands use (`world["store"]`)."""

    home: Path

    def __getitem__(self, name: str) -> str:
        path = self.home / name
        assert path.exists(), f"the world has no {name}"
        return str(path)


@cache
def world() -> World:
    """The world of this run of the tests."""
    return World(shared("shop", _make))


def set_of(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def events(users: int = USERS, items: int = ITEMS) -> pl.DataFrame:
    """Users who walk the catalogue in steps of their own; user_id is text, item_id a whole number."""
    draw = np.random.default_rng(0)
    rows = []
    for user in range(users):
        for place in range(6 + user % 5):
            item = (user + place * (1 + user % 3) + int(draw.integers(2))) % items
            rows.append((f"u{user}", item, START + DAY * place + user))
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


def items() -> pl.DataFrame:
    return pl.DataFrame(
        {"item_id": range(ITEMS), "title": [f"thing {n % 7} {n}{HOSTILE}" for n in range(ITEMS)],
         "price": [1.5 * n for n in range(ITEMS)], HOSTILE: [f"{HOSTILE}{n % 3}" for n in range(ITEMS)]}
    )  # fmt: skip


def people() -> pl.DataFrame:
    return pl.DataFrame({"user_id": [f"u{n}" for n in range(USERS)], "age": [20 + n for n in range(USERS)]})


def impressions(rows: int = ROWS) -> pl.DataFrame:
    draw = np.random.default_rng(1)
    return pl.DataFrame(
        {"label": draw.integers(2, size=rows), "user_id": [f"u{n}" for n in draw.integers(USERS, size=rows)],
         "item_id": draw.integers(ITEMS, size=rows), "hour": draw.integers(24, size=rows),
         "price": draw.random(rows).round(3), "timestamp": START + np.arange(rows) * 60}
    )  # fmt: skip


SCHEMA = """label: label
fields: [user_id, item_id, hour, {kind: numeric, name: price}]
group: user_id
split: {kind: random, shares: [0.6, 0.2, 0.2]}
"""
GRID = "name: small\ncells: [{name: pop, recipe: popularity}]\nseeds: [0]\n"
SPACE = (
    "name: small\ncells: [{name: a, recipe: sasrec}]\ntrials: 2\nspace: {training.lr: {log: [0.001, 0.01]}}\n"
    f"set: {{{', '.join(text.replace('=', ': ') for text in (*TINY, *DIM))}}}\n"
)


def scaling_rows() -> str:
    """Runs on a power law: four sizes on four data sets, two moments each."""
    lines = ["run,dataset,n_total_params,n_nonemb_params,interactions,epoch_flops,ndcg_ep1,ndcg_ep2"]
    for n in np.geomspace(1e5, 1e8, 4):
        for t in np.geomspace(1e4, 1e7, 4):
            best = 0.2 - 4 * n**-0.3 - 3 * t**-0.4
            lines.append(f"{n:.0f}-{t:.0f},{t:.0f},{n:.0f},{n / 2:.0f},{t:.0f},{6 * n * t},{best * 0.6:.6f},{best:.6f}")
    return "\n".join(lines) + "\n"


def _make(home: Path) -> None:
    events().write_csv(home / "events.csv")
    events().write_parquet(home / "events.parquet")
    items().write_csv(home / "items.csv")
    (home / "new_items.csv").write_text("item_id\n900001\n900002\n")
    people().write_csv(home / "people.csv")
    impressions().write_parquet(home / "impressions.parquet")
    impressions(40).drop("label").write_csv(home / "today.csv")
    histories = events().filter(pl.col("user_id").is_in(["u1", "u2", "u3"]))
    histories.write_csv(home / "histories.csv")
    draw = np.random.default_rng(2).standard_normal((ITEMS, 6)).astype(np.float32)
    pl.DataFrame({"item_id": range(ITEMS), "v": draw}).write_parquet(home / "vectors.parquet")
    (home / "schema.yaml").write_text(SCHEMA)
    (home / "grid.yaml").write_text(GRID)
    (home / "space.yaml").write_text(SPACE)
    (home / "scaling.csv").write_text(scaling_rows())
    _run(home, "prepare @events.csv --items @items.csv --users @people.csv --out @store")
    _run(home, "subset @store --share 0.5 --out @store2")
    _run(home, "prepare-impressions @impressions.parquet --schema @schema.yaml --out @clicks")
    for name, settings in RUNS.items():
        data = "clicks" if name in RANKERS else "store"
        given = " ".join(f"--set {setting}" for setting in settings)
        _run(home, f"train {RECIPES.get(name, name)} --data @{data} --out @{name} {given}")
    _run(home, "evaluate @sasrec --out @evaluation")
    _run(home, f"encode @store --vectors @vectors.parquet --out @codes {ENCODE}")
    _run(home, "keys add @keys.json --name shop")


RUNS: dict[str, tuple[str, ...]] = {
    "popularity": (), "sasrec": (*TINY, *DIM),
    "thinker": (*TINY, *DIM, "model.task=last_item", "model.reasoner=plr", "model.reasoner.steps=2"),
    "lr": (*TINY, "model.embedding.l2=0"), "ranker": (*TINY, "model.embedding.l2=0", "model.embedding.dim=4"),
}  # fmt: skip
"""Run of the world -> its settings; the recipe is the name, or that of `RECIPES`."""
RECIPES = {"thinker": "sasrec", "ranker": "dcnv2"}
RANKERS = ("lr", "ranker")
ENCODE = "--levels 2 --size 4 --set learner.rounds=2 --set limits.collisions=1"


def _run(home: Path, line: str) -> None:
    words = [str(home / word[1:]) if word.startswith("@") else word for word in line.split()]
    assert main(words) == 0, f"the world could not be made: {line}"
