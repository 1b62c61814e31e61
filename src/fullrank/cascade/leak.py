"""Whether a ranker may have been trained on what a retriever is tested on: the times of both stores tell.

Consistent are two stores that were split at the same moment: `global_time` for events and `temporal` for impressions,
with the same `validation_from` and `test_from`. Leave-one-out cannot be: the last event of a user who left early lies
before the moment at which a ranker's training ends.
"""

from __future__ import annotations

from typing import Any

from fullrank.data.impressions import ImpressionStore
from fullrank.data.pack import Store
from fullrank.data.values import dated


def overlap(store: Store, split: str, shown: ImpressionStore) -> tuple[dict[str, Any], str | None]:
    """Facts about the times, and a sentence where they are a reason to doubt the numbers.

    `ranker_trained_until` in seconds, and how many targets of the split are not later; both None where a store has no
    times.
    """
    trained = shown.split("train")
    if "times" not in shown.arrays or store.times is None:
        facts: dict[str, Any] = {"ranker_trained_until": None, "targets_not_later": None}
        which = "the ranker's" if "times" not in shown.arrays else "the retriever's"
        return facts, (
            f"{which} store has no times, so nobody can tell whether the ranker was trained on the targets of the "
            f"{split} split: prepare it with a time column"
        )
    last = int(shown.arrays["times"][trained.start : trained.stop].max())
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
        f"impression ({dated(last)}), so it may have been trained on them: split both stores at the same moments "
        "(split=global_time for events, split=temporal for impressions, both with validation_from and test_from)"
    )
