"""Graphs of every ranker, with fields of every kind."""

from functools import partial
from pathlib import Path

import pytest
import torch

import fullrank as fr
import sequences
from clicks import FIELDS, impressions
from discover import Pair
from fullrank.cli import main
from fullrank.models.ranking.fused import FusedTable
from fullrank.models.ranking.model import RankingModel
from fullrank.serving.export.make import write_program
from fullrank.serving.export.model_graphs import ranker_graph
from fullrank.serving.export.parity import TOLERANCE, compare_probabilities, impression_batches
from fullrank.serving.export.session import ExportedModel
from rankers_small import ALL, model
from refusals import refused
from sequences import SEARCH, TOGETHER
from tiny import shaken


@ALL
@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch"])
@pytest.mark.parametrize("embedding", [(), ("bags=sum",)])
def test_every_ranker(pair: Pair, to: str, embedding: tuple, tmp_path: Path) -> None:
    _, answer = write_program(ranker_graph(model(pair, *embedding).eval()), tmp_path, to)
    found = compare_probabilities(answer, model(pair, *embedding).eval(), impression_batches(FIELDS))
    assert found["largest_difference"] <= TOLERANCE


@ALL
def test_padded_bags_are_pooled_as_packed_ones(pair: Pair) -> None:
    """The module alone, without a trace."""
    own, graph = model(pair).eval(), ranker_graph(model(pair).eval())
    batch = impressions()
    given = [batch.categorical, batch.numeric.masked_fill(batch.missing, torch.nan)]
    for bag in batch.bags:
        given += [bag.ids, bag.lengths]
    with torch.inference_mode():
        probability, logit = graph.module(*given)
        expected = own.output(batch).logits
    assert torch.allclose(logit, expected, atol=1e-5) and torch.allclose(probability, expected.sigmoid(), atol=1e-6)
    tables = [module for module in graph.module.modules() if isinstance(module, FusedTable)]
    assert tables and all(table.padded for table in tables)


@pytest.mark.parametrize(("port", "off"), [(0, 0.01), (1, 0.01), (0, float("nan"))])
def test_a_graph_that_differs_from_its_model_is_refused(port: int, off: float) -> None:
    own, batches = model(("rankers", "dcnv2")).eval(), impression_batches(FIELDS)
    module = ranker_graph(own).module

    def answer(batch, wrong=0.0):
        with torch.inference_mode():
            outputs = [output.numpy().copy() for output in module(*map(torch.from_numpy, batch.values()))]
        outputs[port][-1] += wrong
        return outputs

    assert compare_probabilities(answer, own, batches)["largest_difference"] <= TOLERANCE
    with refused("export-differs"):
        compare_probabilities(partial(answer, wrong=off), own, batches)


@pytest.mark.slow
def test_a_trained_ranker_predicts_from_its_export(tmp_path: Path) -> None:
    words = ("prepare-impressions", "planted_clicks", "--set", "source.rows=2000", "--out", str(tmp_path / "clicks"))
    assert main(words) == 0
    shown = fr.ImpressionStore.open(tmp_path / "clicks")
    run = fr.train("dcnv2", shown, tmp_path / "run", set=["training.max_epochs=1"], device="cpu", progress=False)
    fr.export(run, tmp_path / "out")
    exported = ExportedModel.open(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "encode.py", "encoder.json", "manifest.json", "model.onnx", "vocabulary.json", "vocabulary.parquet",
    }  # fmt: skip
    assert exported.problem == "ranking"


WITH_SEQUENCES = {
    "attention": ("sequences=target_attention",),
    "softmax": ("sequences=target_attention", "sequences.softmax=true", f"sequences.{TOGETHER}"),
    "searched": ("sequences=target_attention", f"sequences.{SEARCH}", "sequences.most=2"),
    "uneven": ("sequences=target_attention", f"sequences.{TOGETHER}", "sequences.uneven=newest"),
    "pooled, searched": (f"sequences.{SEARCH}",),
    "tokens": ("ranker=rankmixer", "ranker.tokens=4", "ranker.event_tokens=2", "ranker.tokeniser.hidden=5"),
}


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch"])
@pytest.mark.parametrize("settings", WITH_SEQUENCES.values(), ids=list(WITH_SEQUENCES))
def test_behaviour_sequences(settings: tuple, to: str, tmp_path: Path) -> None:
    spec = RankingModel().override("embedding.dim=4", "ranker.deep.hidden=[5]", *settings)
    own, exported = (shaken(spec.build(sequences.FIELDS)).eval() for _ in range(2))
    exported.load_state_dict(own.state_dict())
    graph = ranker_graph(exported)
    _, answer = write_program(graph, tmp_path, to)
    batches = impression_batches(sequences.FIELDS, own.embedding.equally_long)
    assert compare_probabilities(answer, own, batches)["largest_difference"] <= TOLERANCE
    letters = {port.name: port.shape[1] for port in graph.inputs if port.name in ("bag_0", "bag_3")}
    assert (letters["bag_0"] == letters["bag_3"]) == bool(own.embedding.equally_long)
