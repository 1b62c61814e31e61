"""`list`, `schema` and `show`: what there is, and files that a person can begin with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fullrank.core.registry import ROOMS, kinds

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


def test_a_room_is_known_by_its_last_name(call: Call, refuses: Refuses) -> None:
    assert call("list", "losses", "--json").json["room"] == "objectives.losses"
    refuses("unknown-room", ["list", "lossess"], "did you mean 'losses'")


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
    refuses("ambiguous-kind", ["schema", "--kind", "popularity"], "baselines", "recipes", "--room")
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
