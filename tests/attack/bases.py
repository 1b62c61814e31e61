"""A command line that works for every verb, which cases change in one place; `leaves` finds the verbs by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from fullrank.cli import build
from tests.attack.worlds import DIM, ENCODE, TINY, set_of

QUICK = (*set_of(*TINY, *DIM),)


@dataclass(frozen=True)
class Base:
    """Arguments and options of a command that ends with 0. ``@x`` is of the world, ``~x`` in the case's own folder."""

    arguments: tuple[str, ...] = ()
    options: dict[str, str | None] = field(default_factory=dict)
    """Option -> its value; None of a flag."""
    more: tuple[str, ...] = ()
    """Options that may be repeated, which no case replaces."""
    works: bool = True
    """False: it is refused, since it would take minutes; its paths are attacked with those alone that must be."""


BASES: dict[str, Base] = {
    "demo": Base(options={"--out": "@store"}, works=False),
    "doctor": Base(),
    "list": Base(("attention",)),
    "show": Base(("sasrec",)),
    "schema": Base(options={"--kind": "transformer"}),
    "download": Base(("planted",), {"--out": "~downloads"}),
    "prepare": Base(("@events.csv",), {"--out": "~out"}),
    "prepare-impressions": Base(("@impressions.parquet",), {"--schema": "@schema.yaml", "--out": "~out"}),
    "subset": Base(("@store",), {"--out": "~out", "--share": "0.5"}),
    "encode": Base(("@store",), {"--vectors": "@vectors.parquet", "--out": "~out"}, tuple(ENCODE.split())),
    "train": Base(("sasrec",), {"--data": "@store", "--out": "~out"}, QUICK),
    "pretrain": Base(("sasrec",), {"--data": "@store", "--out": "~out"}, (*QUICK, "--data", "@store2")),
    "fisher": Base(("@sasrec",), {"--out": "~f.safetensors", "--batches": "3"}),
    "finetune": Base(("@sasrec",), {"--data": "@store", "--out": "~out", "--stages": "0"}, QUICK),
    "calibrate": Base(("@lr",), {"--out": "~out"}),
    "sweep": Base(("@grid.yaml",), {"--data": "@store", "--out": "~out"}),
    "tune": Base(("@space.yaml",), {"--data": "@store", "--out": "~out"}),
    "evaluate": Base(("@sasrec",)),
    "recommend": Base(("@sasrec",), {"--history": "3,5,7", "--k": "5"}),
    "similar": Base(("@sasrec",), {"--item": "3", "--k": "5"}),
    "vectors": Base(("@sasrec",), {"--out": "~vectors.parquet"}),
    "grow": Base(("@sasrec",), {"--items": "@new_items.csv", "--start": "mean", "--out": "~out"}),
    "serve": Base(("@sasrec",), {"--store": "memory:"}, ("--check",)),
    "predict": Base(("@lr", "@today.csv")),
    "cascade": Base(
        ("@sasrec", "@lr"), {"--user": "user_id", "--item": "item_id", "--candidates": "30"},
        ("--context", "hour=3"),
    ),
    "diagnose": Base(("@sasrec",), {"--users": "20", "--out": "~rows.jsonl"}),
    "attention": Base(("@sasrec",)),
    "report": Base(("@popularity",), {"--out": "~page.html", "--users": "20"}),
    "export": Base(("@sasrec",), {"--to": "faiss", "--out": "~out"}),
    "verify": Base(("@sasrec",)),
    "keys add": Base(("~keys.json",), {"--name": "shop"}, ("--scope", "write")),
    "keys list": Base(("@keys.json",)),
    "keys remove": Base(("@keys.json",), {"--name": "nobody"}, works=False),
    "scale fit": Base(("@scaling.csv",), {"--form": "power", "--resamples": "20"}),
    "scale advise": Base(("@scaling.csv",), {"--flops": "1e12", "--form": "power", "--resamples": "20"}),
    "scale growth": Base(("@store",)),
}  # fmt: skip
"""Verb -> its base; a verb without one fails `test_every_verb_has_a_base`."""


@dataclass(frozen=True)
class Parameter:
    """One argument or option of a verb, as typer knows it."""

    name: str
    """``--k``, or the name of an argument."""
    place: int | None
    """Which argument it is; None of an option."""
    kind: str
    """`int`, `float`, `str`, `Path`, `bool` (a flag)."""
    many: bool
    metavar: str
    is_file: bool
    """Of a path: whether it is a file's that is read, by what the help calls it."""


FILES = {"FILE", "EVENTS", "IMPRESSIONS", "GRID", "SPACE", "RECIPE"}
WRITTEN = {"out", "results", "cache"}


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
    place = 0
    for one in command.params:
        argument = one.param_type_name == "argument"
        kind = str(one.type_descriptor.annotation)
        name = next((word for word in ("Path", "int", "float", "bool") if word in kind), "str")
        is_file = one.metavar in FILES and one.name not in WRITTEN
        many = bool(getattr(one, "multiple", False) or one.nargs != 1)
        yield Parameter(
            one.name if argument else one.opts[0], place if argument else None, name, many, one.metavar or "", is_file
        )
        place += argument


def words_of(verb: str, home: Path, place: Path, **changes: Any) -> list[str]:
    """The base of a verb as words; see `changed`."""
    return located(changed(verb, **changes), home, place)


def changed(verb: str, parameter: Parameter | None = None, value: str | None = None) -> list[str]:
    """The words of a base with one parameter set to `value`, in place of the base's own."""
    base = BASES[verb]
    arguments, options, more = list(base.arguments), dict(base.options), list(base.more)
    if parameter is not None and parameter.place is not None:
        arguments[parameter.place : parameter.place + 1] = [str(value)]
    elif parameter is not None:
        options[parameter.name] = value
    given = [word for name, text in options.items() for word in ((name,) if text is None else (name, text))]
    dashes = ["--"] if any(word.startswith("-") for word in arguments) else []  # an argument, not an option
    return [*verb.split(), "--json", *given, *more, *dashes, *arguments]


def located(words: list[str], home: Path, place: Path) -> list[str]:
    """Words with ``@x`` and ``~x`` as paths."""
    return [
        str(home / word[1:]) if word.startswith("@") and (home / word[1:].split("/")[0]).exists()
        else str(place / word[1:]) if word.startswith("~") and len(word) > 1
        else word
        for word in words
    ]  # fmt: skip
