"""Fields of Specs that no recipe, grid, page, example or benchmark sets: `python -m tests.idle_settings`.

A field is set where a recipe or a job of a grid under experiments/ has another value than its default, and named where
its name stands in the code of a page (between backticks or in a block), of an example or of a benchmark. Decisions and
the log of failures are no pages: they say what was, and not what one may set.
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fullrank.core.registry import kinds
from fullrank.core.spec import Spec
from fullrank.run.experiment import find_experiment
from tests.golden import grids

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs" / "guide").glob("*.md"), *(ROOT / "docs" / "results").glob("*.md")]
PAGES += [ROOT / "docs" / "index.md", ROOT / "docs" / "adding.md", ROOT / "results" / "README.md"]
CODE = re.compile(r"```.*?```|`[^`]+`", re.DOTALL)


def specs_below(base: type[Spec] = Spec) -> Iterator[type[Spec]]:
    """Every Spec class of the library."""
    for spec in base.__subclasses__():
        if spec.__module__.startswith("fullrank."):
            yield spec
        yield from specs_below(spec)


def changed(tree: Any) -> Iterator[tuple[str, str]]:
    """(class, field) of every field in a spec that stands elsewhere than at its default."""
    if isinstance(tree, Spec):
        for name, field in type(tree).model_fields.items():
            inner = getattr(tree, name)
            if field.is_required() or inner != field.get_default(call_default_factory=True):
                yield from ((base.__name__, name) for base in type(tree).__mro__ if base is not object)
            yield from changed(inner)
    elif isinstance(tree, list | tuple):
        for element in tree:
            yield from changed(element)


def named() -> set[str]:
    """Words in the code of pages, examples and benchmarks."""
    texts = [text for page in PAGES for text in CODE.findall(page.read_text())]
    files = [file for folder in ("examples", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    texts += [file.read_text() for file in files]
    return {word.strip("_") for text in texts for word in re.findall(r"\w+", text.replace("-", "_"))}


def idle() -> list[str]:
    """The fields, as Class.field (module)."""
    for file in sorted((ROOT / "src" / "fullrank").rglob("*.py")):
        parts = file.relative_to(ROOT / "src").with_suffix("").parts
        if "__main__" not in parts and parts[-1] != "__init__":
            importlib.import_module(".".join(parts))
    experiments = [find_experiment(kind) for kind in kinds("recipes")]
    experiments += [job.experiment for path in grids.GRIDS for job in grids.jobs(path)]
    used = {pair for tree in experiments for pair in changed(tree)}
    words = named()
    return sorted(
        f"{spec.__name__}.{name} ({spec.__module__})"
        for spec in set(specs_below())
        for name in spec.model_fields
        if name not in words and (spec.__name__, name) not in used and name in vars(spec).get("__annotations__", {})
    )


if __name__ == "__main__":
    print("\n".join(idle()))
