"""Trains runs in a process of its own: what the tests of resume and DDP start, kill and compare."""

import json
import sys

import torch

from fullrank.api import train
from fullrank.experiment import Experiment


def main() -> None:
    store, mode, *runs = sys.argv[1:]
    torch.set_num_threads(1)
    for out, spec in zip(runs[::2], runs[1::2], strict=True):
        experiment = Experiment.parse(json.loads(spec))
        how = {"init_from": mode[5:]} if mode.startswith("from:") else {} if mode == "fresh" else {mode: True}
        train(experiment, store, out, **how, progress=False)


if __name__ == "__main__":
    main()
