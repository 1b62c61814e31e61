"""Spec: a frozen description of one component, which can be built, saved, compared and overridden.

A component's hyperparameters are declared once, in its Spec; ``kind`` is the component's published name, by which
`core/registry.py` finds it. One setting as a person writes it, `a.b=value`, is read by `read_setting` and put into the
plain data of a spec by `put_setting`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fullrank.core.constraints import Constraint
from fullrank.core.errors import UserError, brief, did_you_mean, in_context, middle_cut, nearest, no_such, unknown
from fullrank.core.readers import read_json_text, read_yaml_text

FEW = 5
"""Mistakes that an error sentence tells."""
MOST_MESSAGE = 600
"""Characters that it tells of one: of an enum, pydantic lists what is allowed."""
BEFORE = "before"
"""Where a field that `later` declared keeps the value that changes nothing."""
MEMBER = re.compile(r"(constrained-)?(int|float|str)|(tuple|dict|list|function-\w+)\[.*\]")
"""How pydantic names the members of a union in the path of a mistake."""


class Removed(NamedTuple):
    """A setting that is gone: of a spec that has it at this value nothing has changed, and its hash holds it still."""

    default: Any
    last: str
    """The last version that reads other values."""


REMOVED = {
    ("hstu", "divide_by"): Removed("max_length", "0.1.0"),
    ("sprint", "normalise_count"): Removed(False, "0.1.0"),
}
"""(kind, field) -> what it was; docs/decisions/0025-idle-settings.md says why."""

S = TypeVar("S", bound="Spec")  # not Self: beartype refuses it on methods that are decorated one by one


class Spec(BaseModel):
    """Base of every hyperparameter record: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, given: Any) -> Any:
        if isinstance(given, dict) and not given.keys() <= cls.model_fields.keys():
            given = cls._without_removed(given)
            for key in given:
                if key not in cls.model_fields:
                    names = [n for n in cls.model_fields if n != "kind"]
                    raise no_such(f"{cls.kind_of()} has no setting", key, names, code="unknown-setting")
        return given

    @model_validator(mode="after")
    def _keep_constraints(self: S) -> S:
        for name, constraint in _constraints(type(self)):
            if (sentence := constraint.broken(self, name)) is not None:
                kind, several = getattr(self, "kind", None), getattr(self, "name", None)  # the name of one in a list
                whose = f"{kind} {several!r}: " if kind and several else f"{kind}: " if kind else ""
                raise UserError(whose + sentence, code=constraint.code)
        return self

    @classmethod
    def _without_removed(cls, given: dict[Any, Any]) -> dict[Any, Any]:
        """What an earlier version wrote, less the settings that are gone."""
        for (kind, name), removed in REMOVED.items():
            if kind == cls.kind_of() and given.get(name, removed.default) != removed.default:
                raise UserError(
                    f"{kind}.{name}={brief(given[name])} was removed; the last version that reads it is fullrank "
                    f"{removed.last}: install that one, or leave {name} out, which is {removed.default!r}",
                    code="removed-setting",
                )
        return {name: value for name, value in given.items() if (cls.kind_of(), name) not in REMOVED}

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
            raise UserError(error_sentence(error), code=_code(error)) from None

    @classmethod
    def from_text(cls: type[S], text: str) -> S:
        """A spec from YAML or JSON text."""
        return cls.parse(read_tree(text))

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
                put_setting(tree, path, value)
            except UserError as error:
                raise refusal or error from None
            try:
                tree, refusal = type(self).parse(tree).dump(), None
            except UserError as error:
                refusal = error
        if refusal is not None:
            raise refusal
        return type(self).parse(tree)


@functools.cache
def _constraints(spec: type[Spec]) -> tuple[tuple[str, Constraint], ...]:
    """What the fields of a Spec ask of each other (`core/constraints.py`)."""
    fields = spec.model_fields.items()
    return tuple((name, mark) for name, field in fields for mark in field.metadata if isinstance(mark, Constraint))


def read_tree(text: str) -> Any:
    """The plain data of YAML or JSON text. Raises `UserError` for text that is neither."""
    try:
        return read_json_text(text)  # first: YAML refuses tabs and reads JSON's 1e-05 as text
    except UserError:
        with in_context("this is neither YAML nor JSON: ", code="neither-yaml-nor-json"):
            return read_yaml_text(text)


def read_setting(setting: str) -> tuple[str, Any]:
    """The dotted path and the value (YAML) of `a.b=value`."""
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise UserError(f"cannot read the setting {brief(setting)}: write it as a.b=value", code="unreadable-setting")
    with in_context(f"cannot read the value of {brief(setting)}: it is not YAML (", ")", code="unreadable-setting"):
        return path.strip(), read_yaml_text(text)


class _Started(dict[str, Any]):
    """A component of which the kind alone is known: what else it has, and lacks, shows when it is read."""


def put_setting(tree: dict[str, Any], path: str, value: Any) -> None:
    """Put a value at a dotted path, in place. Raises `UserError` with the nearest name where there is no such path."""
    *above, last = path.strip().split(".")
    inner: Any = tree
    around, place = inner, last
    for key in above:
        around, place = inner, _place(inner, key, path, tree)
        inner = around.get(place) if isinstance(around, dict) else around[place]
    if above and last == "kind" and isinstance(around, dict):
        around[place] = _Started(kind=value)
    else:
        inner[_place(inner, last, path, tree)] = value


def _place(tree: Any, key: str, whole: str, root: dict[str, Any]) -> Any:
    """What a key of the path `whole` names in a list or a mapping. Raises `UserError` where it is none of them."""
    if isinstance(tree, list) and key.isdecimal() and len(key) < 10 and int(key) < len(tree):
        return int(key)
    if isinstance(tree, dict):
        gone = (str(tree.get("kind")), key) in REMOVED  # which the spec refuses, unless the value changes nothing
        if key in tree or gone or isinstance(tree, _Started):
            return key
        names = [n for n in tree if n != "kind"]
        paths = {path: path.rpartition(".")[2] for path in _paths(root)}
        # the path that ends in what was typed (`lr`: `training.lr`), else the nearest name here, else anywhere
        meant, here = [path for path in paths if path.endswith(f".{whole}")], did_you_mean(key, names)
        if not meant and not here:
            meant = [path for path, last in paths.items() if last == nearest(key, paths.values())]
        hint = f"; did you mean {' or '.join(map(repr, meant[:3]))}?" if meant else here
        told = f"there is no setting {brief(key)}{hint} (allowed: {', '.join(names)})"
    elif isinstance(tree, list):
        told = f"{brief(key)} is not a place in a list of {len(tree)}"
    else:
        told = f"nothing can be set below this value; it is {brief(tree)}"
    raise UserError(f"{middle_cut(whole)}: {told}", code="unknown-setting")


def _paths(tree: Any, before: str = "") -> Iterator[str]:
    """The dotted paths of all settings in plain data."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield f"{before}{key}"
        yield from _paths(value, f"{before}{key}.")


def later(default: Any, *, before: Any = ..., **limits: Any) -> Any:
    """The `Field` of a setting that joins a Spec after sweeps with it were recorded.

    `before` (left out: the default) is the value with which everything is as it was without the setting. The hash of a
    spec leaves the setting out while it stands there (`spec_tree`), so recorded rows still count as run.
    """
    # as a dump has it: a tuple is a list there, a Spec a mapping
    plain = TypeAdapter(Any).dump_python(default if before is ... else before, mode="json")
    return Field(default, json_schema_extra={BEFORE: plain}, **limits)


def spec_tree(spec: Spec, without: Mapping[tuple[str, str], Any] | None = None) -> Any:
    """A spec as its hash sees it: plain data in which fields of `later` are left out at their old value.

    `without` names further fields, (kind, field) -> old value, that must stand there and are left out: the spec as it
    was before they existed. None where one of them stands elsewhere, for then there was no such spec.
    """
    try:
        return _without(spec, spec.dump(), without or {})
    except LookupError:
        return None


def _without(value: Any, dumped: Any, without: Mapping[tuple[str, str], Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_without(one, plain, without) for one, plain in zip(value, dumped, strict=True)]
    if isinstance(value, Mapping):  # a dump keeps the order of a mapping, and has its keys as text
        inside = zip(dumped, value.values(), dumped.values(), strict=True)
        return {key: _without(one, plain, without) for key, one, plain in inside}
    if not isinstance(value, Spec):
        return dumped
    kind = type(value).kind_of()
    tree = {field: was.default for (of, field), was in REMOVED.items() if of == kind and (of, field) not in without}
    for name, about in type(value).model_fields.items():
        inner, key = _without(getattr(value, name), dumped[name], without), (kind, name)
        if key in without and inner != without[key]:
            raise LookupError(name)
        extra = about.json_schema_extra
        at_old_value = isinstance(extra, dict) and BEFORE in extra and dumped[name] == extra[BEFORE]
        if key not in without and not at_old_value:
            tree[name] = inner
    return tree


def error_sentence(error: ValidationError) -> str:
    """A pydantic error as one sentence: path, what is wrong, what was given; of many mistakes the first few.

    A list with a wrong entry is not called too short as well: pydantic counts the right ones alone.
    """
    wrong = error.errors()
    around = {item["loc"][:depth] for item in wrong for depth in range(len(item["loc"]))}
    parts, found = [], [item for item in wrong if item["type"] != "too_short" or item["loc"] not in around]
    for item in found[:FEW]:
        where = ".".join(middle_cut(str(p), 80) for p in item["loc"] if not MEMBER.fullmatch(str(p)))
        text = middle_cut(item["msg"].removeprefix("Value error, "), MOST_MESSAGE)
        if item["type"] == "too_short":
            least = item["ctx"]["min_length"]
            text = f"name at least {least} value{'s' * (least > 1)}"
        given = "" if item["type"] == "value_error" else f" (given: {brief(item['input'])})"
        parts.append(f"{where}: {text}{given}" if where else f"{text}{given}")
    return "; ".join([*parts, f"and {len(found) - FEW:,} more mistakes"] if len(found) > FEW else parts)


def _code(error: ValidationError) -> str:
    """The code of the first mistake that has one of its own."""
    inner = (item.get("ctx", {}).get("error") for item in error.errors())
    return next((one.code for one in inner if isinstance(one, UserError)), "invalid-setting")


def by_kind(what: str, *specs: type[Spec], text: str = "kind", usual: str | None = None) -> BeforeValidator:
    """The reader of one of some specs, of a mapping with its `kind` (else the `usual` one), or of a bare `text`."""
    kinds = {spec.model_fields["kind"].default: spec for spec in specs}

    def read(given: Any) -> Any:
        if isinstance(given, str):
            given = {text: given}
        if not isinstance(given, dict):
            return given
        kind = given.get("kind", usual)
        if not isinstance(kind, str) or kind not in kinds:
            raise unknown(what, str(kind), kinds)
        return kinds[kind].model_validate(given)

    return BeforeValidator(read)
