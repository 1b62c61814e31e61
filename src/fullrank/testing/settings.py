"""Checks of every Spec: it survives YAML and JSON, is closed and frozen, and bounded."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from fullrank.core.errors import UserError
from fullrank.core.readers import read_json_text
from fullrank.core.spec import Spec
from fullrank.testing.inputs import of_specs, variations


def check_round_trip(spec: Spec) -> None:
    """YAML, JSON and plain data give back the spec."""
    for near in (spec, *variations(spec)):
        same = type(near)
        for back in (same.from_text(near.to_yaml()), same.from_text(near.to_json()), same.parse(near.dump())):
            assert back == near, f"{near!r} comes back as {back!r}"
        assert read_json_text(near.to_json()) == read_json_text(json.dumps(near.dump()))


def check_refusal(spec: Spec) -> None:
    """A misspelt setting is refused, and the sentence names the right one."""
    for key in type(spec).model_fields:
        if key == "kind":
            continue
        sentence = _refusal(spec, key + "x")
        assert repr(key + "x") in sentence and f"did you mean {key!r}?" in sentence, sentence
    _refusal(spec, "zzzzzz")


def check_frozen(spec: Spec) -> None:
    """No setting can be changed in place."""
    for key in type(spec).model_fields:
        try:
            setattr(spec, key, getattr(spec, key))
        except ValidationError as error:
            assert error.errors()[0]["type"] == "frozen_instance", error
        else:
            raise AssertionError(f"{key} can be set")
    try:
        hash(spec)
    except TypeError as error:  # a list or a dict among the settings could be changed in place
        raise AssertionError(f"a setting can be changed in place: {error}") from error


def check_schema(spec: Spec) -> None:
    """The JSON Schema can be written, describes every setting, and knows the kind by its name."""
    kind = type(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = read_json_text(json.dumps(kind.model_json_schema()))
    assert schema.get("additionalProperties") is False, "the schema takes keys that the Spec refuses"
    assert set(schema["properties"]) == set(kind.model_fields)
    for key, setting in schema["properties"].items():
        if key == "kind":
            assert setting["const"] == kind.kind_of()
        else:
            assert setting.get("description"), f"{kind.__name__}.{key} has no docstring below it"


def check_bounds(spec: Spec) -> None:
    """Every number has both bounds, every list of numbers a largest length, and none is inf."""
    check_bounds_of(type(spec))
    for key, field in type(spec).model_fields.items():
        for value in (math.inf, math.nan) if field.annotation is float else ():
            try:
                type(spec).parse(spec.dump() | {key: value})
            except UserError:
                continue
            raise AssertionError(f"{type(spec).__name__}.{key} takes {value}")


def check_bounds_of(kind: type[Spec]) -> None:
    """As `check_bounds`, for a class of which no example can be made."""
    schema = kind.model_json_schema()
    for key, setting in schema.get("properties", {}).items():
        for what in _unbounded(setting, schema.get("$defs", {})):
            raise AssertionError(
                f"{kind.__name__}.{key}: {what}; a number needs both bounds, as in Field(64, ge=1, le=2**17)"
            )


def check_described(spec: Spec) -> None:
    """The Spec says in one line what it builds."""
    assert (type(spec).__doc__ or "").strip(), f"{type(spec).__name__} has no docstring"


def _refusal(spec: Spec, key: str) -> str:
    try:
        type(spec).parse(spec.dump() | {key: 1})
    except UserError as error:
        return str(error)
    raise AssertionError(f"the unknown setting {key!r} is taken")


def _unbounded(schema: Any, known: Mapping[str, Any]) -> Iterator[str]:
    """Unbounded parts of a setting's JSON Schema; components in it have their own checks."""
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("prefixItems", ())]
    items = schema.get("items")
    inner += [part for part in (items, schema.get("additionalProperties")) if isinstance(part, dict)]
    if "kind" not in schema.get("properties", {}):
        inner += list(schema.get("properties", {}).values())
    if schema.get("type") in ("integer", "number") and not {"enum", "const"} & schema.keys():
        for bounds, name in (({"minimum", "exclusiveMinimum"}, "least"), ({"maximum", "exclusiveMaximum"}, "largest")):
            if not bounds & schema.keys():
                yield f"it has no {name} value"
    if isinstance(items, dict) and items.get("type") in ("integer", "number") and "maxItems" not in schema:
        yield "a list of numbers has no largest length (max_length)"
    for part in inner:
        yield from _unbounded(part, known)


OF_SETTINGS = (check_round_trip, check_refusal, check_frozen, check_schema, check_bounds, check_described)
CHECKS = of_specs(OF_SETTINGS, lambda spec, device: [(spec, spec)])
