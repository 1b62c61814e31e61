"""The registry of components (which kinds a room has, and the Spec class of each), and the two families of models.

A room here is a group of components that do the same job; its folder is in `PLACES`. Its kinds are
found by reading the source of its folder for Spec classes with a field `kind`, as in ``kind:
Literal["gru"] = "gru"``; nothing is imported before a kind is asked for. A field of a Spec that
holds a component is annotated with its room, as in ``Annotated[Spec, Room("attention")]``: it
accepts a Spec, a mapping with ``kind``, or the bare kind. Third parties join a room through the
entry-point group ``fullrank.<room>``.

The two families of models are told apart by one word, their `Problem`, which stores, evaluation
specs, experiments and results have as an attribute:

- retrieval: a model orders a whole catalogue for each history of events (`data.events.store.Store`).
- ranking: a CTR model gives the probability that an impression is clicked (`data.impressions.store.ImpressionStore`).

A room that does something for both problems states in a Protocol what that is, and registers its
two in one table of its own; callers look up by `problem`:

    evaluation.EVALUATE              metrics of a model on a split        `evaluation.Evaluate`
    evaluation.compare.COMPARE       the paired difference of two results a function of both sides and a metric
    training.data_module.DATA_MODULES   a store, as training sees it      `training.data_module.DataModule`
    analysis.diagnose.DIAGNOSE       what a run looks like from inside    a function of a run, its model and a sample
    analysis.report.report.REPORT    a page about some runs               a function of their results and the split
    analysis.report.collect.FAMILIES what a page takes from a run folder  `analysis.report.collect.Family`
    serving.server.SERVICES          the service of a run, and its routes `serving.base.BaseService`
    serving.version_checks.TRIALS    how a new version is tried           `serving.version_checks.Trial`
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from fullrank.core.errors import UserError, brief, did_you_mean, no_such, unknown
from fullrank.core.spec import Spec

SINGULAR = {"losses": "loss", "items": "kind of items", "regularizers": "penalty"}
"""One component in words, by the last word of its room's name, where that is not the word without its s."""

Problem = Literal["retrieval", "ranking"]
PROBLEMS: tuple[Problem, ...] = get_args(Problem)

load = importlib.import_module
"""Imports the module of a kind; `specs_alone` puts another in its place."""


class Room:
    """Mark of a field that holds a component of one of these rooms.

    `without`: kinds that it may not hold, such as that of the Spec that has the field.
    """

    def __init__(self, *names: str, without: tuple[str, ...] = ()):
        self.names, self.without = names, without

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate, serialization=core_schema.plain_serializer_function_ser_schema(lambda spec: spec.dump())
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        names = sorted(self.kinds())
        full = [handler(find(name, *self.names).__pydantic_core_schema__) | {"required": ["kind"]} for name in names]
        return {"anyOf": [*full, {"enum": names, "description": "The kind alone: everything else at its default."}]}

    def kinds(self) -> list[str]:
        return [kind for name in self.names for kind in kinds(name) if kind not in self.without]

    def validate(self, setting: Any) -> Spec:
        if isinstance(setting, str):
            setting = {"kind": setting}
        if isinstance(setting, Spec):
            if setting.kind_of() in self.kinds() and isinstance(setting, find(setting.kind_of(), *self.names)):
                return setting
            raise UserError(
                f"{setting.kind_of()!r} is not one of {', '.join(sorted(self.kinds()))}", code="kind-not-allowed"
            )
        if not isinstance(setting, dict) or not isinstance(setting.get("kind"), str):
            raise UserError(
                f"expected a mapping with 'kind', one of: {', '.join(sorted(self.kinds()))}", code="missing-kind"
            )
        if setting["kind"] in self.without:
            raise unknown("kind", setting["kind"], sorted(self.kinds()))
        return find(setting["kind"], *self.names).model_validate(setting)


def kinds(room: str) -> list[str]:
    """Every kind of a room, third parties' too, without importing any of them."""
    ours = list(declared(room))
    return ours + [point.name for point in points(room) if point.name not in ours]


def find(kind: str, *rooms: str) -> type[Spec]:
    """The Spec class of a kind in one of these rooms. Raises `UserError` with the nearest name."""
    return component(kind, *rooms)


def component(kind: str, *rooms: str) -> Any:
    """The declaration of a kind in one of these rooms: a Spec class, or a recipe's function."""
    for room in rooms:
        if kind in kinds(room):
            module = declared(room).get(kind)
            theirs = [point for point in points(room) if point.name == kind]
            if len(theirs) + (module is not None) > 1:
                values = ", ".join(point.value for point in theirs)
                raise UserError(
                    f"{kind!r} is declared twice in fullrank.{room}: rename the entry point of {values}",
                    code="declared-twice",
                )
            if module is None:
                return _checked(theirs[0].load(), kind, room)
            return getattr(load(module), defined_names(module)[kind])
    allowed = [k for room in rooms for k in kinds(room)]
    name = rooms[0].split(".")[-1]
    noun = SINGULAR.get(name, name.removesuffix("s"))
    raise no_such(f"no {noun} is called", kind, allowed, code="unknown-kind")


_ROOMS: dict[str, tuple[str, str, str | None]] = {
    "recommender": ("items + encoder + task + loss, trained by gradient descent", "models.sequential.model", "model"),
    "baselines": ("recommenders that are fitted at once", "models.sequential.baselines", "model"),
    "blends": ("lists of several runs, joined", "models.sequential.baselines.blend", "model"),
    "click": ("fields + ranker, trained on impressions to predict clicks", "models.ranking.model", "model"),
    "trees": ("fields -> boosted trees, fitted at once to predict clicks", "models.ranking.lightgbm", "model"),
    "rankers": ("fields of an impression -> logit of a click", "models.ranking", "model.ranker"),
    "rankers.sequences": (
        "behaviour sequences and a target -> one vector each",
        "models.ranking.sequences",
        "model.sequences",
    ),
    "rankers.mixings": ("token mixings of rankmixer and rankelastor", "models.ranking.mixings", "model.ranker.mixing"),
    "rankers.feed_forwards": (
        "per-token networks of rankmixer and rankelastor",
        "models.ranking.feed_forwards",
        "model.ranker.feed_forward",
    ),
    "items": ("item id <-> vector", "models.sequential.items", "model.items"),
    "items.vectors": ("items -> vectors of their text, before any training", "semantic_ids.vectors", "vectors"),
    "items.codes": ("learners of semantic ids: vectors -> codes", "semantic_ids", "learner"),
    "attention": ("token mixers of the transformer encoder", "models.sequential.attention", "model.encoder.attention"),
    "encoders": ("history of vectors -> states", "models.sequential.encoders", "model.encoder"),
    "reasoning": (
        "latent steps behind the history, around any encoder",
        "models.sequential.reasoning",
        "model.reasoner",
    ),
    "objectives.tasks": ("who predicts what", "models.sequential.objectives.tasks", "model.task"),
    "objectives.losses": ("scores -> one number per query", "models.sequential.objectives.losses", "model.loss"),
    "objectives.weightings": ("one factor per query", "models.sequential.objectives.weightings", "model.weighting"),
    "regularizers": ("penalties on a training step", "models.sequential.regularizers", "model.penalties"),
    "data.sources": ("public data sets and the generated one", "data.sources", None),
    "recipes": ("complete experiments under their published names", "recipes", None),
}
"""Room -> what its components do, where their source lies below the package (a folder, or a file), and the setting that
chooses one of them, of an experiment or of `fullrank encode` (vectors, learner).

The names of rooms are older than the folders, and files of other people hold them (entry points, `fullrank list`)."""
ROOMS = {room: what for room, (what, _, _) in _ROOMS.items()}
"""Room -> what its components do."""
PLACES = {room: folder for room, (_, folder, _) in _ROOMS.items()}
"""Room -> where their source lies below the package: a folder, or a file."""
SETTINGS = {room: setting for room, (_, _, setting) in _ROOMS.items() if setting is not None}
"""Room -> the setting that chooses one of them."""


def rooms_named(word: str) -> list[str]:
    """The rooms that a word names: by name or setting, or the last word of either (`regularizers`,
    `model.penalties`, `penalties`).

    Raises `UserError` with the nearest name where there is none.
    """
    for names in ({room: room for room in ROOMS}, SETTINGS):
        if rooms := [room for room, name in names.items() if word in (name, name.split(".")[-1])]:
            return rooms
    short = sorted({name.split(".")[-1] for name in (*ROOMS, *SETTINGS.values())})
    hint = did_you_mean(word, [*short, *SETTINGS.values()])
    raise UserError(
        f"unknown component type {brief(word)}{hint} (allowed: {', '.join(short)})", code="unknown-component-type"
    )


@functools.cache
def declared(room: str) -> dict[str, str]:
    """Kind -> module of a room's own components, read from the source: no import, no torch."""
    if room not in ROOMS:
        raise unknown("room", room, ROOMS)
    folder = Path(__file__).parent.parent.joinpath(*PLACES[room].split("."))
    modules = [f"fullrank.{PLACES[room]}"]
    if folder.is_dir():
        others = {p.rpartition(".")[2] for p in PLACES.values() if p.rpartition(".")[0] == PLACES[room]}
        names = sorted(file.stem for file in folder.glob("*.py"))
        modules += [f"{modules[0]}.{name}" for name in names if name not in {"__init__", *others}]
    places = {kind: module for module in modules for kind in defined_names(module)}
    return dict(sorted(places.items()))


_KIND = re.compile(r'^class (\w+)|^    kind: .*? = "(.+?)"|^@recipe\(.*?(?:kind="(\w+)")?\)\ndef (\w+)', re.MULTILINE)
"""Groups of the match: 1 a class, 2 the kind of the class before it; of a recipe 3 the kind that it is given, if
any, and 4 its function, whose name is else its kind."""


@functools.cache
def defined_names(module: str) -> dict[str, str]:
    """Kind -> name of its class (with a field ``kind``) or function (below ``@recipe``) in one of our modules."""
    names, name = {}, ""
    for line in _KIND.finditer(source_file(module).read_text(encoding="utf-8")):
        name = line[1] or line[4] or name
        if not line[1]:
            names[line[2] or line[3] or name] = name
    return names


def source_file(module: str) -> Path:
    """The path of one of our modules; there may be no such file."""
    folder = Path(__file__).parent.parent.joinpath(*module.split(".")[1:])
    file = folder.with_suffix(".py")  # looked for first: a folder of that name may be left of an older version
    return file if file.is_file() or not folder.is_dir() else folder / "__init__.py"


@functools.cache
def source(module: str) -> ast.Module:
    """The source of one of our modules, read and parsed once."""
    return ast.parse(source_file(module).read_text(encoding="utf-8"))


def points(room: str) -> list[importlib.metadata.EntryPoint]:
    """Entry points of a room, or of another group of ours (`fullrank.metrics`)."""
    return list(_of_room(room, tuple(sys.path)))


@functools.cache
def _of_room(room: str, path: tuple[str, ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """The entry points of one room, cached: selecting walks over all, and every Spec asks."""
    return tuple(_installed(path).select(group=f"fullrank.{room}"))


@functools.cache
def _installed(path: tuple[str, ...]) -> Any:
    """Every entry point, read once for each sys.path: a look-up opens files of all packages."""
    return importlib.metadata.entry_points()


def _checked(loaded: Any, kind: str, room: str) -> Any:
    is_recipe = room == "recipes" and getattr(loaded, "kind", None) == kind
    if not (is_recipe or (isinstance(loaded, type) and issubclass(loaded, Spec) and loaded.kind_of() == kind)):
        raise UserError(
            f"the entry point {kind!r} must name a Spec class whose kind is {kind!r}, not {loaded!r}",
            code="invalid-entry-point",
        )
    return loaded
