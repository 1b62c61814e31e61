"""KuaiVideo, `kuaivideo_x1`: 13.7 million thumbnails of short videos that 10,000 users clicked or passed over.

Kuaishou's set of the China MM 2018 challenge in the split of ALPINE (Y. Li et al., MM 2019) as BARS (J. Zhu et al.,
SIGIR 2022) distributes it: with each impression the videos that the user clicked before and those passed over, each
list cut by the publisher to its first 100. As in BARS, values below 10 occurrences are unknown, those of histories have
ids too, and the user is a field and the group of gAUC. The columns timestamp, is_like and is_follow are not read.

Differs: the images' 64 numbers per video (`item_visual_emb_dim64.h5`), which BARS feeds through a linear map beside
each id, are left out, because a store of impressions holds no vectors (effect unknown). Rows to validate are held out
of train.csv; `validation=test` is BARS's own choice.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fullrank.data.impressions.fields import Categorical, Schema
from fullrank.data.impressions.splits import GivenSplit
from fullrank.data.sources import _reczoo

FIELDS = (
    Categorical(name="user_id", min_count=10),
    Categorical(name="item_id", min_count=10),
    _reczoo.history("pos_items", "item_id"),
    _reczoo.history("neg_items", "item_id"),
)


class KuaiVideo(_reczoo.SequenceSet):
    """13,661,383 impressions: 10,931,092 to train on, 2,730,291 to test."""

    kind: Literal["kuaivideo"] = "kuaivideo"
    base_url: str = f"{_reczoo.HOST}/KuaiVideo_x1/resolve/main"
    """Folder of the archive on the server."""
    archive: ClassVar[str] = "KuaiVideo_x1.zip"
    columns: ClassVar[Schema] = Schema(label="is_click", fields=FIELDS, group="user_id", split=GivenSplit())
    note: ClassVar[str] = "KuaiVideo x1: as BARS distributes it; for research"
