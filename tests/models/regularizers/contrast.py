"""The contrast of rows of which each has one partner, pair by pair."""

import torch
from torch import Tensor


def contrast(a: Tensor, b: Tensor, labels: list, temperature: float = 1.0) -> Tensor:
    """The mean over rows of -log softmax at each row's own; other rows with its label are no negatives."""
    losses = []
    for i in range(len(a)):
        others = [j for j in range(len(b)) if j == i or labels[j] != labels[i]]
        scores = b[others] @ a[i] / temperature
        losses.append(scores.logsumexp(0) - scores[others.index(i)])
    return torch.stack(losses).mean()


def cosine_contrast(a: Tensor, b: Tensor, labels: list, temperature: float) -> Tensor:
    a, b = (torch.nn.functional.normalize(x, dim=-1) for x in (a, b))
    return contrast(a, b, labels, temperature)
