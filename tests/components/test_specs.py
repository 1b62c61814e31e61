"""Every Spec of every room passes `fullrank.testing.settings`, and those checks catch planted faults."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from pydantic import ConfigDict, Field

from discover import Pair, everything, example, load, name
from fullrank.core.registry import ROOMS, kinds
from fullrank.core.spec import Spec
from fullrank.testing import name_of
from fullrank.testing.inputs import Check
from fullrank.testing.settings import (
    CHECKS,
    check_described,
    check_frozen,
    check_refusal,
    check_round_trip,
    check_schema,
)  # fmt: skip

CPU = torch.device("cpu")
ALL = pytest.mark.parametrize("pair", everything(), ids=name)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@ALL
def test_settings(pair: Pair, check: Check) -> None:
    check(example(load(pair)), CPU)


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_every_room_has_something_in_it(room: str) -> None:
    assert kinds(room)


class Loose(Spec):
    """Planted: takes anything, can be changed, and describes nothing."""

    model_config = ConfigDict(frozen=False, extra="ignore")
    kind: Literal["loose"] = "loose"
    width: int = 3
    sizes: list[int] = []

    @classmethod
    def parse(cls, tree: object) -> Loose:
        assert isinstance(tree, dict)
        return cls.model_construct(**{key: value for key, value in tree.items() if key in cls.model_fields})


class Unwritten(Spec):
    """Planted: a setting that is not written down."""

    width: int = Field(3, exclude=True)
    """Width."""


class Silent(Spec):
    width: int = 3
    """Width."""


Silent.__doc__ = None


@pytest.mark.parametrize(
    ("spec", "check"),
    [
        (Loose(), check_refusal),
        (Loose(), check_frozen),
        (Loose(), check_schema),
        (Unwritten(width=4), check_round_trip),
        (Silent(), check_described),
    ],
)
def test_planted_faults_are_caught(spec: Spec, check: Check) -> None:
    with pytest.raises(AssertionError):
        check(spec, CPU)
