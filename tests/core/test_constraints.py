"""Constraints between settings: what breaks each is refused with its code, by a sentence that helps."""

from typing import Annotated, Any, Literal

import pytest

from fullrank.core.constraints import needs, not_with, once, only_with, some_of
from fullrank.core.spec import Spec
from refusals import refused


class Inner(Spec):
    column: str | None = None


class Whole(Spec):
    kind: Literal["whole"] = "whole"
    gate: bool = False
    mode: Literal["plain", "fancy"] = "plain"
    steps: int = 2
    inner: Inner = Inner()
    norm: Annotated[str | None, only_with("gate", unread=("old",))] = None
    feathers: Annotated[float, only_with("mode", "fancy")] = 0.5
    patience: Annotated[int | None, not_with("steps", 0)] = None
    types: Annotated[tuple[str, ...], needs("inner.column")] = ()
    turn: Annotated[bool, needs("gate", False, code="settings-contradict")] = False
    first: Annotated[float, some_of("second")] = 1.0
    second: float = 0.0
    names: Annotated[tuple[tuple[str, int], ...], once("name", lambda names: [name for name, _ in names])] = ()


@pytest.mark.parametrize(
    ("tree", "code", "said"),
    [
        ({"norm": "rms"}, "setting-without-effect", ("whole: norm=rms", "gate=false", "set gate=true")),
        ({"feathers": 2}, "setting-without-effect", ("feathers=2 ", "mode=plain", "set mode=fancy")),
        ({"patience": 1, "steps": 0}, "setting-without-effect", ("patience=1", "steps=0")),
        ({"types": ["a"]}, "missing-setting", ("types=[a]", "inner.column", "null")),
        ({"turn": True, "gate": True}, "settings-contradict", ("turn=true", "gate=false", "which is true")),
        ({"first": 0}, "weights-all-zero", ("first and second are both 0", "leave whole out")),
        ({"names": [["a", 1], ["a", 2]]}, "repeated-field", ("names: each name once", "['a', 'a']")),
    ],
)
def test_what_is_broken_is_told(tree: dict[str, Any], code: str, said: tuple[str, ...]) -> None:
    with refused(code, *said):
        Whole.parse(tree)


@pytest.mark.parametrize(
    "tree",
    [
        {"norm": "rms", "gate": True}, {"norm": "old"}, {"norm": None}, {"feathers": 2, "mode": "fancy"},
        {"feathers": 0.5}, {"patience": 1}, {"steps": 0}, {"types": ["a"], "inner": {"column": "type"}}, {"turn": True},
        {"first": 0, "second": 1}, {"names": [["a", 1], ["b", 1]]},
    ],
)  # fmt: skip
def test_what_holds_is_taken(tree: dict[str, Any]) -> None:
    assert Whole.parse(tree).dump() == Whole().dump() | tree


def test_a_derived_spec_keeps_them() -> None:
    class Derived(Whole):
        more: Annotated[int, only_with("gate")] = 0

    for tree in ({"norm": "rms"}, {"more": 1}):
        with refused("setting-without-effect", "gate=false"):
            Derived.parse(tree)
