"""Every ranker solves a planted interaction that no linear model can know."""

from clicks import PLANTED, planted
from fullrank.models.ranking.model import RankingModel
from rankers_small import ALL, LINEAR
from tests.models.ranking.test_sequences import auc_after
from tiny import plain


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
    click = RankingModel(ranker=spec, embedding={"std": 0.1} | ({"dim": 8} if "tokens" in spec.reads else {}))
    found = auc_after(click, PLANTED, planted(8192, 1), planted(4000, 2), 100)
    if pair[1] in LINEAR:
        assert found < 0.56, "a linear model cannot know this; the data leak"
    else:
        assert found > 0.85, f"AUC {found:.3f}; 0.924 is possible"
