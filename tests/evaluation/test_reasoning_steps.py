"""The ceiling and the curve against evaluations at every step, one by one."""

import numpy as np
import pytest
import torch

from fakes import Kept, Whole
from fullrank.core.registry import kinds
from fullrank.evaluation import Evaluation, accuracy_by_steps, evaluate, oracle_ceilings
from fullrank.evaluation.reasoning_steps import LABEL
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.reasoning import ReasonerSpec
from fullrank.models.sequential.reasoning.lares import LARES
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.models.sequential.reasoning.rearec import ReaRec
from fullrank.testing.inputs import catalog, histories, padded, shaken, store
from refusals import refused
from thinker import Thinker

STORE = Kept.random(80, 40)
SPEC = Evaluation(ks=(5,), bootstrap=50)
MODEL = Thinker.random(80, 40)


def values(step: int, metric: str) -> np.ndarray:
    return evaluate(MODEL, STORE, "test", SPEC.override(f"reasoning.steps={step}")).per_user.values[metric]


def test_the_ceiling_is_each_users_best_step_by_each_metric() -> None:
    found = {one.metric: one for one in oracle_ceilings(MODEL, STORE, "test", SPEC)}
    assert list(found) == ["ndcg@5", "recall@5", "hit@5", "mrr@5", "map@5"], "of fairness there is no best"
    for metric, one in found.items():
        table = np.stack([values(step, metric) for step in range(6)])
        assert one.fixed == pytest.approx(evaluate(MODEL, STORE, "test", SPEC).metrics[metric])
        assert one.best == pytest.approx(np.mean([max(table[:, u]) for u in range(80)]))
        assert one.gap == pytest.approx(one.best - one.fixed) and one.gap > 0
        assert one.interval[0] <= one.gap <= one.interval[1]
        assert one.steps == pytest.approx(table.mean(1).tolist())
        first = [next(s for s in range(6) if table[s, u] == max(table[:, u])) for u in range(80)]
        assert one.chosen == pytest.approx([first.count(s) / 80 for s in range(6)])
        assert one.dump()["label"] == LABEL and "truth" in LABEL


REASONERS: dict[str, ReasonerSpec] = {
    "plr": PLR(steps=3), "erl": ReaRec(steps=3, answer="mean"), "prl": ReaRec(steps=3, answer="last"),
    "lares": LARES(steps=3), "lares_drawn": LARES(steps=3, start_at_inference="drawn"),
}  # fmt: skip


def test_every_reasoner_has_a_ceiling_here() -> None:
    assert {spec.kind_of() for spec in REASONERS.values()} == set(kinds("reasoning"))


@pytest.mark.parametrize("name", REASONERS)
def test_the_ceiling_of_a_model_is_that_of_its_states(name: str) -> None:
    """Against lists that are made user by user of the states behind every step, and counted by hand."""
    rows = [[*one, *(10 + np.arange(3 + i % 4)).tolist()] for i, one in enumerate(histories([4] * 60, 9))]
    torch.manual_seed(0)
    spec = Recommender(
        dim=8, max_length=12, task=LastItem(), reasoner=REASONERS[name], encoder=Transformer(positions_from="end")
    )
    model, kept = shaken(spec.build(catalog()), 0.6).eval(), store(rows)
    setting = Evaluation(ks=(5,), bootstrap=50, seen="keep", metrics=("hit@5", "mrr@5"))
    hits, reciprocal = np.zeros((4, 60)), np.zeros((4, 60))
    for u, row in enumerate(rows):
        alone = padded([row[:-1]])
        with torch.no_grad():
            outputs = model.encoder(model.items.embed(alone.items), alone).outputs
            for s in range(4):
                scores = (model.items.all() @ outputs[f"step_{s}"][0]).tolist()
                place = 1 + sum(score > scores[row[-1]] for score in scores)
                hits[s, u], reciprocal[s, u] = place <= 5, (1 / place) * (place <= 5)
    for one in oracle_ceilings(model, kept, "test", setting):
        table = {"hit@5": hits, "mrr@5": reciprocal}[one.metric]
        assert one.steps == pytest.approx(table.mean(1)) and one.fixed == pytest.approx(table[-1].mean())
        assert one.best == pytest.approx(table.max(0).mean()) and one.gap > 0
        assert one.chosen == pytest.approx(np.bincount(table.argmax(0), minlength=4) / 60)


def test_fewer_steps_lower_the_ceiling() -> None:
    all_of_them, two = oracle_ceilings(MODEL, STORE, "test", SPEC), oracle_ceilings(
        MODEL, STORE, "test", SPEC.override("reasoning.steps=2")
    )  # fmt: skip
    assert len(two[0].steps) == 3 and two[0].best <= all_of_them[0].best


def test_the_curve_is_a_row_for_each_step_and_one_that_adapts() -> None:
    spec = SPEC.override("reasoning.adaptive=5")
    found = accuracy_by_steps(MODEL, STORE, "test", spec, metrics=("hit@5",), rounds=1)
    assert [one.label for one in found] == ["0", "1", "2", "3", "4", "5", "adaptive, at most 5"]
    for step, one in enumerate(found[:-1]):
        assert one.steps == one.asked == step and one.seconds > 0
        assert one.metrics == {"hit@5": pytest.approx(values(step, "hit@5").mean())}
    settled = evaluate(MODEL, STORE, "test", spec)
    assert found[-1].steps == settled.mean_steps and found[-1].metrics["hit@5"] == settled.metrics["hit@5"]


def test_what_cannot_be_chosen_is_refused() -> None:
    for study in (oracle_ceilings, accuracy_by_steps):
        with refused("not-a-reasoner"):
            study(Whole(40), STORE, "test", SPEC)
    with refused("adaptive-without-effect", "reasoning.adaptive"):
        oracle_ceilings(MODEL, STORE, "test", SPEC.override("reasoning.adaptive=5"))
    with refused("no-accuracy-metric"):
        oracle_ceilings(MODEL, STORE, "test", SPEC.override("metrics=[gini]"))
    with refused("setting-out-of-range", "rounds=0"):
        accuracy_by_steps(MODEL, STORE, "test", SPEC, rounds=0)
