"""Cases of settings: every field of the experiments of every family, ``--set`` of every verb, and files of settings.

The fields are those of the Specs, so that a new one is attacked without a line here. A value that is accepted is
trained with, on the small world, for one epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fullrank.core.spec import Spec
from fullrank.experiment import find_experiment
from tests.attack.bases import QUICK, changed, leaves
from tests.attack.frame import Case, Outcome
from tests.attack.options import bare
from tests.attack.pools import VALUES, chosen
from tests.attack.worlds import GRID, SCHEMA, SPACE, TINY, set_of

RECIPES = {
    "sasrec": "store",
    "plr": "store",
    "hstu": "store",
    "bert4rec": "store",
    "gru4rec": "store",
    "item_to_item": "store",
    "dcnv2": "clicks",
    "rankmixer": "clicks",
    "autoint": "clicks",
}
"""Recipe of each family -> what it is trained on."""
SHARP = ("negative", "zero", "thirty-digits", "nan", "inf", "word", "null", "nested", "mapping", "tiny")
"""Values for a single field; what a reader alone refuses is tried once for each verb."""
LONGER = ("true", "bomb", "empty", "many-digits", "two-values")
"""Values for a line of a file, beside these."""
OF_EACH, OF_EACH_VERB, OF_EACH_LINE = 3, 14, 5
"""Values that a field, the `--set` of a verb and a line of a file get, a different choice for each."""


def cases() -> Iterator[Case]:
    """Every case of settings."""
    for recipe, data, path in fields():
        for name in chosen(SHARP, path, OF_EACH):
            run = partial(trained, recipe, data, f"{path}={VALUES[name]}")
            yield Case("settings", "train", f"{recipe}:{path}={name}", run)
    for verb, parameters in leaves().items():
        if any(one.name == "--set" for one in parameters):
            field = FIELDS.get(verb, "seed")
            texts = {name: f"{field}={value}" for name, value in VALUES.items()} | SETTINGS
            for name in texts if verb == "train" else chosen(texts, verb, OF_EACH_VERB):
                yield Case("settings", verb, f"--set:{name}", partial(with_setting, verb, texts[name]))
    yield from files()


FIELDS = {
    "prepare": "min_rating",
    "prepare-impressions": "group",
    "encode": "pca",
    "sweep": "training.lr",
    "tune": "training.lr",
    "evaluate": "sampled",
    "cascade": "ks",
    "report": "ks",
}
"""Verb -> a setting of it (`seed` of the others)."""
SETTINGS = {
    "no-value": "seed",
    "no-path": "=5",
    "nothing": "",
    "dots": "...=1",
    "private": "__class__=5",
    "long-path": "x" * 100_000 + "=1",
    "deep-path": ".".join("a" * 5000) + "=1",
    "unknown-setting": "xyzzy=1",
    "below-a-number": "seed.x=1",
    "index": "ks[0]=1",
    "line-path": "a\u2028b=1",
    "nul-path": "a\0=1",
}


def fields() -> Iterator[tuple[str, str, str]]:
    """Recipe, data and dotted path of each field of each Spec, where it is met first."""
    seen = set[tuple[type[Spec], str]]()

    def walk(spec: Spec, above: str) -> Iterator[str]:
        for name in type(spec).model_fields:
            path, value = f"{above}{name}", getattr(spec, name)
            if (type(spec), name) not in seen:
                seen.add((type(spec), name))
                yield path
            if isinstance(value, Spec):
                yield from walk(value, f"{path}.")

    for recipe, data in RECIPES.items():
        for path in walk(find_experiment(recipe), ""):
            yield recipe, data, path


def trained(recipe: str, data: str, setting: str, place: Path) -> Outcome:
    """A tiny training with one setting."""
    narrow = set_of(*TINY, "model.dim=8")  # without `layers`: an encoder of another kind may have none
    small = {"sasrec": list(QUICK), "item_to_item": []}.get(recipe, set_of(*TINY) if data == "clicks" else narrow)
    words = ["train", recipe, "--data", f"@{data}", "--out", "~out", "--json", *small, "--set", setting]
    return bare(words, place)


def with_setting(verb: str, setting: str, place: Path) -> Outcome:
    """The base of a verb with a ``--set``."""
    words = changed(verb)
    return bare([*words[: len(verb.split())], "--set", setting, *words[len(verb.split()) :]], place)


EXPERIMENT = "recipe: sasrec\nseed: 0\nmodel: {dim: 8}\ntraining: {max_epochs: 1}\nevaluation: {ks: [5]}\n"
FILES = {
    "sweep": (GRID + "order: cells\nset: {}\nevaluate: [test]\naxes: {}\nbase: null\n", "grid"),
    "tune": (SPACE + "seeds: [0]\nseed: 0\nepochs_share: 0.5\n", "space"),
    "train": (EXPERIMENT, "recipe"),
    "prepare-impressions": (SCHEMA + "time: null\n", "--schema"),
}
"""Verb -> a file of settings that it reads, each setting in a line, and the parameter that names it."""


def files() -> Iterator[Case]:
    """Files of settings with one value changed, or with something else altogether in them."""
    for verb, (text, parameter) in FILES.items():
        for name in VALUES if verb == "sweep" else chosen(VALUES, verb, OF_EACH_VERB):
            yield Case("settings", verb, f"file:{name}", partial(with_file, verb, parameter, VALUES[name]))
        for number, line in enumerate(text.splitlines()):
            key = line.partition(":")[0]
            for name in chosen((*SHARP, *LONGER), f"{verb} {key}", OF_EACH_LINE):
                lines = text.splitlines()
                lines[number] = f"{key}: {VALUES[name]}"
                yield Case(
                    "settings", verb, f"file:{key}={name}", partial(with_file, verb, parameter, "\n".join(lines))
                )
            lines = [*text.splitlines(), line, f"{key}x: 1"]
            yield Case("settings", verb, f"file:{key}:twice", partial(with_file, verb, parameter, "\n".join(lines)))


def with_file(verb: str, parameter: str, text: str, place: Path) -> Outcome:
    """The base of a verb with another file of settings."""
    (place / "given.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    one = next(one for one in leaves()[verb] if one.name == parameter)
    return bare(changed(verb, one, str(place / "given.yaml")), place)
