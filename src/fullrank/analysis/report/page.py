"""Figures and tables on one HTML page. Every text is escaped; nothing is fetched and nothing runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError
from fullrank.core.files import write_text

TEMPLATE = "page.html.j2"
WORDS = (
    ("accuracy", "How often, and how early in the list, comes what a person really chose next (ndcg, recall, hit)."),
    ("fairness", "The share of recommendations that are niche items: the least popular 80 % of the catalogue."),
    (
        "collapse share",
        "How much of all scores is a single pattern. At 1 every user gets the same order of items. (The largest "
        "squared singular value of the users x items score matrix over the sum of all.)",
    ),
    (
        "likeness to popularity",
        "Whether that pattern puts items in the order of how often they were used: 1 is the same.",
    ),
    ("directions in use", "How many patterns matter, counted softly (entropy rank of Roy and Vetterli)."),
    ("layer", "A transformer is a stack of layers; each mixes what a person did before (attention), then reworks it."),
    (
        "steps of thought",
        "Some models do not answer at once: they feed their own conclusion back a few times (steps), perhaps in "
        "several ways at the same time (streams), and a gate mixes what comes out.",
    ),
    (
        "interval",
        "Where the number would fall with other users of the same kind, in 95 of 100 draws if not set otherwise.",
    ),
    (
        "what helps",
        "If popularity takes over: fewer layers, the regularisers of SPRINT (a bound on how much attention an item can "
        "collect and on the norms of the matrices), another loss or cosine scores. Compare the runs again after it.",
    ),
)
"""What a reader may not know."""


@dataclass(frozen=True)
class Page:
    """One page, as HTML."""

    html: str

    def save(self, path: str | Path) -> None:
        """Write the page, whole or not at all."""
        write_text(path, self.html)


def check_extra() -> None:
    """Raise `UserError` naming the extra where matplotlib or jinja2 is not installed."""
    for package in ("matplotlib", "jinja2"):
        try:
            __import__(package)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != package:
                raise
            raise UserError(f"a report needs the package {package!r}: pip install 'fullrank[report]'") from None


def render(content: Mapping[str, Any], words: tuple[tuple[str, str], ...] = WORDS) -> str:
    """The page. `content` has what the template names; a name that is missing raises."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    room = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=False, keep_trailing_newline=True,
    )  # fmt: skip
    room.filters["shown"] = shown
    return room.get_template(TEMPLATE).render(**content, words=words)


def shown(value: Any) -> str:
    """A table's cell: four significant digits, a dash for what is not there."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "–" if value != value else f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
