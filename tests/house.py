"""The house in numbers: `python tests/house.py [src/fullrank]`, read from the source text; nothing is imported.

A room is a folder or a file directly below the package; for a folder named in `SPLIT` each folder below it is one. An
arrow is an import from one room to another, a floor the longest way down, a circle a group of files that import each
other. Facades (`__init__.py` that define nothing) and the package's own `__init__` are left out.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from arrows import Import, imports_below, modules

SPLIT = ("models", "models.sequential")


def measures(root: Path) -> dict[str, Any]:
    """Files, lines, rooms, floors, arrows, circles of files and `type: ignore`s of the package at `root`."""
    files = modules(root)
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    lines = sorted(text.count("\n") for text in texts.values())
    # Who imports the package itself asks for its version: no tie to all that the facade hands on.
    edges = {
        name: _targets(root.name, imports, set(files)) - {name, "__init__"}
        for name, imports in imports_below(root).items()
    }
    rooms: dict[str, set[str]] = {}
    for name, targets in edges.items():
        facade = name.endswith("__init__") and not imports_below(root)[name]
        if name not in ("__init__", "__main__") and not facade:
            rooms.setdefault(room(name), set()).update({room(t) for t in targets} - {room(name)})
    return {
        "files": len(files),
        "lines": sum(lines),
        "median lines": lines[len(lines) // 2],
        "rooms": len(rooms),
        "floors": max(_depth(rooms, one, ()) for one in rooms),
        "arrows": sum(map(len, rooms.values())),
        "circles": [sorted(group) for group in circles(edges)],
        "type: ignore": sum(text.count("type: ignore") for text in texts.values()),
    }


def room(name: str) -> str:
    """`models.sequential.items.text` -> `models.sequential.items`; `data.sources.avazu` -> `data`."""
    parts = name.removesuffix(".__init__").split(".")
    deep = max((s.count(".") + 2 for s in SPLIT if name.startswith(s + ".")), default=1)
    return ".".join(parts[:deep])


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Groups of files that reach each other by imports."""
    reach = {}
    for start, first in edges.items():
        seen, front = set[str](), set(first)
        while front:
            seen |= front
            front = {t for f in front for t in edges[f]} - seen
        reach[start] = seen
    found: list[set[str]] = []
    for name, seen in reach.items():
        if name in seen and not any(name in group for group in found):
            found.append({other for other in seen if name in reach[other]})
    return found


def _targets(package: str, imports: list[Import], known: set[str]) -> set[str]:
    found = set()
    for item in imports:
        parts = item.target.split(".")
        if parts[0] == package:
            inner = parts[1:]
            for n in range(len(inner), -1, -1):
                here = ".".join(inner[:n])
                if here in known:
                    found.add(here)
                    break
                if f"{here}.__init__".lstrip(".") in known:
                    found.add(f"{here}.__init__".lstrip("."))
                    break
    return found


def _depth(rooms: dict[str, set[str]], here: str, above: tuple[str, ...]) -> int:
    lower = [r for r in rooms[here] if r in rooms and r not in above and r != here]
    return 1 + max((_depth_of(rooms, r, (*above, here)) for r in lower), default=0)


_KNOWN: dict[str, int] = {}


def _depth_of(rooms: dict[str, set[str]], here: str, above: tuple[str, ...]) -> int:
    if here not in _KNOWN:
        _KNOWN[here] = _depth(rooms, here, above)
    return _KNOWN[here]


if __name__ == "__main__":
    for key, value in measures(Path(sys.argv[1] if len(sys.argv) > 1 else "src/fullrank")).items():
        print(f"{key:14} {json.dumps(value)}")
