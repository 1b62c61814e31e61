"""Every parameter of every verb with wrong words, numbers and paths: an answer, or one sentence and exit code 2.

Verbs, options and their types are typer's own, so that a new one is attacked without a line here. Nothing in the world
may be changed, whatever the answer. Every base works, and leaves what is there as it is: without --overwrite a verb
replaces nothing, and prepared data stay whole in any case. What a verb writes to is found among its declared options.
"""

import shutil
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.attack.bases import BASES, REFUSED, Parameter, changed, leaves, parameter_of, watched
from tests.attack.frame import MEMORY, Outcome, attack, command, copied, digest, every, own_folder
from tests.attack.strategies import Content, furnished, numbers_for, paths_for, words_for
from tests.attack.worlds import known, located, world

CHEAP = ("list", "show", "keys list", "similar")
HANDLED = {"--json", "--set"}
"""Options that are in every draw, or have a file of their own (`test_settings.py`)."""
REPLACES = {("prepare", "store"), ("subset", "store"), ("prepare-impressions", "clicks"), ("encode", "codes")}
"""(verb, folder): a folder of its own kind, which the verb replaces when it is named again."""


def spoken(words: list[str], folder: Path, memory: int = MEMORY, kept: Sequence[Path] = (), **more: Any) -> Outcome:
    """A command line, with what it reads of the world, and what else has to be kept, watched."""
    return command(*located(words, folder), keep=[*watched(words), *kept], memory=memory, **more)


def refused_only(words: list[str], folder: Path) -> Outcome:
    outcome = spoken(words, folder)
    return Outcome("silent", "what the verb does not know was taken") if outcome.kind == "ok" else outcome


def with_path(verb: str, parameter: Parameter, drawn: str | Content, folder: Path) -> Outcome:
    """The base of a verb with one of its paths something else. What would be written to is a copy."""
    may_grow = []
    with furnished(folder, drawn) as path:
        if parameter.is_written and known(path[1:]):
            source, path = Path(world(path[1:])), str(folder / path[1:])
            if source.is_dir():
                copied(source, Path(path))
                may_grow = [] if (verb, source.name) in REPLACES else [Path(path)]
            else:
                shutil.copy(source, path)
        return spoken(changed(verb, parameter, path), folder, may_grow=may_grow)


def test_every_verb_has_a_base() -> None:
    assert BASES.keys() == leaves().keys(), "tests/attack/bases.py needs a command that works for each verb"


@cache
def first_met() -> set[tuple[str, str]]:
    """Verb and name of the parameters that no verb before it has; those get more draws."""
    seen: dict[tuple[str, str], str] = {}
    for verb, parameters in leaves().items():
        for one in parameters:
            seen.setdefault((one.name, one.kind if one.position is None else verb), verb)
    return {(verb, name) for (name, _), verb in seen.items()}


@every(leaves(), CHEAP, process=True)  # `--workers` starts some
def test_options(verb: str) -> None:
    for parameter in leaves()[verb]:
        if parameter.name in HANDLED:
            continue
        new, attacked = (verb, parameter.name) in first_met(), partial(attack, verb=verb, key=parameter.name)
        changes, more = partial(changed, verb, parameter), partial(changed, verb, None, None)
        if parameter.kind == "bool":
            attacked(
                "options", values=st.sampled_from([changes(), more((f"{parameter.name}=x",))]), run=spoken, draws=2
            )
        elif parameter.kind != "Path":  # a source, a recipe or a file: words too
            attacked("options", values=words_for(parameter).map(changes), run=spoken, draws=9 if new else 4)
        if parameter.position is None:
            attacked("options", values=st.just(more((f"{parameter.name}x", "1"))), run=refused_only, draws=1)
            if parameter.kind != "bool":
                ways = ((parameter.name,), (parameter.name, "1", parameter.name, "2"))
                ways = ways if verb not in REFUSED else ways[:1]
                attacked("options", values=st.sampled_from(ways).map(more), run=spoken, draws=2 if new else 1)
        if parameter.is_path:
            values, run = paths_for(parameter, verb not in REFUSED), partial(with_path, verb, parameter)
            attacked("paths", values=values, run=run, draws=16 if new else 6)
        if parameter.kind in ("int", "float"):
            run = partial(spoken, memory=2 << 30)
            attacked("numbers", values=numbers_for(parameter).map(changes), run=run, draws=8)


@pytest.mark.attack
@pytest.mark.slow
def test_words_alone() -> None:
    """A verb with nothing, too much, or what it does not know."""
    for verb in BASES:
        unknown = ("--no-such-option",), ("--" + "x" * 100_000,), ("--a\0b",)
        attack("options", verb, st.sampled_from(unknown).map(partial(changed, verb, None, None)), refused_only, 3)
        lines = [[*verb.split(), "--help"], changed(verb, more=("and", "so", "on"))]
        lines += [[*verb.split(), "--json"]] if verb not in REFUSED else [changed(verb, more=("--json",))]
        attack("options", verb, st.sampled_from(lines), spoken, 3)


GOES_ON = {"sweep", "tune", "download"}
"""Verbs that are called again to go on with what is at --out: they keep what is finished."""
RESUMES = {"recommend-parts"}
"""Those that go on with what is missing, or begin anew with --overwrite."""
NEW_ONLY = {"calibrate", "demo", "grow"}
"""Verbs that go into a folder of their own or a new one alone."""
TAKEN = {"already-there", "folder-holds-a-run", "folder-not-empty", "folder-of-others"}
PREPARED = {*TAKEN, "inside-a-store", "same-folder", "not-a-folder"}


def output_of(verb: str, one: Parameter) -> str:
    """A name of the kind that the option takes."""
    words = BASES[verb].split()
    base = words[words.index(one.name) + 1] if one.name in words else ""
    return base if base.startswith("~") else "~made" + ".parquet" * (one.metavar == "FILE")


def ended(words: list[str], folder: Path, *more: Path) -> Outcome:
    """What came of a command line that may change nothing of the world, nor of `more`."""
    return spoken(words, folder, kept=more)


@every(leaves(), ("list", "show", "schema", "keys list", "predict"))
def test_bases_work_and_replace_nothing(verb: str) -> None:
    names = {one.name for one in leaves()[verb]}
    with own_folder() as folder:
        if "--out" not in names or verb in REFUSED:
            outcome = ended(changed(verb), folder)
            assert outcome.kind == ("refused" if verb in REFUSED else "ok"), outcome
            return
        out, overwrite = parameter_of(verb, "--out"), [] if verb in GOES_ON | NEW_ONLY else ["--overwrite"]
        assert bool(overwrite) == ("--overwrite" in names)
        words = changed(verb, out, output_of(verb, out))
        path = folder / output_of(verb, out)[1:]
        if out.metavar == "FILE":
            path.write_text("precious")
            outcome = ended(words, folder, folder)
            assert outcome.code in TAKEN, outcome
        outcome = ended([*words, *overwrite], folder)
        assert outcome.kind == "ok" and len(digest(path)), outcome
        if verb not in GOES_ON | RESUMES:
            outcome = ended(words, folder, folder)
            assert outcome.code in TAKEN, outcome


@every(leaves(), ("schema", "predict"))
def test_nothing_is_written_into_prepared_data(verb: str) -> None:
    for one in (one for one in leaves()[verb] if one.is_written):
        values: Any = [f"@store/{output_of(verb, one)[1:]}", *["@store", "@codes"] * (one.metavar == "FOLDER")]
        for value in values:
            with own_folder() as folder:
                outcome = ended(changed(verb, one, value), folder)
            unread = one.name == "--cache" and outcome.kind == "ok"  # of texts, which the base does not encode
            assert outcome.code in PREPARED or unread, (verb, one.name, value, outcome)
