"""Cases of numbers that are allowed and absurd: the largest and the smallest that a Spec or an option takes.

What a Spec refuses is refused at once; what it takes reaches loops, tensors and files, and has to end within the time
of a case and 2 GiB. Fields and their bounds are read from the Specs, options from typer.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import typer.main

from fullrank.cli import build
from fullrank.core.spec import Spec
from fullrank.evaluation.spec import Evaluation, RankingEvaluation
from fullrank.semantic_ids.spec import Encode
from tests.attack.bases import QUICK, Parameter, changed, leaves, located
from tests.attack.frame import Case, Outcome, command
from tests.attack.settings import RECIPES, fields
from tests.attack.worlds import TINY, set_of, world

MEMORY = 2 << 30
LARGE = ("1000", "1000000", "100000000", "1000000000")
"""Of an option that says no largest value."""
MORE: dict[str, tuple[tuple[str, ...], ...]] = {
    "evaluate": (
        ("--set", "sampled=100000000"), ("--set", "sampled=1000000"), ("--set", f"ks={list(range(1, 1001))}"),
        ("--set", f"ks={[10**6]}"), ("--set", "protocol=sampled", "--set", "negatives=1000000"),
        ("--metric", "ndcg@1000000"), ("--metric", "ndcg@" + "9" * 30), ("--drop", "0." + "9" * 100),
        ("--drop", ",".join(f"0.{n:04d}" for n in range(1, 2000))),
    ),
    "diagnose": (("--users", "1000000000"), ("--impressions", "1000000000")),
    "recommend": (("--k", "1000000000", "--seen", "keep"), ("--history", ",".join(["3"] * 100_000))),
    "scale advise": (("--flops", "1e300"), ("--flops", "1e-300"), ("--data", "1e300")),
    "subset": (("--share", "1e-300"),),
}  # fmt: skip
"""Verb -> words that its base is given too."""
LASTING = {
    "model.encoder.layers", "training.accumulate", "model.reasoner.steps", "model.reasoner.streams",
    "model.encoder.attention.qk_width", "model.encoder.attention.value_width", "model.loss.negatives.count",
    "model.window", "model.ranker.crosses", "model.ranker.blocks", "model.ranker.tokeniser.hidden",
    "model.ranker.feed_forward.expansion", "model.ranker.layers",
}  # fmt: skip
"""Settings whose largest value is a model that can be built and trained, in more time than a case has. Its progress is
shown, so they are not tried."""


def cases() -> Iterator[Case]:
    """Every case of numbers."""
    for verb, parameters in leaves().items():
        largest = _largest(verb)
        for one in parameters:
            if one.kind in ("int", "float"):
                large = LARGE[1:] if one.name == "--resamples" else LARGE  # a thousand fits take a minute, and say so
                for value in dict.fromkeys((*large, *largest.get(one.name, ()))):
                    yield Case("numbers", verb, f"{one.name}={value}", partial(with_option, verb, one, value))
        for words in MORE.get(verb, ()):
            name = " ".join(words)[:60]
            name = name if len(name) < 60 else f"{name}~{zlib.crc32(repr(words).encode()):08x}"
            yield Case("numbers", verb, name, partial(with_words, verb, words))
    for recipe, data, path in fields():
        for value in bounds(recipe, path)[: 1 if path in LASTING else 2]:
            yield Case("numbers", "train", f"{recipe}:{path}={value}", partial(trained, recipe, data, path, value))
    for verb, run, spec in (("evaluate", "@sasrec", Evaluation), ("evaluate", "@lr", RankingEvaluation)):
        for path, value in _of(spec):
            words = ("--set", "protocol=sampled") if path == "negatives" else ()
            given = ["evaluate", run, "--json", *words, "--set", f"{path}={value}"]
            yield Case("numbers", verb, f"{spec.__name__}:{path}={value}", partial(spoken, given))
    for path, value in _of(Encode):
        yield Case("numbers", "encode", f"{path}={value}", partial(with_words, "encode", ("--set", f"{path}={value}")))
    for kind, count in (("axes", 10), ("axes", 60), ("cells", 20_000), ("seeds", 1000)):
        yield Case("numbers", "sweep", f"grid of {count} {kind}", partial(swept, kind, count))
    for name, text in SEARCHES.items():
        yield Case("numbers", "tune", name, partial(searched, text))


SEARCHES = {
    "10,000 trials": "trials: 10000\nspace: {training.lr: {log: [0.001, 0.01]}}\n",
    "10,000 trials of few": "trials: 10000\nspace: {model.dim: {choice: [8, 16]}}\n",
    "10**9 trials": "trials: 1000000000\nspace: {training.lr: {log: [0.001, 0.01]}}\n",
    "wide integers": "trials: 3\nspace: {training.batch_size: {integer: [1, 9223372036854775807]}}\n",
    "huge integers": "trials: 3\nspace: {model.dim: {integer: [1, " + "9" * 40 + "]}}\n",
    "many seeds": f"trials: 1000\nspace: {{training.lr: {{log: [0.001, 0.01]}}}}\nseeds: {list(range(1000))}\n",
}


def _largest(verb: str) -> dict[str, tuple[str, ...]]:
    """Option -> the bounds that typer knows of it."""
    found: Any = typer.main.get_command(build())
    for word in verb.split():
        found = found.commands[word]
    said = {}
    for one in found.params:
        ends = (getattr(one, "min", None), getattr(one, "max", None))
        said[one.opts[0]] = tuple(str(end) for end in ends if end is not None)
    return said


def bounds(recipe: str, path: str) -> list[str]:
    """The least and the largest value of a number at a path of a recipe's experiment."""
    from fullrank.experiment import find_experiment

    spec: Any = find_experiment(recipe)
    *outer, last = path.split(".")
    for name in outer:
        spec = getattr(spec, name)
    return _ends(type(spec), last)


def _of(spec: type[Spec]) -> Iterator[tuple[str, str]]:
    for name in spec.model_fields:
        for value in _ends(spec, name):
            yield name, value
        inner = spec.model_fields[name].get_default(call_default_factory=True)
        if isinstance(inner, Spec):
            for path, value in _of(type(inner)):
                yield f"{name}.{path}", value


def _ends(spec: type[Spec], name: str) -> list[str]:
    setting = spec.model_json_schema()["properties"][name]
    for one in (setting, *setting.get("anyOf", ())):
        if one.get("type") in ("integer", "number"):
            ends = [
                one.get("minimum", one.get("exclusiveMinimum")), one.get("maximum", one.get("exclusiveMaximum")),
            ]  # fmt: skip
            if "exclusiveMinimum" in one:
                ends[0] = 1e-300 if one["exclusiveMinimum"] == 0 else None
            return [repr(end) for end in ends if end is not None]
    return []


def with_option(verb: str, one: Parameter, value: str, place: Path) -> Outcome:
    """The base of a verb with one number changed."""
    return spoken(changed(verb, one, value), place)


def with_words(verb: str, more: tuple[str, ...], place: Path) -> Outcome:
    """The base of a verb with further words behind its name."""
    words = changed(verb)
    for option in {word for word in more if word.startswith("--")} - {"--set", "--metric"}:
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    return spoken([*words[: len(verb.split())], *more, *words[len(verb.split()) :]], place)


def trained(recipe: str, data: str, path: str, value: str, place: Path) -> Outcome:
    """A tiny training with one number at its end, of one epoch but where epochs are what is changed."""
    assert recipe in RECIPES
    narrow = set_of(*TINY, "model.dim=8")
    small = {"sasrec": list(QUICK), "item_to_item": []}.get(recipe, set_of(*TINY) if data == "clicks" else narrow)
    words = ["train", recipe, "--data", f"@{data}", "--out", "~out", "--json", *small, "--set", f"{path}={value}"]
    return spoken(words, place)


def swept(kind: str, count: int, place: Path) -> Outcome:
    """A grid of many: ten values on each axis (10**axes cells), cells written out, or seeds of two cells."""
    if kind == "axes":
        values = [0.001 * (1 + n) for n in range(10)]
        axes = "".join(f"  model.x{n}: {values}\n" for n in range(count))
        text = f"base: sasrec\naxes:\n{axes}"
    elif kind == "cells":
        text = "cells:\n" + "".join(f"  - {{name: c{n}, recipe: sasrec}}\n" for n in range(count))
    else:
        text = f"cells: [sasrec, gru4rec]\nseeds: {list(range(count))}\n"
    (place / "given.yaml").write_text(text)
    words = ["sweep", str(place / "given.yaml"), "--data", "@store", "--out", "~out", "--json", "--max-hours", "1e-9"]
    return spoken(words, place)


def searched(text: str, place: Path) -> Outcome:
    (place / "given.yaml").write_text(f"cells: [sasrec]\n{text}")
    words = ["tune", str(place / "given.yaml"), "--data", "@store", "--out", "~out", "--json", "--max-hours", "1e-9"]
    return spoken(words, place)


def spoken(words: list[str], place: Path) -> Outcome:
    """A command line in 2 GiB, with the world watched."""
    home = world().home
    return command(*located(words, home, place), keep=[home], memory=MEMORY)
