"""spec.py and errors.py: parsing, overrides, kinds, entry points, and the sentences that a mistake earns."""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, model_validator

from folders import distribution
from fullrank.core import registry
from fullrank.core.errors import UserError, did_you_mean, unknown
from fullrank.core.registry import Room, find, kinds
from fullrank.core.spec import Spec
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.run.experiment import Experiment, find_experiment
from fullrank.semantic_ids.spec import Encode
from refusals import refused

ATTENTIONS = ", ".join(sorted(kinds("attention")))


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
    def _feathers_are_fancy(self) -> "Whole":
        if self.mode == "plain" and self.feathers is not None:
            raise UserError("feathers have no effect with mode='plain'; remove them", code="setting-without-effect")
        return self


@pytest.mark.parametrize("seed", [-1, 2**63, 10**40, 10**999])
def test_seeds_are_what_torch_takes(seed: int) -> None:
    assert Experiment.parse({"seed": 2**63 - 1}).seed == 2**63 - 1
    with refused("invalid-setting", "seed"):
        Experiment.parse({"seed": seed})


@pytest.mark.parametrize(
    ("tree", "shown"),
    [
        ({"training": {"lr": "x" * 10**6}}, "training.lr"),
        ({"training": {"x" * 10**6: 1}}, "has no setting"),
        ({"training": {"betas": [2, 3]}}, "training.betas.0"),
        ({"training": {"betas": [0.5] * 10**5}}, "training.betas"),
        ({"evaluation": {"ks": ["x"] * 10**5}}, "evaluation"),
        ({"model": {"kind": "x" * 10**6}}, "called"),
        ({"model": {"kind": "recommender", "penalties": ["x" * 10**5] * 10}}, "model"),
        ({"x" * 10**6: 1}, "has no setting"),
    ],
)
def test_what_was_given_is_cut(tree: dict[str, Any], shown: str) -> None:
    with pytest.raises(UserError) as caught:
        Experiment.parse(tree)
    told = str(caught.value)
    assert shown in told and len(told) <= 2000 and "x" * 201 not in told


def test_json_and_yaml_text() -> None:
    assert Whole.from_text("part: {width: 7}").part.width == 7
    assert Whole.from_text('{\n\t"part": {"rate": 1e-07}\n}').part.rate == 1e-7
    for text in (".inf", "-.inf", ".nan"):
        with refused("invalid-setting", "limit", "finite"):
            Whole.from_text(f"limit: {text}")
    with refused("neither-yaml-nor-json"):
        Whole.from_text("part: [")
    with refused("invalid-setting", "Whole", "given: 5"):
        Whole.from_text("5")


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (
            {"prt": 1},
            ("unknown-setting", "whole", "'prt'", "'part'", "part, attention, penalties, limit, mode, feathers"),
        ),
        ({"part": {"wdth": 1}}, ("unknown-setting", "part: part", "'wdth'", "'width'", "width, rate")),
        ({"part": {"width": 0}}, ("invalid-setting", "part.width: ", "equal to 1", "given: 0")),
        (
            {"attention": "softmx"},
            ("unknown-kind", "attention: ", "'softmx'", "'softmax'", ATTENTIONS),
        ),
        (
            {"attention": {"kind": "softmax", "head": 1}},
            ("unknown-setting", "attention: softmax", "'head'", "'heads'", "causal, rope"),
        ),
        (
            {"attention": {"heads": 1}},
            ("missing-kind", "attention: ", "'kind'", ATTENTIONS),
        ),
        (
            {"attention": Part()},
            ("kind-not-allowed", "attention: ", "'part'", ATTENTIONS),
        ),
        ({"mode": "fncy"}, ("invalid-setting", "mode: ", "'plain'", "'fancy'", "given: 'fncy'")),
        ({"feathers": 2}, ("setting-without-effect", "feathers", "mode='plain'")),
    ],
)
def test_mistakes_in_a_tree(tree: dict[str, object], says: tuple[str, ...]) -> None:
    with refused(*says) as found:
        Whole.parse(tree)
    assert "\n" not in str(found)


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
    with refused("unknown-setting", "penalties.2: ", "'2'", "list of 2"):
        whole.override("penalties.2=uniform")


def test_settings_that_belong_together_come_in_either_order() -> None:
    one, other = Whole().override("mode=fancy", "feathers=3"), Whole().override("feathers=3", "mode=fancy")
    assert one == other
    for settings in (("feathers=3",), ("feathers=3", "part.width=2")):
        with refused("setting-without-effect", "feathers", "mode='plain'"):
            Whole().override(*settings)
    with refused("invalid-setting", "part.width: ", "equal to 1", "given: 0"):
        Whole().override("part.width=0", "limit=1")


def test_a_kind_that_needs_a_setting_gets_it_by_its_name() -> None:
    made = Encode().override("vectors.kind=file", "vectors.path=mine.parquet", "vectors.item=id")
    assert made == Encode().override("vectors={kind: file, path: mine.parquet, item: id}")
    with refused("invalid-setting", "vectors.path: Field required"):
        Encode().override("vectors.kind=file", "pca=8")
    with refused("unknown-setting", "vectors", "pth", "path"):
        Encode().override("vectors.kind=file", "vectors.pth=mine.parquet")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("part", ("unreadable-setting", "'part'", "a.b=value")),
        ("=3", ("unreadable-setting", "'=3'", "a.b=value")),
        ("part.width=[", ("unreadable-setting", "'part.width=['", "YAML")),
        ("part.wdth=3", ("unknown-setting", "part.wdth: ", "'wdth'", "'width'", "width, rate")),
        ("prt.width=3", ("unknown-setting", "prt.width: ", "'prt'", "'part'")),
        ("part.width.x=3", ("unknown-setting", "part.width.x: ", 4)),
        ("part.width=x", ("invalid-setting", "part.width: ", "integer", "given: 'x'")),
        ("attention.kind=lstm", ("unknown-kind", "attention: ", "'lstm'")),
    ],
)
def test_mistakes_in_a_setting(setting: str, says: tuple[object, ...]) -> None:
    with refused(*says) as found:
        Whole().override(setting)
    assert "\n" not in str(found)


def test_kinds_of_a_room() -> None:
    assert "softmax" in kinds("attention")
    assert "rotary" not in kinds("attention"), "a file that declares no kind is no component"
    assert find("transformer", "encoders") is Transformer
    assert Transformer in {find(kind, "encoders") for kind in kinds("encoders")}
    for room in ("atention", "attention.softmax", "nowhere.at.all"):
        with refused("unknown-room", repr(room)):
            kinds(room)
    with refused("unknown-kind", "'sofmax'", "'softmax'"):
        find("sofmax", "attention")


def test_schema_of_a_component_needs_its_kind() -> None:
    choices = Whole.model_json_schema()["properties"]["attention"]["anyOf"]
    assert all(choice["required"] == ["kind"] for choice in choices if "properties" in choice)
    assert any("softmax" in choice.get("enum", ()) for choice in choices)


WINDOW = '''
from typing import Literal
from fullrank.core.spec import Spec
from fullrank.run.experiment import Experiment

class Window(Spec):
    """A third party's attention."""
    kind: Literal["window"] = "window"
    reach: int = 8
    """Positions back."""
'''


Install = Callable[..., None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a package into a temporary folder of sys.path, whose `Window` is an attention (or a recipe) of that name."""

    def install(text: str, name: str, group: str = "attention") -> None:
        (tmp_path / "their_parts.py").write_text(text)
        distribution(tmp_path, "their-parts", {f"fullrank.{group}": {name: "their_parts:Window"}})
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(registry, "points", inspect.unwrap(registry.points))  # without a cache of the laws
        monkeypatch.delitem(sys.modules, "their_parts", raising=False)

    return install


def test_a_third_party_component_joins_its_room(installed: Install) -> None:
    assert "window" not in kinds("attention")
    installed(WINDOW, "window")
    assert "window" in kinds("attention")
    assert "their_parts" not in sys.modules, "listing the kinds imports nobody"
    whole = Whole().override("attention=window", "attention.reach=3")
    assert whole.dump()["attention"] == {"kind": "window", "reach": 3}
    assert Whole.from_text(whole.to_yaml()) == whole
    assert "window" in json.dumps(Whole.model_json_schema())
    with refused("unknown-setting", "attention: window", "'reech'", "'reach'"):
        whole.override("attention={kind: window, reech: 3}")


@pytest.mark.parametrize(
    "recipe",
    [
        '@recipe(needs="events", kind="theirs")\ndef Window():\n    return Experiment(seed=3)\n',
        'class Window(RecipeSpec):\n    kind: str = "theirs"\n    needs: ClassVar[str] = "events"\n\n'
        "    def build(self):\n        return Experiment(seed=3)\n",
    ],
)
def test_a_recipe_of_another_package_is_a_function_or_a_class(installed: Install, recipe: str) -> None:
    installed(
        f"from fullrank.run.experiment import Experiment\nfrom fullrank.recipes import *\n{recipe}", "theirs", "recipes"
    )
    assert find_experiment("theirs").seed == 3


def test_an_entry_point_that_is_no_spec_is_refused(installed: Install) -> None:
    installed("class Window: ...\n", "window")
    with refused("invalid-entry-point", "attention: ", "'window'", "their_parts.Window"):
        Whole().override("attention=window")


def test_an_entry_point_may_not_take_a_name_that_is_taken(installed: Install) -> None:
    text = WINDOW.replace('"window"', '"softmax"')
    installed(text, "softmax")
    with refused("declared-twice", "attention: ", "'softmax'", "their_parts:Window"):
        Whole.parse({"attention": "softmax"})


def test_errors_help() -> None:
    assert did_you_mean("sasrek", ["sasrec", "gru4rec"]) == "; did you mean 'sasrec'?"
    slips = {
        "--output": "--out",
        "--metrics": "--metric",
        "tset": "test",
        "fti": "fit",
        "kcore": "k_core",
        "gru": "gru4rec",
    }
    for given, name in slips.items():
        assert did_you_mean(given, [name, "--within", "zebra"]) == f"; did you mean {name!r}?", given
    for given, name in {
        "--overwrite": "--within",
        "--epoch": "--metric",
        "--learning-rate": "--reasoning-steps",
    }.items():
        assert did_you_mean(given, [name, "--json", "--out"]) == "", "another word is no misspelling"
    assert did_you_mean("qqq", ["sasrec", "gru4rec"]) == ""
    assert (
        str(unknown("recipe", "sasrek", ["sasrec"]))
        == "unknown recipe 'sasrek'; did you mean 'sasrec'? (allowed: sasrec)"
    )
    assert "(allowed: none)" in str(unknown("recipe", "x", []))
    assert issubclass(UserError, ValueError)
