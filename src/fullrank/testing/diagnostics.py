"""Checks of every diagnostic and of every figure: sound rows, the same each time, an unchanged model, and drawings.

They run on models with drawn weights on generated data: transformers of two depths, one of them
with a reasoner and one that reads the hour, one that generates semantic ids, and a baseline; or,
for a diagnostic of ranking models, one with token mixings and one without any vectors.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import torch

from fullrank.analysis.activations import (
    RankingContext,
    RetrievalContext,
    activations,
    ranking_activations,
    sample_impressions,
    sample_users,
)
from fullrank.analysis.diagnosis import LEFT_OUT, Diagnosis, Row, is_row
from fullrank.analysis.diagnostics import Diagnostic, Section
from fullrank.analysis.report import Drawn, Examples, Missing
from fullrank.analysis.report.collect import collect
from fullrank.analysis.report.results import RunResult
from fullrank.core.files import jsonable
from fullrank.core.registry import Problem
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.prepare import prepare
from fullrank.data.impressions.prepare import prepare_impressions
from fullrank.data.sources.planted import Planted
from fullrank.models.ranking.model import RankingModel
from fullrank.models.sequential.baselines.popularity import Popularity
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender
from fullrank.run import Run, write_run, write_weights
from fullrank.run.experiment import Experiment
from fullrank.run.manifest import seal_run
from fullrank.semantic_ids.reader import CODES, SIZES

SAMPLE = 24
"""Users or impressions."""
UNSTEADY = ("seconds",)
"""Names of rows that may differ from call to call."""


@dataclass(frozen=True)
class Example:
    """A run, its store, and what a page knows of it."""

    result: RunResult
    store: Any

    def model(self, device: torch.device) -> Any:
        """The run's model, freshly read."""
        model: Any = self.result.run.model()
        return model.to(device)


def check_class(section: type[Section], device: torch.device) -> None:
    """It has a name of its own and says which models it is about."""
    assert isinstance(getattr(section, "name", None), str) and section.name, "a diagnostic needs a name"
    assert section.problem in get_args(Problem), f"its problem is {section.problem!r}"
    assert section.__doc__, "the docstring says what is measured"


def check_rows(section: type[Section], device: torch.device) -> None:
    """Every model has sound rows under the diagnostic's name, or a reason why not; a
    file gives them back unchanged."""
    for example in _examples(section):
        rows = _rows(section, example, device)
        for row in rows:
            assert is_row(jsonable(row)), f"no row is made like {row!r}; use diagnosis.row"
            assert row["diagnostic"] == section.name, f"the row {row!r} has another diagnostic's name"
            assert row["value"] is None or math.isfinite(row["value"]), f"{row!r} is not finite: None says so"
            assert row["name"] != LEFT_OUT or row["label"], f"{row!r} does not say why"
        places = [(row["name"], *(row[key] for key in ("layer", "head", "index", "label"))) for row in rows]
        assert len(set(places)) == len(places), f"two rows are of one place: {_repeated(places)}"
        if rows:
            with tempfile.TemporaryDirectory() as folder:
                Diagnosis(tuple(rows)).save(Path(folder) / "rows.jsonl")
                assert list(Diagnosis.load(Path(folder) / "rows.jsonl").rows) == jsonable(rows)


def check_repeatable(section: type[Section], device: torch.device) -> None:
    """The same rows a second time, and no draw from the generators that others use."""
    for example in _examples(section):
        model = example.model(device)  # building it draws its first weights
        before = _generators()
        first = _rows(section, example, device, model=model)
        assert _generators() == before, "it draws from a global generator"
        again = _rows(section, example, device)
        assert _steady(first) == _steady(again), f"two calls differ: {_difference(first, again)}"


def check_batches(section: type[Section], device: torch.device) -> None:
    """Rows do not depend on how the sample was cut into batches."""
    for example in _examples(section):
        whole, parts = (_steady(_rows(section, example, device, size)) for size in (SAMPLE, 5))
        for row, other in zip(whole, parts, strict=True):
            same = {**row, "value": 0} == {**other, "value": 0} and (row["value"] is None) == (other["value"] is None)
            assert same, f"in one batch {row!r}, in several {other!r}"
            if row["value"] is not None:
                near = math.isclose(row["value"], other["value"], rel_tol=1e-3, abs_tol=1e-4)
                assert near, f"in one batch {row!r}, in several {other['value']!r}"


def check_model(section: type[Section], device: torch.device) -> None:
    """The model stays as it was: weights, mode, hooks and attributes."""
    for example in _examples(section):
        model = example.model(device)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        before = _attributes(model)
        _rows(section, example, device, model=model)
        assert _attributes(model) == before, "it leaves hooks, attributes or another mode behind"
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, state[name]), f"it changed {name}"


def check_figures(section: type[Section], device: torch.device) -> None:
    """Figures and tables are whole where rows exist, and say so where they do not."""
    results = [example.result for example in _examples(section)]
    measured = [_rows(section, example, device) for example in _examples(section)]
    there = [_with(run, rows) for run, rows in zip(results, measured, strict=True)]
    absent = [replace(run, diagnosis=Diagnosis(())) for run in results]
    for group in (there, there[:1], absent):
        drawn = [section.figure(group), *(section.figure_of(run) for run in group)]
        for figure in drawn:
            _whole_figure(figure)
        names = [figure.name for figure in drawn if figure is not None]
        assert len(set(names)) == len(names), f"two figures of one page have the name of {_repeated(names)}"


CHECKS: tuple[Callable[[Any, torch.device], None], ...] = (
    check_class,
    check_rows,
    check_repeatable,
    check_batches,
    check_model,
    check_figures,
)


def _rows(
    section: type[Section], example: Example, device: torch.device, batch_size: int = 9, model: Any = None
) -> list[Row]:
    """The rows of one diagnosis; none of a section that only draws."""
    if not issubclass(section, Diagnostic):
        return []
    model = example.model(device) if model is None else model
    if section.problem == "retrieval":
        sample = sample_users(example.store, "test", SAMPLE)
        diagnostic = section(RetrievalContext(model, example.store, "test", sample))
        passes: Iterator[Any] = activations(model, sample, batch_size=batch_size)
    else:
        rows = sample_impressions(example.store, "test", SAMPLE)
        diagnostic = section(RankingContext(model, example.store, "test", rows))
        passes = ranking_activations(model, example.store, rows, batch_size=batch_size)
    for batch in () if section.runs_model else passes:
        diagnostic.observe(batch)
    return diagnostic.rows()


def _with(result: RunResult, rows: list[Row]) -> RunResult:
    """The result with these rows beside those of the other diagnostics."""
    others = tuple(row for row in result.diagnosis.rows if not rows or row["diagnostic"] != rows[0]["diagnostic"])
    return replace(result, diagnosis=Diagnosis((*others, *jsonable(rows))))


def _whole_figure(figure: object) -> None:
    assert figure is None or isinstance(figure, Drawn | Missing), f"{figure!r} is no Figure, Examples, Missing or None"
    if isinstance(figure, Missing):
        assert figure.name and figure.title and figure.why, f"{figure!r} does not say why it is missing"
        return
    if figure is None:
        return
    assert figure.name and figure.title and figure.caption, f"{figure.name} is not whole"
    if isinstance(figure, Examples):
        assert figure.users and all(user.lists for user in figure.users), f"{figure.name} shows no lists"
    else:
        assert all(panel.alt and panel.svg.startswith("<svg") for panel in figure.panels), f"{figure.name}: a panel"
        sound = figure.rows and all(len(row) == len(figure.headers) for row in figure.rows)
        assert sound, f"{figure.name}: its numbers do not fit its headers"


def _generators() -> tuple[list[int], str]:
    """The states of the generators of torch and of numpy."""
    return torch.random.get_rng_state().tolist(), repr(np.random.get_state())


def _steady(rows: list[Row]) -> list[Row]:
    plain: list[Row] = jsonable(rows)
    return [row for row in plain if row["name"] not in UNSTEADY]


def _difference(a: list[Row], b: list[Row]) -> str:
    return next((f"{x!r} and {y!r}" for x, y in zip(_steady(a), _steady(b), strict=False) if x != y), "their number")


def _repeated(names: list[Any]) -> Any:
    return next(name for name in names if names.count(name) > 1)


def _attributes(model: Any) -> list[tuple[str, ...]]:
    """Mode, attributes and number of hooks of each module; none for other models."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return [
        (
            str(module.training),
            *sorted(vars(module)),
            *(str(len(vars(module)[kind])) for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")),
        )
        for module in modules
    ]


def _examples(section: type[Section]) -> list[Example]:
    return _retrieval() if section.problem == "retrieval" else _ranking()


@functools.cache
def _retrieval() -> list[Example]:
    encoder = Transformer(layers=2, feed_forward="mlp")
    plain = Recommender(dim=8, max_length=10, encoder=encoder).override("encoder.attention.heads=2")
    specs = (
        plain,
        plain.override("encoder.layers=1", "features={request: [hour]}"),
        plain.override("task=last_item", "reasoner=plr"),
        Popularity(),
        plain.override("items=semantic", "task=generate", "encoder.positions=none", "task.user_tokens=5"),
    )
    folder = _folder()
    tables = Planted(users=60, items=40, events_per_user=8).read()
    store = prepare(tables.events, folder / "store", items=tables.items)
    catalog = _coded(store.catalog)
    return _collected(folder, store, [Experiment(model=spec) for spec in specs], catalog, catalog)


def _coded(catalog: Catalog) -> Catalog:
    """The items with semantic ids, three levels of four codes."""
    codes = np.stack(
        [np.arange(catalog.size) // 16 % 4, np.arange(catalog.size) // 4 % 4, np.arange(catalog.size) % 4], 1
    )
    return Catalog(
        catalog.frame.with_columns(
            pl.Series(CODES, codes.astype(np.uint16), dtype=pl.Array(pl.UInt16, 3)),
            pl.Series(SIZES, [[4, 4, 4]] * catalog.size, dtype=pl.Array(pl.Int32, 3)),
        )
    )


@functools.cache
def _ranking() -> list[Example]:
    draw = np.random.default_rng(0)
    user, item = draw.integers(12, size=600), draw.integers(20, size=600)
    click = (draw.random(600) < np.where((user + item) % 2, 0.7, 0.2)).astype(int)
    table = pl.DataFrame({"label": click, "user": user, "item": item, "hour": draw.integers(24, size=600)})
    schema = {"fields": ["user", "item", "hour"], "group": "user", "split": {"kind": "random"}}
    model = RankingModel()
    specs = (
        model.override("ranker=rankmixer", "ranker.tokens=2", "ranker.blocks=1"),
        model.override("ranker=lr"),
    )
    folder = _folder()
    store = prepare_impressions(table, folder / "store", schema=schema)
    return _collected(folder, store, [Experiment(model=spec) for spec in specs], store.fields, store.encoder)


def _collected(folder: Path, store: Any, experiments: list[Experiment], build: Any, known: Any) -> list[Example]:
    """Runs with drawn weights, evaluated and diagnosed."""
    runs = []
    with torch.random.fork_rng():
        for number, experiment in enumerate(experiments):
            torch.manual_seed(number)
            spec: Any = experiment.model
            model = spec.build(build)
            if hasattr(model, "fit"):
                model.fit(store)
            path = folder / f"run-{number}"
            data = {"path": str(store.path), "split_fingerprint": store.fingerprint}
            write_run(path, experiment, known, {"parameters": sum(p.numel() for p in model.parameters()), "data": data})
            write_weights(path, model)
            seal_run(path)
            runs.append(Run.open(path))
    return [Example(result, store) for result in collect(runs, data=store, sample=SAMPLE)]


KEPT: list[tempfile.TemporaryDirectory[str]] = []
"""Folders of the examples, removed when the process ends."""


def _folder() -> Path:
    KEPT.append(tempfile.TemporaryDirectory(prefix="fullrank-testing-"))
    return Path(KEPT[-1].name)
