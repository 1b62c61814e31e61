"""What a recommender says of its size: torch's count of a whole forward pass, published counts, rows of a sweep."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.analysis.scaling.read import read_ladder
from fullrank.data.events.store import Store
from fullrank.models.sequential.items.features import FeatureItems
from fullrank.models.sequential.items.semantic import SemanticItems
from fullrank.models.sequential.model.size import batch_flops, published_epoch, published_flops, sequence_size
from fullrank.ops.model_cost import counted
from fullrank.run.experiment import find_experiment
from fullrank.training.data_module import data_module_of
from markets import planted_store
from tests.sweeps.conftest import Sweeps, tiny
from tiny import catalog, histories, padded

SAMPLED = "model.loss={kind: bce, negatives: {count: 5, share: query}}"
BRAND = "model.items.fields=[{column: title}, {column: brand, empty: unknown}]"


@pytest.fixture(scope="module")
def titled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Items with titles and brands, more than a batch reads."""
    return planted_store(tmp_path_factory.mktemp("titled") / "shop", users=150, items=600)


def made(store: Store, recipe: str, *settings: str) -> Any:
    experiment = find_experiment(recipe).override("model.dim=8", "training.batch_size=256", *settings)
    data = data_module_of(experiment, store)
    model = experiment.model.build(data.known)  # type: ignore[attr-defined]
    return model, data.loader(model)


def checked(model: Any, batch: Any) -> dict[str, Any]:
    """The FLOPs of each part, which together are what torch counts."""
    parts = batch_flops(model.eval(), batch)
    with torch.no_grad():
        assert sum(parts.values()) == counted(lambda: model(batch))
    return parts


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [("sasrec", ()), ("sasrec", (SAMPLED,)), ("gru4rec", ("model.loss=cross_entropy",)), ("bert4rec", ())],
)
def test_the_forward_pass_of_a_batch_is_what_torch_counts(recipe: str, settings: tuple[str, ...], store: Store) -> None:
    model, loader = made(store, recipe, *settings)
    assert None not in checked(model, loader.batch(1)).values()


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("model.loss.negatives={count: 7, share: query, uniform: 1, popularity: 2, in_batch: 1}",),
        ("model.loss=cross_entropy",),
        ("model.task=last_item", "model.loss.negatives.count=50"),
    ],
)
def test_text_counts_each_item_that_a_step_reads_once(settings: tuple[str, ...], titled: Store) -> None:
    model, loader = made(titled, "srt", BRAND, "model.loss.negatives.count=30", *settings)
    for batch in (loader.batch(1), loader.batch(loader.steps_per_epoch + 1)):
        parts = checked(model, batch)
        assert parts["items"] is not None
        distinct, rest = divmod(parts["items"], 2 * 16 * 8)
        every = titled.num_items
        assert not rest and (distinct > every if "cross" in str(settings) else 30 < distinct < every)


def test_items_of_codes_cost_nothing_and_others_say_that_they_are_not_counted(titled: Store) -> None:
    assert SemanticItems.flops(None, 9) == 0 and not hasattr(FeatureItems, "flops")  # type: ignore[arg-type]
    model, loader = made(titled, "sasrec", "model.items={kind: features, categorical: [brand]}")
    assert sequence_size(model, loader, titled).flops_per_epoch is None
    model, loader = made(titled, "srt", BRAND, "model.penalties=[{kind: logdet}]")
    assert batch_flops(model, loader.batch(0))["items"] is None, "a penalty may read more items"


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


def test_an_epoch_in_the_published_unit(titled: Store) -> None:
    for layers, heads, dim, negatives in ((2, 4, 16, 300), (4, 2, 8, 10)):
        settings = (f"model.dim={dim}", f"model.encoder.inner={dim}", f"model.encoder.layers={layers}",
                    f"model.encoder.attention.heads={heads}", f"model.loss.negatives.count={negatives}")  # fmt: skip
        model, _ = made(titled, "fullrank.recipes.srt:srt_300", BRAND, *settings)
        assert published_epoch(model, 128 * 5) == 5 * published_flops(layers, heads, dim, negatives)
    for other in ("model.encoder.norm=rms", "model.loss=cross_entropy", "model.encoder.attention.kind=hstu",
                  "model.loss.negatives.share=batch"):  # fmt: skip
        assert published_epoch(made(titled, "fullrank.recipes.srt:srt_300", BRAND, other)[0], 5) is None


def test_rows_of_a_sweep_are_a_ladder(out: Path, swept: Sweeps) -> None:
    rows = swept(tiny("[sasrec, popularity]", seeds=(0,)))
    assert "size" not in rows[1] and [epoch for epoch, _ in rows[0]["validation_curve"]] == [1, 2, 3]
    json.dumps(rows)
    ladder = read_ladder(out / "rows.jsonl")
    ladder.require("flops", "epochs", "parameters", "data", "size")
    (trace,) = ladder.traces
    assert trace.flops is not None and trace.flops.tolist() == [
        n * rows[0]["size"]["flops_per_epoch"] for n in (1, 2, 3)
    ]
    assert trace.metric.max() == rows[0]["validation_best"]["value"] and trace.parameters == rows[0]["parameters"]


def test_a_model_that_generates_scores_the_codes_of_each_level() -> None:
    model = find_experiment("tiger").override("model.dim=8", "model.encoder.layers=2").model.build(catalog())  # type: ignore[attr-defined]
    parts = checked(model, padded(histories([4, 6, 2])))
    asked, dim = (3 + 5 + 1), 8
    assert parts["scores"] == 2 * asked * sum(model.items.sizes) * dim and parts["items"] == 0
