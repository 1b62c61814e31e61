"""Runs pytest in copies of the tree: for each JSON object on stdin (`exit_code`) a line with pytest's exit code.

Each run is a fork of this process, which has imported what is slow to import of others, and nothing of the tree.
"""

import json
import os
import signal
import sys
from pathlib import Path

import lightning.pytorch  # noqa: F401
import polars  # noqa: F401
import pydantic  # noqa: F401
import pytest
import safetensors.torch  # noqa: F401
import torch  # noqa: F401
from hypothesis import Phase, settings

# Defaults that the profile of tests/conftest.py keeps: a failure is enough and need not be the smallest.
settings.register_profile("first", phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False)
settings.load_profile("first")


def exit_code(root: str, said: str, words: list[str], seconds: int = 0) -> int:
    """Run pytest with these words in a child, in the folder `root`; what it prints goes into the file `said`.

    A child that takes longer than so many `seconds` (0: any time) is ended, with a code below 0.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    signal.alarm(seconds)
    try:
        with open(said, "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(root)
        sys.path.insert(0, str(Path(root, "src")))
        code = int(pytest.main(words))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


for line in sys.stdin:
    print(exit_code(**json.loads(line)), flush=True)
