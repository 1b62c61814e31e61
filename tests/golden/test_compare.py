"""The comparison of `make golden` reports a changed last bit, and says so where there is nothing to compare with."""

import copy
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden import compare
from tests.golden.families import FAMILIES
from tests.golden.record import digest, exact

LOSS = 1.7431
RECORD: dict[str, Any] = {
    "stores": {"events": {"fingerprint": "ab", "files": {"items.npy": "cd"}}},
    "families": {
        "sasrec": {
            "spec": {"model": {"dim": 16}},
            "losses": [{"ahead_1": exact(LOSS)}, {"ahead_1": exact(1.5)}],
            "rows": [{"event": "epoch", "train/loss": exact(1.6)}],
            "evaluations": [{"metrics": {"ndcg@10": exact(0.25), "pcoc": exact(math.nan)}}],
            "lists": [{"user": "u1", "item": "i3", "score": exact(0.5)}],
        },
        "popularity": {"losses": [], "weights": "12"},
    },
}


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """The record with one value replaced."""
    made = copy.deepcopy(RECORD)
    inside: Any = made
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = to
    return made


def test_equal_records_are_equal() -> None:
    lines, same = compare.report(RECORD, copy.deepcopy(RECORD))
    assert same and sum(line.endswith("equal") for line in lines) == 3
    assert "2" in lines[2].split()


@pytest.mark.parametrize(
    "path",
    [
        ("losses", 0, "ahead_1"), ("rows", 0, "train/loss"), ("evaluations", 0, "metrics", "ndcg@10"),
        ("lists", 0, "score"),
    ],
)  # fmt: skip
def test_a_last_bit_is_noticed(path: tuple[Any, ...]) -> None:
    value: Any = RECORD["families"]["sasrec"]
    for key in path:
        value = value[key]
    near = math.nextafter(float.fromhex(value), math.inf)
    lines, same = compare.report(RECORD, changed("families", "sasrec", *path, to=exact(near)))
    told = next(line for line in lines if line.startswith("sasrec"))
    assert not same and str(path[-1]) in told and repr(near) in told


def test_what_is_gone_new_or_broken_is_noticed() -> None:
    for other, words in (
        (changed("families", "sasrec", "losses", to=RECORD["families"]["sasrec"]["losses"][:1]), "2 entries are now 1"),
        (changed("families", "sasrec", "evaluations", 0, "metrics", to={}), "is gone"),
        (changed("families", "popularity", "items", to=3), "is new"),
        (changed("families", "popularity", to={"error": "KeyError: 'x'"}), "failed: KeyError"),
        (changed("families", "sasrec", "spec", "model", "dim", to=32), "16 is now 32"),
        (changed("stores", "events", "fingerprint", to="xy"), "ab is now xy"),
    ):
        lines, same = compare.report(RECORD, other)
        assert not same and words in "\n".join(lines)
    without = copy.deepcopy(RECORD)
    del without["families"]["popularity"]
    assert not compare.report(RECORD, without)[1]
    assert not compare.report(changed("families", "sasrec", to={"error": "e"}), RECORD)[1]


def test_a_spec_and_a_row_may_gain_keys() -> None:
    assert compare.report(RECORD, changed("families", "sasrec", "spec", "model", "later", to=1))[1]
    assert compare.report(RECORD, changed("families", "sasrec", "rows", 0, "figure", to="0x1p+0"))[1]


def test_a_diagnosis_may_gain_rows_but_not_lose_or_change_them() -> None:
    rows = [{"diagnostic": "ablation", "label": label, "value": 1.0} for label in ("whole", "attention")]
    more = [rows[0], {"diagnostic": "ablation", "label": "mixing", "value": 2.0}, rows[1]]
    assert not list(compare.differences({"diagnosis": rows}, {"diagnosis": more}))
    assert list(compare.differences({"diagnosis": rows}, {"diagnosis": more[:2]}))
    assert list(compare.differences({"diagnosis": rows}, {"diagnosis": [*more[:2], rows[1] | {"value": 3.0}]}))


def test_a_bit_of_a_weight_changes_the_digest() -> None:
    weights = {"a": torch.ones(3), "b": torch.zeros(2)}
    near = {"a": torch.nextafter(weights["a"], torch.full((3,), 2.0)), "b": weights["b"]}
    assert digest(weights) == digest(dict(reversed(weights.items()))) != digest(near)
    assert digest({"a": torch.zeros(1)}) != digest({"b": torch.zeros(1)})


def test_without_the_commit_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FULLRANK_BASELINE", "f" * 40)
    monkeypatch.setattr(sys, "argv", ["compare"])
    assert compare.main() == 2
    assert "No comparison" in capsys.readouterr().out


def test_without_git_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    with pytest.raises(compare.NoComparison, match="no git checkout"), compare.checked_out(compare.BASELINE):
        pass


def test_every_kind_of_recipe_is_recorded() -> None:
    """A recipe that is added later has no baseline to be compared with; those of the baseline are all there."""
    wanted = {
        "sasrec", "sasrec_2018", "sasrec_plus", "sprint", "gru4rec", "bert4rec", "hstu", "hstu_plus", "srt", "rpg",
        "fair", "plr", "popularity", "recency", "item_to_item", "lr", "fm", "dnn", "dcnv2", "xdeepfm", "autoint",
        "rankmixer", "rankelastor",
    }  # fmt: skip
    assert wanted <= {family.recipe for family in FAMILIES.values()}
