"""Evaluation of a cascade: retrieved and re-ranked lists of the same users, measured alike, and their difference.

The times of the two stores tell whether a ranker may have been trained on what the retriever is
tested on (`leakage`). Two stores are consistent that were split at the same moment: `global_time`
for events and `temporal` for impressions, with the same `validation_from` and `test_from`.
Leave-one-out cannot be consistent: the last event of a user who left early lies before the moment
at which a ranker's training ends.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fullrank.cascade.rerank import Reranker, best_candidates, blocks, check_candidates
from fullrank.cascade.stages import RetrievalStage
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, require_replaceable, whole_folder, write_text
from fullrank.core.log import Progress
from fullrank.data.events.store import Store
from fullrank.data.manifest import require_no_store
from fullrank.data.values import with_date
from fullrank.evaluation.compare import Comparison, compare
from fullrank.evaluation.result import EvaluationResult, PerUser, merge
from fullrank.evaluation.retrieval import evaluated_model, longest_list, ranked, rows_of_lists, users_and_protocol
from fullrank.evaluation.spec import Evaluation
from fullrank.inference.batches import Batching
from fullrank.metrics import match

PAGE = "cascade.json"


@dataclass(frozen=True)
class CascadeResult:
    """Metrics before and after re-ranking.

    `facts`: candidates, blend, where the fields came from, and the times of `leakage`.
    """

    before: EvaluationResult
    """The retriever's own lists."""
    after: EvaluationResult
    """The ranker's order of the candidates."""
    differences: dict[str, Comparison]
    """after - before on the same users: recall and nDCG at every k."""
    ceiling: float
    """Recall of all the candidates: what a perfect ranker would reach at k = candidates."""
    facts: JsonObject
    notes: tuple[str, ...]
    """Reasons to doubt the numbers."""

    def __repr__(self) -> str:
        changes = ", ".join(f"{name} {change.difference:+.4f}" for name, change in [*self.differences.items()][:3])
        return f"CascadeResult({self.facts.get('candidates')} candidates, ceiling {self.ceiling:.4f}: {changes})"

    def dump(self) -> JsonObject:
        """Plain data without per-user rows."""
        return {
            **self.facts,
            "ceiling": self.ceiling,
            "notes": list(self.notes),
            "differences": {name: change.dump() for name, change in self.differences.items()},
            "before": self.before.dump(),
            "after": self.after.dump(),
        }

    def to_json(self) -> str:
        return json.dumps(self.dump(), indent=2) + "\n"

    def save(self, folder: Path | str) -> None:
        """Write `cascade.json`, and both results into `before` and `after` (`EvaluationResult.load` reads them).

        The folder is replaced at once. Raises `UserError` where it holds anything else,
        and where the disk refuses.
        """
        out = Path(folder)
        self.check_folder(out)
        with whole_folder(out, "cascade") as part:
            self.before.save(part / "before")
            self.after.save(part / "after")
            write_text(part / PAGE, self.to_json())

    @staticmethod
    def check_folder(out: Path) -> None:
        """Raise `UserError` where `save` would."""
        require_no_store(out, "cascade")
        written = {PAGE, "before", "after"}
        require_replaceable(out, "cascade", lambda folder: (folder / PAGE).is_file(), written.__contains__)


def evaluate_cascade(
    retriever: RetrievalStage,
    reranker: Reranker,
    split: str,
    spec: Evaluation,
    *,
    candidates: int,
    blend: float,
    progress: Progress,
) -> CascadeResult:
    """Measure a retriever's lists and the order of a reranker; the arguments are those of `Cascade.evaluate`."""
    if spec.protocol != "full":
        raise UserError(
            "a cascade ranks the whole catalogue first: leave protocol at 'full'", code="needs-full-protocol"
        )
    longest = longest_list(spec, retriever.model.num_items)
    check_candidates(longest, candidates, blend)
    store = retriever.require_store()
    everybody, protocol = users_and_protocol(retriever.model, store, split, spec)
    facts, doubt = leakage(store, split, reranker.ranker.trained_until)
    names = store.user_ids
    reranker.require_some(names[everybody.users])
    model = evaluated_model(retriever.model, store, spec)
    before: list[PerUser] = []
    after: list[PerUser] = []
    recall, without_candidates = 0.0, 0
    for low, high in blocks(len(everybody), candidates):
        users = everybody.take(slice(low, high))
        lists = ranked(model, users.histories, spec, candidates, Batching(spec.batch_size, spec.block))
        scores = reranker(names[users.users], users.histories, lists.ids, lists.scores, blend)
        best, _ = best_candidates(scores, lists.ids, longest)
        for rows, ids in ((before, lists.ids[:, :longest]), (after, best)):
            rows.append(rows_of_lists(users, protocol, store, spec, ids.astype(np.int32), lists.steps))
        recall += float((match(lists.ids, users.truth).sum(1) / users.truth.lengths).sum())
        without_candidates += int((~(lists.ids >= 0).any(1)).sum())
        progress(high, len(everybody))
    facts = {
        "split": split,
        "candidates": candidates,
        "blend": blend,
        "users": len(everybody),
        "users_without_candidates": without_candidates,
        "fields": asdict(reranker.plan),
        **facts,
    }
    notes = () if doubt is None else (doubt,)
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=3)
    retrieved, reranked = merge(before), merge(after)
    compared = [name for name in retrieved.metrics if name.split("@")[0] in ("recall", "ndcg")]
    differences = {name: compare(retrieved, reranked, name, level=spec.level) for name in compared}
    return CascadeResult(retrieved, reranked, differences, recall / max(len(everybody), 1), facts, notes)


def leakage(store: Store, split: str, last: int | None) -> tuple[JsonObject, str | None]:
    """Facts about the times of a split's targets, and a sentence where they are a reason to doubt the numbers.

    `last` is the time of the ranker's last training impression (seconds). The facts are that,
    `ranker_trained_until`, and how many targets of the split are not later, `targets_not_later`;
    both None where either has no times.
    """
    if last is None or store.times is None:
        which = (
            "the retriever's store has no times"
            if last is not None
            else "the ranker's store has no times, or its run does not say when its training ended"
        )
        return {"ranker_trained_until": None, "targets_not_later": None}, (
            f"{which}, so nobody can tell whether the ranker was trained on the targets of the {split} split: prepare "
            "it with a time column"
        )
    target_times = store.eval_set(split, without_history=True).targets.over(store.times)
    early, targets = 0, int(target_times.lengths.sum())
    step = 1 << 16  # users at a time: the times of all targets need not be in memory at once
    for low in range(0, len(target_times), step):
        early += int((target_times.take(slice(low, low + step)).flat() <= last).sum())
    facts = {"ranker_trained_until": last, "targets_not_later": early}
    if not early:
        return facts, None
    return facts, (
        f"{early:,} of {targets:,} targets of the {split} split are not later than the ranker's last training "
        f"impression ({with_date(last)}), so it may have been trained on them: split both stores at the same moments "
        "(split=global_time for events, split=temporal for impressions, both with validation_from and test_from)"
    )
