"""A field that joins a Spec leaves the hashes of recorded rows as they were, while it stands at its old value."""

from typing import Any

import pytest

from fullrank.core.spec import REMOVED, Removed, Spec, later, spec_tree
from fullrank.sweeps.jobs import ADDED, Job, tree_hash
from fullrank.sweeps.records import is_row_of
from fullrank.sweeps.sweep import Grid
from refusals import refused


class Part(Spec):
    width: int = 4


class Whole(Spec):
    name: str = "whole"
    parts: tuple[Part, ...] = (Part(), Part(width=8))


def planted(**fields: Any) -> type[Spec]:
    """`Whole` with other fields in its parts."""
    part = type("Part", (Part,), {"__module__": __name__, "__annotations__": dict.fromkeys(fields, Any), **fields})
    parts = {"__annotations__": {"parts": tuple[part, ...]}, "parts": (part(), part(width=8))}  # type: ignore[valid-type]
    return type("Whole", (Whole,), {"__module__": __name__, **parts})


def hash_of(spec: Spec) -> str:
    return tree_hash(spec_tree(spec))


def job(*settings: str) -> Job:
    (made,) = Grid.parse({"cells": [{"name": "sasrec", "recipe": "sasrec"}]}).jobs()
    return Job(made.cell, "", {}, 0, made.experiment.override(*settings), made.splits, made.group)


def test_a_declared_field_is_left_out_while_it_changes_nothing() -> None:
    grown = planted(bias=later(False))
    assert hash_of(grown()) == hash_of(Whole())
    assert hash_of(grown.parse({"parts": [{}, {"width": 8, "bias": True}]})) != hash_of(Whole())
    assert "bias" in grown().dump()["parts"][0], "it is written to the run folder all the same"


def test_a_default_that_changes_something_is_hashed() -> None:
    grown = planted(norm=later("rms", before="layer"))
    assert hash_of(grown()) != hash_of(Whole())
    assert hash_of(grown.parse({"parts": [{"norm": "layer"}, {"width": 8, "norm": "layer"}]})) == hash_of(Whole())


def test_a_field_that_nobody_declared_changes_every_hash() -> None:
    assert hash_of(planted(bias=False)()) != hash_of(Whole())


def test_a_setting_that_is_gone_is_hashed_as_it_was_and_read_at_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    had = planted(bias=False)()
    monkeypatch.setitem(REMOVED, ("part", "bias"), Removed(False, "0.1.0"))
    assert hash_of(Whole()) == hash_of(had) and Whole.parse(had.dump()) == Whole()
    with refused("removed-setting", "part.bias=True", "0.1.0"):
        Whole.parse({"parts": [{"bias": True}]})
    with refused("unknown-setting", "bios"):
        Whole.parse({"parts": [{"bias": False, "bios": 1}]})


def test_a_field_that_is_a_spec_is_compared_without_what_joined_it_still_later() -> None:
    grown = planted(inner=later(Part()))
    assert hash_of(grown()) == hash_of(Whole())


class Inner(Part):
    """A part that has gained settings of its own."""

    pair: tuple[int, ...] = later((1, 2))
    depth: int = later(3)


def test_lists_specs_and_mappings_of_them_are_left_out_too() -> None:
    assert hash_of(planted(pair=later((1, 2)))()) == hash_of(Whole())
    assert hash_of(planted(inner=later(Inner()))()) == hash_of(Whole())
    assert hash_of(
        planted(inner=later(Inner())).parse({"parts": [{"inner": Inner(depth=4)}, {"width": 8}]})
    ) != hash_of(Whole())
    (tree,) = spec_tree(
        type("Named", (Spec,), {"__annotations__": {"parts": dict[str, Inner]}, "parts": {"a": Inner()}})()
    ).values()
    assert tree == {"a": {"width": 4}}


def test_a_row_of_an_earlier_version_counts_as_run() -> None:
    """The first committed row of results/sequence, run before five of today's settings existed."""
    row = {"cell": "sasrec", "seed": 0, "spec_hash": "b6d37e50ebf5f51a", "data_fingerprint": "x"}
    assert job().spec_hash != row["spec_hash"] and is_row_of(row, job(), "x")
    assert not is_row_of(row, job(), "y") and not is_row_of({**row, "seed": 1}, job(), "x")


@pytest.mark.parametrize(
    ("setting", "steps"),
    [("seed=0", 5), ("model.encoder.norm_affine=false", 4), ("evaluation.drop=0.1", 3), ("evaluation.sampled=9", 0)],
)
def test_what_a_later_field_changes_has_no_earlier_hash(setting: str, steps: int) -> None:
    assert len(ADDED) == 5
    made = job(setting)
    assert len(made.earlier_hashes) == steps and made.spec_hash not in made.earlier_hashes
