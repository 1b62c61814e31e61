"""Every diagnostic passes the checks of `fullrank.testing.diagnostics`, and those checks catch planted faults."""

import pytest
import torch

from fullrank.analysis.diagnosis import row
from fullrank.analysis.diagnostics import Diagnostic, find_sections
from fullrank.analysis.report import Figure, Panel
from fullrank.core.registry import PROBLEMS
from fullrank.testing import check_component

SECTIONS = [section for problem in PROBLEMS for section in find_sections(problem)]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda one: f"{one.problem}-{one.name}")
def test_diagnostic(section) -> None:
    check_component(section)


class Sound(Diagnostic):
    """The number of users of the sample."""

    name = "sound"

    def rows(self):
        return [row(self.name, "users", len(self.context.sample))]


class Unnamed(Sound):
    """Rows of another name."""

    def rows(self):
        return [row("other", "users", 1)]


class Infinite(Sound):
    """A value that no file holds."""

    def rows(self):
        return [row(self.name, "users", float("inf"))]


class Drawing(Sound):
    """A draw from everybody's generator."""

    def rows(self):
        return [row(self.name, "draw", float(torch.rand(())))]


class PerBatch(Sound):
    """The number of batches."""

    count = 0

    def observe(self, batch):
        self.count += 1

    def rows(self):
        return [row(self.name, "batches", self.count)]


class Meddling(Sound):
    """A hook that stays."""

    def rows(self):
        if isinstance(self.context.model, torch.nn.Module):
            self.context.model.register_forward_hook(lambda *given: None)
        return []


class Ragged(Sound):
    """A table whose rows are shorter than its header."""

    @classmethod
    def figure_of(cls, result):
        return Figure(f"a-{result.key}", "b", "c", (), ("x", "y"), ((1,),))


class Nameless(Sound):
    """The same figure for every run."""

    @classmethod
    def figure_of(cls, result):
        return Figure("one", "t", "c", (Panel("<svg></svg>", "alt"),), ("x",), ((1,),))


class Careless(Sound):
    """A figure that takes its rows for granted."""

    @classmethod
    def figure(cls, results):
        value = results[0].diagnosis.of("sound")[0]["value"]
        return Figure("sound", "t", "c", (Panel("<svg></svg>", "alt"),), ("x",), ((value,),))


FAULTS = {
    Unnamed: "rows", Infinite: "rows", Drawing: "repeatable", PerBatch: "batches", Meddling: "model",
    Ragged: "figures", Nameless: "figures",
}  # fmt: skip


def test_a_sound_diagnostic_passes() -> None:
    check_component(Sound)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.__name__)
def test_a_planted_fault_is_caught(fault) -> None:
    with pytest.raises(AssertionError, match=f"{fault.__name__}, check '{FAULTS[fault]}'"):
        check_component(fault)


def test_a_figure_that_fails_without_rows_is_caught() -> None:
    with pytest.raises(IndexError):
        check_component(Careless)
