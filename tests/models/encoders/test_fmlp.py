"""FMLP-Rec's filters as sums over events, and the published filter at the end of a window."""

import pytest
import torch
from torch import Tensor

from fullrank.models.sequential.encoders.fmlp import FMLP, Filter
from parts import model_with
from refusals import refused
from tiny import close, histories, padded, shaken
from twins import same


def filter_reference(model, x, batch) -> Tensor:
    """The convolution, one pair of events after the other."""
    kernel = model.kernel()
    rows = []
    for row, length in enumerate(batch.lengths.tolist()):
        for t in range(length):
            seen = range(t + 1) if model.causal else range(length)
            rows.append(torch.stack([kernel[(t - s) % model.places] * x[row, s] for s in seen]).sum(0))
    return torch.stack(rows)


@pytest.mark.parametrize("places", [9, 10, 17])
@pytest.mark.parametrize("causal", [True, False])
def test_a_filter_is_a_sum_over_events(places, causal) -> None:
    model = shaken(Filter(3, places, causal))
    batch = padded(histories([9, 4, 1]))
    x = torch.randn(3, 9, 3, requires_grad=True)
    same(model(x, batch)[batch.valid], filter_reference(model, x, batch), x, model.weight)


@pytest.mark.parametrize("places", [8, 9])
def test_the_circular_filter_is_the_product_of_spectra(places) -> None:
    """As it is published: history at the window's end, transform, multiply, transform back, both orthonormal."""
    model = shaken(Filter(3, places, False))
    x, batch = torch.randn(1, 5, 3), padded(histories([5]))
    window = torch.cat([torch.zeros(1, places - 5, 3), x], 1)
    spectrum = torch.fft.rfft(window, dim=1, norm="ortho") * torch.view_as_complex(model.weight)
    published = torch.fft.irfft(spectrum, n=places, dim=1, norm="ortho")
    assert close(model(x, batch), published[:, places - 5 :])


def test_causal_and_published_filter_agree_at_the_end_of_a_window() -> None:
    """There every other event of the window is earlier."""
    one, other = (FMLP(layers=1, causal=causal).build(4, 6) for causal in (True, False))
    shaken(one).eval()
    other.load_state_dict(one.state_dict())
    x, batch = torch.randn(2, 6, 4), padded(histories([6, 3]))
    causal, circular = one(x, batch).tokens, other.eval()(x, batch).tokens
    for row, length in enumerate((6, 3)):
        assert close(causal[row, length - 1], circular[row, length - 1])
        assert not close(causal[row, 0], circular[row, 0])


def test_refusals() -> None:
    with refused("task-needs-other-mask", "next_item", "model.encoder.causal=true"):
        model_with(encoder=FMLP(causal=False))
    with refused("history-too-long", 7, "max_length=6"):
        FMLP().build(4, 6)(torch.randn(1, 7, 4), padded(histories([7])))
