"""Writes the list of rooms in map.md from the first sentence of each room's docstring (part of `make docs`)."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fullrank"
MAP = ROOT / "docs" / "map.md"
MARK = "<!-- below: written by docs/make_map.py -->"
# From what you call down to what everything stands on; a room that is not named here comes last.
ROOMS = (
    "cli", "api.py", "recipes", "testing", "analysis", "analysis/diagnostics", "analysis/report",
    "analysis/scaling", "sweeps", "serving", "serving/export", "serving/stores", "cascade", "training", "run",
    "evaluation", "inference", "models", "models/sequential", "models/sequential/model", "models/sequential/items",
    "models/sequential/attention",
    "models/sequential/encoders", "models/sequential/reasoning", "models/sequential/objectives",
    "models/sequential/objectives/tasks", "models/sequential/objectives/losses",
    "models/sequential/objectives/weightings", "models/sequential/regularizers", "models/sequential/baselines",
    "models/ranking", "models/ranking/sequences", "models/ranking/feed_forwards",
    "semantic_ids", "semantic_ids/vectors", "metrics", "data", "data/events", "data/impressions", "data/sources", "ops",
    "parallel", "core",
)  # fmt: skip


def first_sentence(file: Path) -> str:
    """The opening paragraph of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.sub(r"\s+", " ", text.split("\n\n")[0]).strip()


def listing(source: Path) -> str:
    """A line for each room, from the top of the house down, rooms of a room below it."""
    rooms = {f"{p.parent.relative_to(source).as_posix()}": p for p in source.rglob("__init__.py") if p.parent != source}
    rooms |= {file.name: file for file in source.glob("*.py") if not file.name.startswith("__")}
    order = [*(room for room in ROOMS if room in rooms), *sorted(set(rooms) - set(ROOMS))]
    lines = []
    for room in order:
        indent = "  " * room.count("/")
        lines.append(f"{indent}- `{room if room.endswith('.py') else room + '/'}`: {first_sentence(rooms[room])}")
    return "\n".join(["## The rooms, from the top down", "", *lines, ""])


def main() -> None:
    head, mark, _ = MAP.read_text(encoding="utf-8").partition(MARK)
    assert mark, f"{MAP} has lost the line {MARK}"
    MAP.write_text(f"{head}{MARK}\n\n{listing(SOURCE)}", encoding="utf-8")


if __name__ == "__main__":
    main()
