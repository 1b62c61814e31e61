"""Amazon Electronics as DIN uses it, `amazonelectronics_x1`: which product does a user review next?

The set of G. Zhou et al. (DIN, KDD 2018, arXiv:1706.06978) as BARS (J. Zhu et al., SIGIR 2022) distributes it: for each
review a drawn negative, the products reviewed before and their categories. The last review of a user is tested.
Columns: label, user_id, item_id, cate_id, item_history, cate_history. As in BARS, every value keeps an id, those of
histories too, the last 100 events of a history are read, and the user is the group of gAUC and no field.

Differs: rows to validate are held out of train.csv; `validation=test` is BARS's own choice.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fullrank.data.impressions.fields import Categorical, Schema
from fullrank.data.impressions.splits import GivenSplit
from fullrank.data.sources import _reczoo

FIELDS = (
    Categorical(name="item_id"),
    Categorical(name="cate_id"),
    _reczoo.history("item_history", "item_id"),
    _reczoo.history("cate_history", "cate_id"),
)


class AmazonElectronics(_reczoo.SequenceSet):
    """2,993,570 impressions, half of them positive: 2,608,764 to train on, 384,806 to test."""

    kind: Literal["amazonelectronics"] = "amazonelectronics"
    base_url: str = f"{_reczoo.HOST}/AmazonElectronics_x1/resolve/main"
    """Folder of the archive on the server."""
    archive: ClassVar[str] = "AmazonElectronics_x1.zip"
    columns: ClassVar[Schema] = Schema(fields=FIELDS, group="user_id", split=GivenSplit())
    note: ClassVar[str] = "Amazon Electronics x1: as BARS distributes it; for research"
