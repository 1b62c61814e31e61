"""Laws of every Spec of every room: it survives YAML and JSON, refuses what it does not know, and is frozen."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from pydantic import ConfigDict, Field

from discover import Pair, everything, example, load, name, variations
from fullrank.core.errors import UserError
from fullrank.core.registry import ROOMS, kinds
from fullrank.core.spec import Spec

ALL = pytest.mark.parametrize("pair", everything(), ids=name)


def check_round_trip(spec: Spec) -> None:
    same = type(spec)
    for back in (same.from_text(spec.to_yaml()), same.from_text(spec.to_json()), same.parse(spec.dump())):
        assert back == spec
    assert json.loads(spec.to_json()) == json.loads(json.dumps(spec.dump()))


def check_refusal(spec: Spec) -> None:
    """A misspelt setting is refused, and the sentence names the right one."""
    for key in type(spec).model_fields:
        if key == "kind":
            continue
        with pytest.raises(UserError) as refused:
            type(spec).parse(spec.dump() | {key + "x": 1})
        assert f"has no setting '{key}x'" in str(refused.value)
        assert f"did you mean {key!r}?" in str(refused.value), refused.value
    with pytest.raises(UserError):
        type(spec).parse(spec.dump() | {"zzzzzz": 1})


def check_frozen(spec: Spec) -> None:
    for key in type(spec).model_fields:
        with pytest.raises(ValueError, match="frozen"):
            setattr(spec, key, getattr(spec, key))
    hash(spec)  # a list or a dict among the settings could be changed in place


def check_schema(found: type[Spec]) -> None:
    """The JSON Schema can be written, describes every setting, and knows the kind by its name."""
    schema = json.loads(json.dumps(found.model_json_schema()))
    assert schema.get("additionalProperties") is False
    assert set(schema["properties"]) == set(found.model_fields)
    for key, setting in schema["properties"].items():
        if key == "kind":
            assert setting["const"] == found.kind_of()
        else:
            assert setting.get("description"), f"{found.__name__}.{key} has no docstring below it"


@ALL
def test_round_trip(pair: Pair) -> None:
    spec = example(load(pair))
    check_round_trip(spec)
    for other in variations(spec):
        check_round_trip(other)


@ALL
def test_unknown_settings_are_refused(pair: Pair) -> None:
    check_refusal(example(load(pair)))


@ALL
def test_frozen(pair: Pair) -> None:
    check_frozen(example(load(pair)))


@ALL
@pytest.mark.filterwarnings("error")
def test_schema(pair: Pair) -> None:
    check_schema(load(pair))


@ALL
def test_described(pair: Pair) -> None:
    assert (load(pair).__doc__ or "").strip(), "a spec says in one line what it builds"


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


class EventDropout(Spec):
    """Planted: a setting that is not written down."""

    width: int = Field(3, exclude=True)
    """Width."""


def test_planted_faults_are_caught() -> None:
    with pytest.raises(pytest.fail.Exception):
        check_refusal(Loose())
    with pytest.raises(pytest.fail.Exception):
        check_frozen(Loose())
    with pytest.raises(AssertionError):
        check_schema(Loose)
    with pytest.raises(AssertionError):
        check_round_trip(EventDropout(width=4))
