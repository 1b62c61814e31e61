"""`list`, `schema` and `show`: what there is, and files that a person can begin with."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from fullrank.core.registry import ROOMS, SETTINGS, Room, find, kinds, rooms_named
from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.semantic_ids.spec import Encode
from refusals import refused

if TYPE_CHECKING:
    from conftest import Call, Refuses


def test_list_names_every_room_and_its_kinds(call: Call) -> None:
    found = {entry["room"]: entry["kinds"] for entry in call("list", "--json").json["rooms"]}
    assert found == {room: kinds(room) for room in ROOMS}
    assert all(room in call("list").out for room in ROOMS)


@pytest.mark.parametrize("room", list(ROOMS))
def test_every_kind_has_a_line(room: str, call: Call) -> None:
    found = call("list", room, "--json").json["kinds"]
    assert [entry["kind"] for entry in found] == kinds(room)
    assert all(entry["what"] for entry in found)


def choosing(spec: type[Spec]) -> Iterator[tuple[str, str]]:
    """The fields of a Spec that take components, each with the rooms of these."""
    for name, field in spec.model_fields.items():
        waiting: list[Any] = [*field.metadata, field.annotation]
        while waiting:
            one = waiting.pop()
            if isinstance(one, Room):
                yield from ((name, room) for room in one.names)
            waiting += [*get_args(one), *getattr(one, "__metadata__", ())]


def test_a_type_is_listed_by_each_name_that_a_setting_gives_it(call: Call, refuses: Refuses) -> None:
    """The fields of all Specs that take components say which settings those are."""
    specs = [Experiment, Encode, *(find(kind, room) for room in ROOMS if room != "recipes" for kind in kinds(room))]
    fields = {pair for spec in specs for pair in choosing(spec)}
    assert {room for _, room in fields} == set(SETTINGS)
    for room, path in SETTINGS.items():
        assert (path.split(".")[-1], room) in fields, f"no setting {path} takes {room}"
        if path != "model":
            assert {rooms_named(name)[0] for name in (room, room.split(".")[-1], path, path.split(".")[-1])} == {room}
    assert call("list", "model.penalties", "--json").json == call("list", "regularizers", "--json").json
    assert "model.penalties" in call("list").out
    for given, near in {"lossess": "losses", "model.penalty": "model.penalties", "penaltys": "penalties"}.items():
        refuses("unknown-component-type", ["list", given], f"did you mean {near!r}")
    refuses("ambiguous-kind", ["list", "model"], "recommender", "click")
    refuses("unknown-kind", ["show", "sasrec", "--set", "model.penalties=[sprynt]"], "no penalty", "'sprint'")


def test_a_setting_without_its_path_is_answered_with_the_path(call: Call, refuses: Refuses) -> None:
    """Every last word that one setting alone has, and what is near to one."""
    tree = call("show", "sasrec", "--json").json["spec"]
    words = [path.split(".") for path in leaves(tree)]
    alone = [path for path in words if len(path) > 1 and [other[-1] for other in words].count(path[-1]) == 1]
    assert len(alone) > 40
    experiment = Experiment.parse(tree)
    for path in alone:
        with refused("unknown-setting", f"did you mean {'.'.join(path)!r}?"):
            experiment.override(f"{path[-1]}=1")
    for given, meant in {"lrr": "training.lr", "epochs": "training.max_epochs", "encoder.dropout": "model.encoder.dr",
                         "model.dimm": "'dim'"}.items():  # fmt: skip
        refuses("unknown-setting", ["show", "sasrec", "--set", f"{given}=1"], meant)


def leaves(tree: Any, before: str = "") -> Iterator[str]:
    """The dotted paths of what holds a value."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield from leaves(value, f"{before}{key}.") if isinstance(value, dict) else [f"{before}{key}"]


def test_a_third_partys_kind_is_listed_with_its_line(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.py").write_text('"""A window over the last events."""\nimport torch\n')
    info = tmp_path / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fullrank.attention]\nwindow = theirs:Window\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {entry["kind"]: entry["what"] for entry in call("list", "attention", "--json").json["kinds"]}
    assert found["window"] == "A window over the last events."
    assert "theirs" not in sys.modules


def test_schema_of_an_experiment_completes_a_recipe(call: Call, tmp_path: Path) -> None:
    tree = call("schema", "--json").json
    assert {"model", "training", "evaluation", "seed"} <= set(tree["properties"])
    assert json.loads(call("schema").out) == tree
    out = tmp_path / "deep" / "experiment.schema.json"
    assert call("schema", "--out", out).code == 0 and json.loads(out.read_text()) == tree


def test_schema_of_one_kind(call: Call, refuses: Refuses) -> None:
    assert "layers" in call("schema", "--kind", "transformer", "--json").json["properties"]
    assert "k_core" in call("schema", "--kind", "prepare", "--json").json["properties"]
    refuses("ambiguous-kind", ["schema", "--kind", "popularity"], "baselines", "recipes", "--type")
    assert call("schema", "--kind", "popularity", "--room", "baselines").code == 0
    refuses("unknown-kind", ["schema", "--kind", "transfomer"], "did you mean 'transformer'")
    refuses("missing-option", ["schema", "--room", "baselines"], "--kind")


def test_what_show_prints_trains_again(call: Call, refuses: Refuses, tmp_path: Path, shop: Path) -> None:
    text = call("show", "sasrec", "--set", "model.dim=16").out
    (tmp_path / "mine.yaml").write_text(text)
    tree = call("show", tmp_path / "mine.yaml", "--json").json["spec"]
    assert tree["model"]["dim"] == 16 and tree == call("show", "sasrec", "--set", "model.dim=16", "--json").json["spec"]
    assert call("show", shop / "sasrec", "--json").json["spec"]["model"]["dim"] == 8
    refuses("unknown-recipe", ["show", "sasrex"], "did you mean 'sasrec'")
