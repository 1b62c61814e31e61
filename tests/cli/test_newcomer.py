"""What a newcomer types, and what comes of it: words of other tools, half a command line, and words of Python."""

import os
import re
import stat
from pathlib import Path
from unittest.mock import Mock

import polars as pl
import pytest

import fullrank as fr
from fullrank.cli.errors import OTHER_WORDS, in_shell
from fullrank.cli.train import USUAL, usual_setting
from fullrank.run import Run
from tests.cli.conftest import Ask, Call, Refuses

SMALL = "--set model.dim=8 --set model.encoder.layers=1"
LOG = "customer;sku;when\n" + "".join(f"{u};{(u + n) % 5};{1_600_000_000 + n}\n" for u in range(6) for n in range(4))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log.csv").write_text(LOG)
    return tmp_path / "log.csv"


COLUMNS = "--user-col customer --item-col sku --time-col when"


def test_columns_separators_and_missing_rows(log: Path, call: Call, refuses: Refuses) -> None:
    words = "prepare log.csv --out s"
    sentence = refuses("missing-column", words, "--user-col", "customer, sku, when")
    assert "user_col" not in sentence
    refuses("missing-column", f"{words} --user-col customer --item-col sku", "--time-col none")
    assert call(f"{words} {COLUMNS}").code == 0
    refuses("already-there", f"{words} {COLUMNS}", "--overwrite")
    log.write_text(LOG + ";1;1600000000\n")
    refuses("missing-ids", f"{words} {COLUMNS} --overwrite", "--missing drop")
    said = call(f"{words} {COLUMNS} --overwrite --missing drop")
    assert said.code == 0 and "note: 1 of 25 rows" in " ".join(said.out.split())
    assert "1 of 25" not in said.err, "told once"
    refuses("missing-column", f"{words} {COLUMNS} --overwrite --separator ,", "--separator")
    assert call(f"{words} {COLUMNS} --overwrite --missing drop --separator ';'").code == 0
    log.write_text(LOG.replace("16000000", ""))
    late = call(f"prepare log.csv --out t {COLUMNS}")
    assert "'when' are 0 to 3" in " ".join(late.out.split())
    log.write_text(re.sub(r"(16000000\d\d)", r"\g<1>000", LOG))
    refuses("wrong-time-unit", f"prepare log.csv --out u {COLUMNS}", "--time-unit ms")


def test_impressions_of_a_label_of_ones_own(tmp_path: Path, ask: Ask, refuses: Refuses) -> None:
    frame = pl.DataFrame({
        "liked": [0, 1, 1] * 100, "who": [n % 5 for n in range(300)], "what": [n % 7 for n in range(300)],
        "at": list(range(300)),
    })  # fmt: skip
    frame.write_csv(tmp_path / "t.csv", separator="|")
    words = "prepare-impressions t.csv --out s"
    refuses("no-label-column", words, "--label", "liked")
    said = ask(f"{words} --label liked --user-col who --time-col at")
    schema = said["schema"]
    assert (schema["label"], schema["group"], schema["time"]) == ("liked", "who", "at")
    refuses("already-there", f"{words} --label liked", "--overwrite")
    again = ask(f"{words} --set label=liked --time-col none --overwrite")
    assert again["schema"]["time"] is None
    refuses("given-twice", f"{words} --label liked --set label=liked --overwrite", "--label")
    refuses("missing-column", f"{words} --label likd --overwrite", "'liked'", "--label")


def test_resume_needs_the_folder_alone(tmp_path: Path, call: Call, refuses: Refuses) -> None:
    out = tmp_path / "run"
    words = "train sasrec --data @data --out run"
    assert call(f"{words} {SMALL} --set training.max_epochs=2").code == 0
    weights = (out / "weights.safetensors").read_bytes()
    for part in ("", "--data @data", "--set model.dim=8"):
        assert call(f"train --out run --resume {part}").code == 0
    refuses("other-spec", f"{words} --resume", "model.dim was 8 and is now 128", "--out")
    refuses("other-spec", "train --out run --resume --set seed=5", "seed was 0 and is now 5")
    refuses("folder-holds-a-run", words, "--resume", "--overwrite")
    refuses("not-a-run", "train --out none --resume", "none")
    refuses("missing-argument", "train --data @data --out run", "--from")
    refuses("missing-option", "train sasrec --out run", "--data")
    assert (out / "weights.safetensors").read_bytes() == weights
    for name in ("checkpoints/last.json", "weights.safetensors", "metrics.jsonl"):
        assert (out / name).is_file()


def test_an_interrupted_run_goes_on_by_its_folder(
    tmp_path: Path, call: Call, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fullrank.training.loop import TrainingLoop

    words = f"train sasrec --data @data {SMALL} --set training.max_epochs=3"
    assert call(f"{words} --out whole").code == 0
    ended, out = TrainingLoop.on_train_batch_end, tmp_path / "cut"
    monkeypatch.setattr(TrainingLoop, "on_train_batch_end", Mock(side_effect=KeyboardInterrupt))
    assert call(f"{words} --out cut --watch").code == 130
    refuses("run-not-finished", "evaluate cut", "fullrank train --out cut --resume")
    assert repr(Run.open(out)).endswith("parameters, not finished)")
    monkeypatch.setattr(TrainingLoop, "on_train_batch_end", ended)
    assert call("train --out cut --resume").code == 0
    assert repr(Run.open(out)).endswith("parameters, finished)")
    for name in ("weights.safetensors", "spec.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_options_of_other_tools_name_the_setting(refuses: Refuses) -> None:
    words = "train sasrec --data @data --out x"
    refuses("unknown-option", f"{words} --epochs 3", "--set training.max_epochs=N")
    refuses("unknown-option", f"{words} --learning_rate=1e-3", "--set training.lr=X")
    refuses("unknown-option", f"{words} --resum", "'--resume'")
    refuses("unknown-option", "evaluate x --epochs 3", "--epochs")
    sasrec = fr.recipe("sasrec")
    values = {"N": "2", "X": "0.25", "NAME": "bce"}
    for setting, names in USUAL.items():
        path, _, value = setting.partition("=")
        given = "ndcg@10" if path == "evaluation.selection" else values.get(value, value)
        changed = sasrec.override(f"{path}={given}").dump()
        assert all(usual_setting(f"--{name}") == setting for name in names)
        for key in path.split("."):
            changed = changed[key]
        assert changed is not None


def test_verbs_of_other_tools_name_ours(call: Call, refuses: Refuses) -> None:
    known = call("--help").out
    for given, ours in OTHER_WORDS.items():
        refuses("unknown-verb", f"{given} a b", ours)
        assert f"  {ours.split()[1]} " in known and f"  {given} " not in known


def test_words_of_python_are_those_of_the_shell() -> None:
    options = "--user-col --time-col --overwrite --seen --k --set --item --data".split()
    for said, wanted in {
        "name it with user_col=": "name it with --user-col",
        "or time_col=None where": "or --time-col none where",
        "replace it with overwrite=True, or": "replace it with --overwrite, or",
        "seen='keep' keeps": "--seen keep keeps",
        "k=0 must be at least 1": "--k 0 must be at least 1",
        "by item=NAME": "by --item NAME",
        "name it by data=": "name it by --data",
        "users=['a'] and --set k=5, model.k=5, 'k=5'": "users=['a'] and --set k=5, model.k=5, 'k=5'",
        "k=[1, 2] and k=(1, 2)": "k=[1, 2] and k=(1, 2)",
    }.items():
        assert in_shell(said, options) == wanted


def test_unknown_histories_are_told(shop: Path, call: Call) -> None:
    known = Run.open(shop / "sasrec").catalog.ids[0]
    said = call(f"recommend @sasrec --history 99999 --history {known}")
    assert said.code == 0 and "note: 1 of 2 histories" in " ".join(said.out.split()) and "--empty error" in said.out
    assert "UserWarning" not in said.err
    assert "note:" not in call(f"recommend @sasrec --history {known}").out


@pytest.mark.skipif(os.name == "nt", reason="modes")
def test_every_file_can_be_read_as_the_umask_says(tmp_path: Path, call: Call) -> None:
    """Weights were 0600 whatever the umask: trained by one user, they could not be served by another."""
    before = os.umask(0o022)
    try:
        assert call("train popularity --data @data --out p").code == 0
        assert call(f"train sasrec --data @data --out s {SMALL} --set training.max_epochs=1").code == 0
        assert call("prepare planted --set source.users=50 --out d").code == 0
        assert call("export s --to faiss --out f").code == 0
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 15
    assert [path.name for path in files if stat.S_IMODE(path.stat().st_mode) != 0o644] == []
