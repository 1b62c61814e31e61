"""Check a store before anything is trained: is its data worth a model? Answered by counts.

`fullrank.verify` asks whether files are as they were written, `fullrank.diagnose` what a model
learned. The findings: `data/events/check.py`, `data/impressions/check.py`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fullrank.core.checks import check_path
from fullrank.core.errors import UserError
from fullrank.data.events.check import event_findings
from fullrank.data.events.store import Store
from fullrank.data.findings import Finding

if TYPE_CHECKING:
    from fullrank.data.impressions.store import ImpressionStore


@dataclass(frozen=True)
class Check:
    """The findings of `check` about a store."""

    path: Path
    problem: Literal["retrieval", "ranking"]
    """Retrieval for a store of events, ranking for one of impressions."""
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are likely to make a result worthless."""
        return tuple(finding for finding in self.findings if finding.grade == "warning")

    @property
    def ok(self) -> bool:
        """Whether there are no warnings."""
        return not self.warnings

    @property
    def error(self) -> UserError:
        """The error that names the warnings, in one sentence."""
        names = ", ".join(dict.fromkeys(finding.name for finding in self.warnings))
        return UserError(
            f"the data of {str(self.path)!r} is warned of ({names}): correct the table and prepare it again",
            code="data-warned-of",
        )

    def require_ok(self) -> None:
        """Raise `UserError` where there are warnings."""
        if not self.ok:
            raise self.error

    def dump(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        findings = [asdict(finding) for finding in self.findings]
        return {"store": self.path, "problem": self.problem, "ok": self.ok, "findings": findings}


def check(store: Store | ImpressionStore | str | Path) -> Check:
    """Look for what is wrong with the data of a store, by counts: nothing is trained.

    Of events: copies, bots, times that cannot be right, training events that happened
    after test events, ties, cold users and targets, and whether the order of events
    matters. Of impressions: labels, copies, fields that are constant or tell the label,
    unseen values, groups, order in time.

    Raises `UserError` for a folder that is no store; faults of the data stand in the
    result (`Check.require_ok`).
    """
    if not isinstance(store, Store):  # imported late: loading these takes as long as a check of events
        from fullrank.data.impressions.check import impression_findings
        from fullrank.data.impressions.store import ImpressionStore, open_store

        store = store if isinstance(store, ImpressionStore) else open_store(check_path("the store", store))
        if isinstance(store, ImpressionStore):
            return Check(store.path, store.problem, tuple(impression_findings(store)))
    return Check(store.path, store.problem, tuple(event_findings(store)))
