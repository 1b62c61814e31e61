"""Export a run: an ONNX graph, a torch program, its item vectors for faiss, or the run itself, in a folder to ship."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Int

from fullrank.core.checks import check_whole
from fullrank.core.errors import UserError, unknown
from fullrank.core.files import JsonObject, open_whole, whole_folder, without_dots
from fullrank.data.histories import Histories
from fullrank.data.impressions.store import AnyStore
from fullrank.data.manifest import require_outside_stores
from fullrank.inference.batches import score_batches
from fullrank.inference.exact import top_k
from fullrank.inference.filters import seen_policy
from fullrank.inference.predictor import Predictor
from fullrank.models import AS_TRAINED, Budget, DenseScorer
from fullrank.models.ranking.model import require_layers
from fullrank.run import Run, copy_run, event_store_of, require_empty
from fullrank.serving.export.folder import MODELS, Exported, require_replaceable_export, write_export
from fullrank.serving.export.graph import OPSET, Graph, OnnxGraph, Port, Traced, require_onnx, trace, write_onnx
from fullrank.serving.export.model_graphs import ranker_graph, recommender_graph
from fullrank.serving.export.parity import (
    Answer,
    compare_lists,
    compare_probabilities,
    histories_of,
    history_batches,
    impression_batches,
)

FOLDER = "folder"
LIST = 100
"""Items of a list where nobody says how many; a caller who wants fewer takes the first."""
DRAWN = 50
"""Most events of a history that is drawn for a model that reads histories of any length."""
MOST_LISTED = 10_000
"""Longest list of a graph."""


def export_run(
    run: Run,
    out: str | Path,
    *,
    to: str = "onnx",
    k: int | None = None,
    seen: str | None = None,
    int8: bool = False,
    data: AnyStore | str | Path | None = None,
    logs: bool = False,
) -> Exported | Run:
    """Write an export of a run to the folder `out`; one that is there is replaced, unless it is a run.

    `to` is onnx, torch, faiss or folder (a run to ship, with its training log where `logs` is set).
    `k` (100) and `seen` ("exclude") are built into the graph of a recommender. `int8` stores the
    vectors of faiss in 8 bits, and their recall is measured on histories of the store (`data`,
    where it was moved). Raises `UserError` for a model that has no graph or no vectors, and where
    the graph does not answer as the run does.
    """
    check_to(to)
    folder = without_dots(out)
    ranking = run.spec.problem == "ranking"
    arguments = {"k": k, "seen": seen, "int8": int8 or None, "data": data, "logs": logs or None}
    _refuse_idle(to, ranking, arguments, needs_store=run.needs_store)
    if to == FOLDER:
        return export_folder(run, folder, logs=logs)
    require_replaceable_export(folder)
    if to == "faiss":
        return _export_vectors(run, folder, int8, data)
    if ranking:
        encoder = run.encoder(data)
        return write_export(
            folder, run, encoder, to, lambda folder: _ranker(run.model(encoder), run.model(encoder), folder, to)
        )
    length = LIST if k is None else check_whole("k", k, 1, MOST_LISTED)
    policy = seen_policy("exclude" if seen is None else seen)
    return write_export(folder, run, run.catalog, to, lambda folder: _recommender(run, folder, to, length, policy))


def check_to(to: str) -> None:
    """Raise `UserError` for an export that does not exist."""
    targets = (*MODELS, FOLDER)
    if to not in targets:
        raise unknown("export", to, targets)


def _refuse_idle(to: str, ranking: bool, arguments: JsonObject, *, needs_store: bool) -> None:
    """Raise `UserError` for an argument that this export would not read."""
    of_graph = {"data"} if needs_store else set[str]() if ranking else {"k", "seen"}
    of_index = set[str]() if ranking else {"int8", "data"}
    read = {FOLDER: {"logs"}, "faiss": of_index}.get(to, of_graph)
    idle = [name for name, value in arguments.items() if value is not None and name not in read]
    if idle:
        what = "a ranking model" if ranking else "a recommender"
        raise UserError(
            f"{idle[0]} has no effect on the export of {what} to {to}: leave it out"
            + (f" (read: {', '.join(sorted(read))})" if read else ""),
            code="option-without-effect",
        )


def _recommender(run: Run, folder: Path, to: str, k: int, seen: str) -> JsonObject:
    """Write the graph of a recommender into the folder, and return its entries of the manifest."""
    budget = _fixed_budget(run.spec.lists.reasoning)
    graph = recommender_graph(run.model(), k, hide_seen=seen == "exclude", budget=budget)
    traced, answer = write_program(graph, folder, to)
    model: Any = run.model()
    k = int(graph.outputs[0].shape[1])
    batches = history_batches(run.catalog, model.max_length, traced.fixed.get("T"))
    parity = compare_lists(answer, model, batches, k=k, seen=seen, budget=budget)
    reasons = model.reasoner
    reasoning = None
    if reasons is not None:
        reasoning = {"steps": budget.steps_of(reasons), "streams": budget.streams_of(reasons)}
    return {
        **_graph_facts(graph, traced, to),
        "k": k,
        "seen": seen,
        "items": model.num_items,
        "max_length": model.max_length,
        "reads_times": bool(model.reads_times),
        "reasoning": reasoning,
        "parity": parity,
    }


def _ranker(exported: Any, model: Any, folder: Path, to: str) -> JsonObject:
    """Write the graph of a ranking model into the folder, and return
    its entries of the manifest."""
    embedding = require_layers(model, "a graph", code="not-exportable").embedding
    graph = ranker_graph(exported)
    traced, answer = write_program(graph, folder, to)
    parity = compare_probabilities(answer, model, impression_batches(embedding.fields, embedding.equally_long))
    calibration = None if model.calibration is None else model.calibration.spec.method
    return _graph_facts(graph, traced, to) | {"calibration": calibration, "parity": parity}


def write_program(graph: Graph, folder: Path, to: str) -> tuple[Traced, Answer]:
    """One traced program, on disk as torch saves it or as ONNX, and a function that answers from that file.

    Raises `UserError` where the model cannot be traced.
    """
    path = folder / MODELS[to]
    if to == "onnx":
        require_onnx()
        traced = trace(graph)
        write_onnx(traced, graph, path)
        return traced, OnnxGraph(path)
    traced = trace(graph)
    traced.program.example_inputs = None  # the archive would hold it as a pickle, and nothing reads it
    with open_whole(path) as file:
        torch.export.save(traced.program, file)
    return traced, load_program(path, [port.name for port in graph.inputs])


def _graph_facts(graph: Graph, traced: Traced, to: str) -> JsonObject:
    return {
        "inputs": traced.fix(graph.inputs),
        "outputs": traced.fix(graph.outputs),
        "largest": {letter: most for letter, most in graph.most.items() if letter not in traced.fixed},
        **({"opset": OPSET} if to == "onnx" else {}),
        "torch": torch.__version__,
    }


def _fixed_budget(budget: Budget) -> Budget:
    """The steps of a budget, without adaptive stopping, which depends on lists
    that a graph cannot compare."""
    return AS_TRAINED.model_copy(update={"steps": budget.steps, "streams": budget.streams})


def _export_vectors(run: Run, out: Path, int8: bool, data: AnyStore | str | Path | None) -> Exported:
    """Export the item vectors of a run for faiss, with recall measured on histories of
    the store or on drawn ones."""
    catalog = run.catalog  # refuses a ranking model
    predictor = Predictor(run.model(), catalog, device="cpu", budget=_fixed_budget(run.spec.lists.reasoning))
    predictor.item_vectors()  # refuses a model without
    if int8 or data is not None:  # 8 bits lose something, and how much is a question of real users
        known = event_store_of(run, data).eval_set("test").histories
        rows = np.random.default_rng(0).permutation(len(known))[:USERS]
        histories, source = known.take(np.sort(rows)), "test histories of the store"
    else:
        drawn = history_batches(catalog, min(predictor.model.max_length, DRAWN))[-1]
        histories, source = histories_of(drawn), "drawn by popularity"
    return write_export(
        out, run, catalog, "faiss", lambda folder: write_index(predictor, folder, histories, int8=int8, source=source)
    )


def load_program(path: Path, inputs: Sequence[str]) -> Answer:
    """Answers from a program as torch saved it: for torch alone, in Python or by AOTInductor in C++."""
    module = torch.export.load(path).module()

    def answer(arrays: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        with torch.inference_mode():
            return [output.numpy() for output in module(*(torch.from_numpy(arrays[name]) for name in inputs))]

    return answer


def export_folder(run: Run, out: Path, *, logs: bool = False) -> Run:
    """A sealed copy of a run in the new folder `out`: spec, weights, items or encoder, and metrics.jsonl with `logs`.

    Every call and the service work from it anywhere. Every file is compared with its hash before it
    is copied. Raises `UserError` for a run whose training has not ended, for a ranking run of
    format 1, which cannot do without its store, and for a folder that is not empty.
    """
    require_outside_stores(out)
    require_empty(out)
    with whole_folder(out, "a copy of a run") as folder:
        require_empty(out)  # now that nobody else writes there
        copy_run(run, folder, logs=logs)
    return Run.open(out)


K = 10
"""Length of the lists whose recall is measured."""
USERS = 1000
"""Most users that recall is measured on."""


def write_index(predictor: Predictor, folder: Path, histories: Histories, *, int8: bool, source: str) -> JsonObject:
    """Write index.faiss; returns its entries of the manifest, with recall@10 against exact lists on these histories.

    Raises `UserError` for a model that does not score by inner products.
    """
    import faiss

    vectors = np.ascontiguousarray(predictor.item_vectors(), np.float32)
    size, dim = vectors.shape
    ids, external = index_ids(predictor.catalog.ids)
    index = faiss.index_factory(dim, "IDMap,SQ8" if int8 else "IDMap,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add_with_ids(vectors, ids)
    path = folder / MODELS["faiss"]
    with open_whole(path) as file:  # faiss's own writing does not look whether its end reached the disk
        file.write(faiss.serialize_index(index).data)
    recall, users = measure_recall(predictor, faiss.read_index(str(path)), ids, histories)
    outputs = (
        Port("scores", "float32", ("B", "k"), "inner products, largest first"),
        Port("ids", "int64", ("B", "k"), "the index's ids, -1 where none is left"),
    )
    return {
        "inputs": [asdict(Port("vectors", "float32", ("B", dim), "vectors of users"))],
        "outputs": [asdict(port) for port in outputs],
        "items": size,
        "width": dim,
        "int8": int8,
        "ids": "item_id" if external else "item",
        "bytes": path.stat().st_size,
        "parity": {f"recall@{K}": recall, "users": users, "histories": source},
    }


def index_ids(ids: pl.Series) -> tuple[Int[np.ndarray, "V"], bool]:
    """The ids in the index, and whether they are the external ones. -1 stands for no
    item, so none may be below 0."""
    numbers = ids.to_numpy()
    if ids.dtype.is_integer() and numbers.min() >= 0 and numbers.max() < 2**63:
        return numbers.astype(np.int64), True
    return np.arange(len(ids)), False


def measure_recall(
    predictor: Predictor, index: Any, ids: Int[np.ndarray, "V"], histories: Histories
) -> tuple[float, int]:
    """The share of each user's exact list that the index finds, seen items included,
    and how many users were asked."""
    k, hits = min(K, len(ids)), 0
    budget = None if predictor.model.reasoner is None else predictor.budget
    for _, scorer in score_batches(predictor.model, histories, budget=budget, index=predictor.index):
        assert isinstance(scorer, DenseScorer)  # `item_vectors` has refused others
        _, exact = top_k(scorer, k)
        _, listed = index.search((scorer.vectors / scorer.temperature).float().cpu().numpy(), k)
        hits += int((ids[exact.cpu().numpy()][:, :, None] == listed[:, None]).any(2).sum())
    return hits / (k * len(histories)), len(histories)
