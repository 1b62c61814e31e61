"""Spec: a frozen description of one component, which can be built, saved, compared and overridden.

A component's hyperparameters are declared once, in its Spec; ``kind`` is the component's published
name, by which `core/registry.py` finds it. One setting as a person writes it, `a.b=value`, is read
by `read_setting` and put into the plain data of a spec by `put_setting`.
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
from fullrank.core.readers import JsonObject, read_json_text, read_yaml_text

FEW = 5
"""Most mistakes that an error sentence tells."""
MOST_MESSAGE = 600
"""Characters that it tells of one: of an enum, pydantic lists what is allowed."""
BEFORE = "before"
"""Where a field that `later` declared keeps the value that changes nothing."""
MEMBER = re.compile(r"(constrained-)?(int|float|str)|(tuple|dict|list|function-\w+)\[.*\]")
"""How pydantic names the members of a union in the path of a mistake."""


class Removed(NamedTuple):
    """A removed setting: a spec with it at this default is unchanged, and hashes still hold it."""

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
    """Base of every record of hyperparameters: frozen, and closed to unknown keys."""

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
    def _refuse_unknown_keys(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and not tree.keys() <= cls.model_fields.keys():
            tree = cls._without_removed(tree)
            for key in tree:
                if key not in cls.model_fields:
                    names = [n for n in cls.model_fields if n != "kind"]
                    raise no_such(f"{cls.kind_of()} has no setting", key, names, code="unknown-setting")
        return tree

    @model_validator(mode="after")
    def _keep_constraints(self: S) -> S:
        for name, constraint in _constraints(type(self)):
            if (sentence := constraint.broken(self, name)) is not None:
                kind, label = getattr(self, "kind", None), getattr(self, "name", None)  # a name: one of a list
                owner = f"{kind} {label!r}: " if kind and label else f"{kind}: " if kind else ""
                raise UserError(owner + sentence, code=constraint.code)
        return self

    @classmethod
    def _without_removed(cls, tree: dict[Any, Any]) -> dict[Any, Any]:
        """The plain data without removed settings. Raises `UserError` where one was in use."""
        for (kind, name), removed in REMOVED.items():
            if kind == cls.kind_of() and tree.get(name, removed.default) != removed.default:
                raise UserError(
                    f"{kind}.{name}={brief(tree[name])} was removed, and version {removed.last} was the last that read "
                    f"it: leave {name} out, which is {removed.default!r}",
                    code="removed-setting",
                )
        return {name: value for name, value in tree.items() if (cls.kind_of(), name) not in REMOVED}

    @classmethod
    def kind_of(cls) -> str:
        """The published name of the component, or the class name of a part that has no kind."""
        field = cls.model_fields.get("kind")
        return field.default if field is not None else cls.__name__.lower()

    @classmethod
    def parse(cls: type[S], tree: Any) -> S:
        """A spec from plain data, the inverse of `dump`. Raises `UserError` with the wrong path."""
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            causes = (mistake.get("ctx", {}).get("error") for mistake in error.errors())
            code = next((cause.code for cause in causes if isinstance(cause, UserError)), "invalid-setting")
            raise UserError(error_sentence(error), code=code) from None

    @classmethod
    def from_text(cls: type[S], text: str) -> S:
        """A spec from YAML or JSON text."""
        return cls.parse(read_tree(text))

    def dump(self) -> JsonObject:
        """Plain data, as JSON and YAML can hold it."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        return json.dumps(self.dump(), indent=2) + "\n"

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.dump(), sort_keys=False)

    def override(self: S, *settings: str) -> S:
        """A copy with dotted settings replaced: ``spec.override("model.dim=128", "model.loss=bce")``.

        Values are YAML. Setting a component to a bare kind, or setting its ``kind``, starts it from
        its defaults. Settings that are sound only together may come in either order: what counts is
        where they end.
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
    """The constraints of a Spec class by field (`core/constraints.py`)."""
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
    """A component of which only the kind is known; reading it shows what else it has and lacks."""


def put_setting(tree: JsonObject, path: str, value: Any) -> None:
    """Set the value at a dotted path, in place. Raises `UserError` with the nearest name."""
    *above, last = path.strip().split(".")
    node: Any = tree
    parent, place = node, last
    for key in above:
        parent, place = node, _entry(node, key, path, tree)
        node = parent.get(place) if isinstance(parent, dict) else parent[place]
    if above and last == "kind" and isinstance(parent, dict):  # a new kind starts from its defaults
        parent[place] = _Started(kind=value)
    else:
        node[_entry(node, last, path, tree)] = value


def _entry(tree: Any, key: str, whole: str, root: JsonObject) -> Any:
    """The index or key that `key` names in a list or mapping. Raises `UserError` for none."""
    if isinstance(tree, list) and key.isdecimal() and len(key) < 10 and int(key) < len(tree):
        return int(key)
    if isinstance(tree, dict):
        gone = (str(tree.get("kind")), key) in REMOVED  # which the spec refuses, unless the value changes nothing
        if key in tree or gone or isinstance(tree, _Started):
            return key
        names = [n for n in tree if n != "kind"]
        paths = {path: path.rpartition(".")[2] for path in _paths(root)}
        # the path that ends in what was typed (`lr`: `training.lr`), else the nearest
        # name here, else anywhere
        meant, here = [path for path in paths if path.endswith(f".{whole}")], did_you_mean(key, names)
        if not meant and not here:
            meant = [path for path, last in paths.items() if last == nearest(key, paths.values())]
        hint = f"; did you mean {' or '.join(map(repr, meant[:3]))}?" if meant else here
        problem = f"there is no setting {brief(key)}{hint} (allowed: {', '.join(names)})"
    elif isinstance(tree, list):
        problem = f"{brief(key)} is not a place in a list of {len(tree)}"
    else:
        problem = f"nothing can be set below this value; it is {brief(tree)}"
    raise UserError(f"{middle_cut(whole)}: {problem}", code="unknown-setting")


def _paths(tree: Any, before: str = "") -> Iterator[str]:
    """The dotted paths of all settings in plain data."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield f"{before}{key}"
        yield from _paths(value, f"{before}{key}.")


def later(default: Any, *, before: Any = ..., **limits: Any) -> Any:
    """The `Field` of a setting that joins a Spec after sweeps with it were recorded.

    `before` (left out: the default) is the value with which everything is as it was without the
    setting. The hash of a spec leaves the setting out while it stands there (`spec_tree`), so
    recorded rows still count as run.
    """
    # as a dump has it: a tuple is a list there, a Spec a mapping
    plain = TypeAdapter(Any).dump_python(default if before is ... else before, mode="json")
    return Field(default, json_schema_extra={BEFORE: plain}, **limits)


def spec_tree(spec: Spec, without: Mapping[tuple[str, str], Any] | None = None) -> Any:
    """A spec as its hash sees it: plain data, in which a field of `later` is left out while it has its old value.

    `without` names further fields, (kind, field) -> old value, that must stand there and are left
    out: the spec as it was before they existed. None where one of them stands elsewhere, for then
    there was no such spec.
    """
    try:
        return _hashed(spec, spec.dump(), without or {})
    except LookupError:
        return None


def _hashed(value: Any, dumped: Any, without: Mapping[tuple[str, str], Any]) -> Any:
    """`spec_tree` of a value inside a spec, beside its dump. Raises
    `LookupError` in place of None."""
    if isinstance(value, list | tuple):
        return [_hashed(element, plain, without) for element, plain in zip(value, dumped, strict=True)]
    if isinstance(value, Mapping):  # a dump keeps the order of a mapping, and has its keys as text
        return {
            key: _hashed(element, dumped[key], without) for key, element in zip(dumped, value.values(), strict=True)
        }
    if not isinstance(value, Spec):
        return dumped
    kind = type(value).kind_of()
    tree = {
        name: old.default for (owner, name), old in REMOVED.items() if owner == kind and (kind, name) not in without
    }
    for name, field in type(value).model_fields.items():
        inner, key, extra = _hashed(getattr(value, name), dumped[name], without), (kind, name), field.json_schema_extra
        if key in without:
            if inner != without[key]:
                raise LookupError(name)
        elif not isinstance(extra, dict) or BEFORE not in extra or dumped[name] != extra[BEFORE]:
            tree[name] = inner
    return tree


def error_sentence(error: ValidationError) -> str:
    """A pydantic error as one sentence: path, what is wrong, what was given; of many mistakes the first few.

    A list with a wrong entry is not called too short as well: pydantic counts the right ones alone.
    """
    mistakes, parts = error.errors(), []
    holders = {mistake["loc"][:depth] for mistake in mistakes for depth in range(len(mistake["loc"]))}
    mistakes = [mistake for mistake in mistakes if mistake["type"] != "too_short" or mistake["loc"] not in holders]
    for mistake in mistakes[:FEW]:
        path = ".".join(middle_cut(str(p), 80) for p in mistake["loc"] if not MEMBER.fullmatch(str(p)))
        text = middle_cut(mistake["msg"].removeprefix("Value error, "), MOST_MESSAGE)
        if mistake["type"] == "too_short":
            least = mistake["ctx"]["min_length"]
            text = f"name at least {least} value{'s' * (least > 1)}"
        if mistake["type"] != "value_error":
            text += f" (given: {brief(mistake['input'])})"
        parts.append(f"{path}: {text}" if path else text)
    return "; ".join([*parts, f"and {len(mistakes) - FEW:,} more mistakes"] if len(mistakes) > FEW else parts)


def by_kind(what: str, *specs: type[Spec], text: str = "kind", usual: str | None = None) -> BeforeValidator:
    """A validator that reads one of these specs: from a mapping with `kind` (without it, the `usual` one), or from a
    bare text, its field `text`."""
    kinds = {spec.model_fields["kind"].default: spec for spec in specs}

    def read(tree: Any) -> Any:
        if isinstance(tree, str):
            tree = {text: tree}
        if not isinstance(tree, dict):
            return tree
        kind = tree.get("kind", usual)
        if not isinstance(kind, str) or kind not in kinds:
            raise unknown(what, str(kind), kinds)
        return kinds[kind].model_validate(tree)

    return BeforeValidator(read)
