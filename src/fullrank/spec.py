"""Spec: a frozen description of one component, which can be built, saved, compared and overridden.

A component's hyperparameters are declared once, in its Spec. ``kind`` is the published name of the component and
the name of the file it lives in, so that a room finds it without a registry. A field that holds a component is
annotated with its room: ``attention: Annotated[Spec, Room("attention")]``; such a field accepts a Spec, a mapping
with ``kind``, or the bare kind. Third parties join a room through the entry-point group ``fullrank.<room>``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from fullrank.core.readers import read_json_text, read_yaml_text
from fullrank.errors import UserError, brief, nearest, unknown
from fullrank.overrides import place, read_setting

FEW = 5
"""Mistakes that an error sentence tells."""
S = TypeVar("S", bound="Spec")  # not Self: beartype refuses it on methods that are decorated one by one


class Spec(BaseModel):
    """Base of every hyperparameter record: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        ser_json_inf_nan="constants",
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, given: Any) -> Any:
        if isinstance(given, dict):
            for key in given:
                if key not in cls.model_fields:
                    names = [n for n in cls.model_fields if n != "kind"]
                    hint = nearest(str(key), names)
                    raise ValueError(f"{cls.kind_of()} has no setting {brief(key)}{hint} (allowed: {', '.join(names)})")
        return given

    @classmethod
    def kind_of(cls) -> str:
        """The published name of the component, or the class name of a part that has no kind."""
        field = cls.model_fields.get("kind")
        return field.default if field is not None else cls.__name__.lower()

    @classmethod
    def parse(cls: type[S], tree: Any) -> S:
        """A spec from plain data (the inverse of `dump`). Raises `UserError` with the path of what is wrong."""
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise UserError(explain(error)) from None

    @classmethod
    def from_text(cls: type[S], text: str) -> S:
        """A spec from YAML or JSON text."""
        try:
            tree = read_json_text(text)  # first: YAML refuses tabs and reads JSON's 1e-05 as text
        except UserError:
            try:
                tree = read_yaml_text(text)
            except UserError as error:
                raise UserError(f"this is neither YAML nor JSON: {error}") from None
        return cls.parse(tree)

    def dump(self) -> dict[str, Any]:
        """Plain data: what JSON and YAML can hold."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        return json.dumps(self.dump(), indent=2) + "\n"

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.dump(), sort_keys=False)

    def override(self: S, *settings: str) -> S:
        """A copy with dotted settings replaced: ``spec.override("model.dim=128", "model.loss=bce")``.

        Values are YAML. Setting a component to a bare kind, or setting its ``kind``, starts it from its defaults.
        Settings that are sound only together may come in either order: what counts is where they end.
        """
        tree, refusal = self.dump(), None
        for setting in settings:
            path, value = read_setting(setting)
            try:
                place(tree, path, value)
            except UserError as error:
                raise refusal or error from None
            try:
                tree, refusal = type(self).parse(tree).dump(), None
            except UserError as error:
                refusal = error
        if refusal is not None:
            raise refusal
        return type(self).parse(tree)


class Room:
    """Marks a field that holds a component of one of these rooms (modules or packages below ``fullrank``)."""

    def __init__(self, *names: str):
        self.names = names

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate, serialization=core_schema.plain_serializer_function_ser_schema(lambda spec: spec.dump())
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        names = sorted(self.kinds())
        full = [handler(find(name, *self.names).__pydantic_core_schema__) | {"required": ["kind"]} for name in names]
        return {"anyOf": [*full, {"enum": names, "description": "The kind alone: everything else at its default."}]}

    def kinds(self) -> list[str]:
        return [kind for name in self.names for kind in kinds(name)]

    def validate(self, given: Any) -> Spec:
        if isinstance(given, str):
            given = {"kind": given}
        if isinstance(given, Spec):
            if given.kind_of() in self.kinds() and isinstance(given, find(given.kind_of(), *self.names)):
                return given
            raise ValueError(f"{given.kind_of()!r} is not one of {', '.join(sorted(self.kinds()))}")
        if not isinstance(given, dict) or not isinstance(given.get("kind"), str):
            raise ValueError(f"expected a mapping with 'kind', one of: {', '.join(sorted(self.kinds()))}")
        return find(given["kind"], *self.names).model_validate(given)


def kinds(room: str) -> list[str]:
    """Every kind of a room, ours and those of installed third parties, without importing any of them."""
    if room not in ROOMS:
        raise unknown("room", room, ROOMS)
    folder = _folder(room)
    if folder.is_dir():
        own = [m.name for m in pkgutil.iter_modules([str(folder)]) if _declares(room, m.name)]
    else:
        own = [room]
    return own + [point.name for point in _points(room) if point.name not in own]


def find(kind: str, *rooms: str) -> type[Spec]:
    """The Spec class of a kind in one of these rooms. Raises with the nearest name where there is none."""
    for room in rooms:
        if kind in kinds(room):
            inner = _folder(room).is_dir()
            points = [point for point in _points(room) if point.name == kind]
            if len(points) + (_declares(room, kind) if inner else kind == room) > 1:
                values = ", ".join(point.value for point in points)
                raise ValueError(f"{kind!r} is declared twice in fullrank.{room}: rename the entry point of {values}")
            if points:
                return _checked(points[0].load(), kind)
            module = importlib.import_module(f"fullrank.{room}.{kind}" if inner else f"fullrank.{room}")
            return next(c for c in _specs_in(module) if c.kind_of() == kind)
    allowed = [k for room in rooms for k in kinds(room)]
    hint = nearest(kind, allowed)
    name = rooms[0].split(".")[-1]
    one = {"losses": "loss", "items": "kind of items"}.get(name, name.removesuffix("s"))
    raise ValueError(f"no {one} is called {brief(kind)}{hint} (allowed: {', '.join(allowed)})")


def discover(room: str) -> Iterator[type[Spec]]:
    """Every Spec class of a room (what the laws run on)."""
    for kind in kinds(room):
        yield find(kind, room)


ROOMS = {
    "recommender": "items + encoder + task + loss, trained by gradient descent",
    "baselines": "recommenders without gradient descent",
    "click": "fields + ranker, trained on impressions to predict clicks",
    "rankers": "fields of an impression -> logit of a click",
    "rankers.mixings": "token mixings of rankmixer and rankelastor",
    "rankers.feed_forwards": "per-token networks of rankmixer and rankelastor",
    "items": "item id <-> vector",
    "items.vectors": "items -> vectors of their text, before any training",
    "items.codes": "learners of semantic ids: vectors -> codes",
    "attention": "token mixers of the transformer encoder",
    "encoders": "history of vectors -> states",
    "reasoning": "latent steps behind the history, around any encoder",
    "objectives.tasks": "who predicts what",
    "objectives.losses": "scores -> one number per query",
    "objectives.weightings": "one factor per query",
    "regularizers": "penalties on a training step",
    "data.sources": "public data sets and the generated one",
    "recipes": "complete experiments under their published names",
}


def explain(error: ValidationError) -> str:
    """A pydantic error as one sentence: path, what is wrong, what was given; of many mistakes the first few."""
    parts, found = [], error.errors()
    for item in found[:FEW]:
        where = ".".join(str(p) for p in item["loc"])
        text = item["msg"].removeprefix("Value error, ")
        given = "" if item["type"] == "value_error" else f" (given: {brief(item['input'])})"
        parts.append(f"{where}: {text}{given}" if where else f"{text}{given}")
    return "; ".join([*parts, f"and {len(found) - FEW:,} more mistakes"] if len(found) > FEW else parts)


@functools.cache
def _declares(room: str, name: str) -> bool:
    """A module belongs to a room's kinds when its text declares that kind (no import: torch stays unloaded)."""
    try:
        return f'Literal["{name}"] = "{name}"' in (_folder(room) / f"{name}.py").read_text(encoding="utf-8")
    except OSError:
        return False


def _folder(room: str) -> Path:
    """Where a room's files lie, found without importing the rooms around it; no folder where it is a single file."""
    return Path(__file__).parent.joinpath(*room.split("."))


def _points(room: str) -> list[importlib.metadata.EntryPoint]:
    return list(_installed(room, tuple(sys.path)))


@functools.cache
def _installed(room: str, path: tuple[str, ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Entry points of a room, read once for each value of sys.path: every look-up opens the files of every package."""
    return tuple(importlib.metadata.entry_points(group=f"fullrank.{room}"))


def _checked(found: Any, kind: str) -> type[Spec]:
    if not (isinstance(found, type) and issubclass(found, Spec) and found.kind_of() == kind):
        raise ValueError(f"the entry point {kind!r} must name a Spec class whose kind is {kind!r}, not {found!r}")
    return found


def _specs_in(module: Any) -> Iterator[type[Spec]]:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Spec) and value.__module__ == module.__name__:
            yield value
