"""Writes the tables of guide/planning.md from files of results/ and of the store's format (part of `make docs`).

The first table holds what was measured, each figure with its file. The second is computed from these by the formulas of
`Plan`, for worlds that nobody has measured; a test recomputes both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fullrank.data.events.store import ARRAYS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guide" / "planning.md"
MARKS = {
    name: (f"<!-- {name}: written by docs/make_plan.py -->", f"<!-- end of {name} -->")
    for name in ("measured", "computed")
}
PREPARE = "results/prepare/2026-11-24_2x-amd-epyc.json"
TRAIN = "results/train_sequence/2026-11-21_2x-amd-epyc.json"
CATALOGUE = "results/catalogue/2026-11-22_2x-amd-epyc.json"
RETRIEVE = "results/retrieve/2026-11-21_2x-amd-epyc.json"
CLICKS = "results/prepare_impressions/2026-11-24_2x-amd-epyc.json"
SERVE = "results/serve/2026-11-23_2x-amd-epyc.json"
LARGE, STORE = "docs/guide/large_data.md", "src/fullrank/data/events/store.py"
WIDTH, NEGATIVES = 64, 4096
"""Of the models that were timed, and the pool of negatives of the catalogue's benchmark."""
CORES = 2
"""Of the machine of every file named here."""
SPILL, ROW = 30, 40
"""Bytes of an event on its way to its part, and of a training row in an epoch (LARGE)."""
ADAM = 4 * 4
"""Bytes of a weight in fp32 with its gradient and the two moments of Adam."""
PRODUCTS = 3 * 2
"""Operations of a score with its two gradients: three products, each a multiplication and an addition."""
DAY = 86_400


@cache
def _figures(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / file).read_text(encoding="utf-8"))["figures"]
    return found


@dataclass(frozen=True)
class Measured:
    """The constants."""

    event_bytes: int = sum(np.dtype(ARRAYS[name][0]).itemsize for name in ("items", "times"))
    user_bytes: int = sum(np.dtype(ARRAYS[name][0]).itemsize * n for name, n in (("offsets", 1), ("bounds", 2)))
    prepare: float = _figures(PREPARE)["events_per_s"]
    prepare_mb: float = _figures(PREPARE)["anonymous_mb"]
    epoch: float = _figures(TRAIN)["epoch_seconds"]
    epoch_over_products: float = _figures(TRAIN)["epoch_over_gemm_floor"]
    products: float = _figures(TRAIN)["gemm_floor_seconds"]
    queries: int = _figures(TRAIN)["queries"]
    trained: float = _figures(TRAIN)["events_per_s"]
    items: int = _figures(RETRIEVE)["items"]
    users: float = _figures(RETRIEVE)["users_per_s"]
    text_ratio: float = _figures(CATALOGUE)["step_time_10m_over_10k"]
    impression_bytes: float = _figures(CLICKS)["store_bytes_per_row"]
    impressions_mb: float = _figures(CLICKS)["anonymous_mb"]
    index_bytes: float = _figures(SERVE)["index_bytes_1m"] / 1e6
    index_seconds: float = _figures(SERVE)["index_seconds_1m"] / 1e6
    index_recall: float = _figures(SERVE)["recall_1m"]

    @property
    def table_bytes(self) -> float:
        """Memory that an item adds to a training step, from 10 thousand to a million items."""
        return 1e6 * self._of_an_item("table_peak_memory_{}_mb")

    @property
    def table_seconds(self) -> float:
        """Seconds that an item of a table adds to a step with 4,096 negatives, alike: Adam moves every row."""
        return self._of_an_item("table_step_seconds_{}")

    @property
    def rest(self) -> float:
        """Seconds of an epoch for each event beside the products of the softmax: encoder, batches, Adam."""
        return (self.epoch - self.products) / (self.trained * self.epoch)

    @property
    def rate(self) -> float:
        """Operations a second of the products of the exact softmax."""
        return PRODUCTS * WIDTH * self.queries * self.items / self.products

    @property
    def scores(self) -> float:
        """User-item pairs that an evaluation scores and ranks in a second."""
        return self.users * self.items

    def _of_an_item(self, figure: str) -> float:
        large, small = (_figures(CATALOGUE)[figure.format(size)] for size in ("1m", "10k"))
        return float(large - small) / (1_000_000 - 10_000)


@dataclass(frozen=True)
class Plan:
    """A world of items, users and events, and what each stage of it costs."""

    items: float
    users: float
    events: float
    measured: Measured = Measured()

    def store(self) -> float:
        """Bytes of the arrays of all parts."""
        return self.measured.event_bytes * self.events + self.measured.user_bytes * self.users

    def spill(self) -> float:
        """Bytes of work on disk while it is prepared."""
        return SPILL * self.events

    def prepare(self) -> float:
        """Core-hours."""
        return self.events / self.measured.prepare * CORES / 3600

    def opened(self) -> float:
        """Bytes of memory of a store that is open."""
        return self.measured.user_bytes * self.users

    def table(self) -> float:
        """Bytes of vectors, gradient and Adam."""
        return ADAM * WIDTH * self.items

    def table_measured(self) -> float:
        """The same as a step was measured to take it."""
        return self.measured.table_bytes * self.items

    def step(self) -> float:
        """Seconds that the table adds to every step."""
        return self.measured.table_seconds * self.items

    def rest_years(self) -> float:
        """Years of one core for an epoch without the softmax."""
        return self.measured.rest * self.events * CORES / DAY / 365.25

    def exact(self) -> float:
        """Operations of the exact softmax over an epoch."""
        return PRODUCTS * WIDTH * self.items * self.events

    def sampled(self) -> float:
        """Operations of a softmax over a pool of negatives, an epoch."""
        return PRODUCTS * WIDTH * NEGATIVES * self.events

    def exact_years(self) -> float:
        """Years of one core for `exact`."""
        return self.exact() / self.measured.rate * CORES / DAY / 365.25

    def sampled_years(self) -> float:
        return self.sampled() / self.measured.rate * CORES / DAY / 365.25

    def evaluated(self) -> float:
        """Core-hours to rank the whole catalogue for ten thousand users."""
        return 10_000 * self.items / self.measured.scores * CORES / 3600

    def index(self) -> float:
        """Bytes of an index beside the vectors."""
        return self.measured.index_bytes * self.items

    def index_hours(self) -> float:
        """Core-hours to build it."""
        return self.measured.index_seconds * self.items * CORES / 3600


WORLDS = (Plan(1e6, 1e7, 1e9), Plan(1e8, 1e8, 1e11), Plan(1e9, 1e9, 1e12))
Row = tuple[str, str, Callable[[Plan], float], str]
M = Measured()
ROWS: tuple[Row, ...] = (
    ("store on disk", f"{M.event_bytes} E + {M.user_bytes} U", Plan.store, "B"),
    ("work on disk while it is prepared", f"{SPILL} E", Plan.spill, "B"),
    ("preparing", "E / pace", Plan.prepare, " core-hours"),
    ("memory of an open store", f"{M.user_bytes} U", Plan.opened, "B"),
    ("item table with gradient and Adam, fp32", f"{ADAM} d V", Plan.table, "B"),
    ("the same, by the bytes that a step was measured to take", f"{M.table_bytes:,.0f} V", Plan.table_measured, "B"),
    ("what the table adds to every step, 2 cores", f"{M.table_seconds * 1e6:.2f} µs V", Plan.step, " s"),
    ("exact softmax, an epoch", f"{PRODUCTS} d V E", Plan.exact, "FLOP"),
    ("the same at the rate measured", "FLOP / rate", Plan.exact_years, " core-years"),
    ("softmax over 4,096 negatives, an epoch", f"{PRODUCTS} d {NEGATIVES:,} E", Plan.sampled, "FLOP"),
    ("the same at the rate measured", "FLOP / rate", Plan.sampled_years, " core-years"),
    ("all else of an epoch, two layers", f"{M.rest * 1e6:.0f} µs E", Plan.rest_years, " core-years"),
    ("evaluation: all items ranked for 10,000 users", "10,000 V / pace", Plan.evaluated, " core-hours"),
    ("index beside the vectors", f"{M.index_bytes:.0f} V", Plan.index, "B"),
    ("building it", f"{M.index_seconds * 1e6:.0f} µs V", Plan.index_hours, " core-hours"),
)


def short(number: float, unit: str) -> str:
    """Two or three digits and a prefix for bytes and operations; others in full."""
    if unit in ("B", "FLOP"):
        for power, prefix in ((24, "Y"), (21, "Z"), (18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M")):
            if number >= 10**power:
                return f"{number / 10**power:.3g} {prefix}{unit}"
    return f"{number:.2g}{unit}" if number < 10 else f"{float(f'{number:.3g}'):,.0f}{unit}"


def count(number: float) -> str:
    """A round number in words."""
    power, word = next((p, w) for p, w in ((12, "trillion"), (9, "billion"), (6, "million")) if number >= 10**p)
    return f"{number / 10**power:g} {word}"


def measured() -> str:
    """The table of constants."""
    m = M
    rows = [
        ("an event of a store, item and time", f"{m.event_bytes} bytes", f"`ARRAYS` of `{STORE}`"),
        ("a user of a store, where its events begin and are split", f"{m.user_bytes} bytes", f"`ARRAYS` of `{STORE}`"),
        ("an event on its way to its part", f"about {SPILL} bytes", f"`{LARGE}`"),
        ("a training row in an epoch", f"{ROW} bytes", f"`{LARGE}`"),
        ("preparing in parts", f"{m.prepare:,.0f} events/s, {m.prepare_mb:,.0f} MB", f"`{PREPARE}`"),
        ("an impression of seven fields, with a bag and a history", f"{m.impression_bytes:.0f} bytes, prepared in "
         f"{m.impressions_mb:,.0f} MB", f"`{CLICKS}`"),
        (f"an item of a table of width {WIDTH} in a training step", f"{m.table_bytes:,.0f} bytes",
         f"`{CATALOGUE}`: memory at 1 million less that at 10 thousand"),
        ("the same item, time that it adds to a step", f"{m.table_seconds * 1e6:.2f} µs", f"`{CATALOGUE}`, alike"),
        ("an epoch over the exact softmax's three products", f"{m.epoch_over_products:.2f} times",
         f"`{TRAIN}`, {m.items:,} items"),
        ("the products themselves", f"{m.rate / 1e9:,.0f} GFLOP/s", f"`{TRAIN}`: 6 d x queries x items / seconds"),
        ("an event of an epoch beside these products", f"{m.rest * 1e6:.0f} µs",
         f"`{TRAIN}`: (epoch less products) / events"),
        ("a step on items made of text, 10 million over 10 thousand", f"{m.text_ratio:.2f} times", f"`{CATALOGUE}`"),
        ("evaluation", f"{m.users:,.0f} users/s, {m.scores / 1e6:,.0f} million scores/s", f"`{RETRIEVE}`"),
        ("an index of a million items", f"{m.index_bytes:.0f} bytes an item, {m.index_seconds * 1e6:.0f} s, recall "
         f"{m.index_recall:.3f}", f"`{SERVE}`"),
    ]  # fmt: skip
    return "\n".join(["| what | figure | from |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)])


def computed() -> str:
    """The table of worlds."""
    heads = [f"V = {count(w.items)}, U = {count(w.users)}, E = {count(w.events)}" for w in WORLDS]
    lines = ["| computed, not measured | formula | " + " | ".join(heads) + " |", "|---|---|" + "---|" * len(WORLDS)]
    for name, formula, cost, unit in ROWS:
        lines.append(f"| {name} | {formula} | " + " | ".join(short(cost(world), unit) for world in WORLDS) + " |")
    return "\n".join(lines)


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("measured", measured()), ("computed", computed())):
        begin, end = MARKS[name]
        head, mark, rest = text.partition(begin)
        _, ended, tail = rest.partition(end)
        assert mark and ended, f"{PAGE} has lost {begin} or {end}"
        text = f"{head}{begin}\n\n{table}\n\n{end}{tail}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
