"""MOJITO's long-term part equals a loop over the definition, is trained beside the state and added to the answer."""

import torch

from fullrank.models import States, last
from fullrank.models.sequential.objectives.tasks.mojito import MojitoNextItem
from fullrank.testing.tasks import DIM, LONGEST
from parts import BCE, RecommenderModel, model_with
from tiny import close, drawn, histories, padded
from twins import same


def test_the_long_term_part_is_the_definition() -> None:
    """Values and gradients, row by row, at odd lengths."""
    x = drawn(3, 7, 6).requires_grad_()
    task = MojitoNextItem(blend=0.3).build(6, 12)
    found = task.long_term(States(x, (x,)))
    wanted = torch.zeros_like(x)
    for b in range(3):
        for t in range(7):
            scores = torch.stack([x[b, t] / x[b, t].norm() @ x[b, j] for j in range(t + 1)])
            history = sum((share * x[b, j] for j, share in enumerate(scores.softmax(0))), torch.zeros(6))
            wanted[b, t] = 0.7 * x[b, t] + 0.3 * x[b, t] * history
    same(found, wanted, x)


def model(**settings) -> RecommenderModel:
    return model_with(dim=DIM, max_length=LONGEST, task=MojitoNextItem.parse(settings), loss=BCE()).eval()


def test_the_loss_and_the_answer_have_both_parts() -> None:
    made, batch = model(weight=0.5), padded(histories([5, 7, 2]))
    step = made.step(batch)
    short, long = step.queries
    assert (short.name, long.name, long.weight) == ("ahead_1", "long_term", 0.5)
    terms = made(batch)
    assert close(terms["long_term"], 0.5 * step.records["long_term"].losses.mean())
    x, inputs = made.task.inference_inputs(made.items, batch)
    states = made.encoder(x, inputs)
    answer = last(states.tokens, inputs) + 0.5 * last(made.task.long_term(states), inputs)
    assert close(made.answer(batch).block(0, made.num_items), answer @ made.items.all().T)
