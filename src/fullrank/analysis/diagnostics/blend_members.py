"""What each member of a blend brings, and whom it helps, as its manifest has it (`training/blending.py`)."""

from __future__ import annotations

from typing import ClassVar

from fullrank.analysis.diagnostics import Claim, Figure, RunResult, Runs, Section, bars


class BlendMembers(Section):
    """Of each member: its weight, its own lists, and what the joined lists lose without it, on validation."""

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
        return None if "blend" in result.run.manifest else ""

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        headers = ["run", "member", "brings", "brings from", "brings to", "alone", "weight", "helped", "hurt"]
        rows = []
        for one in there:
            for member in one.run.manifest["blend"]["members"]:
                brings, half = member["brings"], 1.96 * member["brings_se"]
                shown = (member[name] for name in ("alone", "weight", "helped", "hurt"))
                rows.append((one.label, member["name"], brings, brings - half, brings + half, *shown))
        return claim.figure(headers, rows)
