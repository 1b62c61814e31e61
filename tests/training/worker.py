"""Trains one run in a process of its own: what the tests of resume and DDP start, kill and compare."""

import json
import sys

import torch

from fullrank.api import train
from fullrank.experiment import Experiment


def main() -> None:
    store, out, spec, mode = sys.argv[1:]
    torch.set_num_threads(1)
    experiment = Experiment.parse(json.loads(spec))
    train(experiment, store, out, resume=mode == "resume", overwrite=mode == "overwrite", progress=False)


if __name__ == "__main__":
    main()
