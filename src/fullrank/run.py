"""A run is a folder: spec.json, manifest.json, metrics.jsonl, weights.safetensors, items.parquet.

Nothing in it is pickle, and reading one runs no code: a damaged or hostile folder gives a `UserError`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fullrank.data.catalog import Catalog
from fullrank.errors import UserError
from fullrank.experiment import Experiment
from fullrank.ops.safe_files import read_json, read_tensors, write_tensors, write_text

FORMAT = 1
"""Version of the run folder. A reader refuses what is newer than itself and reads all that is older."""


@dataclass(frozen=True)
class Run:
    """An opened run folder."""

    path: Path
    spec: Experiment
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open a run folder. Raises `UserError` where it is missing, damaged or of a newer format."""
        folder = Path(path)
        if not (folder / "manifest.json").is_file():
            raise UserError(f"{folder} is not a run folder (it has no manifest.json); `fullrank train` makes one")
        manifest = read_json(folder / "manifest.json")
        version = manifest.get("format_version")
        if not isinstance(version, int) or not 1 <= version <= FORMAT:
            raise UserError(
                f"{folder} has run format {version!r}; this version of fullrank reads formats 1 to {FORMAT}"
            )
        return cls(folder, Experiment.parse(read_json(folder / "spec.json")), manifest)

    @property
    def catalog(self) -> Catalog:
        """The items that the model knows, in the order of its table."""
        return Catalog.open(self.path / "items.parquet")

    def model(self) -> nn.Module:
        """The trained model in evaluation mode, on the CPU."""
        catalog = self.catalog
        model: nn.Module = self.spec.model.build(catalog)  # type: ignore[attr-defined]
        load_weights(model, read_tensors(self.path / "weights.safetensors"), self.path)
        return model.eval()

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; a last line cut short by a crash is left out."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        found = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found


def write_run(path: Path, experiment: Experiment, catalog: Catalog, manifest: dict[str, Any]) -> None:
    """Everything of a run folder but its weights and metrics."""
    path.mkdir(parents=True, exist_ok=True)
    catalog.write(path / "items.parquet")
    write_text(path / "spec.json", experiment.to_json())
    write_text(path / "manifest.json", json.dumps({"format_version": FORMAT, **manifest}, indent=2) + "\n")


def write_weights(path: Path, model: nn.Module) -> None:
    """weights.safetensors of a run folder."""
    write_tensors(path / "weights.safetensors", dict(model.state_dict()))


def load_weights(model: nn.Module, tensors: dict[str, torch.Tensor], where: Path) -> None:
    """Put tensors into a model. Raises `UserError` naming what does not fit."""
    own = model.state_dict()
    for name, tensor in own.items():
        if name not in tensors:
            raise UserError(f"{where}: the weights lack {name!r}; the folder is damaged or its spec was edited")
        if tensors[name].shape != tensor.shape:
            raise UserError(
                f"{where}: {name!r} has shape {tuple(tensors[name].shape)}, the spec asks for {tuple(tensor.shape)}"
            )
    extra = sorted(set(tensors) - set(own))
    if extra:
        raise UserError(f"{where}: the weights hold {extra[0]!r}, which the spec does not; the spec was edited")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UserError(f"{where}: {name!r} holds values that are not finite; the run diverged or is damaged")
    model.load_state_dict(tensors)
