"""`training.precision=auto`: bf16 where a device has tensor cores for it, fp32 elsewhere. A run says which it was.

`auto` is settled before anything is compared or written, so that spec.json names what was computed: a run that was
begun in bf16 is not silently continued in fp32 on another machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from fullrank.core.registry import kinds
from fullrank.experiment import Experiment
from fullrank.ops.kernels import AMPERE
from fullrank.run import Run, is_run


def settled(experiment: Experiment, device: torch.device) -> Experiment:
    """The experiment with `auto` replaced by what it means on this device."""
    if experiment.training.precision != "auto":
        return experiment
    # a baseline is counted and not trained, so it stays the same wherever it is made
    found = "fp32" if experiment.model.kind_of() in kinds("baselines") else best_precision(device)
    return experiment.override(f"training.precision={found}")


def best_precision(device: torch.device) -> Literal["fp32", "bf16"]:
    """bf16 on CUDA devices from Ampere on, whose tensor cores multiply it; fp32 on all others."""
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE
    return "bf16" if fast else "fp32"


def usual_precision(what: object, folder: Path, device: torch.device, *, resume: bool) -> tuple[str, ...]:
    """The setting that stands before a user's own: a recipe by its name trains in `auto` on CUDA.

    Nothing where the user has written the experiment, since that says its precision; a run that is gone on with keeps
    its own.
    """
    if device.type != "cuda" or not isinstance(what, str) or what not in kinds("recipes"):
        return ()
    if resume and is_run(folder):
        return (f"training.precision={Run.open(folder).spec.training.precision}",)
    return ("training.precision=auto",)
