"""Cases of the command line itself: every parameter of every verb with every nasty value of its type.

Verbs, options and their types are typer's own, so that a new one is attacked without a line here. Nothing in the world
may be changed by any of them, whatever the answer.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.attack.bases import BASES, WRITTEN, Parameter, changed, leaves, located
from tests.attack.frame import SURVIVED, Case, Outcome, command, copied
from tests.attack.pools import CONTENTS, FLOATS, INTEGERS, PATHS, WORDS, Made, chosen
from tests.attack.worlds import world

HANDLED = {"--json", "--set"}
"""Options with a table of their own (`settings.py`), or in every case."""


NEW, KNOWN = 9, 4
"""Values that an option gets, a different choice for each: at the first verb that has it, and at the others."""
PLACES, KNOWN_PLACES = 16, 5
"""The same of paths."""


def cases() -> Iterator[Case]:
    """Every case of options and arguments: of an option that another verb has too, the sharpest values alone."""
    seen = set[tuple[str, str]]()
    for verb, parameters in leaves().items():
        if verb not in BASES:  # `test_every_verb_has_a_base` says so
            continue
        yield from words_alone(verb)
        for one in parameters:
            if one.name not in HANDLED:
                known = one.place is None and (one.name, one.kind) in seen
                seen.add((one.name, one.kind))
                yield from of_parameter(verb, one, known)


def of_parameter(verb: str, one: Parameter, known: bool) -> Iterator[Case]:
    """The cases of one parameter."""
    key = f"{verb} {one.name}"
    if one.kind == "bool":
        yield Case("options", verb, f"{one.name}:flag", partial(run, verb, one, None))
        yield Case("options", verb, f"{one.name}:flag=x", partial(spoken, verb, [f"{one.name}=x"]))
    elif one.kind == "Path" or (one.place is not None and one.is_file):
        for name in chosen(places(verb, one, known), key, KNOWN_PLACES if known else PLACES):
            yield Case("paths", verb, f"{one.name}:{name}", partial(run_path, verb, one, PATHS[name]))
    if one.kind not in ("bool", "Path"):  # a source, a recipe or a file: words too
        pool = {"int": INTEGERS, "float": FLOATS}.get(one.kind, WORDS)
        for name in chosen(SHARP & pool.keys() if known else pool, key, KNOWN if known else NEW):
            yield Case("options", verb, f"{one.name}={name}", partial(run, verb, one, pool[name]))
    if one.place is None:
        yield from forms(verb, one, known)


def places(verb: str, one: Parameter, known: bool) -> list[str]:
    """The names of the paths that make sense to try."""
    names = [name for name in PATHS if name in SHARP or not known and (one.is_file or name not in CONTENTS)]
    if one.name.removeprefix("--") in WRITTEN:
        names.remove("fifo")  # a pipe that nobody reads holds up whoever writes to it: so it should
    return names if BASES[verb].works else [name for name in names if name in NO_FOLDER]


SHARP = frozenset(
    "missing fifo loop torn-parquet random-csv foreign-folder other-store other-run nul zero negative nan "
    "thirty-digits empty long surrogate".split()
)
"""Values for an option whose name and type were attacked in full at another verb."""


NO_FOLDER = {"loop", "nul", "foreign-folder", "under-a-file", "null-device", "proc", "random-csv", "other-store"}
"""Places where nothing can be written, or nothing of this kind."""


def forms(verb: str, one: Parameter, known: bool) -> Iterator[Case]:
    """An option misspelt, without its value, and given twice; one of these where another verb has it too."""
    ways = {"misspelt": [f"{one.name}x", "1"]}
    if one.kind != "bool":
        ways |= {"no-value": [one.name], "twice": [one.name, "1", one.name, "2"]}
    for way in chosen(ways, f"{verb} {one.name}", 1) if known else ways:
        allowed = ONLY_REFUSED if way == "misspelt" else SURVIVED
        yield Case("options", verb, f"{one.name}:{way}", partial(spoken, verb, ways[way]), allowed)


ONLY_REFUSED = frozenset({"refused"})


def words_alone(verb: str) -> Iterator[Case]:
    """The verb with nothing, with too much, and with words that it does not know."""
    if BASES[verb].works:
        allowed = ONLY_REFUSED if BASES[verb].arguments and verb != "list" else SURVIVED
        yield Case("options", verb, "nothing", partial(bare, [*verb.split(), "--json"]), allowed)
    yield Case("options", verb, "one-more", partial(spoken, verb, ["and", "so", "on"]))
    yield Case("options", verb, "unknown", partial(spoken, verb, ["--no-such-option"]), ONLY_REFUSED)
    yield Case("options", verb, "long-option", partial(spoken, verb, ["--" + "x" * 100_000]), ONLY_REFUSED)
    yield Case("options", verb, "nul-option", partial(spoken, verb, ["--a\0b"]), ONLY_REFUSED)
    yield Case("options", verb, "help", partial(bare, [*verb.split(), "--help"]), frozenset({"ok"}))


def run(verb: str, one: Parameter, value: str | None, place: Path) -> Outcome:
    """The base of a verb with one parameter changed."""
    return bare(changed(verb, one, value), place)


def run_path(verb: str, one: Parameter, made: Made, place: Path) -> Outcome:
    """The base of a verb with one of its paths something else. What would be written to is a copy."""
    home, may_grow = world().home, []
    with made(place) as path:
        if one.name.removeprefix("--") in WRITTEN and path.startswith("@"):
            source, path = home / path[1:], str(place / path[1:])
            if source.is_dir():
                copied(source, Path(path))
                may_grow = [] if (verb, source.name) in REPLACES else [Path(path)]
            else:
                shutil.copy(source, place)
        return command(*located(changed(verb, one, path), home, place), keep=[home], may_grow=may_grow)


REPLACES = {
    ("prepare", "store"),
    ("subset", "store"),
    ("prepare-impressions", "clicks"),
    ("encode", "codes"),
}
"""(verb, folder): a folder of its own kind, which the verb replaces when it is named again."""


def spoken(verb: str, words: list[str], place: Path) -> Outcome:
    """The base of a verb with words behind it."""
    base, behind = changed(verb), len(verb.split()) + 1  # behind --json
    return bare([*base[:behind], *words, *base[behind:]], place)


def bare(words: list[str], place: Path) -> Outcome:
    """A command line, with the world watched."""
    home = world().home
    return command(*located(words, home, place), keep=[home])
