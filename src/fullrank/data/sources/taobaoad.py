"""Taobao display advertising, `taobaoad_x1`: 25 million ads of eight days, with what users did in the shop before.

Alibaba's log (Tianchi 56) as DMR (Z. Lyu et al., AAAI 2020) and BARS (J. Zhu et al., SIGIR 2022) prepare it: seven days
to train on, the eighth is tested; of a user's last 50 behaviours category, brand and kind (`btag`: a page, a cart, a
favourite or a purchase). An ad has the `btag` 1 throughout, so that DIN has a target for that history. As in BARS,
values below 10 occurrences are unknown, those of histories have ids too, the price enters as it is, and the user is a
field and the group of gAUC.

The publisher left what is missing out of each history by itself: the three of a row may differ in length.
Differs: rows to validate are held out of train.csv; `validation=test` is BARS's own choice.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fullrank.data.impressions.fields import Categorical, Numeric, Schema
from fullrank.data.impressions.splits import GivenSplit
from fullrank.data.sources import _reczoo

CATEGORIES = (
    "userid", "cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level",
    "occupation", "new_user_class_level", "adgroup_id", "cate_id", "campaign_id", "customer", "brand", "pid", "btag",
)  # fmt: skip
HISTORIES = {"cate_his": "cate_id", "brand_his": "brand", "btag_his": "btag"}
"""Sequence -> the field of the ad whose values it holds."""
FIELDS = (
    *(Categorical(name=name, min_count=10) for name in CATEGORIES),
    Numeric(name="price", transform="linear"),
    *(_reczoo.history(name, shares, 50) for name, shares in HISTORIES.items()),
)


class TaobaoAd(_reczoo.SequenceSet):
    """25,029,426 impressions: 21,929,911 to train on, 3,099,515 to test."""

    kind: Literal["taobaoad"] = "taobaoad"
    base_url: str = f"{_reczoo.HOST}/TaobaoAd_x1/resolve/main"
    """Folder of the archive on the server."""
    archive: ClassVar[str] = "TaobaoAd_x1.zip"
    columns: ClassVar[Schema] = Schema(label="clk", fields=FIELDS, group="userid", split=GivenSplit())
    note: ClassVar[str] = "Taobao ads x1: as BARS distributes them; for research"
