"""What `fullrank diagnose` shows of click models: the trajectory of the effective rank, and the theorems beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fullrank.cli.screen import Screen

if TYPE_CHECKING:
    from fullrank.diagnostics.diagnose import Diagnosis

TRAJECTORY = (
    "stable: stable rank, the mean over impressions, with its 5 % and 95 % quantiles; of: the largest it could be; "
    "rose: share of impressions in which it is higher than a line above; entropy: entropy rank."
)
FEED_FORWARD = (
    "A feed-forward's own doing, behind the mixing's norm: stable rank out over in (Theorem 2.2 says below 1), out "
    "less in (Theorem 3.2 says above 0 where it is gated), share of impressions in which it rose."
)
TRANSPOSE = (
    "Theorem 2.1: stable rank behind block transpose, its two bounds, and what they assume: overlap near 0 and "
    "coherence near 1; within: share of impressions between the bounds."
)


def show(screen: Screen, found: Diagnosis) -> None:
    """Tables for a person, each with what it says."""
    for headers, rows, said in (_trajectory(found), _feed_forwards(found), _transposes(found)):
        if rows:
            screen.table(headers, rows)
            screen.say(said)
            screen.say()
    for diagnostic, why in found.left_out().items():
        screen.say(f"left out: {diagnostic} ({why})")


def _trajectory(found: Diagnosis) -> tuple[tuple[str, ...], list[list[Any]], str]:
    rows = []
    for layer in sorted({one["layer"] for one in found.of("token_ranks")}):
        here = [one for one in found.of("token_ranks") if one["layer"] == layer]
        own = {(one["name"], one["index"]): one["value"] for one in here}
        low, high = (own[("stable_rank_quantile", percent)] for percent in (5, 95))
        most = min(own[("tokens", None)], own[("width", None)])
        rose = own.get(("stable_rank_rose", None))
        rows.append([
            here[0]["label"], own[("stable_rank", None)], low, high, most, rose, own[("entropy_rank", None)]
        ])  # fmt: skip
    return ("behind", "stable", "5 %", "95 %", "of", "rose", "entropy"), rows, TRAJECTORY


def _feed_forwards(found: Diagnosis) -> tuple[tuple[str, ...], list[list[Any]], str]:
    names = ("ratio", "gain", "rose")
    return ("feed-forward", *names), _by_tap(found, "feed_forward", names), FEED_FORWARD


def _transposes(found: Diagnosis) -> tuple[tuple[str, ...], list[list[Any]], str]:
    names = ("rank", "lower", "upper", "within", "overlap", "coherence")
    return ("mixing", *names), _by_tap(found, "transpose", names), TRANSPOSE


def _by_tap(found: Diagnosis, kind: str, names: tuple[str, ...]) -> list[list[Any]]:
    values = {(one["label"], one["name"]): one["value"] for one in found.of("rank_theorems")}
    taps = dict.fromkeys(tap for tap, name in values if name.startswith(f"{kind}_"))
    return [[tap, *(values[tap, f"{kind}_{name}"] for name in names)] for tap in taps]
