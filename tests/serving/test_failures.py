"""Failures at the start: one sentence, and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullrank.core.errors import UserError
from fullrank.serving.failures import tell_failure, told_failure
from fullrank.serving.server import run_server
from fullrank.serving.settings import ServeSettings


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({}, "no-version"),
        ({"store": "nonsense://somewhere"}, "unknown-store-address"),
        ({"store": "."}, "not-a-history-store"),
        ({"watch": "not-there"}, "not-a-folder"),
    ],
)
def test_a_service_that_cannot_open_says_why(
    settings: dict[str, str], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    made = ServeSettings.parse({"run": str(tmp_path / "nowhere"), "store": "memory:", "port": 0, **settings})
    with pytest.raises(UserError) as raised:
        run_server(made, said.append)
    assert raised.value.code == code
    assert not said and "Traceback" not in capsys.readouterr().err


def test_the_parent_of_several_processes_hears_why() -> None:
    with told_failure() as failure:
        assert failure().code == "not-started"
        tell_failure(UserError("the run is gone", code="no-version"))
        assert (str(failure()), failure().code) == ("the run is gone", "no-version")


def test_processes_do_not_each_keep_a_store_of_their_own() -> None:
    with pytest.raises(UserError) as raised:
        ServeSettings.parse({"run": "runs/a", "store": "memory:", "workers": 2})
    assert raised.value.code == "store-of-one-process"
