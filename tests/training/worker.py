"""Trains runs in a process of its own: what the tests of resume and DDP start, kill and compare."""

import json
import sys

import torch

from fullrank.api import train
from fullrank.run.experiment import Experiment

MODES = {"fresh": {}, "resume": {"resume": True}, "overwrite": {"overwrite": True}}
"""Keywords of `train`; another mode is the run to start from."""


def main() -> None:
    store, mode, *runs = sys.argv[1:]
    torch.set_num_threads(1)
    for out, spec in zip(runs[::2], runs[1::2], strict=True):
        experiment = Experiment.parse(json.loads(spec))
        train(experiment, store, out, **MODES.get(mode, {"init_from": mode}), progress=False)


if __name__ == "__main__":
    main()
