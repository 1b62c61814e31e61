"""spec.py and errors.py: parsing, overrides, kinds, entry points, and the sentences that a mistake earns."""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, model_validator

from fullrank.core import registry
from fullrank.core.errors import UserError, did_you_mean, unknown
from fullrank.core.registry import Room, discover, find, kinds
from fullrank.core.spec import Spec
from fullrank.models.sequential.encoders.transformer import Transformer


class Part(Spec):
    """A part without a kind."""

    width: int = Field(4, ge=1)
    """Width."""
    rate: float = 1e-5
    """Rate."""


class Whole(Spec):
    """A spec with every sort of setting."""

    part: Part = Part()
    """Part."""
    attention: Annotated[Spec, Room("attention")] = Field(default_factory=lambda: find("softmax", "attention")())
    """Component."""
    penalties: tuple[Annotated[Spec, Room("objectives.weightings")], ...] = ()
    """Components."""
    limit: float | None = None
    """Limit."""
    mode: Literal["plain", "fancy"] = "plain"
    """Mode."""
    feathers: int | None = None
    """Only for fancy."""

    @model_validator(mode="after")
    def _feathers_are_fancy(self) -> Whole:
        if self.mode == "plain" and self.feathers is not None:
            raise ValueError("feathers have no effect with mode='plain'; remove them")
        return self


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_json_and_yaml_text() -> None:
    assert Whole.from_text("part: {width: 7}").part.width == 7
    assert Whole.from_text('{\n\t"part": {"rate": 1e-07}\n}').part.rate == 1e-7
    assert Whole.from_text("limit: .inf").limit == float("inf")
    assert "neither YAML nor JSON" in refused(lambda: Whole.from_text("part: ["))
    assert "given: 5" in refused(lambda: Whole.from_text("5"))


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"prt": 1}, "whole has no setting 'prt'; did you mean 'part'?"),
        ({"part": {"wdth": 1}}, "part: part has no setting 'wdth'; did you mean 'width'?"),
        ({"part": {"width": 0}}, "part.width: Input should be greater than or equal to 1 (given: 0)"),
        ({"attention": "softmx"}, "attention: no attention is called 'softmx'; did you mean 'softmax'?"),
        (
            {"attention": {"kind": "softmax", "head": 1}},
            "attention: softmax has no setting 'head'; did you mean 'heads'?",
        ),
        ({"attention": {"heads": 1}}, "attention: expected a mapping with 'kind', one of:"),
        ({"attention": Part()}, "attention: 'part' is not one of"),
        ({"mode": "fncy"}, "mode: Input should be 'plain' or 'fancy' (given: 'fncy')"),
        ({"feathers": 2}, "feathers have no effect"),
    ],
)
def test_mistakes_in_a_tree(tree: dict[str, object], said: str) -> None:
    assert said in refused(lambda: Whole.parse(tree))


def test_override_places_values() -> None:
    whole = Whole()
    changed = whole.override("part.width=9", "part.rate=1e-3", "limit=null", "attention.heads=4")
    assert (changed.part.width, changed.part.rate, changed.limit) == (9, 1e-3, None)
    assert changed.dump()["attention"]["heads"] == 4
    assert whole == Whole(), "the original is left alone"
    assert whole.override() == whole


def test_override_of_a_component() -> None:
    whole = Whole().override("attention.heads=4")
    assert whole.override("attention=softmax").dump()["attention"]["heads"] == 2, "a bare kind starts from its defaults"
    assert whole.override("attention.kind=softmax").dump()["attention"]["heads"] == 2
    assert whole.override("attention={kind: softmax, heads: 8}").dump()["attention"]["heads"] == 8
    assert whole.override("attention=softmax", "attention.heads=1").dump()["attention"]["heads"] == 1


def test_override_inside_a_list() -> None:
    whole = Whole().override("penalties=[uniform, inverse_popularity]")
    assert [p.kind_of() for p in whole.penalties] == ["uniform", "inverse_popularity"]
    assert whole.override("penalties.0=inverse_popularity").penalties[0].kind_of() == "inverse_popularity"
    assert "'2' is not a place in a list of 2" in refused(lambda: whole.override("penalties.2=uniform"))


def test_settings_that_belong_together_come_in_either_order() -> None:
    one, other = Whole().override("mode=fancy", "feathers=3"), Whole().override("feathers=3", "mode=fancy")
    assert one == other
    assert "no effect" in refused(lambda: Whole().override("feathers=3"))
    assert "no effect" in refused(lambda: Whole().override("feathers=3", "part.width=2"))
    assert "greater than" in refused(lambda: Whole().override("part.width=0", "limit=1"))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("part", "write it as a.b=value"),
        ("=3", "write it as a.b=value"),
        ("part.width=[", "it is not YAML"),
        ("part.wdth=3", "part.wdth: there is no setting 'wdth'; did you mean 'width'? (allowed: width, rate)"),
        ("prt.width=3", "did you mean 'part'?"),
        ("part.width.x=3", "nothing can be set below this value; it is 4"),
        ("part.width=x", "part.width: Input should be a valid integer"),
        ("attention.kind=lstm", "no attention is called 'lstm'"),
    ],
)
def test_mistakes_in_a_setting(setting: str, said: str) -> None:
    assert said in refused(lambda: Whole().override(setting))


def test_kinds_of_a_room() -> None:
    assert "softmax" in kinds("attention")
    assert "rotary" not in kinds("attention"), "a file that declares no kind is no component"
    assert find("transformer", "encoders") is Transformer
    assert Transformer in set(discover("encoders"))
    for room in ("atention", "attention.softmax", "nowhere.at.all"):
        assert "unknown room" in refused(lambda room=room: kinds(room))
    with pytest.raises(ValueError, match="did you mean 'softmax'"):
        find("sofmax", "attention")


def test_schema_of_a_component_needs_its_kind() -> None:
    choices = Whole.model_json_schema()["properties"]["attention"]["anyOf"]
    assert all(choice["required"] == ["kind"] for choice in choices if "properties" in choice)
    assert any("softmax" in choice.get("enum", ()) for choice in choices)


WINDOW = '''
from typing import Literal
from fullrank.core.spec import Spec

class Window(Spec):
    """A third party's attention."""
    kind: Literal["window"] = "window"
    reach: int = 8
    """Positions back."""
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a package into a temporary folder of sys.path, with entry points as an installation leaves them."""

    def install(text: str, points: str) -> None:
        (tmp_path / "their_parts.py").write_text(text)
        info = tmp_path / "their_parts-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-parts\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(textwrap.dedent(points))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(registry, "_points", inspect.unwrap(registry._points))  # without a cache of the laws
        monkeypatch.delitem(sys.modules, "their_parts", raising=False)

    return install


def test_a_third_party_component_joins_its_room(installed: Callable[[str, str], None]) -> None:
    assert "window" not in kinds("attention")
    installed(WINDOW, "[fullrank.attention]\nwindow = their_parts:Window\n")
    assert "window" in kinds("attention")
    assert "their_parts" not in sys.modules, "listing the kinds imports nobody"
    whole = Whole().override("attention=window", "attention.reach=3")
    assert whole.dump()["attention"] == {"kind": "window", "reach": 3}
    assert Whole.from_text(whole.to_yaml()) == whole
    assert "window" in json.dumps(Whole.model_json_schema())
    assert "did you mean 'reach'" in refused(lambda: whole.override("attention={kind: window, reech: 3}"))


def test_an_entry_point_that_is_no_spec_is_refused(installed: Callable[[str, str], None]) -> None:
    installed("class Window: ...\n", "[fullrank.attention]\nwindow = their_parts:Window\n")
    assert "must name a Spec class whose kind is 'window'" in refused(lambda: Whole().override("attention=window"))


def test_an_entry_point_may_not_take_a_name_that_is_taken(installed: Callable[[str, str], None]) -> None:
    text = WINDOW.replace('"window"', '"softmax"')
    installed(text, "[fullrank.attention]\nsoftmax = their_parts:Window\n")
    assert "declared twice" in refused(lambda: Whole.parse({"attention": "softmax"}))


def test_errors_help() -> None:
    assert did_you_mean("sasrek", ["sasrec", "gru4rec"]) == "; did you mean 'sasrec'?"
    assert did_you_mean("qqq", ["sasrec", "gru4rec"]) == ""
    assert (
        str(unknown("recipe", "sasrek", ["sasrec"]))
        == "unknown recipe 'sasrek'; did you mean 'sasrec'? (allowed: sasrec)"
    )
    assert "(allowed: none)" in str(unknown("recipe", "x", []))
    assert issubclass(UserError, ValueError)
