"""Files are whole or absent, and what cannot be read says so."""

import os
import resource
from pathlib import Path

import pytest
import torch

from folders import limited
from fullrank.core.files import write_text
from fullrank.core.readers import read_json
from fullrank.core.tensor_files import read_tensors, write_tensors
from refusals import refused


def test_round_trip(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5).flip(0), "c": torch.randn(4, 3).T, "d": torch.tensor(1.5)}
    write_tensors(tmp_path / "x.safetensors", tensors)
    back = read_tensors(tmp_path / "x.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[k], v) and back[k].dtype == v.dtype for k, v in tensors.items())
    write_text(tmp_path / "x.json", '{"a": [1, "ü"]}')
    assert read_json(tmp_path / "x.json") == {"a": [1, "ü"]}
    write_text(tmp_path / "x.json", "{}")
    assert read_json(tmp_path / "x.json") == {}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.json", "x.safetensors"], "nothing is left beside them"


def test_tied_tensors(tmp_path: Path) -> None:
    """Two names for one storage, and a view into another, are written as two tensors."""
    base = torch.randn(6, 2)
    write_tensors(tmp_path / "x.safetensors", {"whole": base, "again": base, "part": base[2:4]})
    back = read_tensors(tmp_path / "x.safetensors")
    assert torch.equal(back["again"], base) and torch.equal(back["part"], base[2:4])


def test_what_is_missing_or_damaged(tmp_path: Path) -> None:
    for read in (read_json, read_tensors):
        with refused("missing-file", tmp_path / "none"):
            read(tmp_path / "none")
    bad = tmp_path / "bad"
    for content in (b"", b"\xff\xfe\x00", b"[" * 100_000, b'{"a"', os.urandom(64), b"\xff" * 8 + b"{}"):
        bad.write_bytes(content)
        with refused("file-damaged", bad, "JSON"):
            read_json(bad)
        with refused("file-damaged", bad, "safetensors", f"{len(content):,} bytes"):
            read_tensors(bad)
    bad.write_text("[1]")
    with refused("file-damaged", bad, "[1]"):
        read_json(bad)
    write_tensors(bad, {"a": torch.ones(100)})
    bad.write_bytes(bad.read_bytes()[:-7])
    with refused("file-damaged", bad, "safetensors", f"{bad.stat().st_size:,} bytes"):
        read_tensors(bad)
    bad.unlink()
    bad.mkdir()
    for read in (read_json, read_tensors):
        with refused("file-damaged", bad):
            read(bad)


def test_a_process_with_too_many_open_files_is_told(tmp_path: Path) -> None:
    """Reading takes two handles at a time, and the file is neither missing nor damaged where there is one or none."""
    write_tensors(tmp_path / "x.safetensors", {"a": torch.ones(3)})
    read_tensors(tmp_path / "x.safetensors")  # imports what it needs while it can
    handles = []
    with limited(resource.RLIMIT_NOFILE, 256):
        try:
            with pytest.raises(OSError, match="Too many"):
                while True:
                    handles.append(os.open(os.devnull, os.O_RDONLY))
            for _ in range(2):
                with refused("file-unreadable", tmp_path / "x.safetensors", "Too many open files"):
                    read_tensors(tmp_path / "x.safetensors")
                os.close(handles.pop())
            assert read_tensors(tmp_path / "x.safetensors").keys() == {"a"}
        finally:
            for handle in handles:
                os.close(handle)
