"""What the fuzzers feed: bytes in the place of one file that somebody else may have made, and how the library reads it.

A target reads the bytes as a user's command would and may end in one way beside success: `UserError`. Folders are
those that the baseline wrote (`tests/golden/folders`); what a target changes there is sealed anew, so that no hash
stands before a reader.
"""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

import seals
from fullrank.core.errors import UserError
from fullrank.core.readers import read_jsonl
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.data.events.table import Columns, read_events, require_columns
from fullrank.data.frames import InputTable
from fullrank.data.impressions.store import open_store
from fullrank.run import Run

GOLDEN = Path(__file__).parents[1] / "golden" / "folders"
EVENTS = pl.DataFrame({"user_id": ["a", "a", "b"], "item_id": [1, 2, 1], "timestamp": [1.6e9, 1.7e9, 1.7e9]})


@dataclass(frozen=True)
class Target:
    """One reader. `read` is called with the bytes and an empty folder."""

    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]

    def __call__(self, data: bytes, scratch: Path) -> bool:
        """Whether the bytes were read; False where they were refused."""
        folder = scratch / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            self.read(data, folder)
        except UserError:
            return False
        return True


def parquet_seeds() -> list[bytes]:
    """The events with every compression, with lists, categories and dates, and with gaps."""
    moments = EVENTS.with_columns(pl.from_epoch(pl.col("timestamp").cast(pl.Int64)))
    frames = [
        EVENTS, moments, EVENTS.cast({"user_id": pl.Categorical}), EVENTS.with_columns(tags=[["x"], [], None]),
        EVENTS.with_columns(pl.when(pl.col("item_id") > 1).then("item_id")), EVENTS.clear(),
    ]  # fmt: skip
    return [_parquet(frame, one) for frame in frames for one in ("uncompressed", "snappy", "zstd")]


def _parquet(frame: pl.DataFrame, compression: str) -> bytes:
    file = io.BytesIO()
    frame.write_parquet(file, compression=compression)  # type: ignore[arg-type]
    return file.getvalue()


def table_in(name: str) -> Callable[[bytes, Path], object]:
    """The events of a file of this name, as `prepare` reads them."""

    def read(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        source = InputTable(folder / name, "events")
        require_columns(source, Columns())
        return read_events(source, Columns())

    return read


def lines(data: bytes, folder: Path) -> object:
    """JSON lines: the log of a run, then a table of events."""
    (folder / "metrics.jsonl").write_bytes(data)
    try:
        read_jsonl(folder / "metrics.jsonl")
    finally:
        table_in("events.jsonl")(data, folder)
    return None


MANIFESTS = ("events/manifest.json", "sasrec/manifest.json", "sasrec/spec.json", "impressions/manifest.json")


def manifest_seeds() -> list[bytes]:
    """Each file behind a byte that says which it is."""
    return [bytes([at]) + (GOLDEN / name).read_bytes() for at, name in enumerate(MANIFESTS)]


def manifest(data: bytes, folder: Path) -> object:
    """A store or a run that has this manifest or spec."""
    name = MANIFESTS[data[0] % len(MANIFESTS)] if data else MANIFESTS[0]
    whole = _copy(name.split("/")[0], folder)
    file = folder / name
    file.write_bytes(data[1:])
    try:
        if file.name == "manifest.json" and isinstance(json.loads(data[1:]), dict):
            seals.reseal(whole)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        file.write_bytes(data[1:])
    if name.startswith("sasrec"):
        return Run.open(whole).model()
    if name.startswith("events"):
        return Store.open(whole).eval_set("test")
    return open_store(whole)


def weights(data: bytes, folder: Path) -> object:
    """A run with these weights."""
    run = _copy("sasrec", folder)
    (run / "weights.safetensors").write_bytes(data)
    return Run.open(run).model()


def items(data: bytes, folder: Path) -> object:
    """A run with these items, and what filters and lists ask of them."""
    run = _copy("sasrec", folder)
    (run / "items.parquet").write_bytes(data)
    catalog: Catalog = Run.open(run).catalog
    return catalog.popularity, catalog.lookup(catalog.ids), [catalog.frame[name] for name in catalog.columns]


def _copy(name: str, folder: Path) -> Path:
    """A folder of the baseline, without its checkpoints."""
    return Path(shutil.copytree(GOLDEN / name, folder / name, ignore=shutil.ignore_patterns("checkpoints")))


TARGETS = {
    "parquet": Target(parquet_seeds, table_in("events.parquet")),
    "json": Target(lambda: [EVENTS.write_ndjson().encode(), (GOLDEN / "sasrec" / "metrics.jsonl").read_bytes()], lines),
    "manifest": Target(manifest_seeds, manifest),
    "weights": Target(lambda: [(GOLDEN / "sasrec" / "weights.safetensors").read_bytes()], weights),
    "items": Target(lambda: [(GOLDEN / "sasrec" / "items.parquet").read_bytes()], items),
}
