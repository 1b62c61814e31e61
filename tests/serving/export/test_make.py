"""Exports of every recipe that has a graph, to every target, and what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import fullrank as fr
from fullrank.core.registry import kinds
from fullrank.data.batch import Batch
from fullrank.models import AS_TRAINED
from fullrank.models.sequential.encoders.fmlp import Filter
from fullrank.run import Run
from fullrank.run.experiment import find_experiment
from fullrank.serving.export import make, parity
from fullrank.serving.export.folder import Exported
from fullrank.serving.export.model_graphs import Convolution, recommender_graph
from refusals import refused
from tests.serving.export.exporting import ITEMS, made_run

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "export.md").read_text()
ROWS = re.findall(r"^\| (`.*?) \| (open|whole|refused) \| (open|whole|refused) \|$", GUIDE, re.M)
TABLE = [
    (recipe, {"onnx": onnx, "torch": program})
    for names, onnx, program in ROWS
    for recipe in re.findall(r"`(\w+)`", names.partition("(")[0])
]
"""Recipe -> what the guide says of its length, by target."""


def test_every_recipe_stands_in_the_guide_once() -> None:
    assert sorted(recipe for recipe, _ in TABLE) == sorted(kinds("recipes"))


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        pytest.param(recipe, told, id=recipe, marks=() if set(told.values()) == {"refused"} else pytest.mark.slow)
        for recipe, told in TABLE
        if find_experiment(recipe).problem == "retrieval"  # of rankers: test_rankers.py
    ],
)
def test_a_recipe_exports_as_the_guide_says(recipe: str, told: dict, tmp_path: Path) -> None:
    run = made_run(recipe, tmp_path / "run")
    for to, length in told.items():
        if length == "refused":
            with refused("not-exportable"):
                fr.export(run, tmp_path / to, to=to)
            continue
        made = fr.export(run, tmp_path / to, to=to, k=5)
        assert made.parity["largest_difference"] <= parity.TOLERANCE and made.parity["same_places"] > 0.9
        places = made.manifest["inputs"][0]["shape"][1]
        assert places == ("T" if length == "open" else made.manifest["max_length"])
        assert Exported.open(made.path).manifest == made.manifest


@torch.inference_mode()
@pytest.mark.parametrize("causal", [True, False])
def test_the_filter_of_fmlp_is_a_convolution(causal: bool) -> None:
    """At every length up to `max_length`, padding included, without a trace."""
    made = Filter(6, 9, causal)
    torch.nn.init.normal_(made.weight)
    for length in range(1, 10):
        batch = Batch(torch.zeros(3, length, dtype=torch.int64), torch.tensor([length, max(length - 2, 1), 1]))
        x = torch.randn(3, length, 6)
        assert torch.allclose(Convolution(made)(x, batch), made(x, batch), atol=1e-5), length


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["softmax", "relu_l1"])
def test_a_graph_of_rows_that_sum_to_one(norm: str, tmp_path: Path) -> None:
    run = made_run("fair", tmp_path / "run", f"model.encoder.attention.norm={norm}", "model.penalties.0.pad=learned")
    made = fr.export(run, tmp_path / "out", k=5)
    assert made.parity["largest_difference"] <= parity.TOLERANCE and made.parity["same_places"] > 0.9


@pytest.mark.slow
def test_the_guide_uses_a_graph_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_run("sasrec", tmp_path / "run")
    fr.export(run, tmp_path / "exports" / "sasrec", k=6)
    code = next(block for block in re.findall(r"```python\n(.*?)```", GUIDE, re.S) if "onnxruntime" in block)
    assert "fullrank" not in code
    monkeypatch.chdir(tmp_path)
    told = {}
    exec(code, told)
    own = fr.recommend(run, [["i0", "i1", "i2"], ["i2", "i3"]], k=6, exclude=["i5"], device="cpu")
    assert [item for row in told["lists"] for item in row] == own["item"].to_list()


@pytest.mark.parametrize("recipe", ["sasrec", pytest.param("plr", marks=pytest.mark.slow)])
def test_a_torch_program_answers_without_the_library(recipe: str, tmp_path: Path) -> None:
    run = made_run(recipe, tmp_path / "run")
    made = fr.export(run, tmp_path / "out", to="torch", k=4)
    program = torch.export.load(made.path / "model.pt2").module()
    items, lengths = torch.tensor([[3, 5, 7], [2, 0, 0]]), torch.tensor([3, 1])
    scores, ids = program(items, lengths, torch.full((2, 1), -1))
    names = made.item_ids.gather(ids.flatten().numpy()).to_list()
    own = fr.recommend(run, [["i3", "i5", "i7"], ["i2"]], k=4, device="cpu")
    assert names == own["item"].to_list()
    assert np.allclose(scores.flatten().detach().numpy(), own["score"].to_numpy(), atol=1e-4)


def module_of(run: Run, k: int, *, hide_seen: bool = True) -> torch.nn.Module:
    """The module of a graph, without a trace."""
    return recommender_graph(run.model(), k, hide_seen=hide_seen, budget=AS_TRAINED).module


@pytest.mark.slow
@torch.inference_mode()
def test_a_list_may_be_longer_than_what_is_left(tmp_path: Path) -> None:
    """Every item but the history: its place stays empty."""
    module = module_of(made_run("sasrec", tmp_path / "run"), 1000)
    scores, ids = module(torch.tensor([[3, 5, 3]] * 2), torch.tensor([3, 2]), torch.tensor([[-1], [9]]))
    assert ids.shape == (2, ITEMS) and ids[:, -2:].tolist() == [[-1, -1], [-1, -1]]
    assert (ids >= 0).sum(1).tolist() == [ITEMS - 2, ITEMS - 3] and 9 not in ids[1]
    assert bool((scores[:, -2:] == -torch.inf).all()) and bool((scores[ids >= 0] > -torch.inf).all())


@pytest.mark.slow
@torch.inference_mode()
def test_seen_items_may_be_kept(tmp_path: Path) -> None:
    module = module_of(made_run("sasrec", tmp_path / "run"), ITEMS, hide_seen=False)
    _, ids = module(torch.tensor([[3, 5]] * 2), torch.tensor([2, 2]), torch.full((2, 1), -1))
    assert sorted(ids[0].tolist()) == list(range(ITEMS))


def test_a_graph_that_answers_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made_run("sasrec", tmp_path / "run")
    whole = Run.model

    def other(self: Run):
        model = whole(self)
        with torch.no_grad():
            model.encoder.norm_output.weight.mul_(1.01)
        return model

    models = iter([other, whole])
    monkeypatch.setattr(Run, "model", lambda self: next(models)(self))
    monkeypatch.setattr(parity, "ROWS", (1, 4))
    with refused("export-differs"):
        fr.export(run, tmp_path / "out", to="torch", k=4)
    assert not (tmp_path / "out").exists()


def test_what_a_comparison_of_lists_finds(tmp_path: Path) -> None:
    """A wrong order, an item that was hidden, a score that is off, and a place left empty, in one row of sixteen."""
    run = made_run("sasrec", tmp_path / "run")
    model = run.model()
    batches = [one for one in parity.history_batches(run.catalog, model.max_length) if len(one["lengths"]) == 16]
    how = {"k": 4, "seen": "exclude", "budget": AS_TRAINED}
    module, true = module_of(run, 4), {}

    def learn(batch) -> list:
        with torch.inference_mode():
            found = module(*(torch.from_numpy(batch[name]) for name in ("items", "lengths", "excluded")))
        true["lists"] = [part.numpy() for part in found]
        return true["lists"]

    assert parity.compare_lists(learn, model, batches, **how)["same_places"] == 1.0
    scores, ids = true["lists"]
    faults = {  # scores and ids of the row
        "a wrong order": (scores[7], ids[7][[1, 0, 2, 3]]),
        "a seen item": (scores[7], [*ids[7, :3], batches[0]["items"][7, 0]]),
        "off": (scores[7] + [0, 0, 0.01, 0], ids[7]),
        "nan": ([*scores[7, :2], np.nan, scores[7, 3]], ids[7]),
        "a place left empty": ([*scores[7, :3], -np.inf], [*ids[7, :3], -1]),
    }
    for row in faults.values():
        wrong = scores.copy(), ids.copy()
        wrong[0][7], wrong[1][7] = row
        with refused("export-differs"):
            parity.compare_lists(lambda _, wrong=wrong: wrong, model, batches, **how)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    popular = made_run("popularity", tmp_path / "popularity")
    out = tmp_path / "out"
    for code, call in {
        "unknown-export": {"to": "tflite"},
        "option-without-effect": {"to": "onnx", "int8": True},
        "setting-out-of-range": {"to": "onnx", "k": 0},
        "not-exportable": {"to": "onnx"},
    }.items():
        with refused(code):
            fr.export(popular, out, **call)
    with refused("no-vectors"):
        fr.export(made_run("item_to_item", tmp_path / "item_to_item"), out, to="faiss")
    assert not out.exists()
    assert fr.export(popular, out, to="faiss").parity["recall@10"] == 1.0
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("kept")
    with refused("folder-not-empty"):
        make.export_run(popular, tmp_path / "full")
