"""An exported ONNX graph, opened again: its answers are the run's, and what is damaged or asked wrongly is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import fullrank as fr
from fullrank.core.jagged import Jagged
from fullrank.data.histories import Histories
from fullrank.inference.filters import Filters
from fullrank.inference.recommend import rank
from fullrank.models.sequential.attention import hstu
from fullrank.serving.export.session import ExportedModel
from refusals import refused
from seals import reseal
from tests.serving.export.exporting import ITEMS, asked, made_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """A run that reads times, and its export."""
    home = tmp_path_factory.mktemp("exported")
    run = made_run("hstu", home / "run")
    return run, fr.export(run, home / "out", k=7).path


def test_answers_are_those_of_the_run(made: tuple) -> None:
    run, folder = made
    opened, model = ExportedModel.open(folder), run.model()
    assert (opened.k, opened.num_items, opened.max_length, opened.seen) == (7, ITEMS, 9, "exclude")
    assert opened.reads_times and opened.length is None
    opened.exported.require_run(run)
    for rows, length in ((1, 1), (1, 9), (5, 4), (64, 9)):
        given = asked(rows, length, seed=rows)
        scores, ids = opened.answer(**given)
        inside = np.arange(length) < given["lengths"][:, None]
        items = Jagged.from_lengths(given["items"][inside], given["lengths"])
        there = given["excluded"] >= 0
        hidden = Filters(Jagged.from_lengths(given["excluded"][there], there.sum(1)))
        own = rank(model, Histories(items, given["times"][inside]), k=7, filters=hidden)
        assert np.allclose(scores, own.scores, atol=1e-4) and (ids == own.ids).mean() > 0.99


def test_nothing_has_to_be_excluded(made: tuple) -> None:
    opened, given = ExportedModel.open(made[1]), asked(3, 5)
    del given["excluded"]
    without = opened.answer(**given)
    for none in (np.zeros((3, 0), np.int64), np.full((3, 4), -1)):
        assert np.array_equal(opened.answer(**given, excluded=none)[1], without[1])


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("item-out-of-range", {"items": np.full((2, 3), ITEMS)}),
        ("item-out-of-range", {"items": np.full((2, 3), -1)}),
        ("item-out-of-range", {"excluded": np.full((2, 1), ITEMS)}),
        ("item-out-of-range", {"excluded": np.full((2, 1), -2)}),
        ("invalid-history-bounds", {"lengths": np.array([0, 1])}),
        ("invalid-history-bounds", {"lengths": np.array([4, 1])}),
        ("invalid-history-bounds", asked(2, 10)),
        ("shapes-differ", {"lengths": np.array([1])}),
        ("shapes-differ", {"times": np.zeros((2, 2), np.int64)}),
        ("shapes-differ", {"excluded": np.full((1, 1), -1)}),
        ("missing-times", {"times": None}),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_what_is_asked_wrongly(made: tuple, code: str, change: dict) -> None:
    with refused(code):
        ExportedModel.open(made[1]).answer(**(asked(2, 3) | change))


def test_it_is_no_ranking_model(made: tuple) -> None:
    with refused("not-a-ranking-model"):
        ExportedModel.open(made[1]).probabilities()


def test_a_damaged_or_foreign_folder(made: tuple, tmp_path: Path) -> None:
    run, folder = made
    whole = (folder / "model.onnx").read_bytes()
    tree = json.loads((folder / "manifest.json").read_text())

    def opened_with(name: str, content: bytes | str | None) -> None:
        copy = shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
        (copy / name).unlink()
        if content is not None:
            (copy / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        ExportedModel.open(copy)

    opened_with("model.onnx", whole)
    with refused("missing-folder"):
        ExportedModel.open(tmp_path / "nowhere")
    with refused("wrong-folder"):
        ExportedModel.open(run.path)
    with refused("missing-file"):
        opened_with("model.onnx", None)
    for name, content in (
        ("model.onnx", whole[:-10]), ("model.onnx", whole[:-1] + bytes([whole[-1] ^ 1])),
        ("manifest.json", json.dumps(tree | {"k": 3})),
    ):  # fmt: skip
        with refused("file-damaged"):
            opened_with(name, content)


def test_a_file_that_is_no_graph_although_its_hash_agrees(made: tuple, tmp_path: Path) -> None:
    forged = shutil.copytree(made[1], tmp_path / "forged")
    (forged / "model.onnx").write_bytes(b"no graph")
    reseal(forged, sizes=True)
    with refused("file-damaged", "ONNX Runtime"):
        ExportedModel.open(forged)


def test_an_export_is_of_one_run(made: tuple, tmp_path: Path) -> None:
    other = made_run("hstu", tmp_path / "other", "model.encoder.layers=2")
    with refused("export-of-other-run"):
        ExportedModel.open(made[1]).exported.require_run(other)


def test_entries_of_the_time_table_by_whole_numbers() -> None:
    """The same entries as by logarithms, also where the logarithm that is at hand is a little larger or smaller."""
    edges = hstu.bucket_edges()
    assert len(edges) == hstu.BUCKETS + 1 and bool((edges.diff() >= 0).all())
    near = edges[1:-1, None] + torch.arange(-3, 4)
    seconds = torch.cat([near.flatten(), torch.arange(5000), -torch.arange(5000) * 86_400]).clamp_max(2**62)
    expected = hstu.buckets(seconds)
    assert torch.equal(hstu.buckets_by_edges(seconds, edges), expected)
    for off in (-1, 1):
        moved = (expected + off).clamp(0, hstu.BUCKETS - 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hstu, "buckets", lambda _, moved=moved: moved)
            assert torch.equal(hstu.buckets_by_edges(seconds, edges), expected)
