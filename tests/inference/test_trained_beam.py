"""On a trained generator, a beam of 50 finds what scoring every item finds (planted marketplace)."""

import numpy as np
import pytest
import torch

import fullrank as fr
from fullrank.core.jagged import Jagged
from fullrank.data.events.catalog import Catalog
from fullrank.data.sources.planted import Planted
from fullrank.inference.exact import top_k
from fullrank.inference.filters import Filters
from fullrank.inference.trie_beam import TrieBeam
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.objectives.tasks.generate import GeneratedScorer
from tiny import catalog, padded, with_codes

ITEMS, LENGTH, SIZES = 800, 20, (64, 16, 16)


def coded(categories: list[str]) -> Catalog:
    """An item's first code is its category; the others tell the items of one apart, in no order."""
    rng = np.random.default_rng(0)
    kinds = {name: code for code, name in enumerate(sorted(set(categories)))}
    codes = np.empty((ITEMS, 3), int)
    for name, code in kinds.items():
        own = np.array([i for i, other in enumerate(categories) if other == name])
        drawn = rng.choice(SIZES[1] * SIZES[2], len(own), replace=False)
        codes[own] = np.stack([np.full(len(own), code), drawn // SIZES[2], drawn % SIZES[2]], 1)
    return with_codes(catalog(ITEMS), codes, SIZES)


@pytest.fixture(scope="module")
def trained() -> tuple[RecommenderModel, list[list[int]]]:
    """The recipe's model, small, after some epochs; and histories, of which the last 50 were not trained on."""
    tables = Planted(users=700, items=ITEMS, events_per_user=15, follow=0.4).read()
    assert tables.items is not None
    number = {item: i for i, item in enumerate(tables.items["item_id"])}
    rows = [
        [number[item] for item in own][-LENGTH:]
        for own in tables.events.sort("timestamp").group_by("user_id", maintain_order=True).agg("item_id")["item_id"]
    ]
    spec = fr.recipe("tiger", "model.dim=32", "model.encoder.layers=2", "model.encoder.inner=32").model
    torch.manual_seed(0)
    model: RecommenderModel = spec.build(coded(tables.items["category"].to_list()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for step in range(60):
        at = torch.randint(0, len(rows) - 50, (48,), generator=torch.Generator().manual_seed(step)).tolist()
        loss = torch.stack(list(model(padded([rows[i] for i in at])).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.3, "it has learned"
    return model.eval(), rows[-50:]


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [False, True])
def test_a_beam_of_50_keeps_the_exhaustive_list(
    trained: tuple[RecommenderModel, list[list[int]]], hidden: bool
) -> None:
    model, rows = trained
    filters = Filters().of_batch(Jagged.from_lists([sorted(set(row)) for row in rows])) if hidden else None
    with torch.inference_mode():
        answer = model.answer(padded(rows))
    assert isinstance(answer, GeneratedScorer)
    wanted = top_k(answer, 10, filters=filters)[1]
    shares = {}
    for beams in (10, 50):
        found = TrieBeam(model.items, beams=beams)(answer, 10, filters)[1]  # type: ignore[arg-type]
        shares[beams] = float((found[:, :, None] == wanted[:, None]).any(2).float().mean())
    assert shares[50] >= 0.99
    assert shares[10] < shares[50], "narrow beams lose some, so that the test can fail"
