"""ExportedModel: an exported ONNX graph opened to answer, as `fullrank serve` does. Needs the extra `export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fullrank.core.checks import check_given
from fullrank.core.errors import UserError
from fullrank.data.batch import BatchFeatures
from fullrank.data.manifest import damaged_file
from fullrank.serving.export.folder import AGAIN, MODELS, Exported
from fullrank.serving.export.graph import OnnxGraph
from fullrank.serving.export.model_graphs import feature_inputs


class ExportedModel:
    """A graph that was written by `fullrank export --to onnx`, with what its manifest says. Threads may share one."""

    def __init__(self, exported: Exported, graph: OnnxGraph):
        self.exported, self.graph = exported, graph
        manifest = exported.manifest
        self.problem: str = manifest["problem"]
        if self.problem == "retrieval":
            self.k, self.num_items, self.max_length = manifest["k"], manifest["items"], manifest["max_length"]
            self.seen: str = manifest["seen"]
            self.reads_times: bool = manifest["reads_times"]
            width = manifest["inputs"][0]["shape"][1]
            self.length: int | None = width if isinstance(width, int) else None
            """What rows must be padded to; None where any length up to `max_length` will do."""

    @classmethod
    def open(cls, folder: str | Path, threads: int = 1) -> ExportedModel:
        """Open an export, every hash compared. `threads` is for one answer.

        Raises `UserError` for a damaged or foreign folder, and for an export that is no ONNX graph.
        """
        exported = Exported.open(folder)
        if exported.to != "onnx":
            raise UserError(
                f"{exported.path} was exported to {exported.to}; export the run --to onnx for ONNX Runtime to answer",
                code="not-an-onnx-export",
            )
        path = exported.path / MODELS["onnx"]
        try:
            graph = OnnxGraph(path, threads)
        except ModuleNotFoundError:
            raise
        except Exception as error:  # ONNX Runtime has types of its own for each way in which a file may be wrong
            raise damaged_file(path, f"ONNX Runtime cannot read it ({str(error).splitlines()[0]})", AGAIN) from None
        named = [{port["name"] for port in exported.manifest[key]} for key in ("inputs", "outputs")]
        if not set(graph.inputs) <= named[0] or set(graph.outputs) != named[1]:
            raise damaged_file(path, "its inputs and outputs are not those in the manifest", AGAIN)
        return cls(exported, graph)

    def answer(
        self,
        items: Int[np.ndarray, "B T"],
        lengths: Int[np.ndarray, "B"],
        times: Int[np.ndarray, "B T"] | None = None,
        excluded: Int[np.ndarray, "B X"] | None = None,
        features: BatchFeatures | None = None,
    ) -> tuple[Float[np.ndarray, "B k"], Int[np.ndarray, "B k"]]:
        """Scores and item numbers of the k best items of each row, best first; -inf and -1 where none is left.

        Rows are the last `max_length` events or fewer, at least one, right-padded. The graph
        hides the items that it is given where it was exported with seen=exclude; older events
        that a list must not repeat belong to `excluded`, whose places are -1 where there is
        none. `times` (seconds) are for a model that reads them, and so are `features`
        (`data.batch`). Raises `UserError` for other shapes, for numbers outside the catalogue,
        and where an input is missing.
        """
        self.exported.require_problem("retrieval")
        excluded = np.full((len(items), 1), -1) if excluded is None or excluded.shape[1] == 0 else excluded
        self._check(items, lengths, times, excluded)
        inputs = {"items": self._padded(items), "lengths": _whole(lengths), "excluded": _whole(excluded)}
        if self.reads_times and times is not None:
            inputs["times"] = self._padded(times)
        inputs |= feature_inputs(features or BatchFeatures(), inputs["items"].shape[1])
        self._check_columns(inputs)
        scores, ids = self.graph(inputs)
        return scores, ids

    def probabilities(
        self,
        categorical: Int[np.ndarray, "B F"] | None = None,
        numeric: Float[np.ndarray, "B X"] | None = None,
        bags: Sequence[tuple[Int[np.ndarray, "B L"], Int[np.ndarray, "B"]]] = (),
    ) -> tuple[Float[np.ndarray, "B"], Float[np.ndarray, "B"]]:
        """Probability and logit of each impression, encoded as `FieldEncoder.encode` does; NaN is a missing number.

        `bags` are padded ids and lengths, in the order of the schema. Raises `UserError` for a
        recommender, and where an input that the graph reads is missing or has other columns.
        """
        self.exported.require_problem("ranking")
        inputs: dict[str, np.ndarray] = {}
        if categorical is not None:
            inputs["categorical"] = _whole(categorical)
        if numeric is not None:
            inputs["numeric"] = np.ascontiguousarray(numeric, np.float32)
        for number, (ids, lengths) in enumerate(bags):
            inputs[f"bag_{number}"] = _whole(ids) if ids.shape[1] else np.zeros((len(ids), 1), np.int64)
            inputs[f"bag_lengths_{number}"] = _whole(lengths)
        self._check_columns(inputs)
        probability, logit = self.graph(inputs)
        return probability, logit

    def _check(self, items: np.ndarray, lengths: np.ndarray, times: Any, excluded: np.ndarray) -> None:
        """Raise `UserError` for histories that the graph cannot take."""
        rows, width = items.shape
        if lengths.shape != (rows,) or len(excluded) != rows or (times is not None and times.shape != items.shape):
            raise UserError(
                f"items {items.shape}, lengths {lengths.shape}, times and excluded {excluded.shape} are not of the "
                "same rows",
                code="shapes-differ",
            )
        if self.reads_times:
            check_given("times", times, "this model reads when events happened", code="missing-times")
        if not 1 <= width <= self.max_length or not 1 <= int(lengths.min()) <= int(lengths.max()) <= width:
            raise UserError(
                f"rows of {width} places and lengths {int(lengths.min())} to {int(lengths.max())}: each row needs 1 to "
                f"{self.max_length} events, the last ones of a longer history",
                code="invalid-history-bounds",
            )
        inside = np.where(np.arange(width) < lengths[:, None], items, 0)
        low, high = min(int(inside.min()), int(excluded.min()) + 1), max(int(inside.max()), int(excluded.max()))
        if low < 0 or high >= self.num_items:
            raise UserError(
                f"an item number is outside of the catalogue of {self.num_items} items (0 to {self.num_items - 1})",
                code="item-out-of-range",
            )

    def _check_columns(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Raise `UserError` for an input that the graph reads and that is
        missing or has another shape."""
        for port in self.exported.manifest["inputs"]:
            name, shape = port["name"], port["shape"]
            if name not in self.graph.inputs:
                continue
            read = check_given(name, inputs.get(name), f"this model reads it ({port['meaning']})", code="missing-input")
            fits = len(shape) == read.ndim and all(
                not isinstance(size, int) or size == actual for size, actual in zip(shape, read.shape, strict=True)
            )
            if not fits:
                raise UserError(f"{name} has the shape {read.shape}, not {shape}", code="shapes-differ")

    def _padded(self, rows: np.ndarray) -> np.ndarray:
        """Rows of the length that the graph takes. Padding is never read, but
        must be a number of an item."""
        missing = 0 if self.length is None else self.length - rows.shape[1]
        return _whole(np.pad(rows, ((0, 0), (0, missing))) if missing else rows)


def _whole(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows, np.int64)
