"""What a recommender says of its size: torch's count of a whole forward pass, published counts, rows of a sweep."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.data.pack import Store
from fullrank.experiment import named
from fullrank.ops.flop_count import counted
from fullrank.scaling.laws.read import read_ladder
from fullrank.scaling.sequence_size import batch_flops, published_flops, sequence_size
from fullrank.scaling.sweep import sweep
from fullrank.training.fit import material_of

from .laws.conftest import srt_csv as srt_csv

SAMPLED = "model.loss={kind: bce, negatives: {count: 5, share: query}}"


def made(store: Store, recipe: str, *settings: str) -> Any:
    experiment = named(recipe).override("model.dim=8", "training.batch_size=256", *settings)
    material = material_of(experiment, store)
    model = experiment.model.build(material.known)  # type: ignore[attr-defined]
    return model, material.loader(model)


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [("sasrec", ()), ("sasrec", (SAMPLED,)), ("gru4rec", ("model.loss=cross_entropy",)), ("bert4rec", ())],
)
def test_the_forward_pass_of_a_batch_is_what_torch_counts(recipe: str, settings: tuple[str, ...], store: Store) -> None:
    model, loader = made(store, recipe, *settings)
    batch = loader.batch(1)
    parts = batch_flops(model.eval(), batch)
    assert None not in parts.values()
    with torch.no_grad():
        assert sum(parts.values()) == counted(lambda: model(batch))  # type: ignore[arg-type]


def test_an_epoch_is_three_times_its_forward_passes(store: Store) -> None:
    model, loader = made(store, "sasrec")
    whole = [sum(batch_flops(model, loader.batch(k)).values()) for k in range(loader.steps_per_epoch)]  # type: ignore[arg-type]
    size = sequence_size(model, loader, store)
    assert 1 < len(whole) <= 64 and size.flops_per_epoch == 3 * sum(whole)
    assert size.non_embedding == sum(p.numel() for p in model.parameters()) - 8 * store.num_items
    assert size.interactions == store.num_events - 2 * store.num_users, "leave-one-out: two events are targets"


def test_what_is_not_counted_makes_the_whole_unknown(store: Store) -> None:
    model, loader = made(store, "sasrec", "model.reasoner=rearec", "model.task=last_item")
    size = sequence_size(model, loader, store).dump()
    assert size["flops_per_epoch"] is None and size["flops_by_part"]["encoder"] is None
    assert size["flops_by_part"]["items"] == 0 and size["non_embedding_parameters"] > 0


def test_the_published_counts(srt_csv: Path) -> None:
    """All 119, to the last one."""
    with srt_csv.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 119
    for row in rows:
        shape = {name: int(row[name]) for name in ("layers", "heads", "negatives")}
        assert published_flops(dim=int(row["d"]), **shape) == int(row["batch_flops"])
        assert int(row["batch_flops"]) * int(row["interactions"]) // 128 == int(row["epoch_flops"])


def test_rows_of_a_sweep_are_a_ladder(tiny: Any, store: Store, out: Path) -> None:
    rows = sweep(tiny("[sasrec, popularity]", seeds=(0,)), store, out, progress=False)
    assert "size" not in rows[1] and [epoch for epoch, _ in rows[0]["validation_curve"]] == [1, 2, 3]
    json.dumps(rows)
    ladder = read_ladder(out / "rows.jsonl")
    ladder.need("flops", "epochs", "parameters", "data", "size")
    (trace,) = ladder.traces
    assert trace.flops is not None and trace.flops.tolist() == [
        n * rows[0]["size"]["flops_per_epoch"] for n in (1, 2, 3)
    ]
    assert trace.metric.max() == rows[0]["validation_best"]["value"] and trace.parameters == rows[0]["parameters"]
