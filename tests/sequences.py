"""Impressions with behaviour sequences: fields, random rows whose parallel sequences agree, and a planted truth."""

import torch

from fullrank.data.batch import Bag, Impressions
from fullrank.data.impressions.schema import FieldInfo

FIELDS = (
    FieldInfo("user", "categorical", 12),
    FieldInfo("history", "sequence", 9, "item"),
    FieldInfo("price", "numeric", 0),
    FieldInfo("genres", "bag", 7),
    FieldInfo("item", "categorical", 9),
    FieldInfo("words", "sequence", 6),
    FieldInfo("kinds", "sequence", 5, "kind"),
    FieldInfo("kind", "categorical", 5),
)
"""Two sequences of the same events, `history` and `kinds`, and one without a target."""
TOGETHER = "together=[[history,kinds]]"
SEARCH = "search=[[kinds,history]]"
PLANTED = (FieldInfo("kind", "categorical", 42), FieldInfo("kinds", "sequence", 42, "kind"))
RATED = (*PLANTED, FieldInfo("ratings", "sequence", 4))


def impressions(rows: int = 11, seed: int = 0, *, length: int = 6, extra: int = 0) -> Impressions:
    """Random rows; some histories are empty. `extra` columns of padding, which holds anything, change nothing."""
    draw = torch.Generator().manual_seed(seed)

    def whole(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=draw)

    lengths = whole(length + 1, rows)
    items, kinds = whole(9, rows, length + 3), whole(5, rows, length + 3)
    wide, missing = length + extra, torch.rand(rows, 1, generator=draw) < 0.3
    return Impressions(
        categorical=torch.stack([whole(12, rows), whole(9, rows), whole(5, rows)], 1),
        numeric=torch.randn(rows, 1, generator=draw).masked_fill(missing, 0.0),
        missing=missing,
        bags=(
            Bag(items[:, :wide], lengths),
            Bag(whole(7, rows, 4), whole(5, rows)),
            Bag(whole(6, rows, 3), whole(4, rows)),
            Bag(kinds[:, :wide], lengths),
        ),
        labels=whole(2, rows).float(),
    )  # fmt: skip


def planted(rows: int, seed: int, length: int = 12) -> Impressions:
    """Clicks of those whose history holds the target's kind, one of 40, which half of them do: no mean tells which."""
    draw = torch.Generator().manual_seed(seed)
    history = torch.randint(2, 42, (rows, length), generator=draw)
    target = torch.randint(2, 42, (rows,), generator=draw)
    place = torch.randint(length, (rows,), generator=draw)
    copied = history.gather(1, place[:, None])[:, 0]
    target = torch.where(torch.rand(rows, generator=draw) < 0.4, copied, target)
    odds = torch.where((history == target[:, None]).any(1), 2.5, -2.5)
    labels = (torch.rand(rows, generator=draw) < torch.sigmoid(odds)).float()
    none = torch.zeros(rows, 0)
    lengths = torch.full((rows,), length)
    return Impressions(target[:, None], none, none.bool(), (Bag(history, lengths),), labels)


def planted_ratings(rows: int, seed: int, shuffled: bool = False) -> tuple[Impressions, torch.Tensor]:
    """Clicks of those who rated the one event of the target's kind well, and how likely each is. `shuffled`: the
    ratings of each history are those of its other events."""
    draw = torch.Generator().manual_seed(seed)
    history = torch.rand(rows, 40, generator=draw).argsort(1)[:, :12] + 2
    ratings = torch.randint(2, 4, (rows, 12), generator=draw)
    place = torch.randint(12, (rows, 1), generator=draw)
    odds = torch.where(ratings.gather(1, place)[:, 0] == 3, 2.5, -2.5)
    labels = (torch.rand(rows, generator=draw) < torch.sigmoid(odds)).float()
    if shuffled:
        ratings = ratings.gather(1, (place + torch.randint(1, 12, (rows, 12), generator=draw)) % 12)
    none, lengths = torch.zeros(rows, 0), torch.full((rows,), 12)
    bags = Bag(history, lengths), Bag(ratings, lengths)
    return Impressions(history.gather(1, place), none, none.bool(), bags, labels), odds
