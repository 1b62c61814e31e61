"""Quality of codes: use, perplexity, collisions, reconstruction, and whether neighbours stay neighbours.

Semantic ids fail in silence: a codebook of which four codes are used, or ids that hundreds of
items share, train without an error and recommend badly. Each figure has a limit (`Limits`) below
which no codes are written.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.core.constraints import Share
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.core.spec import Spec
from fullrank.semantic_ids.collisions import group_by_codes

NEIGHBOURS, QUERIES = 10, 1000
"""k of the neighbour agreement, and the items that it is measured on."""
ROWS = 256
"""Items whose neighbours are looked for at once."""


class Limits(Spec):
    """Limits at which a run stops instead of writing codes. 0 (collisions: 1) allows everything."""

    use: Share = 0.5
    """Least share of a level's codes that some item has."""
    perplexity: Share = 0.1
    """Least perplexity of a level, as a share of its size: a level may use every code and give most items a few."""
    collisions: Share = 0.2
    """Largest share of items that have the codes of an item with another vector, after the policy."""
    neighbours: Share = 0.1
    """Least share of an item's nearest items by text that are nearest by codes too."""


def levels(codes: Int64[Tensor, "n L"], sizes: tuple[int, ...], learned: int) -> list[JsonObject]:
    """Rows about each level: its size, the share of its codes in use, and their perplexity (1 .. size).

    The first `learned` are of codebooks; an extra digit behind them only counts.
    """
    rows = []
    for level, size in enumerate(sizes):
        share = torch.bincount(codes[:, level], minlength=size).double() / max(len(codes), 1)
        entropy = -(share * share.clamp_min(1e-300).log()).sum()
        use = float((share > 0).double().mean())
        rows.append(
            {"level": level, "size": size, "learned": level < learned, "use": use, "perplexity": float(entropy.exp())}
        )
    return rows


def collisions(codes: Int64[Tensor, "n K"], x: Float[Tensor, "n D"]) -> JsonObject:
    """Items that share their codes: of all, and of those whose vectors differ (no learner separates equal ones).

    `rate` is the share of items that share their codes with another; `different` the share of those
    that share them with an item of another vector; `largest` the most items of one tuple.
    """
    tuples, group = group_by_codes(codes)
    _, vector = np.unique(x.numpy(), axis=0, return_inverse=True)
    vector = vector.reshape(-1)
    size = np.bincount(group)
    pairs = np.unique(np.stack([group, vector], 1), axis=0)
    kinds = np.bincount(pairs[:, 0], minlength=len(size))  # distinct vectors of each tuple
    return {
        "tuples": len(tuples),
        "items": int((size[group] > 1).sum()),
        "rate": float((size[group] > 1).mean()),
        "different": float((kinds[group] > 1).mean()),
        "largest": int(size.max()),
    }


def squared_errors(x: Float[Tensor, "n D"], described: Float[Tensor, "n D"]) -> Float[Tensor, "n"]:
    """Squared error of each row, in float64."""
    return (x.double() - described.double()).pow(2).sum(1)


def variance(x: Float[Tensor, "n D"]) -> float:
    """Mean squared distance to the mean, the error of describing every vector by it."""
    return float((x.double() - x.double().mean(0)).pow(2).sum(1).mean())


def neighbour_recall(raw: Float[Tensor, "n D"], described: Float[Tensor, "n E"], seed: int) -> JsonObject:
    """Recall of an item's k nearest by cosine of its vector, among the k nearest by cosine of what its codes describe.

    Over at most `QUERIES` items, drawn by the seed; the item itself is no neighbour. With fewer
    than k + 1 items, k is smaller.
    """
    k = min(NEIGHBOURS, len(raw) - 1)
    if k < 1:
        return {"k": k, "items": 0, "recall": None}
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(raw), generator=generator)[:QUERIES].sort().values
    spaces = F.normalize(raw, dim=1), F.normalize(described, dim=1)
    hits = 0
    for rows in chosen.split(ROWS):
        nearest = []
        for space in spaces:
            scores = (space[rows] @ space.T).scatter_(1, rows[:, None], -torch.inf)
            nearest.append(scores.topk(k, dim=1).indices)
        wanted, near = nearest
        hits += int((wanted[:, :, None] == near[:, None]).any(-1).sum())
    return {"k": k, "items": len(chosen), "recall": hits / (k * len(chosen))}


def check_limits(report: JsonObject, limits: Limits) -> None:
    """Raises `UserError` with advice where a figure is beyond its limit."""
    learned = [level for level in report["levels"] if level["learned"]]
    worst = min(learned, key=lambda level: level["use"])
    if worst["use"] < limits.use:
        raise UserError(
            f"level {worst['level']} uses {worst['use']:.1%} of its {worst['size']:,} codes (perplexity "
            f"{worst['perplexity']:.1f}), the limit is {limits.use:.1%}: the codebook has collapsed; set a smaller "
            "learner.size or whiten=true, or allow it with limits.use=0",
            code="codebook-collapsed",
        )
    least = min(learned, key=lambda level: level["perplexity"] / level["size"])
    if least["perplexity"] < limits.perplexity * least["size"]:
        raise UserError(
            f"level {least['level']} has the perplexity {least['perplexity']:.1f} of {least['size']:,} codes, the "
            f"limit is {limits.perplexity:.1%} of them: most items have a few of its codes; set fewer learner.levels "
            "or fewer dimensions (pca), or allow it with limits.perplexity=0",
            code="codebook-uneven",
        )
    shared = report["collisions"]["after"]["different"]
    if shared > limits.collisions:
        raise UserError(
            f"{shared:.1%} of the items have the codes of an item with another vector, the limit is "
            f"{limits.collisions:.1%}; set more learner.levels, collisions=extra_digit, or allow it with "
            "limits.collisions=1",
            code="too-many-collisions",
        )
    recall = report["neighbours"]["recall"]
    if recall is not None and recall < limits.neighbours:
        raise UserError(
            f"{recall:.1%} of an item's nearest {report['neighbours']['k']} by vector are nearest by codes, the limit "
            f"is {limits.neighbours:.1%}; set more learner.levels, or allow it with limits.neighbours=0",
            code="neighbours-lost",
        )
