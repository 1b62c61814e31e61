"""A Parquet file of a folder is refused before it is decoded where it takes far more memory than its size allows."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from folders import python
from fullrank.core.errors import UserError
from fullrank.core.parquet import read_parquet
from fullrank.data.frames import InputTable
from refusals import refused
from tests.golden.make import FOLDERS
from tests.seals import reseal

ROWS = 1_000_000
OPEN = """
import json, resource, sys
from pathlib import Path
from fullrank import ImpressionStore, Store, verify
from folders import python
from fullrank.core.errors import UserError
from fullrank.evaluation.result import EvaluationResult
from fullrank.run import Run
from fullrank.semantic_ids.reader import Codes

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

READERS = {
    "items.parquet": lambda at: Run.open(at).catalog if (at / "spec.json").exists() else Store.open(at),
    "users.parquet": lambda at: Store.open(at).users,
    "vocabulary.parquet": ImpressionStore.open,
    "groups.parquet": lambda at: ImpressionStore.open(at).group_values,
    "codes.parquet": Codes.open,
    "per_user.parquet": EvaluationResult.load,
    "per_row.parquet": EvaluationResult.load,
}
resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
before = peak()
for file in map(Path, sys.argv[1:]):
    code = "none"
    try:
        READERS[file.name](file.parent)
        if (file.parent / "manifest.json").exists():
            verify(file.parent).require_ok()
    except UserError as error:
        code = error.code
    print(json.dumps([str(file), code, peak() - before]), flush=True)
"""


def equal_rows(path: Path, like: pa.Table, *, groups: int = 10) -> Path:
    """`groups` million rows, all of them the first of a table, in some KB."""
    million = like.slice(0, 1).take(pa.array(np.zeros(ROWS, np.int64)))
    with pq.ParquetWriter(path, million.schema, compression="zstd") as writer:
        for _ in range(groups):
            writer.write_table(million)
    return path


@pytest.mark.slow
def test_no_reader_of_a_folder_takes_memory_for_a_small_file(tmp_path: Path) -> None:
    files = []
    for file in sorted(FOLDERS.glob("*/*.parquet")):  # found by looking: a new kind of folder needs a reader above
        if file.parent.name in ("plr", "rpg", "srt", "cut_off", "item_to_item"):  # runs as sasrec is one
            continue
        folder = tmp_path / f"{file.parent.name}-{file.stem}"
        shutil.copytree(file.parent, folder)
        files.append(equal_rows(folder / file.name, pq.read_table(file, columns=pq.read_schema(file).names[:4])))
        page = folder / "manifest.json"
        if page.exists():
            reseal(folder, sizes=True)
        else:  # an evaluation, whose hash is that of its rows
            tree = json.loads((folder / "evaluation.json").read_text())
            tree.pop("rows_sha256", None)
            (folder / "evaluation.json").write_text(json.dumps(tree))
            reseal(folder / "evaluation.json")
    assert len(files) >= 8
    for line in python(OPEN, *files).stdout.splitlines():
        file, code, grown = json.loads(line)
        assert code in ("file-oversized", "file-damaged", "not-an-evaluation"), (file, code)
        assert grown < 200, (file, grown)  # MB; decoded, they take up to 900


def test_rows_lists_and_texts_out_of_proportion_are_refused_before_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    equal_rows(path, pa.table({"item": [1]}))
    hostile = {"rows": path.read_bytes()}
    pq.write_table(pa.table({"tags": [np.zeros(10 * ROWS, np.int64)]}), path, compression="zstd")
    hostile["a list"] = path.read_bytes()
    pq.write_table(pa.table({"title": ["a" * 100 * ROWS]}), path, compression="zstd", use_dictionary=False)
    hostile["a text"] = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(pl, "read_parquet", lambda *_, **__: pytest.fail("it was decoded"))
        for what, content in hostile.items():
            path.write_bytes(content)
            with pytest.raises(UserError) as refused:
                read_parquet(path, "the table")
            assert refused.value.code == "file-oversized", what
            assert len(content) < 100_000, what


def test_tables_of_the_library_are_read_and_rows_compared(tmp_path: Path) -> None:
    path, rng = tmp_path / "t.parquet", np.random.default_rng(0)
    frame = pl.DataFrame({"item": np.arange(300_000), "flag": [True] * 300_000, "none": [None] * 300_000}).with_columns(
        name=pl.col("item").cast(pl.String), tags=pl.Series(rng.integers(9, size=(300_000, 3))).arr.to_list()
    )
    for compression in ("zstd", "snappy", "uncompressed"):
        frame.write_parquet(path, compression=compression)
        assert read_parquet(path, "the table", rows=300_000).equals(frame)
    frame.clear().write_parquet(path)
    assert read_parquet(path, "the table", rows=0).is_empty()
    with pytest.raises(UserError, match="it has 0 rows, not 5"):
        read_parquet(path, "the table", rows=5)


def test_a_damaged_footer_is_refused(tmp_path: Path) -> None:
    path, rng = tmp_path / "t.parquet", np.random.default_rng(0)
    pl.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"]}).write_parquet(path)
    whole = path.read_bytes()
    for _ in range(300):
        broken = bytearray(whole)
        at = int(rng.integers(len(whole) // 3, len(whole)))
        broken[at] = int(rng.integers(256))
        path.write_bytes(bytes(broken))
        try:
            read_parquet(path, "the table")
        except UserError:  # whatever it says, nothing else is raised
            continue
    for text in (b"", b"PAR1", b"PAR1" + b"\xff" * 40 + (40).to_bytes(4, "little") + b"PAR1"):
        path.write_bytes(text)
        with pytest.raises(UserError):
            read_parquet(path, "the table")


def test_a_users_table_may_be_wide_and_empty_and_is_refused_for_a_page_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    empty = {f"c{n}": np.zeros(ROWS) for n in range(30)}  # 240 MB in some KB
    pq.write_table(pa.table({"user_id": np.arange(ROWS) % 7, **empty}), path, compression="zstd")
    assert InputTable(path, "events").read(["user_id"]).height == ROWS
    pq.write_table(pa.table({"user_id": np.zeros(60 * ROWS, np.int64)}), path, compression="zstd", row_group_size=10**9)
    with refused("file-oversized", "events", "60,000,000 rows"):
        InputTable(path, "events")
