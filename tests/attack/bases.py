"""A command line that works for every verb, which draws change in one place; `leaves` reads the verbs off typer."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from fullrank.cli import build
from tests.attack.worlds import ENCODE, QUICK, known, world

BASES: dict[str, str] = {
    "demo": "--out @store",
    "doctor": "",
    "doctor-serve": "--port 0",
    "list": "attention",
    "show": "sasrec",
    "schema": "--kind transformer",
    "download": "planted --out ~out",
    "prepare": "@events.csv --out ~out",
    "prepare-impressions": "@impressions.parquet --schema @schema.yaml --out ~out",
    "check": "@store",
    "subset": "@store --out ~out --share 0.5",
    "encode": f"@store --vectors @vectors.parquet --out ~out {ENCODE}",
    "train": f"sasrec --data @store --out ~out {QUICK}",
    "pretrain": f"sasrec --data @store --out ~out {QUICK} --data @store2",
    "auto": "@lr --out ~out --minutes 0.05 --no-page",
    "blend": "@popularity @sasrec --data @store --out ~out",
    "fisher": "@sasrec --out ~f.safetensors --batches 3",
    "finetune": f"@sasrec --data @store --out ~out --stages 0 {QUICK}",
    "calibrate": "@lr --out ~out",
    "sweep": "@grid.yaml --data @store --out ~out",
    "tune": "@space.yaml --data @store --out ~out",
    "evaluate": "@sasrec",
    "evaluate-lists": "@lists.csv --data @store --set bootstrap=5",
    "evaluate-log": "@answers --events @taken.csv",
    "study drop": "@sasrec --shares 0.2",
    "study oracle-step": "@sasrec",
    "study step-curve": "@sasrec",
    "study dial": "@sasrec",
    "recommend": "@sasrec --history 3,5,7 --k 5",
    "recommend-parts": "@sasrec --out ~out",
    "ask": "http://127.0.0.1:9 --user u1",
    "similar": "@sasrec --item 3 --k 5",
    "vectors": "@sasrec --out ~vectors.parquet",
    "grow": "@sasrec --items @new_items.csv --start mean --out ~out",
    "serve": "@sasrec --store memory: --check",
    "predict": "@lr @today.csv",
    "cascade": "@sasrec @lr --user user_id --item item_id --candidates 30 --context hour=3",
    "diagnose": "@sasrec --users 20 --out ~rows.jsonl",
    "attention": "@sasrec",
    "report": "@popularity --out ~page.html --users 20",
    "export": "@sasrec --to faiss --out ~out",
    "verify": "@sasrec",
    "keys add": "~keys.json --name shop --scope write",
    "keys list": "@keys.json",
    "keys remove": "@keys.json --name nobody",
    "scale fit": "@scaling.csv --form power --resamples 20",
    "scale advise": "@scaling.csv --flops 1e12 --form power --resamples 20",
    "scale growth": "@store",
}
"""Verb -> words with which it ends with 0: arguments, then options; ``@x`` is of the world, ``~x`` in the draw's own
folder. A verb without them fails `test_every_verb_has_a_base`."""
REFUSED = ("auto", "demo", "keys remove", "ask", "study oracle-step", "study step-curve", "study dial")
"""Their bases are refused, since they would take minutes (a thousand reasoning steps) or need a service: of paths those
alone are tried that must be refused."""
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
    metavar: str
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
        own = one.name if argument else one.opts[0]
        yield Parameter(own, position if argument else None, name, ends, one.metavar or "", is_file)
        position += argument


def parameter_of(verb: str, name: str) -> Parameter:
    return next(one for one in leaves()[verb] if one.name == name)


def changed(
    verb: str, parameter: Parameter | None = None, value: str | None = None, more: tuple[str, ...] = ()
) -> list[str]:
    """The words of a base with one parameter set to `value` (None: a flag), or `more` words behind its name."""
    words = BASES[verb].split()
    count = next((n for n, word in enumerate(words) if word.startswith("--")), len(words))
    arguments, options = words[:count], words[count:]
    replaced = {word for word in (*more, parameter.name if parameter else "") if word.startswith("--")}
    for name in replaced & {*options} - {"--set", "--metric"}:
        at = options.index(name)
        options[at : at + 2] = []
    if parameter is not None and parameter.position is not None:
        arguments[parameter.position : parameter.position + 1] = [str(value)]
    elif parameter is not None:
        options += [parameter.name] if value is None else [parameter.name, value]
    dashes = ["--"] if any(word.startswith("-") for word in arguments) else []  # an argument, not an option
    return [*verb.split(), "--json", *more, *options, *dashes, *arguments]


def watched(words: list[str]) -> list[Path]:
    """What a command line, and the base of its verb, read of the world: it has to be left as it is."""
    base = BASES.get(" ".join(words[:2])) or BASES.get(words[0], "")
    parts = {word[1:].partition("/")[0] for word in (*words, *base.split()) if word.startswith("@")}
    return [Path(world(part)) for part in sorted(parts) if known(part)]
