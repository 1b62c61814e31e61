"""Items with the same codes: what is done about them. The policy has a name and is stored with the codes.

`list` leaves the codes as they are: a tuple of codes stands for a list of items, and whoever
retrieves settles ties by popularity, then id (RPG leaves duplicates too). `extra_digit` adds
a level that counts the items of a tuple (TIGER, arXiv:2305.05065, Section 3.1). `sinkhorn`
gives colliding items other codes in the last level, by optimal transport (LETTER,
arXiv:2405.07314, after LC-Rec).

Differs, sinkhorn: a code has room for its share of the colliding items instead of having to take
exactly that share (with few of them, the latter sends items to codes that are far off), and the
plan is rounded so that no two items end alike. LETTER repeats up to 20 times and leaves what still
collides; items of equal vectors then collide for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fullrank.core.errors import UserError

Policy = Literal["list", "extra_digit", "sinkhorn"]
Last = Callable[[Tensor], Tensor]
"""Rows [n] -> squared error [n, C] with each code in the last level's place."""

# LETTER's and LC-Rec's regularisation (of distances scaled to [-1, 1]) and rounds
EPSILON, ITERATIONS = 0.003, 50


MOST = 65536  # codes of a level: what fits into 16 bits
MORE = "set more learner.levels, or look at how the vectors are made"
"""Advice where too many items share their codes."""


def resolve_collisions(
    policy: Policy,
    codes: Int64[Tensor, "n K"],
    sizes: tuple[int, ...],
    popularity: Int64[np.ndarray, "n"],
    last: Last,
    fixed: Int64[Tensor, "F L"] | None = None,
) -> tuple[Int64[Tensor, "n L"], tuple[int, ...]]:
    """(codes, sizes) after the policy; L is K, or K + 1 with an extra digit.

    `fixed` are the final codes of the first F rows, which stay: those of items known before, when
    new ones come. Among items that compete, the more popular comes first, then the one of the
    smaller id. Raises `UserError` where the policy cannot separate them.
    """
    known = 0 if fixed is None else len(fixed)
    order = [*range(known), *(known + np.argsort(-popularity[known:], kind="stable")).tolist()]
    if policy == "extra_digit":
        return _digits(codes, sizes, order, fixed)
    if policy == "sinkhorn":
        whole = codes.clone()
        if fixed is not None:
            whole[:known] = fixed
        return _spread(whole, sizes[-1], order, known, last), sizes
    return codes, sizes


def group_by_codes(codes: Int64[Tensor, "n K"]) -> tuple[Int64[np.ndarray, "T K"], Int64[np.ndarray, "n"]]:
    """(distinct tuples in lexical order, the number of each row's tuple)."""
    tuples, inverse = np.unique(codes.numpy(), axis=0, return_inverse=True)
    return tuples, inverse.reshape(-1)


def colliding(codes: Int64[Tensor, "n K"]) -> Bool[np.ndarray, "n"]:
    """Whether each item shares its codes with another."""
    _, group = group_by_codes(codes)
    return np.asarray(np.bincount(group)[group] > 1) if len(group) else np.zeros(0, bool)


def _digits(
    codes: Tensor, sizes: tuple[int, ...], order: list[int], fixed: Tensor | None
) -> tuple[Tensor, tuple[int, ...]]:
    """Codes and sizes with one level more, which counts the items of a
    tuple (policy `extra_digit`)."""
    tuples, group = group_by_codes(codes)
    known = 0 if fixed is None else len(fixed)
    digit = np.zeros(len(codes), np.int64)
    taken = np.zeros(len(tuples), np.int64)
    for row in order:
        digit[row] = int(fixed[row, -1]) if fixed is not None and row < known else taken[group[row]]
        taken[group[row]] = max(taken[group[row]], digit[row] + 1)
    largest = int(digit.max()) + 1
    if fixed is None:
        room = max(*sizes, largest)
        if room > MOST:
            raise UserError(
                f"{largest:,} items share their codes, more than a digit can count ({MOST:,}); {MORE}",
                code="too-many-collisions",
            )
        sizes = (*sizes, room)
    elif largest > sizes[-1]:
        raise UserError(
            f"{largest:,} items share their codes and the extra digit has {sizes[-1]:,} values; encode all items anew",
            code="extra-digit-full",
        )
    return torch.cat([codes, torch.from_numpy(digit)[:, None]], 1), sizes


def _spread(codes: Tensor, size: int, order: list[int], known: int, last: Last) -> Tensor:
    """Codes with other last codes for colliding items, by the
    transport plan (policy `sinkhorn`)."""
    moving = colliding(codes)
    moving[:known] = False
    if not moving.any():
        return codes
    rows = np.flatnonzero(moving)
    plan = transport(last(torch.from_numpy(rows)))
    plan_row = {row: i for i, row in enumerate(rows.tolist())}
    _, prefix = group_by_codes(codes[:, :-1])
    # last codes that are in use, by the number of the codes before them
    taken: dict[int, set[int]] = {}
    for row in np.flatnonzero(~moving).tolist():
        taken.setdefault(int(prefix[row]), set()).add(int(codes[row, -1]))
    for row in order:
        if row not in plan_row:
            continue
        used = taken.setdefault(int(prefix[row]), set())
        if len(used) >= size:
            raise UserError(
                f"sinkhorn cannot separate more than {size:,} items that share all codes but the last; set "
                "collisions=extra_digit or list, or more learner.levels",
                code="too-many-collisions",
            )
        wish = plan[plan_row[row]].argsort(descending=True, stable=True).tolist()
        codes[row, -1] = next(code for code in wish if code not in used)
        used.add(int(codes[row, -1]))
    return codes


def transport(cost: Float[Tensor, "n C"]) -> Float[Tensor, "n C"]:
    """Logarithm of the plan that sends each row to codes of low cost, no code getting more than its share of rows.

    Sinkhorn's scaling (Cuturi 2013) with a capacity for each code: one row, or n / C
    where there are more rows.
    """
    low, high = float(cost.min()), float(cost.max())
    scaled = (cost.double() - (low + high) / 2) / max((high - low) / 2, 1e-30)
    plan = -scaled / EPSILON
    room = np.log(max(1.0, len(cost) / cost.shape[1]))
    column = torch.zeros(1, cost.shape[1], dtype=torch.float64)
    row = torch.zeros(len(cost), 1, dtype=torch.float64)
    for _ in range(ITERATIONS):
        # rows are scaled to sum to one, columns to at most their room
        row = -(plan + column).logsumexp(1, keepdim=True)
        column = (room - (plan + row).logsumexp(0, keepdim=True)).clamp_max(0.0)
    return plan + row + column
