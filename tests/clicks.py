"""What tests of click models are made of: fields of every kind, random impressions, and a planted interaction."""

import torch

from fullrank.data.batch import Bag, Impressions
from fullrank.data.impressions.schema import FieldInfo
from fullrank.testing.rankers import FIELDS

__all__ = ["FIELDS", "PLANTED", "impressions", "planted"]

PLANTED = tuple(FieldInfo(name, "categorical", 8) for name in ("a", "b", "c", "d"))


def impressions(rows: int = 11, seed: int = 0, labels: bool = True) -> Impressions:
    """Random impressions of `FIELDS`; some values are missing, some bags empty."""
    draw = torch.Generator().manual_seed(seed)

    def whole(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=draw)

    missing = torch.rand(rows, 2, generator=draw) < 0.3
    return Impressions(
        categorical=torch.stack([whole(12, rows), whole(9, rows), whole(5, rows)], 1),
        numeric=torch.randn(rows, 2, generator=draw).masked_fill(missing, 0.0),
        missing=missing,
        bags=(Bag(whole(7, rows, 4), whole(5, rows)), Bag(whole(9, rows, 6), whole(7, rows))),
        labels=whole(2, rows).float() if labels else None,
        rows=torch.arange(rows),
        groups=whole(3, rows),
    )


def planted(rows: int, seed: int) -> Impressions:
    """Clicks that depend on whether a and b are both even or both odd: no field tells anything by itself."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 8, (rows, len(PLANTED)), generator=draw)
    odds = torch.where((ids[:, 0] + ids[:, 1]) % 2 == 0, 2.5, -2.5)
    labels = (torch.rand(rows, generator=draw) < torch.sigmoid(odds)).float()
    none = torch.zeros(rows, 0)
    return Impressions(ids, none, none.bool(), labels=labels)
