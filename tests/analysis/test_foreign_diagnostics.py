"""Diagnostics of other packages that are at fault: they cost themselves, and neither the diagnosis nor the page."""

import logging
import sys
from collections.abc import Callable, Iterator

import pytest

import fullrank as fr
from folders import distribution
from fullrank.analysis import diagnostics as folder
from fullrank.analysis.diagnose import diagnose_ranking, diagnose_retrieval
from fullrank.analysis.diagnosis import LEFT_OUT, Diagnosis
from fullrank.analysis.diagnostics import find_sections
from fullrank.analysis.diagnostics.norms import Norms
from fullrank.analysis.diagnostics.spectrum import SpectralCollapse
from fullrank.analysis.report import Missing
from fullrank.analysis.report.report import report
from markets import planted_store
from refusals import refused
from tests.analysis.conftest import STORE, model_of
from tests.training.clicks import shop as clicks
from tests.training.clicks import tiny

HEAD = """
from fullrank.analysis.diagnosis import row
from fullrank.analysis.diagnostics import Diagnostic, Section


class Sound(Diagnostic):
    name = "sound"

    def rows(self):
        return [row(self.name, "one", 1)]
"""
RAISES = "def rows(self): raise RuntimeError('boom')"
BOOM = "RuntimeError: boom"
FAULTS = {
    "at_start": ("def __init__(self, context): raise RuntimeError('boom')", BOOM),
    "at_batch": ("def observe(self, batch): return batch.no_such_thing",
                 "AttributeError: 'Activations' object has no attribute 'no_such_thing'"),
    "at_rows": ("def rows(self): return 1 / 0", "ZeroDivisionError: division by zero"),
    "runner": (f"runs_model = True\n    {RAISES}", BOOM),
    "user_error": ("def rows(self): from fullrank.core.errors import UserError; raise UserError('boom')",
                   "UserError: boom"),
    "no_rows": ("def rows(self): return None", "TypeError: 'NoneType' object is not iterable"),
    "odd_rows": ("def rows(self): return [{'value': 1}]",
                 "TypeError: {'value': 1} is no row of 'odd_rows': make it by diagnosis.row"),
    "other_rows": ("def rows(self): return [row('about', 'users', 1)]", "'about'"),
    "late_rows": ("def rows(self): yield row(self.name, 'one', 1); raise RuntimeError('boom')", BOOM),
}  # fmt: skip
"""Name -> (what a diagnostic does, what is said of it)."""
Plant = Callable[..., None]


def diagnostic(name, body, problem="retrieval", base="Diagnostic") -> str:
    """The source of a class."""
    return f"\n\nclass {name.title()}({base}):\n    name = {name!r}\n    problem = {problem!r}\n    {body}\n"


@pytest.fixture
def plant(tmp_path, monkeypatch) -> Iterator:
    """Puts a package with a module and entry points on the path, as an installer would."""
    modules = []

    def planted(package, source, **points):
        site = tmp_path / f"site-{package}"
        named = {name: f"{package}:{value}" for name, value in points.items()}
        distribution(site, package, {"fullrank.diagnostics": named})
        (site / f"{package}.py").write_text(HEAD + source)
        monkeypatch.syspath_prepend(str(site))
        modules.append(package)

    folder._warn_once.cache_clear()
    yield planted
    for module in modules:
        sys.modules.pop(module, None)


def warnings(caplog) -> list:
    """What was said on the logger of the library, or below it."""
    return [
        one.getMessage() for one in caplog.records
        if one.levelno == logging.WARNING and one.name.partition(".")[0] == "fullrank"
    ]  # fmt: skip


def names() -> list:
    return [one.name for one in find_sections("retrieval")]


@pytest.mark.parametrize(
    ("source", "point", "why"),
    [
        ("import no_such_package", "Sound", "ModuleNotFoundError"),
        ("def (", "Sound", "SyntaxError"),
        ("raise RuntimeError('boom')", "Sound", "RuntimeError: boom"),
        ("", "Absent", "AttributeError"),
        ("class Other: name = 'broken'", "Other", "theirs:Other"),
        ("instance = Sound(None)", "instance", "theirs:instance"),
        ("", "Sound", "'sound'"),  # under the entry point `broken`
    ],
)
def test_an_entry_point_of_no_use_is_skipped_with_a_warning(source, point, why, plant, caplog) -> None:
    before = names()
    plant("theirs", source, broken=point)
    plant("fine", "", sound="Sound")
    for _ in range(2):  # and told once
        assert names() == sorted([*before, "sound"])
    (told,) = warnings(caplog)
    assert "'broken'" in told and "package theirs" in told and why in told


def test_ours_is_kept_where_another_package_takes_its_name(plant, caplog) -> None:
    plant("theirs", diagnostic("spectrum", "pass"), spectrum="Spectrum")
    assert [one for one in find_sections("retrieval") if one.name == "spectrum"] == [SpectralCollapse]
    (told,) = warnings(caplog)
    assert "'spectrum'" in told and "package theirs" in told and SpectralCollapse.__module__ in told


def test_the_name_of_a_section_of_the_other_problem_is_free(plant, caplog) -> None:
    plant("theirs", diagnostic("spectrum", "pass", "ranking"), spectrum="Spectrum")
    assert "spectrum" in [one.name for one in find_sections("ranking")] and SpectralCollapse in find_sections(
        "retrieval"
    )
    assert warnings(caplog) == []


@pytest.mark.parametrize("order", [("aaa", "bbb"), ("bbb", "aaa")])
def test_of_two_other_packages_the_first_by_name_is_kept(order, plant, caplog) -> None:
    for package in order:
        plant(package, "", sound="Sound")
    assert [one.__module__ for one in find_sections("retrieval") if one.name == "sound"] == ["aaa"]
    (told,) = warnings(caplog)
    assert "'sound'" in told and "package bbb" in told and "taken by aaa" in told


def test_two_of_ours_of_one_name_are_an_error(monkeypatch) -> None:
    monkeypatch.setattr(Norms, "name", "spectrum")
    with refused("declared-twice", "'spectrum'", Norms.__module__, SpectralCollapse.__module__):
        find_sections("retrieval")


def test_what_fails_has_one_row_and_the_rest_is_as_before(plant) -> None:
    model = model_of()
    before = diagnose_retrieval(model, STORE, users=12)
    source = "".join(diagnostic(name, body) for name, (body, _) in FAULTS.items())
    plant("theirs", source, sound="Sound", **{name: name.title() for name in FAULTS})
    found = diagnose_retrieval(model, STORE, users=12)
    assert [one for one in found.rows if one["diagnostic"] not in {*FAULTS, "sound"}] == list(before.rows)
    assert found.value("sound", "one") == 1
    failed = {one["diagnostic"]: one for one in found.rows if one["diagnostic"] in FAULTS}
    assert len(failed) == len(found.rows) - len(before.rows) - 1 == len(FAULTS), "one row each"
    for name, (_, why) in FAULTS.items():
        said = failed[name]["label"]
        assert failed[name]["name"] == LEFT_OUT and said.startswith("it failed: ") and why in said


@pytest.mark.parametrize("split", ["test", "train"])
def test_what_fails_on_a_ranking_model_has_one_row(split, plant, tmp_path) -> None:
    store = clicks(tmp_path / "clicks")
    model = fr.train(tiny().override("training.max_epochs=1"), store, tmp_path / "run", progress=False).model()
    before = diagnose_ranking(model, store, split=split, impressions=60)  # type: ignore[arg-type]
    kinds = ("at_start", "at_batch", "at_rows", "runner", "late_rows")
    source = "".join(diagnostic(name, FAULTS[name][0], "ranking") for name in kinds)
    plant("theirs", source, **{name: name.title() for name in kinds})
    found = diagnose_ranking(model, store, split=split, impressions=60)  # type: ignore[arg-type]
    assert [one for one in found.rows if one["diagnostic"] not in kinds] == list(before.rows)
    failed = [one["diagnostic"] for one in found.rows if one["diagnostic"] in kinds]
    assert sorted(failed) == sorted(set(kinds) - ({"runner"} if split == "train" else set()))
    assert all(why.startswith("it failed: ") for name, why in found.left_out().items() if name in kinds)


def test_the_file_of_a_diagnosis_with_failures_can_be_read(plant, tmp_path) -> None:
    plant("theirs", diagnostic("odd_rows", FAULTS["odd_rows"][0]), odd_rows="Odd_Rows")
    found = diagnose_retrieval(model_of(), STORE, users=5)
    found.save(tmp_path / "rows.jsonl")
    assert Diagnosis.load(tmp_path / "rows.jsonl") == found and "odd_rows" in found.left_out()


def test_the_traceback_of_a_failure_is_logged_at_debug(plant, caplog) -> None:
    plant("theirs", diagnostic("at_rows", FAULTS["at_rows"][0]), at_rows="At_Rows")
    with caplog.at_level(logging.DEBUG, logger="fullrank"):
        diagnose_retrieval(model_of(), STORE, users=5)
    (told,) = [one for one in caplog.records if one.exc_info]
    assert "'at_rows' of theirs" in told.getMessage() and told.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize("where", ["__init__", "observe", "rows"])
def test_an_error_of_ours_is_raised(where, monkeypatch) -> None:
    def broken(*given):
        raise RuntimeError("ours")

    monkeypatch.setattr(SpectralCollapse, where, broken)
    with pytest.raises(RuntimeError, match="ours"):
        diagnose_retrieval(model_of(), STORE, users=5)


def test_a_figure_of_ours_that_fails_is_raised(runs, plant, monkeypatch) -> None:
    def broken(given):
        raise RuntimeError("ours")

    for name in ("figure", "figure_of"):
        with monkeypatch.context() as patch:
            patch.setattr(SpectralCollapse, name, broken)
            with pytest.raises(RuntimeError, match="ours"):
                report(runs)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list:
    """One run that is quickly fitted."""
    path = tmp_path_factory.mktemp("runs")
    store = planted_store(path / "store")
    return [fr.train("popularity", store, path / "run", progress=False)]


def test_figures_and_tables_that_fail_are_missing_with_the_reason(runs, plant) -> None:
    before = report(runs)
    raising = "    @classmethod\n    def {}(cls, given): raise RuntimeError('no <ink>')\n"
    odd = "    @classmethod\n    def {}(cls, given): return 'a picture'\n"
    methods = ("figure", "figure_of")
    source = "".join(
        diagnostic(name, "pass\n" + "".join(body.format(method) for method in methods), base=base)
        for name, body, base in (("raising", raising, "Section"), ("odd", odd, "Diagnostic"))
    )
    plant("theirs", source, raising="Raising", odd="Odd", sound="Sound")
    page = report(runs)
    ours = [one.name for one in before.figures]
    why = {one.name: one.why for one in page.figures if isinstance(one, Missing) and one.name not in ours}
    assert why == {
        name: text for kind, text in (
            ("raising", "it failed: RuntimeError: no <ink>"), ("odd", "it failed: TypeError: 'a picture' is no Figure"),
        ) for name, text in (
            (kind, text), (f"{kind}-A", text),
        )
    }  # fmt: skip
    assert [one.name for one in page.figures if one.name not in why] == ours
    assert "it failed: RuntimeError: no &lt;ink&gt;" in page.html and "no <ink>" not in page.html


def test_a_page_is_drawn_of_a_run_whose_diagnostic_fails(runs, plant) -> None:
    plant("theirs", diagnostic("at_batch", FAULTS["at_batch"][0]), at_batch="At_Batch")
    page = report(runs)
    assert "at_batch" in page.results[0].diagnosis.left_out() and page.html
