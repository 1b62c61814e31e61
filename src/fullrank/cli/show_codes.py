"""`fullrank show CODES CODES ...`: the reports of folders of semantic ids side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.cli.output import Output

if TYPE_CHECKING:
    from fullrank.semantic_ids.reader import Codes

COLUMNS = (
    "codes", "learner", "levels", "items", "least use", "least perplexity", "sharing codes", "of another vector",
    "after", "error", "neighbours", "collaborative",
)  # fmt: skip
"""Collisions are those before the policy and, in `after`, behind it."""


def show_codes(output: Output, folders: Sequence[str]) -> None:
    """A row for each folder, in the order given. Raises `UserError` for a folder that holds no codes."""
    from fullrank.semantic_ids.reader import Codes

    rows = [row_of(Codes.open(Path(folder))) for folder in folders]
    output.table(COLUMNS, [tuple(row.values())[: len(COLUMNS)] for row in rows])
    catalogues = {row["item_ids"] for row in rows}
    if len(catalogues) > 1:
        output.say("note: these are codes of different items, and their figures do not compare")
    if len({row["vectors"] for row in rows}) > 1:
        output.say("note: these codes were learned from different vectors: error and neighbours are about their own")
    output.finish({"codes": rows})


def row_of(codes: Codes) -> dict[str, Any]:
    """The figures of one folder; the first are those of `COLUMNS`, in its order."""
    report, learner = codes.report, codes.spec.learner
    learned = [level for level in report["levels"] if level["learned"]]
    clash = report["collisions"]
    return {
        "codes": str(codes.path), "learner": learner.kind_of(),
        "levels": f"{len(learned)} x {learned[0]['size']}", "items": len(codes),
        "use": min(level["use"] for level in learned),
        "perplexity": min(level["perplexity"] for level in learned),
        "rate": clash["before"]["rate"], "different": clash["before"]["different"],
        "after": f"{clash['after']['rate']:.4f} ({codes.policy})",
        "error": report["reconstruction"]["error"], "neighbours": report["neighbours"]["recall"],
        "collaborative": report.get("collaborative", {}).get("recall"),
        "policy": codes.policy, "rate_after": clash["after"]["rate"], "fingerprint": codes.fingerprint,
        "item_ids": codes.manifest["item_ids"], "vectors": codes.manifest.get("vectors", {}).get("fingerprint"),
        "pca": codes.spec.pca, "report": report,
    }  # fmt: skip
