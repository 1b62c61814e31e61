"""Ctrl-C while tensors are read or written is an interrupt, whatever the library makes of it."""

import signal
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fullrank.core.tensor_files import read_tensors, write_tensors


@pytest.mark.parametrize("name", ["load_file", "save_file"])
def test_an_interrupt_that_the_library_swallows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, whole = tmp_path / "weights.safetensors", getattr(safetensors.torch, name)
    write_tensors(path, {"x": torch.zeros(3)})
    told = []

    def swallowing(*given: object) -> object:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:  # what its native half does
            told.append("swallowed")
            raise safetensors.SafetensorError("could not determine the shape") from None
        return whole(*given)

    monkeypatch.setattr(safetensors.torch, name, swallowing)
    act = lambda: read_tensors(path)  # noqa: E731
    if name == "save_file":
        act = lambda: write_tensors(path, {"x": torch.ones(3)})  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        act()
    assert not told
    monkeypatch.setattr(safetensors.torch, name, whole)
    assert read_tensors(path)["x"].tolist() == [0, 0, 0], "what was there is whole"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # the handler is back
