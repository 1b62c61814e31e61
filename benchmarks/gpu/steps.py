"""Training steps of SASRec, HSTU and DCNv2: milliseconds, and the share of the device's peak that they achieve.

A step is what the training loop does with a batch that lies on the device: forward, backward, clipping, AdamW.
FLOPs are those of all matrix products, counted by torch in one step of the ops' own code (the Triton kernels are left
out while it counts; what those compute again does not count). The recipes as they are keep a GPU waiting; `large` has
widths and histories that do not. `bf16_over_fp32` and `compiled_over_bf16` are speed over speed: above 1 the first
wins.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.device import Where, achieved_share, milliseconds, peak_memory, refusals
from benchmarks.gpu.exact_softmax import megabytes
from benchmarks.gpu.stores import histories, impressions
from fullrank.ops.model_cost import counted
from fullrank.run.experiment import Experiment, find_experiment
from fullrank.training import prepared_model
from fullrank.training.data_module import data_module_of
from fullrank.training.optim import clip_gradients, make_optimizer
from fullrank.training.prepared_model import compile_part

NO_BIAS = ("model.encoder.attention.rel_bias=none", "model.encoder.attention.rope=true")
"""Of HSTU: the form that has a kernel."""
LARGE = ("model.dim=512", "model.encoder.layers=8", "model.encoder.attention.heads=8")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "sasrec": ("sasrec", ()),
    "sasrec large": ("sasrec", (*LARGE, "model.max_length=200", "training.batch_size=32768")),
    "hstu": ("hstu", ()),
    "hstu without bias": ("hstu", NO_BIAS),
    "hstu large without bias": ("hstu", (*LARGE, *NO_BIAS, "model.max_length=1024", "training.batch_size=32768")),
    "dcnv2": ("dcnv2", ()),
    "dcnv2 large": ("dcnv2", ("training.batch_size=65536", "model.embedding.dim=32")),
}
SMALL = {name: CASES[name] for name in ("sasrec", "hstu without bias", "dcnv2")}
VARIANTS: tuple[tuple[str, bool], ...] = (("fp32", False), ("bf16", False), ("bf16", True))
"""Precision, and whether torch.compile makes the encoder's (or ranker's) kernels."""


def rows(where: Where) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        stores: dict[bool, Any] = {}
        for name, (recipe, settings) in (SMALL if where.small else CASES).items():
            experiment = find_experiment(recipe).override(*settings, *_tiny(recipe, where))
            ranking = experiment.problem == "ranking"
            if ranking not in stores:
                make = impressions if ranking else histories
                stores[ranking] = make(Path(folder) / experiment.problem, where)
            flops: int | None = None
            taken: dict[tuple[str, bool], float] = {}
            for precision, compiling in VARIANTS:
                row: dict[str, Any] = {"step": name, "precision": precision, "compiled": compiling}
                with refusals(row):
                    if where.small:
                        prepared_model.BACKEND = "eager"
                    step = step_of(experiment, stores[ranking], where.device, precision, compiling, row)
                    flops = counted_once(step) if flops is None else flops
                    row["flops"], row["loss"] = flops, step()  # compiles
                    row["peak_mb"] = megabytes(peak_memory(step, where.device))
                    row["ms"] = milliseconds(step, where.device, rounds=where.of(20, 1), warm=where.of(3, 1))
                    row["achieved_share"] = achieved_share(flops, row["ms"] / 1e3, where.device)
                    taken[precision, compiling] = row["ms"]
                yield row
            if len(taken) == len(VARIANTS):
                plain, half, made = (taken[variant] for variant in VARIANTS)
                yield {"step": name, "bf16_over_fp32": plain / half, "compiled_over_bf16": half / made}


def step_of(
    experiment: Experiment, store: Any, device: torch.device, precision: str, compiling: bool, row: dict[str, Any]
) -> Callable[[], float]:
    """An optimizer step on the first batch of an epoch, at the same starting weights every time it is made."""
    torch.manual_seed(0)
    training = experiment.training.model_copy(update={"compile": compiling})
    data = data_module_of(experiment, store)
    model = experiment.model.build(getattr(data.known, "fields", data.known)).to(device).train()  # type: ignore[attr-defined]
    batch = data.loader(model).batch(0).to(device)
    compile_part(model, training, device)
    optimizer = make_optimizer(model, training)
    row["events"] = data.batch_sizes(batch)[0]
    cast = torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()

    def step() -> float:
        with cast:
            loss = torch.stack(list(model(batch).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        if training.clip_norm is not None:
            clip_gradients(model.parameters(), training.clip_norm)
        optimizer.step()
        return float(loss.detach())

    return step


def counted_once(step: Callable[[], object]) -> int:
    """FLOPs of a step of the ops' own code, which is what torch's counter sees."""
    before = os.environ.get("FULLRANK_TRITON")
    os.environ["FULLRANK_TRITON"] = "0"
    try:
        return counted(step)
    finally:
        if before is None:
            del os.environ["FULLRANK_TRITON"]
        else:
            os.environ["FULLRANK_TRITON"] = before


def _tiny(recipe: str, where: Where) -> tuple[str, ...]:
    if not where.small:
        return ()
    size = ("training.batch_size=64",)
    return size if recipe == "dcnv2" else (*size, "model.dim=16", "model.encoder.layers=1")
