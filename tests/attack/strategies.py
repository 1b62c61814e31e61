"""Hypothesis strategies of wrong input, made from what is declared: typer's parameters, pydantic's fields, tables."""

import contextlib
import json
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import polars as pl
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from polars.testing.parametric import series
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from fullrank.core.spec import Spec
from tests.attack.bases import Parameter
from tests.attack.worlds import BOMB

LONG = 100_000
TEXTS = st.sampled_from([
    "", "nan", "xyzzy", "9" * 30, "a\0b", "a\u2028b", "x" * LONG, "9" * LONG, " ", "null", "none", "true", "-",
    "--json",
    "../..", "$(id)", "[1, 2]", "{}", ",", "=", "%s{0}", "os:system", "a\nb", "größe", "🛋", "\ud800", "٣", "1_0",
    "0x10",
    "0.5,0.5", "1\u2028", "0.5\0",
]) | st.text(max_size=40)  # fmt: skip
"""Words that are nothing an option asks for, or hardly."""
INTEGERS = st.sampled_from(["0", "-1", "1.5", "inf", str(2**63), str(2**63 - 1), str(-(2**64))]) | (
    st.integers(max_value=-1) | st.integers(min_value=10**9)
).map(str)
FLOATS = st.sampled_from(["0", "-1", "-0.0", "inf", "-inf", "1e400", "1e-320", "1e300"]) | st.floats().map(repr)
LARGE = ("1000", "1000000", "100000000", "1000000000")
"""Of a number of which typer knows no largest."""


def words_for(parameter: Parameter) -> SearchStrategy[str]:
    """Values of an option or argument: numbers where it takes numbers, words that are none of its type."""
    return {"int": INTEGERS | TEXTS, "float": FLOATS | TEXTS}.get(parameter.kind, TEXTS)


def numbers_for(parameter: Parameter) -> SearchStrategy[str]:
    """The ends of an option's numbers, and large ones."""
    lasting = parameter.name in ("--resamples", "--parts")  # a thousand take half a minute, and say so
    large = (*LARGE[1:], str(10**12)) if lasting else LARGE
    return st.sampled_from([*dict.fromkeys((*large, *map(str, parameter.ends)))])


# Paths: every draw's folder is furnished with places; files of any suffix with anything in them are written into it.

PLACES = (
    "none.csv", "loop", "other/mine.txt", "@store", "@sasrec", "@events.csv", "", "a\0b", "a\ud800b", ".", "-",
    "a\u2028b",
    "x" * 300, "x/" * 5000, "/dev/null", "/dev/full", "/proc/none/here", "/proc/self/mem", "nowhere.csv", "empty",
    "other",
    "run-like", "store-like", "plain/below.csv", "missing/../z", "closed/file.csv", "@items.csv", "@clicks",
    "@popularity",
    "@lr", "@codes", "@evaluation", "@grid.yaml",
)  # fmt: skip
NO_FOLDER = ("loop", "a\0b", "other", "plain/below.csv", "/dev/null", "/proc/none/here", "plain", "@store")
"""Places where nothing can be written, or nothing of this kind."""
PIPE = "pipe.csv"
CONTENTS = st.sampled_from([
    b"", b"user_id,item_id\n", b"a,b\n1,2,3\n4\n", b"user_id,item_id\n\0,\0\n",
    "user_id,item_id\na,1\n".encode("utf-16"),
    b'{"user_id": 1}\n{"user_id": ', b'[1]\n"x"\n', b'{"a": ', b"[1, 2]", b"x\n", b"a: [1\nb: }", b"[" * LONG,
    BOMB.encode(), b"\x80\x04K\x01.", b"PAR1" + bytes(range(256)) * 4 + b"PAR1", bytes(range(256)),
]) | st.binary(max_size=300)  # fmt: skip
SUFFIXES = st.sampled_from(["csv", "parquet", "jsonl", "json", "yaml", "docx"])
Content = tuple[str, bytes]


def paths_for(parameter: Parameter, works: bool) -> SearchStrategy[str | Content]:
    """Places, and where a file is read also (suffix, content)."""
    if not works:
        return st.sampled_from(NO_FOLDER)
    places: SearchStrategy[Any] = st.sampled_from([*PLACES, *(() if parameter.is_written else (PIPE,))])
    return st.one_of(places, st.tuples(SUFFIXES, CONTENTS)) if parameter.is_file else places


@contextlib.contextmanager
def furnished(folder: Path, path: str | Content) -> Iterator[str]:
    """A folder with what `PLACES` names in it; yields the path, of a content that of its file."""
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere.csv").symlink_to("not-there.csv")
    (folder / "plain").write_text("plain")
    for name, files in {"empty": (), "other": ("mine.txt",), "run-like": ("spec.json", "manifest.json"),
                        "store-like": ("items.npy", "manifest.json"), "closed": ("file.csv",)}.items():  # fmt: skip
        (folder / name).mkdir()
        for file in files:
            (folder / name / file).write_text("a\n1\n")
    (folder / "closed").chmod(0)
    if isinstance(path, tuple):
        (folder / f"given.{path[0]}").write_bytes(path[1])
        yield str(folder / f"given.{path[0]}")
        return
    reader, writer = os.pipe()
    os.write(writer, b"a,b\n1\n")
    os.close(writer)
    (folder / PIPE).symlink_to(f"/dev/fd/{reader}")  # a line that is no data, and the end
    try:
        yield path
    finally:
        os.close(reader)


# Settings: texts of YAML, and the values and ends of pydantic's fields

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6,
)  # fmt: skip
SHARP = st.sampled_from(["-1", "xyzzy", "0", "9" * 30, ".nan", ".inf", "null", "[[1, [2]], {a: 1}]", "{}", "1e-320"])
YAML = SHARP | TREES.map(json.dumps) | st.sampled_from([
    "", "true", "0.5", "9" * 5001, "-.inf", "[]", "{kind: xyzzy}", "2001-13-01", "!!int x", "!!timestamp foo",
    "!!python/object/apply:os.system [id]", "x" * LONG, "a\u2028b", "a\0b", "[1, {", "1\n---\n2", "os:system",
    "*nothing",
    "[" * 3000 + "]" * 3000, BOMB,
])  # fmt: skip
"""What may stand behind ``--set PATH=``, in a grid and in an experiment file."""
SETTINGS = st.sampled_from([
    "seed", "=5", "", "...=1", "__class__=5", "x" * LONG + "=1", ".".join("a" * 5000) + "=1", "xyzzy=1", "seed.x=1",
    "ks[0]=1", "a\u2028b=1", "a\0=1",
])  # fmt: skip
"""What is no setting."""


def ends(field: FieldInfo) -> list[int | float]:
    """The least and the largest number that a field of a Spec takes, or the first that it does not."""
    schema = TypeAdapter(Annotated[field.annotation, *field.metadata, None]).json_schema()
    for arm in (schema, *schema.get("anyOf", ())):
        if arm.get("type") in ("integer", "number"):
            above = 1e-300 if arm.get("exclusiveMinimum") == 0 else None
            bounds = arm.get("minimum", above), arm.get("maximum", arm.get("exclusiveMaximum"))
            return [end for end in bounds if end is not None]
    return []


def valid(field: FieldInfo) -> SearchStrategy[Any]:
    """Values that a field's annotation and bounds allow, as plain data; of numbers those near the least."""
    kind: Any = field.annotation
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    plain = [st.from_type(kind) for kind in kinds
             if kind in (bool, type(None), str) or get_origin(kind) is Literal]  # fmt: skip
    near = [st.sampled_from([least, least + 1, least + 2, least + 0.5]) for least in ends(field)[:1]]
    return st.one_of(plain + near) if plain or near else TREES


def values_of(field: FieldInfo) -> SearchStrategy[str]:
    """Texts for one field: wrong ones, and some that its annotation allows."""
    return SHARP | valid(field).map(json.dumps)


def fields_of(spec: Spec, above: str = "", seen: set[Any] | None = None) -> Iterator[tuple[str, FieldInfo]]:
    """Dotted path and declaration of each field of a Spec and those below, each once."""
    seen = set() if seen is None else seen
    for name, field in type(spec).model_fields.items():
        if (type(spec), name) not in seen:
            seen.add((type(spec), name))
            yield f"{above}{name}", field
        if isinstance(inner := getattr(spec, name), Spec):
            yield from fields_of(inner, f"{above}{name}.", seen)


# Tables

KINDS = (
    pl.Null, pl.Int64, pl.Float64, pl.Boolean, pl.String, pl.Binary, pl.Date, pl.Datetime("us", "UTC"), pl.Duration,
    pl.Time,
    pl.Decimal(10, 2), pl.Categorical, pl.UInt64, pl.List(pl.Int64), pl.Struct({"a": pl.Int64}),
)  # fmt: skip
CELLS = st.sampled_from(
    [None, float("nan"), float("inf"), -1, 1e300, 2**63, "", "x", "\u2028", " 7 ", "007", "1e3", True]
)


@st.composite
def columns(draw: Any, column: pl.Series) -> pl.Series:
    """A column of the same length and name: of any type, with one value that does not belong, or as other text."""
    kind = draw(st.sampled_from(["any", "cell", "whole", "text", "padded", "constant", "rows"]))
    values = column.to_list()
    if kind == "any":
        dtype = draw(st.sampled_from(KINDS))
        made = draw(series(dtype=dtype, min_size=5, max_size=5, allow_null=True))
        return (made.gather([n % 5 for n in range(len(column))])).alias(column.name)
    if kind == "cell" and values:
        values[draw(st.integers(0, len(values) - 1))] = draw(CELLS)
    elif kind in ("whole", "constant"):
        values = [draw(CELLS)] * len(values)
    elif kind == "rows":
        values = [n + draw(st.sampled_from([0.5, 2.0**60, -5])) for n in range(len(values))]
    elif kind in ("text", "padded"):
        values = [f" {value} " if kind == "padded" else str(value) for value in values]
    mixed = pl.Series(column.name, values, strict=False)
    return mixed if mixed.dtype != pl.Object else pl.Series(column.name, [str(value) for value in values])


@st.composite
def frames(draw: Any, frame: pl.DataFrame) -> pl.DataFrame:
    """A table of which one column, the names, the order or the number of rows is something else."""
    name = draw(st.sampled_from(frame.columns))
    if draw(st.integers(0, 7)) < 3:
        return frame.with_columns(draw(columns(frame[name])))
    names = ("other", name.upper(), f" {name} ", "", "__user", "[x]", "*", "a\u2028b")
    more = (["", "__place", "#"], ["user", "item", "train_count", "score", "rank", "probability"], ["more"],
            [f"c{k}" for k in range(2000)])  # fmt: skip
    forms = {
        "drop": [frame.drop(name), frame.drop(pl.all())],
        "rename": [frame.rename({name: new}) for new in names if new not in frame.columns],
        "rows": [frame[:0], frame[:1], frame[:-1], pl.concat([frame, frame]), pl.concat([frame, frame[-1:]]),
                 frame.head(1).select(pl.all().repeat_by(10_000).explode())],
        "order": [frame.reverse(), frame.select(frame.columns[::-1]), frame.with_columns(frame[name].reverse()),
                  frame.sample(fraction=1.0, shuffle=True, seed=0)],
        "more": [frame.with_columns(pl.lit(1).alias(new) for new in some if new not in frame.columns) for some in more],
    }  # fmt: skip
    return draw(st.sampled_from(forms[draw(st.sampled_from([*forms]))]))


def csv_of(frame: pl.DataFrame) -> str:
    return frame.select(n for n, dtype in frame.schema.items() if not dtype.is_nested()).write_csv()


@st.composite
def texts(draw: Any, frame: pl.DataFrame) -> Content:
    """A table as text with something wrong in its form, as (suffix, content)."""
    csv, lines = csv_of(frame), frame.write_ndjson()
    row = "{" + ", ".join(f'"{name}": 7' for name in frame.columns) + "}\n"
    head, _, body = csv.partition("\n")
    forms = [
        ("csv", csv + '"'), ("csv", csv[:-3]), ("csv", csv + "1\n"), ("csv", csv + "1," * 50 + "\n"), ("csv", body),
        ("csv", csv.replace(",", ";")), ("csv", csv.replace("\n", "," + head.split(",")[0] + "\n", 1)),
        ("csv", "".join(f"{line},{line}\n" for line in csv.splitlines())), ("csv", "\ufeff" + csv),
        ("csv", csv + body * 20 + ",".join("x" * len(head.split(","))) + "\n"), ("csv", csv.replace("\n", "\r\n")),
        ("csv", csv.replace("\n", "\r")), ("jsonl", lines[:-5]), ("jsonl", lines.replace("\n", "\n\n")),
        ("jsonl", lines + '{"other": 1}\n'), ("jsonl", lines + "5\n"), ("jsonl", lines + row.replace("7", "9" * 400)),
        ("jsonl", lines + row.replace("7", "[1]")), ("jsonl", lines * 5 + row.replace("7", '"x"')),
        ("jsonl", lines + "{" + row[1:-2] + ", " + row[1:]),
    ]  # fmt: skip
    suffix, text = draw(st.sampled_from(forms) | st.sampled_from(forms[:1]).map(lambda form: (form[0], csv)))
    if draw(st.integers(0, 3)) == 3:  # a byte anywhere
        at = draw(st.integers(0, len(text) - 1))
        text = text[:at] + draw(st.characters(codec="latin-1")) + text[at + 1 :]
    return suffix, text.encode()
