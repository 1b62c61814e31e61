"""Whether a ranker may have been trained on what a retriever is tested on: the times of both tell.

Consistent are two stores that were split at the same moment: `global_time` for events and `temporal` for impressions,
with the same `validation_from` and `test_from`. Leave-one-out cannot be: the last event of a user who left early lies
before the moment at which a ranker's training ends.
"""

from __future__ import annotations

from typing import Any

from fullrank.data.events.store import Store
from fullrank.data.values import with_date


def overlap(store: Store, split: str, last: int | None) -> tuple[dict[str, Any], str | None]:
    """Facts about the times, and a sentence where they are a reason to doubt the numbers.

    `last` is the time of the ranker's last training impression (seconds). The facts are that, `ranker_trained_until`,
    and how many targets of the split are not later, `targets_not_later`; both None where either has no times.
    """
    if last is None or store.times is None:
        facts: dict[str, Any] = {"ranker_trained_until": None, "targets_not_later": None}
        which = (
            "the retriever's store has no times"
            if last is not None
            else "the ranker's store has no times, or its run does not say when its training ended"
        )
        return facts, (
            f"{which}, so nobody can tell whether the ranker was trained on the targets of the {split} split: prepare "
            "it with a time column"
        )
    when = store.eval_set(split, without_history=True).targets.over(store.times)
    early, targets = 0, int(when.lengths.sum())
    step = 1 << 16
    for low in range(0, len(when), step):
        early += int((when.take(slice(low, low + step)).flat() <= last).sum())
    facts = {"ranker_trained_until": last, "targets_not_later": early}
    if not early:
        return facts, None
    return facts, (
        f"{early:,} of {targets:,} targets of the {split} split are not later than the ranker's last training "
        f"impression ({with_date(last)}), so it may have been trained on them: split both stores at the same moments "
        "(split=global_time for events, split=temporal for impressions, both with validation_from and test_from)"
    )
