"""Every ranker solves a planted interaction that no linear model can know."""

from dataclasses import replace

import torch

from clicks import PLANTED, planted
from fullrank.metrics.ctr import auc
from fullrank.models.ranking.model import RankingModel
from rankers_small import ALL, LINEAR
from tiny import plain


def solved(ranker, steps=100) -> float:
    """AUC on fresh impressions after some steps on planted ones."""
    torch.manual_seed(0)
    click = RankingModel(
        ranker=ranker, embedding={"std": 0.1} if "tokens" not in ranker.reads else {"std": 0.1, "dim": 8}
    )
    model = click.build(PLANTED)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = planted(8192, 1)
    for step in range(steps):
        rows = torch.randint(8192, (256,), generator=torch.Generator().manual_seed(step))
        batch = replace(
            data, categorical=data.categorical[rows], numeric=data.numeric[rows], missing=data.missing[rows],
            labels=data.labels[rows],
        )  # fmt: skip
        optimizer.zero_grad()
        sum(model(batch).values()).backward()
        optimizer.step()
    fresh = planted(4000, 2)
    with torch.inference_mode():
        return auc(model.eval().probabilities(fresh).numpy(), fresh.labels.numpy())


@ALL
def test_solves_the_planted_interaction(pair) -> None:
    spec = plain(pair)
    for key in ("deep", "tokeniser"):
        if key in type(spec).model_fields:
            spec = spec.override(f"{key}.hidden=[32]" if key == "deep" else f"{key}.hidden=64")
    if "tokens" in type(spec).model_fields:
        spec = spec.override("tokens=4", "width=8")
    if pair[1] == "autoint":
        spec = spec.override("layers=2", "width=16")
    found = solved(spec)
    if pair[1] in LINEAR:
        assert found < 0.56, "a linear model cannot know this; the data leak"
    else:
        assert found > 0.85, f"AUC {found:.3f}; 0.924 is possible"
