"""Writes the list of files in map.md from the first sentence of each file's docstring (part of `make docs`)."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAP = ROOT / "docs" / "map.md"
MARK = "<!-- below: written by docs/make_map.py -->"
# In the order in which data flows through them; a room that is not named here comes last.
ROOMS = (
    "", "core", "ops", "data", "data/events", "data/impressions", "data/sources", "semantic_ids",
    "semantic_ids/vectors", "models", "models/sequential", "models/sequential/items", "models/sequential/attention",
    "models/sequential/encoders", "models/sequential/reasoning", "models/sequential/objectives",
    "models/sequential/objectives/tasks", "models/sequential/objectives/losses",
    "models/sequential/objectives/weightings", "models/sequential/regularizers", "models/sequential/baselines",
    "models/ranking", "models/ranking/mixings", "models/ranking/feed_forwards", "inference", "metrics", "evaluation",
    "training", "training/cold_start", "cascade", "sweeps", "scaling", "analysis", "analysis/figures",
    "analysis/report", "recipes", "cli",
)  # fmt: skip


def first_sentence(file: Path) -> str:
    """The opening paragraph of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.sub(r"\s+", " ", text.split("\n\n")[0]).strip()


def listing(source: Path) -> str:
    """A heading for each room and a line for each file in it."""
    rooms: dict[str, list[Path]] = {}
    for file in sorted(source.rglob("*.py")):
        room = file.parent.relative_to(source).as_posix()
        rooms.setdefault("" if room == "." else room, []).append(file)
    order = [*ROOMS, *sorted(set(rooms) - set(ROOMS))]
    parts = []
    for room in order:
        if room in rooms:
            parts.append(f"## {room + '/' if room else 'The top level'}\n")
            parts += [f"- `{file.name}`: {first_sentence(file)}" for file in rooms[room]]
            parts.append("")
    return "\n".join(parts)


def main() -> None:
    head, mark, _ = MAP.read_text(encoding="utf-8").partition(MARK)
    assert mark, f"{MAP} has lost the line {MARK}"
    MAP.write_text(f"{head}{MARK}\n\n{listing(ROOT / 'src' / 'fullrank')}", encoding="utf-8")


if __name__ == "__main__":
    main()
