"""Constraints with the lowest versions that pyproject.toml allows: ``python tests/lowest.py > FILE`` (`.ci/lowest`).

Each requirement ``name>=1.2`` of the dependencies and extras becomes ``name==1.2``. What they need themselves is left
to pip. Torch stays at that of constraints.txt where a CPU build of its lowest version cannot be had (LOWEST_TORCH=0).
"""

import os
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pins(project: dict[str, object]) -> list[str]:
    """``name==version`` for each lower bound of the dependencies and of the extras."""
    extras: dict[str, list[str]] = project["optional-dependencies"]  # type: ignore[assignment]
    needed = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]  # type: ignore[misc]
    found = []
    for requirement in needed:
        bound = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)(\s*;.*)?", str(requirement))
        if bound is None:
            raise SystemExit(f"{requirement!r} has no lower bound: write NAME>=VERSION in pyproject.toml")
        found.append(f"{bound[1]}=={bound[2]}{bound[3] or ''}")
    return sorted(set(found))


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = pins(project)
    if os.environ.get("LOWEST_TORCH") == "0":
        (tested,) = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
        lines = [tested if line.startswith("torch==") else line for line in lines]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
