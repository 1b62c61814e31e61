"""The device that is measured: its name and peak, times between synchronisations, and the memory that is allocated."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

PEAKS = {
    "B200": 2250e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "A100": 312e12,
    "A10G": 70e12, "A10": 125e12, "L40S": 362e12, "L4": 121e12, "RTX 4090": 165e12, "RTX 3090": 71e12,
}  # fmt: skip
"""Part of a device's name -> dense bf16 operations a second with fp32 sums, from its maker's data sheet. The longest
name that fits counts."""


@dataclass(frozen=True)
class Where:
    """What a section measures on."""

    device: torch.device
    small: bool
    """Tiny sizes, whose figures mean nothing."""

    def of(self, full: int, tiny: int) -> int:
        return tiny if self.small else full


def described(device: torch.device) -> dict[str, Any]:
    """Name, capability, memory and peak of the device."""
    if device.type != "cuda":
        return {"name": "CPU", "capability": None, "memory_gb": None, "peak_bf16": None}
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "memory_gb": round(found.total_memory / 2**30, 1),
        "peak_bf16": peak_of(found.name),
        "cuda": torch.version.cuda,
    }


def peak_of(name: str) -> float | None:
    """Operations a second in bf16 of a device of this name; None of one that is not in the table."""
    fits = [known for known in PEAKS if re.search(rf"\b{re.escape(known)}\b", name)]
    return PEAKS[max(fits, key=len)] if fits else None


def achieved_share(flops: float, seconds: float, device: torch.device) -> float | None:
    """Share of the device's bf16 peak; None where that is not known."""
    peak = described(device)["peak_bf16"]
    return None if peak is None else flops / seconds / peak


def milliseconds(action: Callable[[], object], device: torch.device, *, rounds: int = 10, warm: int = 3) -> float:
    """Median wall time of a call, the device waited for."""
    taken = []
    for turn in range(warm + rounds):
        wait(device)
        begun = time.perf_counter()
        action()
        wait(device)
        if turn >= warm:
            taken.append(time.perf_counter() - begun)
    return median(taken) * 1e3


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(action: Callable[[], object], device: torch.device) -> int | None:
    """Most bytes that a call allocates above what is there already; None on a CPU."""
    if device.type != "cuda":
        action()
        return None
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    action()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


@contextmanager
def refusals(row: dict[str, Any]) -> Iterator[None]:
    """What goes wrong inside goes into the row, so that the next row is made all the same."""
    try:
        yield
    except Exception as error:  # too little memory, or whatever a compiler raises
        row["error"] = "out of memory" if isinstance(error, torch.cuda.OutOfMemoryError) else first_line(error)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
