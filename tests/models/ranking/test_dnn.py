"""The activations of the multi-layer perceptron."""

import pytest
import torch

from fullrank.models.ranking.dnn import Deep, Dice
from refusals import refused
from tiny import close


def test_dice_by_hand() -> None:
    """Eq. 3 of DIN: statistics of the batch in training, moving averages else, and for a batch of one row."""
    torch.manual_seed(0)
    dice, x = Dice(3), torch.randn(50, 3) * 2 + 1
    with torch.no_grad():
        dice.alpha.copy_(torch.tensor([0.0, 0.25, 1.0]))
    p = torch.sigmoid((x - x.mean(0)) / x.var(0, unbiased=False).sqrt())
    assert close(dice.train()(x), p * x + (1 - p) * dice.alpha * x)
    assert close(dice(x)[:, 2], x[:, 2]), "alpha = 1 is the identity"
    assert close(dice.mean, (1 - 0.9**2) * x.mean(0)), "two passes, each a tenth of the way"
    before = dice.mean.clone()
    p = torch.sigmoid((x - dice.mean) / dice.variance.sqrt())
    assert close(dice.eval()(x), p * x + (1 - p) * dice.alpha * x)
    assert close(dice.train()(x[:1]), dice.eval()(x[:1])) and torch.equal(dice.mean, before)


@pytest.mark.parametrize("activation", ["prelu", "dice"])
def test_activations_of_no_layer_are_refused(activation) -> None:
    with refused("setting-without-effect", "activation"):
        Deep.parse({"hidden": [], "activation": activation})
