"""Several processes, one of which is lost, missing or wrongly started: the others end soon and say so."""

import json
import signal
import time
from pathlib import Path

import pytest
import torch

from fullrank.core.readers import read_json
from fullrank.data.events.store import Store
from fullrank.training import distributed
from fullrank.training.distributed import gather_ranks, join_processes, launched, lost_peers_refused, sum_over_ranks
from refusals import refused
from tests.training.several import free_port, ranks

WHOLE = {
    "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}  # fmt: skip


def environment(monkeypatch: pytest.MonkeyPatch, **given: str | None) -> None:
    for name, value in {**WHOLE, **given}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", [name for name in WHOLE if name not in ("RANK", "WORLD_SIZE")])
def test_an_incomplete_environment_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, **{name: None})
    with refused("launch-incomplete", name, "torchrun"):
        launched()


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "x"), ("RANK", "-1"), ("RANK", "2"), ("WORLD_SIZE", "²"), ("WORLD_SIZE", "3"), ("WORLD_SIZE", "9" * 5000),
     ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "0"), ("MASTER_PORT", "70000"), ("MASTER_PORT", "http")],
)  # fmt: skip
def test_impossible_numbers_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, **{name: value})
    with refused("launch-incomplete", name) as refusal:
        launched()
    assert len(str(refusal)) < 600


def test_one_process_needs_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WHOLE:
        monkeypatch.delenv(name, raising=False)
    assert launched() == distributed.ProcessRank(0, 1)
    join_processes(torch.device("cpu"))


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_others_never_come(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, RANK=rank, LOCAL_RANK=rank, MASTER_PORT=free_port())
    monkeypatch.setattr(distributed, "JOIN_SECONDS", 1.0)
    begun = time.monotonic()
    with refused("peers-missing", WHOLE["MASTER_ADDR"]):
        join_processes(torch.device("cpu"))
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    "text",
    [
        "[/pytorch/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:57067: Connection reset by peer",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3321",
    ],
)
def test_only_a_lost_peer_is_told_as_one(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch)
    with refused("peer-lost", "--resume"), lost_peers_refused():
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), lost_peers_refused():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match="gloo"), lost_peers_refused():
        raise RuntimeError(text)


def test_a_sum_without_the_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray destroys the group of a training that still runs; a sum over one of two processes would be a wrong number."""
    one = torch.ones(3)
    environment(monkeypatch, RANK="1", LOCAL_RANK="1")
    with refused("peer-lost", "process 1 of 2"):
        sum_over_ranks(one.sum())
    with refused("peer-lost", "process 1 of 2"):
        gather_ranks(one)
    environment(monkeypatch, RANK=None, WORLD_SIZE=None)
    assert sum_over_ranks(one.sum()) == 3 and gather_ranks(one) is one


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_the_survivor_of_a_killed_process_ends_with_one_sentence(lost: int, market: Store, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["-m", "fullrank", "train", "sasrec", "--data", market.path, "--out", out, "--json"]
    for setting in ("model.dim=8", "model.encoder.layers=1", "training.max_epochs=100000", "training.patience=null"):
        words += ["--set", setting]
    processes = ranks(words, 2)
    try:
        until = time.monotonic() + 120
        while not (out / "checkpoints" / "last.json").exists():
            assert time.monotonic() < until and all(one.poll() is None for one in processes)
            time.sleep(0.05)
        processes[lost].send_signal(signal.SIGKILL)
        told, said = processes[1 - lost].communicate(timeout=20)
    finally:
        for one in processes:
            one.kill()
            one.communicate()
    assert processes[1 - lost].returncode == 2, said.decode()[-2000:]
    assert b"Traceback" not in said
    assert said.decode().splitlines()[-1].startswith(f"Error: process {1 - lost} of 2 ")
    if lost == 1:  # the first process speaks for all
        assert json.loads(told)["code"] == "peer-lost"
    assert read_json(out / "checkpoints" / "last.json")
