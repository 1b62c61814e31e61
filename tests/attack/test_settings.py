"""Every setting of every Spec with wrong values and at its ends: an answer, or one sentence and exit code 2.

The fields are those of the Specs, so that a new one is attacked without a line here. A value that is accepted is
trained with, on the small world, for one epoch.
"""

from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from fullrank.evaluation.spec import Evaluation, RankingEvaluation
from fullrank.run.experiment import find_experiment
from fullrank.semantic_ids.spec import Encode
from tests.attack.bases import changed, leaves, parameter_of
from tests.attack.frame import Outcome, attack, every
from tests.attack.strategies import SETTINGS, YAML, ends, fields_of, values_of
from tests.attack.test_options import spoken
from tests.attack.worlds import DIM, GRID, SCHEMA, SPACE, TINY, set_of

RECIPES = {
    "sasrec": "store", "plr": "store", "hstu": "store", "bert4rec": "store", "gru4rec": "store",
    "item_to_item": "store", "dcnv2": "clicks", "rankmixer": "clicks", "autoint": "clicks",
}  # fmt: skip
"""Recipe of each family -> what it is trained on."""
FIELDS = {
    "prepare": "min_rating", "prepare-impressions": "group", "encode": "pca", "sweep": "training.lr",
    "tune": "training.lr", "evaluate": "sampled", "cascade": "ks", "report": "ks",
}  # fmt: skip
"""Verb -> a setting of it (`seed` of the others)."""
LASTING = {
    "model.encoder.layers", "training.accumulate", "model.reasoner.steps", "model.reasoner.streams",
    "model.encoder.attention.qk_width", "model.encoder.attention.value_width", "model.loss.negatives.count",
    "model.window", "model.ranker.crosses", "model.ranker.blocks", "model.ranker.tokeniser.hidden",
    "model.ranker.feed_forward.expansion", "model.ranker.layers",
}  # fmt: skip
"""Settings whose largest value is a model that can be built and trained, in more time than a draw has. Its progress is
shown, so they are not tried."""
EXPERIMENT = "recipe: sasrec\nseed: 0\nmodel: {dim: 8}\ntraining: {max_epochs: 1}\nevaluation: {ks: [5]}\n"
DOCUMENTS = {
    "sweep": (GRID + "order: cells\nset: {}\nevaluate: [test]\naxes: {}\nbase: null\n", "grid"),
    "tune": (SPACE + "seeds: [0]\nseed: 0\nepochs_share: 0.5\n", "space"),
    "train": (EXPERIMENT, "recipe"), "prepare-impressions": (SCHEMA + "time: null\n", "--schema"),
}  # fmt: skip
"""Verb -> a file of settings that it reads, each setting in a line, and the parameter that names it."""
NUMBERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "evaluate": (
        ("--set", "sampled=100000000"), ("--set", "sampled=1000000"), ("--set", f"ks={list(range(1, 1001))}"),
        ("--set", f"ks={[10**6]}"), ("--set", "protocol=sampled", "--set", "negatives=1000000"),
        ("--metric", "ndcg@1000000"), ("--metric", "ndcg@" + "9" * 30),
    ),
    "study drop": (("--shares", "0." + "9" * 100), ("--shares", ",".join(f"0.{n:04d}" for n in range(1, 2000)))),
    "diagnose": (("--users", "1000000000"), ("--impressions", "1000000000")),
    "recommend": (("--k", "1000000000", "--seen", "keep"), ("--history", ",".join(["3"] * 100_000))),
    "scale advise": (("--flops", "1e300"), ("--flops", "1e-300"), ("--data", "1e300")),
    "subset": (("--share", "1e-300"),),
}  # fmt: skip
"""Verb -> words that its base is given too."""
WIDE = [0.001 * (1 + n) for n in range(10)]
SEARCH = "cells: [sasrec]\nspace: {{training.lr: {{log: [0.001, 0.01]}}}}\n{}\n"
COUNTS = {
    "sweep": [
        *("base: sasrec\naxes:\n" + "".join(f"  model.x{n}: {WIDE}\n" for n in range(axes)) for axes in (10, 60)),
        "cells:\n" + "".join(f"  - {{name: c{n}, recipe: sasrec}}\n" for n in range(20_000)),
        f"cells: [sasrec, gru4rec]\nseeds: {list(range(1000))}\n",
    ],
    "tune": [
        SEARCH.format("trials: 10000"), SEARCH.format("trials: 1000000000"),
        SEARCH.format(f"trials: 1000\nseeds: {list(range(1000))}"),
        "cells: [sasrec]\ntrials: 10000\nspace: {model.dim: {choice: [8, 16]}}\n",
        "cells: [sasrec]\ntrials: 3\nspace: {training.batch_size: {integer: [1, 9223372036854775807]}}\n",
        "cells: [sasrec]\ntrials: 3\nspace: {model.dim: {integer: [1, " + "9" * 40 + "]}}\n",
    ],
}  # fmt: skip
"""Verb -> grids and searches of very many."""
bounded = partial(spoken, memory=2 << 30)


@cache
def fields() -> dict[str, list[tuple[str, FieldInfo]]]:
    """Recipe -> path and declaration of the fields that are met first in its experiment."""
    seen = set[Any]()
    return {recipe: [*fields_of(find_experiment(recipe), "", seen)] for recipe in RECIPES}


def training(recipe: str, path: str, text: str) -> list[str]:
    """A tiny training with one setting."""
    small = {"sasrec": (*TINY, *DIM), "item_to_item": ()}.get(
        recipe, TINY if RECIPES[recipe] == "clicks" else (*TINY, DIM[0])
    )  # an encoder of another kind may have no layers
    data = f"@{RECIPES[recipe]}"
    return ["train", recipe, "--data", data, "--out", "~out", "--json", *set_of(*small, f"{path}={text}")]


@every(RECIPES, ("item_to_item",), "recipe")
def test_settings(recipe: str) -> None:
    for path, field in fields()[recipe]:
        words = partial(training, recipe, path)
        attack("settings", "train", values_of(field).map(words), spoken, draws=3, key=path)
        if numbers := ends(field)[: 1 if path in LASTING else 2]:
            attack("numbers", "train", st.sampled_from(numbers).map(repr).map(words), bounded, draws=2)


@every([verb for verb, parameters in leaves().items() if any(one.name == "--set" for one in parameters)], ("show",))
def test_words_behind_set(verb: str) -> None:
    values = SETTINGS | YAML.map(lambda value: f"{FIELDS.get(verb, 'seed')}={value}")
    draws = 42 if verb == "train" else 14
    attack("settings", verb, values.map(lambda text: changed(verb, more=("--set", text))), spoken, draws)


@every(DOCUMENTS)
def test_files_of_settings(verb: str) -> None:
    """One line with another value, twice or unknown; something else altogether."""
    text, parameter = DOCUMENTS[verb]

    def document(text: str, folder: Path) -> Outcome:
        (folder / "given.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        return spoken(changed(verb, parameter_of(verb, parameter), "~given.yaml"), folder)

    attack("settings", verb, YAML, document, draws=30 if verb == "sweep" else 14)
    lines = text.splitlines()
    for number, line in enumerate(lines):
        key = line.partition(":")[0]
        values = YAML.map(lambda value, n=number, key=key: "\n".join([*lines[:n], f"{key}: {value}", *lines[n + 1 :]]))
        attack("settings", verb, values, document, draws=5, key=key)
        attack("settings", verb, st.just("\n".join([*lines, line, f"{key}x: 1"])), document, draws=1)


@every([*NUMBERS, "encode", "sweep", "tune"])
def test_numbers(verb: str) -> None:
    """Numbers that are allowed and absurd: an answer, or one sentence, within 20 s and 2 GiB."""
    lines = [changed(verb, more=words) for words in NUMBERS.get(verb, ())]
    specs: dict[str, list[tuple[Any, str]]] = {
        "evaluate": [(Evaluation(), "@sasrec"), (RankingEvaluation(), "@lr")], "encode": [(Encode(), "@store")],
    }  # fmt: skip
    for spec, source in specs.get(verb, ()):
        for path, field in fields_of(spec):
            words = ("--set", "protocol=sampled") if path == "negatives" else ()
            options = [changed(verb, more=(*words, "--set", f"{path}={end!r}")) for end in ends(field)]
            lines += [[*line[:-1], source] for line in options]
    if lines:
        attack("numbers", verb, st.sampled_from(lines), bounded, draws=len(lines))

    def many(text: str, folder: Path) -> Outcome:
        (folder / "given.yaml").write_text(text)
        parameter = parameter_of(verb, DOCUMENTS[verb][1])
        return bounded(changed(verb, parameter, "~given.yaml", more=("--max-hours", "1e-9")), folder)

    if verb in COUNTS:
        attack("numbers", verb, st.sampled_from(COUNTS[verb]), many, draws=len(COUNTS[verb]))


@pytest.mark.attack
def test_every_number_has_ends() -> None:
    """Else nothing of `test_settings` tries how large it may be."""
    found = [(path, field) for rows in fields().values() for path, field in rows]
    assert sum(bool(ends(field)) for _, field in found) > 80
