"""The source writes, reads and prints by core/ alone; planted faults are found."""

from pathlib import Path

import pytest

import fullrank
from one_way import ALLOWED, faults

SOURCE = Path(fullrank.__file__).parent


def test_the_source() -> None:
    assert faults(SOURCE) == []


def test_every_permission_has_a_reason() -> None:
    assert all(ALLOWED.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("open(path, 'w')", "open writes"),
        ("open(path, mode='ab')", "open writes"),
        ("open(path, 'r+b' if done else 'wb')", "open writes"),
        ("path.open('w', encoding='utf-8')", "open writes"),
        ("path.write_text('x')", "write_text writes"),
        ("frame.write_parquet(path)", "write_parquet writes"),
        ("getattr(frame, 'x')(path); write = frame.write_csv", "write_csv writes"),
        ("import numpy as np\nnp.save(path, x)", "np.save writes"),
        ("import os\nos.replace(a, b)", "os.replace writes"),
        ("from shutil import copyfile", "shutil.copyfile writes"),
        ("import json\njson.dump(tree, file)", "json.dump writes"),
        ("import json\ntree = json.loads(text)", "json.loads reads"),
        ("from json import loads", "json.loads reads"),
        ("import yaml\nyaml.safe_load(text)", "yaml.safe_load reads"),
        ("Model.model_validate_json(text)", "model_validate_json reads"),
        ("print('x')", "print prints"),
        ("import logging\nlogging.basicConfig()", "logging.basicConfig prints"),
    ],
)
def test_planted_faults(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "planted.py").write_text(text)
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "files.py").write_text(text)
    (found,) = faults(tmp_path, {})
    assert found.startswith("data/planted.py:") and said in found


@pytest.mark.parametrize(
    "text",
    ["open(path)", "open(path, 'rb')", "Run.open(path)", "Store.open('data/shop')", "tarfile.open(path, 'r:*')",
     "write_text(path, text)", "json.dumps(tree)", "yaml.safe_dump(tree)"],
)  # fmt: skip
def test_reading_is_free(tmp_path: Path, text: str) -> None:
    (tmp_path / "free.py").write_text(text)
    assert faults(tmp_path, {}) == []


def test_a_permission_without_use_is_a_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, {("data/x.py", "open"): "why"}) == ["data/x.py: open is allowed and not there"]
