"""Every line of `mistakes.md`, typed again: the error code, the sentence and the exit status; and mistakes by verb."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import mistakes
from tests.cli.conftest import Refuses

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
RECORDED = [line for line in mistakes.TABLE.read_text().splitlines() if "| `fullrank " in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mistakes")
    mistakes.build(made)
    return made


def test_sixty_mistakes_are_one_sentence_each(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sentence says may change: then the table is written anew, and its difference read."""
    monkeypatch.chdir(folder)
    rows = {line: mistakes.row(line) for line in mistakes.lines()}
    assert len(rows) >= 60 and sorted(RECORDED) == sorted(rows.values())
    for line, row in rows.items():
        _, code, given, said, status, _ = row.replace(r"\|", "/").split("|")
        assert status.strip() == "2" and code.strip(), line
        assert given.strip(" `") == line.replace("|", "/")
        assert said.strip() and "Traceback" not in said and "Errno" not in said, row


NEED_TORCH = {
    "fullrank train sasrec --data data --out new --set training.max_epochs=0": "training knows what it starts from",
    "fullrank train sasrec --data data --out new --device gpu": "torch knows its devices",
    "fullrank train dcnv2 --data data --out new": "training knows which model takes which data",
    "fullrank train fair --data data --out new": "the model reads the codes",
    "fullrank recommend sasrec --history a,b": "the run knows its items",
    "fullrank recommend sasrec --history 2,3 --exclude 99999": "the run knows its items",
    "fullrank recommend sasrec --users 99999": "looked up when the model is there",
    "fullrank recommend sasrec --users ann": "looked up when the model is there",
    "fullrank recommend sasrec --history 2,3 --filters colour=red": "the run knows its items",
}
"""Mistakes that are told by what loads torch, and why."""
WITHOUT_TORCH = """
import contextlib, io, json, sys
sys.modules["torch"] = None  # whoever imports it fails
import typer
from fullrank.cli import build, main
from tests.cli import mistakes
from tests.cli.conftest import Refuses

def verbs(command, before=()):
    for name, one in command.commands.items():
        yield from verbs(one, (*before, name)) if hasattr(one, "commands") else [(*before, name)]

said = {}
for verb in verbs(typer.main.get_command(build())):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        said[" ".join(verb)] = main([*verb, "--help"]), out.getvalue()
rows = {line: mistakes.row(line) for line in mistakes.lines()}
print(json.dumps({"help": said, "rows": rows}))
"""


@pytest.mark.process
def test_help_and_mistakes_need_no_torch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every verb's help is the same as with torch, and so is every sentence but of the mistakes that need it."""
    from fullrank.cli import main

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=folder, env=os.environ | {"PYTHONPATH": PATH}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["help"]) > 35
    for verb, (code, text) in found["help"].items():
        assert code == main([*verb.split(), "--help"]) == 0
        assert text == capsys.readouterr().out, verb
    assert {line for line, row in found["rows"].items() if row not in RECORDED} == set(NEED_TORCH)


@pytest.mark.parametrize(
    ("line", "code", "name"),
    [
        ("report @popularity --out p.html --evaluation popularity", "not-name-and-value", "'popularity'"),
        (
            "report @popularity --out p.html --evaluation popularity=nowhere",
            "not-an-evaluation",
            "nowhere/evaluation.json",
        ),
        ("report @popularity --out p.html --set protocol=sampled", "needs-full-protocol", "--set protocol=full"),
        ("prepare-impressions planted_clicks", "usage", "--out"),
        ("prepare-impressions movielens --out x", "wrong-kind-of-source", "fullrank prepare movielens"),
        ("prepare-impressions planted_click --out x", "unknown-source", "did you mean 'planted_clicks'"),
        ("prepare-impressions planted_clicks folder --out x", "option-without-effect", "'planted_clicks'"),
        ("prepare-impressions none.parquet folder --out x", "option-without-effect", "'none.parquet'"),
        ("prepare-impressions none.parquet --out x", "missing-file", "none.parquet"),
        ("prepare-impressions planted_clicks --set source.row=5 --out x", "unknown-setting", "'rows'"),
        ("prepare-impressions planted_clicks --set spilt=random --out x", "unknown-setting", "'split'"),
        ("attention @sasrec --user nobody", "unknown-user", "no user 'nobody'"),
        ("attention @popularity", "no-attention-weights", ""),
        ("recommend @popularity --history 1 --histories x.csv", "options-exclude-each", "--histories"),
        ("sweep grid.yaml --engine rays --data data --out new", "unknown-value", "did you mean 'ray'"),
        ("recommend @popularity --history 1 --user-col u", "option-without-effect", "--user-col"),
        ("train sasrec --resume --overwrite --data @data --out run", "options-exclude-each", "--resume"),
        ("train sasrec --set model.loss=bcee --data @data --out run", "unknown-kind", "did you mean 'bce'"),
        ("train sasrec --set model.dim=8 --logger tensorbord --data @data --out run", "unknown-logger", "tensorboard"),
        ("evaluate @popularity --metric ndcg@10 --set metrics=[hit]", "given-twice", "--metric"),
        ("prepare criteo --out x", "wrong-kind-of-source", "fullrank prepare-impressions criteo"),
    ],
)
def test_what_is_refused_is_named_and_nothing_is_written(
    line: str, code: str, name: str, refuses: Refuses, tmp_path: Path
) -> None:
    refuses(code, line, name)
    assert list(tmp_path.iterdir()) == []
