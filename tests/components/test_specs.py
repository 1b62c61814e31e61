"""Every Spec of every room passes `fullrank.testing.settings`, and those checks catch planted faults."""

import importlib
import pkgutil
from typing import Literal

import pytest
import torch
from pydantic import ConfigDict, Field

import fullrank
from discover import everything, example, load, name
from fullrank.core.constraints import Width
from fullrank.core.registry import ROOMS
from fullrank.core.spec import Spec
from fullrank.testing import ROOMS as CHECKED
from fullrank.testing.inputs import naming
from fullrank.testing.settings import (
    CHECKS,
    check_bounds,
    check_bounds_of,
    check_described,
    check_frozen,
    check_refusal,
    check_round_trip,
    check_schema,
)  # fmt: skip

CPU = torch.device("cpu")


@pytest.mark.parametrize("room", sorted({*ROOMS} - {"recipes"}))
def test_settings(room) -> None:
    """Of rooms without checks of their own: `check_component` runs those of settings, too."""
    pairs = everything(room)
    assert pairs, "nothing in it"
    for pair in pairs if room not in CHECKED else ():
        for check in CHECKS:
            with naming(name(pair)):
                check(example(load(pair)), CPU)


class Loose(Spec):
    """Planted: takes anything, can be changed, and describes nothing."""

    model_config = ConfigDict(frozen=False, extra="ignore")
    kind: Literal["loose"] = "loose"
    width: int = 3
    sizes: list[int] = []

    @classmethod
    def parse(cls, tree):
        return cls.model_construct(**{key: value for key, value in tree.items() if key in cls.model_fields})


class Unwritten(Spec):
    """Planted: a setting that is not written down."""

    width: int = Field(3, exclude=True)
    """Width."""


class Endless(Spec):
    """Planted: a number without a largest value."""

    width: int | None = Field(3, ge=1)
    """Width."""


class Lists(Spec):
    """Planted: a list of numbers without a largest length."""

    widths: tuple[Width, ...] = ()
    """Widths."""


class Inner(Spec):
    """Planted: a number without bounds in a part without a kind."""

    part: Endless = Endless()
    """A part."""


class Infinite(Spec):
    """Planted: takes inf, which no bound stops."""

    model_config = ConfigDict(allow_inf_nan=True)
    rate: float = Field(1.0, ge=0, le=float("inf"))
    """Rate."""


class Silent(Spec):
    width: int = 3
    """Width."""


Silent.__doc__ = None


def _specs() -> list:
    """Every Spec class of the package."""
    for module in pkgutil.walk_packages(fullrank.__path__, "fullrank."):
        if module.name != "fullrank.__main__":
            importlib.import_module(module.name)
    found, edge = set[type[Spec]](), [Spec]
    while edge:
        edge = [one for above in edge for one in above.__subclasses__()]
        found |= {one for one in edge if one.__module__.startswith("fullrank.")}
    return sorted(found, key=lambda one: (one.__module__, one.__name__))


@pytest.mark.parametrize(
    ("spec", "check"),
    [
        (Loose(), check_refusal),
        (Loose(), check_frozen),
        (Loose(), check_schema),
        (Unwritten(width=4), check_round_trip),
        (Endless(), check_bounds),
        (Lists(), check_bounds),
        (Inner(), check_bounds),
        (Infinite(), check_bounds),
        (Silent(), check_described),
    ],
)
def test_planted_faults_are_caught(spec, check) -> None:
    with pytest.raises(AssertionError):
        check(spec)


def test_every_number_has_bounds() -> None:
    """Also of experiments, preparations, sweeps: what is in no room."""
    found = _specs()
    assert {"Training", "Prepare", "Range", "Budget"} <= {one.__name__ for one in found}
    for one in found:
        check_bounds_of(one)
