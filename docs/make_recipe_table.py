"""Writes the table of measured recipes in guide/which_recipe.md from files of results/ (part of `make docs`).

A cell is the mean of the seeds of a recipe as it stands in those files; a `-` says that no row there holds it.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guide" / "which_recipe.md"
BEGIN, END = "<!-- below: written by docs/make_recipe_table.py -->", "<!-- end -->"
TRAINING_EVENTS = {"beauty": 153_551, "toys": 126_999, "ml": 987_531}
"""Of the stores that the rows are of (leave-one-out)."""
RECIPES = {
    "popularity": "-", "item_to_item": "-", "transition_graph": "titles, attributes: used where there are any",
    "sasrec": "-", "gru4rec": "-", "bert4rec": "-", "sasrec_2018": "-", "sasrec_plus": "-",
}  # fmt: skip
"""What each reads beside users, items and their order."""
FILES = (
    "sequence/2026-11-21_2cpu_beauty.json", "sequence/2026-11-21_2cpu_ml-1m.json", "sequence/2026-11-24_2cpu_toys.json",
    "shortcut/2026-11-28_2cpu_beauty.json", "shortcut/2026-11-28_2cpu_toys.json", "shortcut/2026-11-28_2cpu_ml.json",
    "shortcut/2026-11-23_2cpu_toys.json",
)  # fmt: skip
"""Of two files with as many seeds of a recipe on one set the first counts."""


def rows() -> list[dict[str, Any]]:
    """Rows of recipes as they are, history excluded: cells of their own names (ml-1m with the settings of its grid)."""
    found = []
    for name in FILES:
        for row in json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))["rows"]:
            if row["cell"] == row["recipe"]:
                assert row["protocol"]["test"]["seen"] == "exclude", f"{name} has the history ranked"
                found.append(row | {"file": name, "data": row["data"].removesuffix("-1m-sequences")})
    return found


def table() -> str:
    """A line for each recipe: what it reads, what training costs, how accurate it is on three sets."""
    lines = [
        "| recipe | reads beside events | minutes per 100,000 events: amazon-beauty, ml-1m | "
        "NDCG@10: amazon-beauty | amazon-toys | ml-1m |",
        "|---|---|---|---|---|---|",
    ]
    for recipe, reads in RECIPES.items():
        of = {data: _newest(recipe, data) for data in TRAINING_EVENTS}
        minutes = ", ".join(_minutes(of[data], data) for data in ("beauty", "ml"))
        accuracy = " | ".join(_number(of[data]) for data in TRAINING_EVENTS)
        lines.append(f"| `{recipe}` | {reads} | {minutes} | {accuracy} |")
    return "\n".join(lines)


def _newest(recipe: str, data: str) -> list[dict[str, Any]]:
    """The seeds of one file: of several files that hold a recipe on one set the one with the most seeds."""
    files: dict[str, list[dict[str, Any]]] = {}
    for row in rows():
        if row["recipe"] == recipe and row["data"] == data:
            files.setdefault(row["file"], []).append(row)
    return max(files.values(), key=len, default=[])


def _number(seeds: list[dict[str, Any]]) -> str:
    if not seeds:
        return "-"
    return f"{mean(row['metrics']['test']['ndcg@10'] for row in seeds):.4f}".lstrip("0")


def _minutes(seeds: list[dict[str, Any]], data: str) -> str:
    if not seeds:
        return "-"
    spent = mean(row["seconds"]["train"] for row in seeds) / 60 / (TRAINING_EVENTS[data] / 1e5)
    return "under 0.1" if spent < 0.1 else f"{spent:.1f}"


def main() -> None:
    head, mark, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert mark and end, f"{PAGE} has lost {BEGIN} or {END}"
    PAGE.write_text(f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
