"""`list`, `schema` and `show`: what there is, and files that a person can begin with."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from folders import distribution
from fullrank.core.registry import ROOMS, SETTINGS, Room, find, kinds, rooms_named
from fullrank.core.spec import Spec
from fullrank.run.experiment import Experiment
from fullrank.semantic_ids.spec import Encode
from refusals import refused
from tests.cli.conftest import Ask, Call, Refuses


def test_list_names_every_room_and_its_kinds(ask: Ask, call: Call) -> None:
    found = {entry["room"]: entry["kinds"] for entry in ask("list")["rooms"]}
    assert found == {room: kinds(room) for room in ROOMS}
    assert all(room in call("list").out for room in ROOMS)


@pytest.mark.parametrize("room", list(ROOMS))
def test_every_kind_has_a_line(room: str, ask: Ask) -> None:
    found = ask(f"list {room}")["kinds"]
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


def test_a_type_is_listed_by_each_name_that_a_setting_gives_it(ask: Ask, call: Call, refuses: Refuses) -> None:
    """The fields of all Specs that take components say which settings those are."""
    specs = [Experiment, Encode, *(find(kind, room) for room in ROOMS if room != "recipes" for kind in kinds(room))]
    fields = {pair for spec in specs for pair in choosing(spec)}
    assert {room for _, room in fields} == set(SETTINGS)
    for room, path in SETTINGS.items():
        assert (path.split(".")[-1], room) in fields, f"no setting {path} takes {room}"
        if path != "model":
            assert {rooms_named(name)[0] for name in (room, room.split(".")[-1], path, path.split(".")[-1])} == {room}
    assert ask("list model.penalties") == ask("list regularizers")
    assert "model.penalties" in call("list").out
    for given, near in {"lossess": "losses", "model.penalty": "model.penalties", "penaltys": "penalties"}.items():
        refuses("unknown-component-type", f"list {given}", f"did you mean {near!r}")
    refuses("ambiguous-kind", "list model", "recommender", "click")
    refuses("unknown-kind", "show sasrec --set model.penalties=[sprynt]", "no penalty", "'sprint'")


def test_a_setting_without_its_path_is_answered_with_the_path(ask: Ask, refuses: Refuses) -> None:
    """Every last word that one setting alone has, and what is near to one."""
    tree = ask("show sasrec")["spec"]
    words = [path.split(".") for path in leaves(tree)]
    alone = [path for path in words if len(path) > 1 and [other[-1] for other in words].count(path[-1]) == 1]
    assert len(alone) > 40
    experiment = Experiment.parse(tree)
    for path in alone:
        with refused("unknown-setting", f"did you mean {'.'.join(path)!r}?"):
            experiment.override(f"{path[-1]}=1")
    for given, meant in {
        "lrr": "training.lr",
        "epochs": "training.max_epochs",
        "encoder.dropout": "model.encoder.dr",
    }.items():
        refuses("unknown-setting", f"show sasrec --set {given}=1", meant)


def leaves(tree: Any, before: str = "") -> Iterator[str]:
    """The dotted paths of what holds a value."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield from leaves(value, f"{before}{key}.") if isinstance(value, dict) else [f"{before}{key}"]


def test_a_third_partys_kind_is_listed_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    (tmp_path / "theirs.py").write_text('"""A window over the last events."""\nimport torch\n')
    distribution(tmp_path, "theirs", {"fullrank.attention": {"window": "theirs:Window"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {entry["kind"]: entry["what"] for entry in ask("list attention")["kinds"]}
    assert found["window"] == "A window over the last events."
    assert "theirs" not in sys.modules


def test_schema_of_an_experiment_completes_a_recipe(ask: Ask, call: Call, tmp_path: Path) -> None:
    tree = ask("schema")
    assert {"model", "training", "evaluation", "seed"} <= set(tree["properties"])
    assert json.loads(call("schema").out) == tree
    assert call("schema --out deep/experiment.schema.json").code == 0
    assert json.loads((tmp_path / "deep" / "experiment.schema.json").read_text()) == tree


def test_schema_of_one_kind(ask: Ask, call: Call, refuses: Refuses) -> None:
    assert "layers" in ask("schema --kind transformer")["properties"]
    assert "k_core" in ask("schema --kind prepare")["properties"]
    assert "label_threshold" in ask("schema --kind impressions")["properties"]
    refuses("ambiguous-kind", "schema --kind popularity", "baselines", "recipes", "--type")
    assert call("schema --kind popularity --room baselines").code == 0
    refuses("unknown-kind", "schema --kind transfomer", "did you mean 'transformer'")
    refuses("missing-option", "schema --room baselines", "--kind")


def test_what_show_prints_trains_again(ask: Ask, call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(call("show sasrec --set model.dim=16").out)
    tree = ask("show mine.yaml")["spec"]
    assert tree["model"]["dim"] == 16 and tree == ask("show sasrec --set model.dim=16")["spec"]
    assert ask("show @sasrec")["spec"]["model"]["dim"] == 8
