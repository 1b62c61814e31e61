"""Members of a blend: what each adds to the lists, and whom it helps, by the manifest (`training/blending.py`)."""

from __future__ import annotations

from typing import ClassVar

from fullrank.analysis.diagnostics import Claim, Figure, RunResult, Runs, Section, bars


class BlendMembers(Section):
    """Weight and accuracy of each member, and loss of the joined lists without it."""

    name: ClassVar[str] = "blend_members"
    claim = Claim(
        "What each member of a blend brings",
        "A bar is what the joined lists lose on validation without a member, where the weights of the others are "
        "learned anew; the line on it is the 95 % interval. Nobody who is measured was learned from. A member whose "
        "interval holds 0 could be left out.",
        (bars("member", "brings", interval="y"),),
    )

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        return None if "blend" in result.manifest else ""

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        headers = ["run", "member", "brings", "brings from", "brings to", "alone", "weight", "helped", "hurt"]
        rows = []
        for run in there:
            for member in run.manifest["blend"]["members"]:
                brings, half = member["brings"], 1.96 * member["brings_se"]
                shown = (member[name] for name in ("alone", "weight", "helped", "hurt"))
                rows.append((run.label, member["name"], brings, brings - half, brings + half, *shown))
        return claim.figure(headers, rows)
