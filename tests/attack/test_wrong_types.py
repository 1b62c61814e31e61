"""No wrong argument of a public function ends in anything but a sentence: `wrong_types`, in a process of its own."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fullrank as fr

pytestmark = [pytest.mark.attack, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = [
    "Predictor.recommend", "Predictor.score", "Predictor.similar", "Predictor.user_vectors", "Predictor.predict",
    "Predictor.predict_file", "Cascade.recommend", "Cascade.evaluate", "Cascade", "load", "recommend", "predict",
    "predict_file", "evaluate", "diagnose", "explain", "compare", "prepare", "prepare_impressions", "subset", "recipe",
    "encode", "train", "oracle_step", "step_curve", "grow_codes", "sweep", "tune", "verify", "grow_catalog",
    "fill_unseen", "catalogue_growth", "evaluate_log", "export", "similar_items", "item_vectors", "user_vectors",
    "Predictor.recommend to users", "evaluate_lists", "join_stores", "fisher_information", "finetune",
    "recommend_parts",
]  # fmt: skip
LEFT = {"download", "report"}
"""Not called: what needs a network, or some seconds a call."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    words = [sys.executable, "-m", "tests.attack.wrong_types", str(tmp_path_factory.mktemp("wrong"))]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr[-2000:]
    return {row["function"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_argument_is_one_sentence(name: str, found: dict[str, Any]) -> None:
    row = found[name]
    assert row["refused"] >= 20, "hardly anything was refused: are the calls what they should be?"
    assert not row["escaped"], "\n".join(row["escaped"][:20])


def test_every_public_function_is_called() -> None:
    functions = {name for name in fr.__all__ if inspect.isfunction(getattr(fr, name)) and name != "attended"}
    assert functions - set(FUNCTIONS) == LEFT
