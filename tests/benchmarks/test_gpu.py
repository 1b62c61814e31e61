"""`make gpu` without a GPU: it refuses in one sentence, keeps what a broken section leaves, and runs at tiny sizes."""

import argparse
import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as script
from benchmarks.gpu.device import Where, achieved_share, milliseconds, peak_memory, peak_of, refusals
from benchmarks.gpu.steps import counted_once

CPU = torch.device("cpu")
OPTIONS = argparse.Namespace(device="cpu", small=True, only=None, out=None, json=False, section=None)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / ".benchmark.lock"


def test_without_a_device_it_says_so(
    lock: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main([], lock=lock) == 2
    told = capsys.readouterr().err
    assert "no CUDA device" in told and len(told.strip().splitlines()) == 1
    assert script.main(["--device", "cpu"], lock=lock) == 2


def ends(monkeypatch: pytest.MonkeyPatch, text: str, code: int | None) -> None:
    """Every section's process writes this and ends with this code, or not at all."""

    def run(command: list[str], **more: Any) -> Any:
        Path(command[command.index("--section") + 2]).write_text(text)
        if code is None:
            raise subprocess.TimeoutExpired(command, more["timeout"])
        return subprocess.CompletedProcess(command, code, stderr="Traceback\nRuntimeError: illegal memory access\n")

    monkeypatch.setattr(script.subprocess, "run", run)


@pytest.mark.parametrize(
    ("text", "code", "state", "error"),
    [
        ('{"right": true}\n', 0, "right", None),
        ('{"ms": 1.5}\n', 0, "right", None),
        ('{"right": true}\n{"right": false}\n', 0, "wrong", None),
        ("", 0, "wrong", None),
        ('{"right": true}\n', 1, "failed", "illegal memory access"),
        ('{"right": true}\n', None, "failed", "not ended after 30 seconds"),
    ],
)
def test_how_a_section_ends(
    text: str, code: int | None, state: str, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends(monkeypatch, text, code)
    rows, ended = script.started("parity", OPTIONS, 30)
    assert ended["state"] == state and len(rows) == text.count("\n") == ended["rows"]
    assert ended["error"] is None if error is None else error in ended["error"]
    assert script.started("parity", OPTIONS, 1)[1]["state"] == "not started"


def test_a_failure_costs_its_own_rows_alone(lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"steps": ([{"ms": 1.0}], {"state": "failed", "error": "RuntimeError"})}
    fine: tuple[list[dict[str, Any]], dict[str, Any]] = ([{"ms": 2.0}], {"state": "right", "error": None})
    monkeypatch.setattr(script, "started", lambda name, options, seconds: broken.get(name, fine))
    arguments = ["--device", "cpu", "--small", "--out", str(tmp_path / "gpu")]
    assert script.main(arguments, lock=lock) == 1
    (file,) = (tmp_path / "gpu").iterdir()
    found = json.loads(file.read_text())
    assert file.name.endswith("_cpu.json") and found["small"] and [*found["sections"]] == [*script.SECTIONS]
    assert [row["section"] for row in found["rows"]] == [*script.SECTIONS]
    assert script.main([*arguments, "--only", "parity"], lock=lock) == 0


def test_peaks_by_name() -> None:
    assert peak_of("NVIDIA H100 80GB HBM3") == 989e12 and peak_of("NVIDIA H100 PCIe") == 756e12
    assert peak_of("NVIDIA L40S") == 362e12 and peak_of("NVIDIA L4") == 121e12
    assert peak_of("NVIDIA A100-SXM4-80GB") == 312e12 and peak_of("Tesla V100") is None
    assert achieved_share(1e12, 1.0, CPU) is None


def test_instruments() -> None:
    calls: list[int] = []
    assert milliseconds(lambda: calls.append(1), CPU, rounds=4, warm=2) >= 0 and len(calls) == 6
    assert peak_memory(lambda: calls.append(1), CPU) is None and len(calls) == 7
    assert Where(CPU, True).of(9, 1) == 1 and Where(CPU, False).of(9, 1) == 9
    row: dict[str, Any] = {}
    with refusals(row):
        raise torch.cuda.OutOfMemoryError("tried to allocate 900 GiB")
    assert row == {"error": "out of memory"}
    with refusals(row):
        raise ValueError("no\nmore")
    assert row == {"error": "ValueError: no"}
    a = torch.ones(3, 5)
    assert counted_once(lambda: a @ a.T) == 2 * 3 * 5 * 3


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no wheel for this system")
def test_every_section_runs_at_tiny_sizes(lock: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    assert script.main(["--device", "cpu", "--small", "--out", str(out)], lock=lock) == 0, out.read_text()[-3000:]
    found = json.loads(out.read_text())
    assert {row["section"] for row in found["rows"]} == {*script.SECTIONS}
    assert not [row for row in found["rows"] if "error" in row]
    steps = {row["step"]: row for row in found["rows"] if row["section"] == "steps"}
    assert all(row["compiled_over_bf16"] > 0 for row in steps.values())
    assert all(row["flops"] > 0 and row["loss"] > 0 for row in found["rows"] if "flops" in row)
    assert {"sasrec", "hstu without bias", "dcnv2"} == {*steps}
