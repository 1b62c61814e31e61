"""A command line that works for every verb, which draws change in one place; `leaves` reads the verbs off typer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from fullrank.cli import build
from tests.attack.worlds import ENCODE, QUICK, known, world


@dataclass(frozen=True)
class Base:
    """Arguments and options of a command that ends with 0. ``@x`` is of the world, ``~x`` in the draw's own folder."""

    arguments: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    """Words that no draw replaces."""
    works: bool = True
    """False: it is refused, since it would take minutes; its paths are attacked with those alone that must be."""


OUT = {"--out": "~out"}
BASES: dict[str, Base] = {
    "demo": Base(options={"--out": "@store"}, works=False),
    "doctor": Base(),
    "list": Base(("attention",)),
    "show": Base(("sasrec",)),
    "schema": Base(options={"--kind": "transformer"}),
    "download": Base(("planted",), OUT),
    "prepare": Base(("@events.csv",), OUT),
    "prepare-impressions": Base(("@impressions.parquet",), {"--schema": "@schema.yaml", **OUT}),
    "subset": Base(("@store",), {**OUT, "--share": "0.5"}),
    "encode": Base(("@store",), {"--vectors": "@vectors.parquet", **OUT}, tuple(ENCODE.split())),
    "train": Base(("sasrec",), {"--data": "@store", **OUT}, tuple(QUICK.split())),
    "pretrain": Base(("sasrec",), {"--data": "@store", **OUT}, (*QUICK.split(), "--data", "@store2")),
    "fisher": Base(("@sasrec",), {"--out": "~f.safetensors", "--batches": "3"}),
    "finetune": Base(("@sasrec",), {"--data": "@store", **OUT, "--stages": "0"}, tuple(QUICK.split())),
    "sweep": Base(("@grid.yaml",), {"--data": "@store", **OUT}),
    "tune": Base(("@space.yaml",), {"--data": "@store", **OUT}),
    "evaluate": Base(("@sasrec",)),
    "recommend": Base(("@sasrec",), {"--history": "3,5,7", "--k": "5"}),
    "similar": Base(("@sasrec",), {"--item": "3", "--k": "5"}),
    "vectors": Base(("@sasrec",), {"--out": "~vectors.parquet"}),
    "grow": Base(("@sasrec",), {"--items": "@new_items.csv", "--start": "mean", **OUT}),
    "serve": Base(("@sasrec",), {"--store": "memory:"}, ("--check",)),
    "predict": Base(("@lr", "@today.csv")),
    "cascade": Base(
        ("@sasrec", "@lr"), {"--user": "user_id", "--item": "item_id", "--candidates": "30"}, ("--context", "hour=3")
    ),
    "diagnose": Base(("@sasrec",), {"--users": "20", "--out": "~rows.jsonl"}),
    "attention": Base(("@sasrec",)),
    "report": Base(("@popularity",), {"--out": "~page.html", "--users": "20"}),
    "export": Base(("@sasrec",), {"--to": "faiss", **OUT}),
    "verify": Base(("@sasrec",)),
    "keys add": Base(("~keys.json",), {"--name": "shop"}, ("--scope", "write")),
    "keys list": Base(("@keys.json",)),
    "keys remove": Base(("@keys.json",), {"--name": "nobody"}, works=False),
    "scale fit": Base(("@scaling.csv",), {"--form": "power", "--resamples": "20"}),
    "scale advise": Base(("@scaling.csv",), {"--flops": "1e12", "--form": "power", "--resamples": "20"}),
    "scale growth": Base(("@store",)),
}
"""Verb -> its base; a verb without one fails `test_every_verb_has_a_base`."""
FILES = {"FILE", "EVENTS", "IMPRESSIONS", "GRID", "SPACE", "RECIPE"}
WRITTEN = {"out", "results", "cache"}


@dataclass(frozen=True)
class Parameter:
    """One argument or option of a verb, as typer knows it."""

    name: str
    """``--k``, or the name of an argument."""
    position: int | None
    """Which argument it is; None of an option."""
    kind: str
    """`int`, `float`, `str`, `Path`, `bool` (a flag)."""
    ends: tuple[Any, ...]
    """The least and the largest number that typer takes."""
    is_file: bool
    """Of a path: whether it is a file's that is read, by what the help calls it."""

    @property
    def is_path(self) -> bool:
        return self.kind == "Path" or (self.position is not None and self.is_file)

    @property
    def is_written(self) -> bool:
        return self.name.removeprefix("--") in WRITTEN


@cache
def leaves() -> dict[str, tuple[Parameter, ...]]:
    """Verb (`scale fit`) -> its parameters, of every verb that there is."""
    return {verb: tuple(_parameters(command)) for verb, command in _walk(typer.main.get_command(build()))}


def _walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _walk(inner, (*path, name))
    else:
        yield " ".join(path), command


def _parameters(command: Any) -> Iterator[Parameter]:
    position = 0
    for one in command.params:
        argument, kind = one.param_type_name == "argument", str(one.type_descriptor.annotation)
        name = next((word for word in ("Path", "int", "float", "bool") if word in kind), "str")
        ends = tuple(end for end in (getattr(one, "min", None), getattr(one, "max", None)) if end is not None)
        is_file = one.metavar in FILES and one.name not in WRITTEN
        yield Parameter(one.name if argument else one.opts[0], position if argument else None, name, ends, is_file)
        position += argument


def parameter_of(verb: str, name: str) -> Parameter:
    return next(one for one in leaves()[verb] if one.name == name)


def changed(
    verb: str, parameter: Parameter | None = None, value: str | None = None, more: tuple[str, ...] = ()
) -> list[str]:
    """The words of a base with one parameter set to `value` (None: a flag), or `more` words behind its name."""
    base = BASES[verb]
    arguments, options = list(base.arguments), {name: (name, text) for name, text in base.options.items()}
    if parameter is not None and parameter.position is not None:
        arguments[parameter.position : parameter.position + 1] = [str(value)]
    elif parameter is not None:
        options[parameter.name] = (parameter.name,) if value is None else (parameter.name, value)
    words = [word for name, pair in options.items() if name not in more for word in pair]
    dashes = ["--"] if any(word.startswith("-") for word in arguments) else []  # an argument, not an option
    return [*verb.split(), "--json", *more, *words, *base.more, *dashes, *arguments]


def watched(words: list[str]) -> list[Path]:
    """What a command line, and the base of its verb, read of the world: it has to be left as it is."""
    base = BASES.get(" ".join(words[:2])) or BASES.get(words[0]) or Base()
    parts = {word[1:] for word in (*words, *base.arguments, *base.options.values()) if word.startswith("@")}
    return [Path(world(part)) for part in sorted(parts) if known(part)]
