"""Run folders that were never trained: written by hand, so that a page can be drawn of them in a second."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.sources.planted import Planted
from fullrank.run import Run, write_run, write_weights
from fullrank.run.experiment import Experiment, find_experiment
from parts import Recommender
from tiny import shaken

HOSTILE = '</title><script>alert(1)</script><img src=x onerror="alert(2)">{{ 7 * 7 }}$\\frac$\x07'
"""A title that would run, be evaluated, or break a formula."""
VOID = {"meta", "img", "br", "link", "input", "hr"}
SELF_CLOSING = {"path", "use", "rect", "line", "circle", "polygon", "image"}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A small marketplace in which every item has a hostile title."""
    tables = Planted(users=120, items=60, events_per_user=10).read()
    items = pl.DataFrame(tables.items).with_columns(title=pl.lit(HOSTILE))
    return prepare(tables.events, tmp_path_factory.mktemp("market") / "store", items=items)


def make(store: Store, path: Path, *settings: str, recipe: str = "sasrec", watched: bool = True) -> Run:
    """A run folder with drawn weights and three epochs in its journal."""
    small = ("model.dim=8", "model.max_length=12") if recipe not in ("popularity", "item_to_item") else ()
    spec = find_experiment(recipe).override(*small, *settings)
    torch.manual_seed(0)
    model = spec.model.build(store.catalog)
    if not isinstance(spec.model, Recommender):
        model.fit(store)
        rows = [{"event": "fit", "step": 0, "epoch": 0, "seconds": 0.1}]
    else:
        shaken(model)
        rows = [
            {"event": "epoch", "step": n, "epoch": n, "train/loss": 3 / n, "validation/ndcg@10": n / 9}
            | ({"watch/collapse_share": 0.1 * n} if watched else {})
            for n in (1, 2, 3)
        ]
    return write(path, spec, store, store.catalog, model, rows)


def write(path: Path, spec: Experiment, store: Any, known: Any, model: Any, rows: list) -> Run:
    """A run folder of these weights, with these rows in its journal."""
    data = {"path": str(store.path), "split_fingerprint": store.fingerprint}
    write_run(path, spec, known, {"parameters": sum(p.numel() for p in model.parameters()), "data": data})
    write_weights(path, model)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Run.open(path)


@pytest.fixture(scope="session")
def runs(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """One to three layers, recurrent, and a baseline."""
    home = tmp_path_factory.mktemp("runs")
    made = {f"deep-{n}": make(store, home / f"deep-{n}", f"model.encoder.layers={n}") for n in (1, 2, 3)}
    made["gru"] = make(store, home / "gru", recipe="gru4rec", watched=False)
    made["popularity"] = make(store, home / "popularity", recipe="popularity")
    return made


class Page(HTMLParser):
    """A page as a browser's parser sees it: its elements, ids and text; raises where tags do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> in {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style",):
            self.text.append(data)

    def ids(self):
        return [attributes["id"] or "" for _, attributes in self.elements if "id" in attributes]

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def said(self):
        return " ".join(" ".join(self.text).split())
