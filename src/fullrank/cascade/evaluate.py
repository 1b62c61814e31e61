"""What a ranker adds to a retriever: both lists of the same users, measured alike, and their paired difference."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fullrank.cascade import order
from fullrank.cascade.leak import leakage
from fullrank.core.errors import UserError
from fullrank.core.files import write_text
from fullrank.core.progress import Progress
from fullrank.evaluation.compare import Comparison, compare
from fullrank.evaluation.eval_users import asked
from fullrank.evaluation.event_dropout import EventDropout
from fullrank.evaluation.result import EvaluationResult, merge
from fullrank.evaluation.retrieval import of_lists, ranked
from fullrank.metrics import match

if TYPE_CHECKING:
    from fullrank.cascade.cascade import Cascade


@dataclass(frozen=True)
class CascadeResult:
    """Before and after. `facts`: candidates, blend, where the fields came from, and the times of `leak`."""

    before: EvaluationResult
    """The retriever's own lists."""
    after: EvaluationResult
    """The ranker's order of the candidates."""
    differences: dict[str, Comparison]
    """after - before on the same users: recall and nDCG at every k."""
    ceiling: float
    """Recall of all the candidates: what a perfect ranker would reach at k = candidates."""
    facts: dict[str, Any]
    notes: tuple[str, ...]
    """Reasons to doubt the numbers."""

    def dump(self) -> dict[str, Any]:
        """Plain data without per-user rows."""
        return {
            **self.facts, "ceiling": self.ceiling, "notes": list(self.notes),
            "differences": {name: found.dump() for name, found in self.differences.items()},
            "before": self.before.dump(), "after": self.after.dump(),
        }  # fmt: skip

    def to_json(self) -> str:
        return json.dumps(self.dump(), indent=2) + "\n"

    def save(self, folder: Path | str) -> None:
        """Writes `cascade.json`, and both results into `before` and `after` (`EvaluationResult.load` reads them)."""
        self.before.save(Path(folder) / "before")
        self.after.save(Path(folder) / "after")
        write_text(Path(folder) / "cascade.json", self.to_json())


def evaluate_cascade(
    cascade: Cascade,
    split: str,
    candidates: int,
    context: Any,
    blend: float,
    settings: Sequence[str],
    progress: Progress | None,
) -> CascadeResult:
    """See `Cascade.evaluate`."""
    model, store = cascade.retriever.model, cascade.retriever.known()
    spec = cascade.retriever.evaluation.override(*settings)
    if spec.protocol != "full":
        raise UserError("a cascade ranks the whole catalogue first: leave protocol at 'full'")
    deepest = max(name.k for name in spec.names())
    order.check_candidates(deepest, candidates, blend)
    whole = asked(model, store, split, spec)
    rank = cascade.ordering(context)
    facts, doubt = leakage(store, split, cascade.ranker.trained_until)
    names = store.user_ids
    rank.require_some(names[whole.users])
    teller = EventDropout(model, spec.drop, spec.seed) if spec.drop else model
    parts: tuple[list[Any], list[Any]] = ([], [])
    reached = bare = 0.0
    for low, high in order.blocks(len(whole.users), candidates):
        part = whole.part(slice(low, high))
        found = ranked(teller, part.histories, spec, candidates, cascade.device, None)
        scores = rank(names[part.users], found.ids, found.scores, blend)
        best, _ = order.best_candidates(scores, found.ids, deepest)
        for kept, ids in zip(parts, (found.ids[:, :deepest], best), strict=True):
            kept.append(of_lists(part, store, spec, ids.astype(np.int32), found.steps))
        reached += float((match(found.ids, part.truth).sum(1) / part.truth.lengths).sum())
        bare += float((~(found.ids >= 0).any(1)).sum())
        if progress is not None:
            progress(high, len(whole.users))
    before, after = (merge(kept) for kept in parts)
    facts = {
        "split": split, "candidates": candidates, "blend": blend, "users": len(whole.users),
        "users_without_candidates": int(bare),
        "fields": {"users": rank.plan.users, "items": rank.plan.items, "context": rank.plan.context}, **facts,
    }  # fmt: skip
    if doubt is not None:
        warnings.warn(doubt, UserWarning, stacklevel=3)
    compared = [name for name in before.metrics if name.split("@")[0] in ("recall", "ndcg")]
    found_gaps = {name: compare(before, after, name, level=spec.level) for name in compared}
    notes = () if doubt is None else (doubt,)
    return CascadeResult(before, after, found_gaps, reached / max(len(whole.users), 1), facts, notes)
