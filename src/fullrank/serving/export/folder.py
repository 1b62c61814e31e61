"""The folder of an export: manifest.json, the graph or index, and the ids that go in and come out of it.

For a recommender, items.parquet gives the id of each item number. For a ranking model, and for a
recommender that reads features, encoder.json and vocabulary.parquet say how values become ids, and
encode.py does it. The folder is whole or absent; hashes find damage and mix-ups, not malice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fullrank.core.checks import check_path
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, copy_file, jsonable, require_replaceable, whole_folder, write_json
from fullrank.core.parquet import read_parquet
from fullrank.core.registry import Problem
from fullrank.core.tables import write_table
from fullrank.data import manifest as manifests
from fullrank.data.events.catalog import Catalog
from fullrank.data.impressions import encoder_files
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.manifest import damaged_file
from fullrank.run import Run, weights_hash

FORMAT, VERSION = "fullrank.export", 1
AGAIN = "export the run again"
FORM = manifests.FolderFormat("folder of an export", "make one with fullrank export", FORMAT, VERSION, AGAIN)
ITEMS, ENCODER = "items.parquet", (encoder_files.NAME, encoder_files.VOCABULARY)
ENCODE, VALUES = "encode.py", "vocabulary.json"
"""The code that encodes raw columns without this library, and the vocabulary as it reads it."""
MODELS = {"onnx": "model.onnx", "torch": "model.pt2", "faiss": "index.faiss"}
"""Kind of export -> its file."""
WEIGHTS = "model.onnx.data"
"""Beside a graph whose weights are too large for one file."""
FILES = {*MODELS.values(), WEIGHTS, ITEMS, *ENCODER, ENCODE, VALUES}


@dataclass(frozen=True)
class Exported:
    """A folder that was written, or opened again."""

    path: Path
    manifest: JsonObject

    @classmethod
    def open(cls, path: str | Path) -> Exported:
        """Every file is read and compared with the manifest. Raises `UserError` for
        another or a damaged folder."""
        folder = check_path("the export", path)
        manifest = manifests.read_header(folder, FORM)
        to = manifest.get("to")
        kinds = {"files": dict, "content": str, "run": dict, "inputs": list, "outputs": list, "problem": str}
        manifests.require_keys(folder, manifest, kinds, AGAIN)
        if to not in MODELS:
            raise manifests.incomplete_manifest(folder, "lacks 'to'", AGAIN)
        ids = {ITEMS} if manifest["problem"] == "retrieval" else set(ENCODER)
        manifests.check_files(folder, manifest["files"], FILES, {MODELS[to], *ids}, AGAIN)
        manifests.verify_hashes(folder, manifest, AGAIN, verify=True)
        return cls(folder, manifest)

    @property
    def to(self) -> str:
        """`onnx`, `torch` or `faiss`."""
        return str(self.manifest["to"])

    @property
    def parity(self) -> JsonObject:
        """How far its answers are from the run's, as measured when it was written."""
        return dict(self.manifest["parity"])

    @property
    def item_ids(self) -> pl.Series:
        """The external id of each item number. Raises `UserError` for a ranking
        model, which ranks no catalogue."""
        self.require_problem("retrieval")
        try:
            frame = read_parquet(self.path / ITEMS, "the item table")
        except FileNotFoundError:
            raise damaged_file(self.path / ITEMS, "it is missing", AGAIN) from None
        if "item_id" not in frame.columns or frame["item_id"].null_count():
            raise damaged_file(self.path / ITEMS, "it has no column item_id of an id for each item", AGAIN)
        return frame["item_id"]

    def require_problem(self, problem: Problem) -> None:
        """Raise `UserError` for what a model of the other problem alone can answer."""
        if self.manifest["problem"] != problem:
            if problem == "ranking":
                raise UserError(f"{self.path} recommends items: use `answer`", code="not-a-ranking-model")
            raise UserError(
                f"{self.path} gives probabilities of clicks and ranks no catalogue: use `probabilities`",
                code="not-a-recommender",
            )

    def require_run(self, run: Run) -> None:
        """Raise `UserError` unless this was exported from `run` as it is now."""
        if self.manifest["run"].get("weights_sha256") != weights_hash(run.path):
            raise UserError(
                f"{self.path} was exported from {self.manifest['run'].get('path')}, with other weights than "
                f"{run.path} has: export that run, or serve the one that was exported",
                code="export-of-other-run",
            )


def require_replaceable_export(out: Path, *, overwrite: bool = True) -> None:
    """Raise `UserError` unless `out` is free, an empty folder or, with `overwrite`, an export."""
    manifests.require_outside_stores(out)
    names = {manifests.NAME, *FILES, "__pycache__"}  # Python leaves the last beside encode.py when it is imported there
    require_replaceable(out, "folder of an export", is_export, names.__contains__, overwrite=overwrite)


def is_export(folder: Path) -> bool:
    """Whether a folder says that it is an export (of any version)."""
    return manifests.format_of(folder) == FORMAT


def write_export(
    out: Path, run: Run, known: Catalog | FieldEncoder, to: str, write: Callable[[Path], JsonObject]
) -> Exported:
    """The folder, all or nothing; an export that is there is replaced.

    `write` puts the model into the folder that it is given, and returns its entries of the
    manifest.
    """
    with whole_folder(out, "an export") as folder:
        facts = write(folder)
        if isinstance(known, Catalog):
            columns = [name for name in ("item", "item_id", "title") if name in known.frame.columns]
            write_table(known.frame.select(columns), folder / ITEMS)
            reads = to != "faiss" and getattr(run.spec.model, "features", None) is not None
            encoder = known.features if reads else None
        else:
            encoder = known
        if encoder is not None:
            encoder_files.write_encoder(folder, encoder)
            values = {name: table["value"].to_list() for name, table in encoder_files.vocabularies(encoder).items()}
            write_json(folder / VALUES, values, indent=None, ensure_ascii=False)
            copy_file(Path(__file__).with_name(ENCODE), folder / ENCODE)
        source = {
            "path": str(run.path),
            "weights_sha256": weights_hash(run.path),
            "split_fingerprint": run.manifest["data"]["split_fingerprint"],
        }
        header = {"to": to, "problem": run.spec.problem, "run": source} | jsonable(facts)
        manifests.write_manifest(folder, FORM, header, manifests.describe_files(folder))
    return Exported(out, manifests.load_manifest(out))
