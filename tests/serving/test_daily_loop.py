"""The daily loop of the examples: two nights of training behind a service that answers all the time."""

import asyncio
from pathlib import Path

import pytest

import fullrank as fr
from examples.daily_loop import ASKING, loop


@pytest.mark.slow
def test_a_new_model_answers_every_day(tmp_path: Path) -> None:
    found = asyncio.run(loop(tmp_path, days=2))
    assert [day["answered by"] for day in found["days"]] == [["day-0"], ["day-1"]]
    assert [day["check"]["state"] for day in found["days"]] == ["serving", "serving"]
    assert all(day["check"]["catalogue"] >= 0.9 and "loss of hit@20" in day["check"] for day in found["days"])
    assert {name: one["answers"] for name, one in found["versions"].items()} == {"day-0": ASKING, "day-1": ASKING}
    first, second = (fr.Run.open(tmp_path / "runs" / f"day-{day}") for day in (0, 2))
    known = set(first.catalog.ids.to_list())
    assert known <= set(second.catalog.ids.to_list()), "what a model knew, the next one knows"
    assert second.manifest["init_from"] == str(tmp_path / "runs" / "day-1")
