"""Reading what others wrote: bounded in bytes, depth, aliases and digits, and every failure is one short sentence."""

import errno
import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import pytest

from fullrank.core import readers
from fullrank.core.errors import UserError, brief, did_you_mean
from fullrank.core.readers import read_json, read_json_text, read_jsonl, read_text, read_yaml_text
from fullrank.core.registry import Room
from fullrank.core.spec import Spec, read_setting
from fullrank.core.tensor_files import read_tensors
from refusals import Refusal, refused

TENFOLD = [(new, ", ".join([f"*{old}"] * 10)) for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"{new}: &{new} [{ten}]\n" for new, ten in TENFOLD)
MERGED = "a: &a {k: 1}\n" + "".join(f"{new}: &{new} {{<<: [{ten}]}}\n" for new, ten in TENFOLD)
LINE = "[&a [x, x, x, x, x, x, x, x, x, x], " + ", ".join(f"&{new} [{ten}]" for new, ten in TENFOLD) + "]"
CHAIN = "- &a0 [x]\n" + "".join(f"- &a{n + 1} [*a{n}]\n" for n in range(300))
HOSTILE = {
    "a date that is none": "2001-13-01",
    "a time that is none": "2001-12-01T25:61:61",
    "int of text": "!!int x",
    "int of nothing": "!!int ''",
    "float of text": "!!float x",
    "bool of text": "!!bool maybe",
    "timestamp of text": "!!timestamp foo",
    "binary of text": "!!binary ä",
    "null of a list": "!!int [1]",
    "5,000 digits": "1" * 5000,
    "5,000 hexadecimal digits": "0x" + "f" * 5000,
    "5,000 digits to the base of 60": "1" + ":1" * 5000,
    "5,000 digits in a float": "1" * 5000 + ".5",
    "deep lists": "[" * 5000,
    "deep lists that close": "[" * 500 + "]" * 500,
    "deep mappings": "{a: " * 5000,
    "deep blocks": "- " * 5000 + "x",
    "deep by aliases": CHAIN,
    "itself": "&a [*a]",
    "itself in a mapping": "&a {b: *a}",
    "bomb": BOMB,
    "bomb in one line": LINE,
    "merged bomb": MERGED,
    "an object": "!!python/object/apply:os.system [id]",
    "no key": "{[1]: 2}",
    "control characters": "a\x00b",
    "no alias": "*nothing",
    "two documents": "--- 1\n--- 2\n",
    "too long": "x" * (readers.MOST_YAML + 1),
}


class Inner(Spec):
    """A part."""

    kind: str = "inner"


class Outer(Spec):
    """A spec with all that a value may be meant for."""

    seed: int = 0
    rate: float = 0.0
    name: str = ""
    many: tuple[int, ...] = ()
    on: bool = False
    part: Annotated[Spec, Room("attention")] | None = None


REFUSALS = set("not-json not-yaml not-text too-large too-deep too-many-values number-too-long endless-alias".split())


def check_sentence(error: pytest.ExceptionInfo[UserError] | Refusal) -> None:
    text = str(error.value if isinstance(error, pytest.ExceptionInfo) else error)
    assert len(text) < 700 and "\n" not in text.strip(), text[:1000]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_values(text: str) -> None:
    """As a value, as a setting and as a file: refused at once, shortly, by `UserError` and nothing else."""
    begun = time.perf_counter()
    with pytest.raises(UserError) as caught:
        read_yaml_text(text)
    assert caught.value.code in REFUSALS
    check_sentence(caught)
    with refused("unreadable-setting") as caught:
        read_setting(f"seed={text}")
    check_sentence(caught)
    with refused("neither-yaml-nor-json") as caught:
        Outer.from_text(f"seed: {text}" if "\n" not in text else text)
    check_sentence(caught)
    assert time.perf_counter() - begun < 1.5, "each of the three in well under a second"


@pytest.mark.parametrize("field", Outer.model_fields)
@pytest.mark.parametrize(
    "value", ["[" + "x, " * 20_000 + "]", "x" * 100_000, "!!binary aGVsbG8=", "!!set {a, b}", "2001-12-13", "9" * 240]
)
def test_errors_of_large_values_are_short(field: str, value: str) -> None:
    """Values that are YAML and not what was asked for; what fits a field is accepted."""
    try:
        Outer().override(f"{field}={value}")
    except UserError as error:
        assert len(str(error)) < 700


def test_aliases_are_allowed() -> None:
    assert read_yaml_text("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: [2]}\n") == {
        "a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": [2]}
    }  # fmt: skip
    assert read_yaml_text("") is None and read_yaml_text("1e-3") == "1e-3" and read_yaml_text("0x10") == 16
    assert read_yaml_text("[" * 99 + "]" * 99)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "[" * 200 + "]" * 200, '{"a":' * 200 + "1" + "}" * 200, "1" * 5000, "-" + "1" * 1000,
     "NaNN", b"\xff\xfe", b"\xff" * 8 + b"{}"],
)  # fmt: skip
def test_json_that_is_refused(text: str | bytes) -> None:
    with pytest.raises(UserError) as caught:
        read_json_text(text)
    assert caught.value.code in REFUSALS
    check_sentence(caught)


def test_json_that_is_read() -> None:
    wide = [{"a": [n]} for n in range(1000)]
    assert read_json_text(json.dumps(wide)) == wide
    assert read_json_text(b'{"a": "[[[[", "b": 1e999}') == {"a": "[[[[", "b": float("inf")}
    assert read_json_text(str(10**400)) == 10**400


def test_bounds_of_files(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(json.dumps({"a": "x" * 100}))
    with refused("too-large", "50 bytes"):
        read_text(path, 50)
    path.write_text('{"a": 1}\n')
    os.truncate(path, readers.MOST_JSON + 100)
    with refused("file-damaged", "67,108,864 bytes"):
        read_json(path)
    assert read_jsonl(path) == [{"a": 1}], "an endless line is a torn one"


def test_text_that_cannot_be_read(tmp_path: Path) -> None:
    with refused("file-unreadable", tmp_path / "none", os.strerror(errno.ENOENT)):
        read_text(tmp_path / "none")
    with refused("file-unreadable", os.strerror(errno.EISDIR)):
        read_text(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with refused("not-text"):
        read_text(tmp_path / "x")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.parametrize(
    ("read", "code"), [(read_json, "file-damaged"), (read_jsonl, "file-unreadable"), (read_tensors, "file-damaged")]
)
def test_a_pipe_in_the_place_of_a_file_is_refused(read: Any, code: str, tmp_path: Path) -> None:
    """Nobody writes into it: reading would wait for ever, in native code where no signal ends it."""
    os.mkfifo(tmp_path / "file")
    with refused(code, tmp_path / "file"):
        read(tmp_path / "file")


@pytest.mark.parametrize("tail", ['{"b": 2', "[1]", "x", "", '{"b": ' + "1" * 5000 + "}", "\udcff"])
def test_rows_end_at_a_torn_line(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "rows.jsonl"
    whole = '{"a": "\u2028"}\n{"a": 1}\n'  # a separator of lines for `splitlines`, not for JSON lines
    path.write_bytes(whole.encode() + tail.encode("utf-8", "surrogateescape") + b'\n{"c": 3}\n')
    assert read_jsonl(path) == [{"a": "\u2028"}, {"a": 1}]
    with refused("file-damaged", "line 3", "rows.jsonl"):
        read_jsonl(path, torn=False)
    path.write_text('{"a": 1}')
    assert read_jsonl(path) == [{"a": 1}], "the newline alone may be missing"
    with refused("file-unreadable"):
        read_jsonl(tmp_path / "none")


@pytest.mark.parametrize(
    "sentence",
    [
        f"there is no setting {'x' * 10**6!r} (allowed: a)",
        f'the model "{"y" * 10**6}" cannot be loaded',
        f"it is none of {', '.join(map(str, range(10**5)))}",
    ],
)
def test_sentences_are_short_and_show_little_of_a_value(sentence: str) -> None:
    told = str(UserError(sentence))
    assert len(told) <= 2000 and "x" * 200 not in told and "y" * 200 not in told
    assert told[:10] == sentence[:10] and told[-8:] == sentence[-8:], "what it is about stays"


def test_our_own_words_are_not_cut() -> None:
    sentence = "the model's " + "word " * 300 + "isn't what the file's 'name' says"
    assert str(UserError(sentence)) == sentence


def test_the_nearest_of_many_names_is_not_looked_for() -> None:
    assert did_you_mean("x" * 10**6, ["x" * 10**6]) == ""
    assert did_you_mean("name7", (f"name{n}" for n in range(10**5))) == ""
    assert did_you_mean("nam", ["name", "x" * 10**6]) != ""


@pytest.mark.parametrize("value", [10**5000, "x" * 10**6, list(range(10**5))], ids=["digits", "text", "list"])
def test_brief(value: Any) -> None:
    assert len(brief(value)) <= 200
    assert brief([1, "a"]) == "[1, 'a']"
