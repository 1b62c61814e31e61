"""Look-ups and the exact softmax over a table that three processes hold together, against a whole table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fullrank.core.tensor_files import Pieces, in_file_order, read_tensors, write_tensors
from fullrank.ops.sharded_rows import RowShard
from fullrank.ops.starting_values import normal_rows

WORLD = 3
WORKER = Path(__file__).with_name("sharded_worker.py")


def told(store: Path, fault: str = "") -> list:
    """What each process had to say; nothing where all is as it should be."""
    command = [sys.executable, str(WORKER)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, str(rank), str(WORLD), str(store), fault], env=env, stderr=subprocess.PIPE)
        for rank in range(WORLD)
    ]
    said = [one.communicate(timeout=120)[1].decode() for one in processes]
    return [text for text, one in zip(said, processes, strict=True) if one.returncode]


@pytest.mark.process
def test_three_processes_equal_one(tmp_path: Path) -> None:
    assert told(tmp_path / "store") == []


@pytest.mark.cluster
@pytest.mark.parametrize(("fault", "where"), [("scale", "d own"), ("own", "the sum")])
def test_planted_faults_are_noticed(fault: str, where: str, tmp_path: Path) -> None:
    assert any(where in text for text in told(tmp_path / "store", fault))


@pytest.mark.parametrize("size", [1, 5, 16, 83, 1000])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_the_rows_of_all_processes_are_the_table(size: int, world: int) -> None:
    found = [row for rank in range(world) for row in range(*RowShard(size, rank, world).bounds(rank))]
    assert found == list(range(size))
    assert all(abs(len(RowShard(size, rank, world)) - size / world) < 1 for rank in range(world))


@pytest.mark.parametrize(("size", "width"), [(3, 2), (16, 1), (83, 16), (101, 7), (250, 3)])
@pytest.mark.parametrize("piece", [16, 48, 1 << 20])
def test_rows_are_drawn_as_in_one(size: int, width: int, piece: int) -> None:
    """Bit for bit, and what is drawn next is the same."""
    torch.manual_seed(5)
    whole, after = torch.empty(size, width).normal_(0.0, 0.02), torch.rand(3)
    for low, high in ((0, size // 2), (size // 2, size), (0, size)):
        torch.manual_seed(5)
        found = normal_rows(size, width, low, high, 0.02, piece)
        assert torch.equal(found, whole[low:high]) and torch.equal(torch.rand(3), after)


def test_a_file_that_is_written_in_pieces(tmp_path: Path) -> None:
    """What a whole tensor's file holds, of every dtype of a model's state."""
    table = torch.randn(5, 3)
    whole = {
        "b": table, "a": torch.arange(4), "scalar": torch.tensor(2.5), "flag": torch.tensor([True, False]),
        "half": torch.randn(3).bfloat16(), "empty": torch.empty(0, 4),
    }  # fmt: skip
    write_tensors(tmp_path / "whole.safetensors", whole)
    pieces = {**whole, "b": Pieces((5, 3), torch.float32, lambda: iter(table.split(2)))}
    write_tensors(tmp_path / "pieces.safetensors", pieces)
    found = read_tensors(tmp_path / "pieces.safetensors")
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) and found[name].dtype == whole[name].dtype for name in whole)
    assert in_file_order(pieces)[0] == "a"
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "pieces.safetensors").read_bytes()
