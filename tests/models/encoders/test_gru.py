"""The GRU, which is torch's."""

import torch

from parts import GRU
from tiny import close, histories, padded, shaken


def test_is_the_published_one_and_a_map_back_to_the_width() -> None:
    model = shaken(GRU(hidden=5).build(4, 10)).eval()
    x = torch.randn(1, 6, 4)
    assert close(model(x, padded(histories([6]))).tokens, model.back(model.gru(x)[0]))


def test_no_map_where_the_widths_agree() -> None:
    model = GRU().build(4, 10)
    assert [name for name, _ in model.named_parameters() if not name.startswith("gru.")] == []
