"""Part of `fullrank show CODES CODES ...`: the reports of folders of semantic ids side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.cli.output import Output

if TYPE_CHECKING:
    from fullrank.semantic_ids.reader import Codes

FIGURES = {
    "learner": "learner", "levels": "levels", "items": "items", "least use": "use", "least perplexity": "perplexity",
    "sharing codes": "rate", "of another vector": "different", "after the policy": "after", "error": "error",
    "neighbours": "neighbours", "collaborative": "collaborative",
}  # fmt: skip
"""Rows of the table: what is read there, and its name in `row_of`. Collisions are those before the policy."""


def show_codes(output: Output, folders: Sequence[str]) -> None:
    """A column for each folder, in the order given. Raises `UserError` for a folder that holds no codes."""
    from fullrank.semantic_ids.reader import Codes

    found = [row_of(Codes.open(Path(folder))) for folder in folders]
    names = [Path(one["codes"]).name for one in found]
    heads = names if len(set(names)) == len(names) else [one["codes"] for one in found]
    output.table(("", *heads), [(said, *(one[name] for one in found)) for said, name in FIGURES.items()])
    if len({one["item_ids"] for one in found}) > 1:
        output.say("note: these are codes of different items, and their figures do not compare")
    if len({one["vectors"] for one in found}) > 1:
        output.say("note: these codes were learned from different vectors: error and neighbours are about their own")
    output.finish({"codes": found})


def row_of(codes: Codes) -> dict[str, Any]:
    """The figures of one folder."""
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
