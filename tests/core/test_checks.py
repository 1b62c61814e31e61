"""What passes the door of a public function, and what does not."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import Field

import fullrank as fr
from fullrank.core.checks import (
    check_choice,
    check_flag,
    check_number,
    check_overrides,
    check_path,
    check_type,
    check_whole,
    public,
    with_defaults,
)
from refusals import refused

if TYPE_CHECKING:
    from fullrank.run.experiment import Experiment


def test_what_is_right_comes_through() -> None:
    assert check_path("out", "a/b") == check_path("out", Path("a/b")) == Path("a/b")
    for given in (3, np.int8(3), np.uint64(3)):
        assert check_whole("k", given, 1) == 3 and type(check_whole("k", given, 1)) is int
    assert check_number("share", np.float32(0.5)) == 0.5 and check_number("share", 10**400) == float("inf")
    assert check_flag("titles", np.True_) is True and check_flag("titles", False) is False
    assert check_overrides(["seed=1"]) == check_overrides(("seed=1",)) == ("seed=1",)
    assert check_type("split", "test", str, "a name") == "test"


class Opened:
    """What a function takes beside a path."""


@public
def door(
    store: Opened | str | Path,
    out: str | Path = "out",
    *rest: Any,
    spec: Experiment | str | Path | None = None,
    opened: Opened | None = None,
    start: Literal["mean", "zero"] = "mean",
    count: Annotated[int, Field(ge=1, le=9)] | None = None,
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5,
    dry: bool = False,
    set: Sequence[str] = (),
    column: str | None = ...,  # type: ignore[assignment]
    table: Any = None,
) -> dict[str, Any]:
    """As it was given."""
    return {name: value for name, value in locals().items() if name != "self"}


def test_a_door_gives_on_what_its_annotations_say() -> None:
    opened = Opened()
    found = door(
        opened, "a", 1, 2, spec=3, opened=opened, start="zero", count=np.int64(3), share=np.float32(0.25),
        dry=np.True_, set=["seed=1"], column="c", table=object,
    )  # fmt: skip
    assert found["store"] is opened and found["rest"] == (1, 2) and Path(found["out"]) == Path("a")
    assert (found["count"], type(found["count"]), found["share"], found["dry"]) == (3, int, 0.25, True)
    assert door("s")["column"] is ... and door("s", count=None)["count"] is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"store": 3}, ("not-a-path", "store=3")),
        ({"out": None}, ("not-a-path", "out=None")),
        ({"out": b"a"}, ("not-a-path", "b'a'")),
        ({"out": ""}, ("not-a-path", "out=''")),
        ({"out": "a\0b"}, ("not-a-path", "null")),
        ({"opened": "x"}, ("wrong-argument-type", "opened='x'", "Opened")),
        ({"start": "meen"}, ("unknown-start", "start='meen'", "did you mean 'mean'", "zero")),
        ({"start": np.array(["mean", "zero"])}, ("unknown-start", "mean")),  # compares with each of its elements
        ({"count": 0}, ("setting-out-of-range", "count=0", "at least 1", "at most 9")),
        ({"count": 2.0}, ("not-a-whole-number", "count=2.0")),
        ({"count": True}, ("not-a-whole-number", "count=True")),
        ({"count": "3"}, ("not-a-whole-number", "'3'")),
        ({"count": 10**40}, ("setting-out-of-range", "count=1000")),
        ({"share": "0.5"}, ("not-a-number", "'0.5'")),
        ({"share": False}, ("not-a-number", "False")),
        ({"share": 1}, ("setting-out-of-range", "share=1", "above 0 and below 1")),
        ({"share": float("nan")}, ("setting-out-of-range", "share=nan")),
        ({"dry": 1}, ("not-a-flag", "dry=1")),
        ({"dry": "yes"}, ("not-a-flag", "'yes'")),
        ({"set": "seed=1"}, ("not-a-list", "set='seed=1'")),
        ({"set": [1]}, ("not-a-list", "[1]")),
        ({"column": 7}, ("wrong-argument-type", "column=7")),
        ({"starts": "mean"}, ("unknown-argument", "door", "'starts'", "'start'")),
    ],
)
def test_a_door_refuses_what_they_do_not(given: dict[str, Any], said: tuple[str, ...]) -> None:
    with refused(*said):
        door(**{"store": "s", **given})


def test_a_wrong_choice_has_the_code_of_its_argument_or_the_common_one() -> None:
    for name, code in (("time_unit", "unknown-choice"), ("start", "unknown-start"), ("engine", "unknown-engine")):
        with refused(code, name, "did you mean 'ms'"):
            check_choice(name, "mss", ("s", "ms"))
    with refused("unknown-choice", "time_unit"):
        check_choice("time_unit", 10**5000, ("s", "ms"))


def test_options_are_filled_and_a_misspelt_one_is_an_error() -> None:
    assert with_defaults({"resume": True}, {"resume": False, "device": "auto"}) == {"resume": True, "device": "auto"}
    with pytest.raises(TypeError, match="resum"):
        with_defaults({"resum": True}, {"resume": False})


def public() -> list:
    """Functions of `fr.__all__`, and the public methods of the two classes that answer."""
    functions = [getattr(fr, name) for name in fr.__all__ if name not in ("Click", "Clicks", "attended")]
    methods = [one for cls in (fr.Predictor, fr.Cascade) for name, one in vars(cls).items() if not name.startswith("_")]
    return [one for one in (*functions, *methods) if isinstance(one, FunctionType)]


def test_a_wrong_keyword_of_any_public_function_names_the_nearest() -> None:
    asked = 0
    for function in public():
        parameters = inspect.signature(function).parameters
        if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            continue
        for right in (name for name in parameters if name != "self" and len(name) > 3):
            with refused("unknown-argument", function.__name__, f"did you mean {right!r}"):
                function(**{f"{right}_": None})
            asked += 1
    assert asked > 200
    with refused("unknown-argument", "'filter'", "'filters'"):
        fr.recommend("runs/any", filter={"in_stock": True})
    with refused("unknown-argument", "'set'"):
        fr.train("sasrec", sett=["seed=1"])


def test_every_annotation_of_a_door_can_be_read() -> None:
    """Also those whose names a linter does not follow: the bounds."""
    doors = [function.checks() for function in public() if hasattr(function, "checks")]
    assert len(doors) > 12 and all(doors)


def test_they_are_the_functions_of_their_modules() -> None:
    for function in public():
        if "." not in function.__qualname__:
            assert pickle.loads(pickle.dumps(function)) is function
