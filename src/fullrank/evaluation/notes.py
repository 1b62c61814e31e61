"""What a person has to know to read an evaluation, as sentences: what was left out, what may have leaked, and which
metrics say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fullrank.data.histories import MANY_REPEATS
from fullrank.data.values import with_date


def protocol_notes(protocol: Mapping[str, Any]) -> list[str]:
    """The notes that a protocol of retrieval calls for; none for a run on a plain split."""
    found = []
    if (longest := max(protocol["ks"])) > protocol["items"]:
        found.append(
            f"a list ends with the catalogue, so k = {longest:,} is read from lists of {protocol['items']:,} items"
        )
    found += _of_repeats(protocol) + (_of_events(protocol) if "events" in protocol else [])
    return found + (_of_lists(protocol) if "lists" in protocol else [])


def _of_repeats(protocol: Mapping[str, Any]) -> list[str]:
    unreachable, targets = protocol.get("unreachable", 0), protocol.get("targets", 0)  # older results have no targets
    if unreachable <= MANY_REPEATS * targets or not targets or protocol.get("lists", {}).get("seen_items"):
        return []
    return [
        f"{unreachable / targets:.1%} of the targets ({unreachable:,} of {targets:,}) stand in their own user's "
        "history, which is excluded, so no list can hit them; --set seen=keep ranks them"
    ]


def _of_events(protocol: Mapping[str, Any]) -> list[str]:
    facts, found = protocol["events"], []
    if left := facts["of_unknown_items"]:
        lost = facts["users_without_known_item"]
        found.append(
            f"{left:,} of {facts['events']:,} events ({left / facts['events']:.1%}) are of items that the model does "
            f"not know and were left out" + (f", and with them {lost:,} users" if lost else "")
        )
    skipped = protocol["users_without_history"]
    if skipped and skipped != "answered":
        found.append(f"{skipped:,} users of whom nothing was known before were left out; empty=answer ranks for them")
    if early := facts["no_later_than_training"]:
        share = early / (facts["events"] - facts["of_unknown_items"])
        found.append(
            f"{share:.1%} of the events lie before the end of the training ({with_date(facts['trained_until'])}), so "
            "the run may have been trained on them: such a number is too good"
        )
    return found


def _of_lists(protocol: Mapping[str, Any]) -> list[str]:
    facts, users = protocol["lists"], protocol["users"]
    found = []
    if none := facts["users_without_list"]:
        found.append(f"{none:,} of {users:,} users have no list, which counts as an empty one")
    if others := facts["users_not_in_store"]:
        found.append(f"{others:,} users of the lists are not in the store, and their lists were left out")
    if short := facts["shorter"]:
        found.append(f"{short:,} lists are shorter than {facts['length']} items, whose empty places count as no hit")
    if strange := facts["unknown_items"]:
        found.append(f"{strange:,} places hold an item that the store does not have, which counts as no hit")
    if facts["seen_items"] and protocol["seen"] == "exclude":
        found.append(
            f"{facts['seen_items']:,} places hold an item of the user's own history, which a run's lists leave out: "
            "compare with a run by seen=keep, or take such items out"
        )
    return found
