"""auto ends with one run, its reason and one figure of test; killed and called again it ends as unbroken."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fullrank as fr
from fullrank.cli import main
from fullrank.core.log import quiet
from fullrank.data.sources.planted import Planted
from fullrank.sweeps import auto as module
from fullrank.sweeps import work
from fullrank.sweeps.auto import Choice, Facts, contenders, sentence_of
from fullrank.sweeps.cost import JobCost
from markets import planted_store
from refusals import refused

SMALL = {"model.dim": 8, "model.max_length": 5}
PRICED = JobCost(fit=0, step=1.0, steps_per_epoch=1, epochs=1, validation=0, validations=1, evaluation=0, evaluations=1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small contenders, of which an epoch is said to take a second; a clock that stands."""
    small = {"sasrec": ("sasrec", SMALL), "gru4rec": ("gru4rec", SMALL)}
    monkeypatch.setattr(module, "contenders", lambda facts: small)
    monkeypatch.setattr(module, "measure_costs", lambda jobs, *_, **__: {job.cost_key: PRICED for job in jobs})
    monkeypatch.setattr(module, "LEAST_RESERVED", 0.0)
    monkeypatch.setattr(module, "LEAST_RACED", 0.0)
    monkeypatch.setattr(module, "seconds_per_epoch", lambda row: 1.0)
    monkeypatch.setattr(module.Race, "left", property(lambda race: race.limit / 2))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> fr.Store:
    return planted_store(tmp_path_factory.mktemp("auto") / "store", users=200, items=50, events_per_user=8)


def told(result: Any) -> tuple:
    """What of a result is the same each time."""
    values = [(choice.name, choice.value, choice.gini) for choice in result.choices]
    cells = [(row["cell"], row["metrics"], row["epochs"]) for row in result.rows]
    return values, cells, result.test.metrics, result.run.spec.dump()["model"]


def test_it_ends_with_the_best_and_the_reason(store: fr.Store, tmp_path: Path, quick: None) -> None:
    begun: list[str] = []
    result = fr.auto(
        store, tmp_path / "best", minutes=0.3, device="cpu", tell=lambda what: begun.append(what) or quiet(what)
    )
    assert begun == list(module.STAGES)
    best = result.choices[0]
    assert best.value == max(choice.value for choice in result.choices)
    assert result.metric in result.sentence and best.name in result.sentence
    assert (
        result.run.path == tmp_path / "best"
        and fr.recommend(result.run, users=[store.user_ids[0]], k=3, device="cpu").height == 3
    )
    again = fr.evaluate(result.run, "test", device="cpu").metrics["ndcg@10"]
    assert result.test.metrics["ndcg@10"] == pytest.approx(again)
    cells = {row["cell"] for row in result.rows}
    assert {"popularity", "transition_graph", "sasrec-first", "gru4rec-first"} <= cells
    assert any(cell.endswith("-last") for cell in cells)


@pytest.mark.slow
def test_killed_and_called_again_it_ends_as_unbroken(
    store: fr.Store, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fr.auto(store, tmp_path / "whole", minutes=0.3, device="cpu")
    for stop_at, place, name in (
        (2, work, "run_job"),
        (3, work, "run_job"),
        (1, work, "run_job"),
        (0, module, "blend"),
    ):
        calls: list[int] = []
        real: Callable = getattr(place, name)

        def killed(*args: Any, stop_at: int = stop_at, real: Callable = real, calls: list = calls, **more: Any) -> Any:
            calls.append(1)
            if len(calls) > stop_at:
                raise KeyboardInterrupt
            return real(*args, **more)

        monkeypatch.setattr(place, name, killed)
        with pytest.raises(KeyboardInterrupt):
            fr.auto(store, tmp_path / "broken", minutes=0.3, device="cpu")
        monkeypatch.setattr(place, name, real)
        assert not (tmp_path / "broken").exists()
    assert told(fr.auto(store, tmp_path / "broken", minutes=0.3, device="cpu")) == told(whole)
    with refused("other-plan", 0.3, 0.4):
        fr.auto(store, tmp_path / "broken", minutes=0.4, device="cpu", overwrite=True)
    with refused("folder-holds-a-run"):
        fr.auto(store, tmp_path / "broken", minutes=0.3, device="cpu")


@pytest.mark.slow
def test_runs_in_processes_are_the_same_runs(store: fr.Store, tmp_path: Path, quick: None) -> None:
    from fullrank.parallel.processes import LocalProcesses

    """Two at a time, in half of the time."""
    alone = fr.auto(store, tmp_path / "alone", minutes=0.6, device="cpu")
    beside = fr.auto(store, tmp_path / "beside", minutes=0.3, device="cpu", engine=LocalProcesses(2, device="cpu"))
    assert told(beside) == told(alone)


@pytest.mark.slow
def test_a_blend_that_is_better_is_taken(
    store: fr.Store, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_GAIN", -100.0)
    result = fr.auto(store, tmp_path / "best", minutes=0.3, device="cpu")
    blend = next(choice for choice in result.choices if choice.name == "blend")
    assert blend.value == blend.run.manifest["blend"]["blend"]
    if result.choices[0] is blend:
        assert result.run.members() and "a blend of" in result.sentence
    pytest.importorskip("matplotlib")
    page = fr.report([choice.run for choice in result.choices], tmp_path / "page.html", device="cpu")
    assert page.with_lead(result.sentence).sentences[0] == result.sentence
    assert any(figure.name == "blend_members" and len(figure.rows) > 1 for figure in page.figures)


@pytest.mark.parametrize("has", ["times", "no times", "titles"])
def test_a_table_straight_from_a_file(tmp_path: Path, quick: None, has: str, capsys: pytest.CaptureFixture) -> None:
    tables = Planted(users=60, items=32, events_per_user=6).read()
    events, items = tables.events.head(300), tables.items
    file = tmp_path / "events.csv"
    (events if has != "no times" else events.drop("timestamp")).write_csv(file)
    items.write_parquet(tmp_path / "items.parquet")
    line = ["auto", str(file), "--out", str(tmp_path / "best"), "--minutes", "0.2", "--no-page", "--json"]
    line += ["--items", str(tmp_path / "items.parquet")] * (has == "titles") + ["--time-col", "none"] * (
        has == "no times"
    )
    assert main(line) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["choices"] and 0 <= found["test"]["ndcg@10"] <= 1
    assert any(has.removeprefix("no ") in fact for fact in found["facts"])
    assert fr.Run.open(found["run"]).spec.problem == "retrieval"


def test_what_it_refuses(store: fr.Store, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    one = pl.DataFrame({"user_id": [1] * 5, "item_id": [1, 2, 3, 4, 5], "timestamp": [1, 2, 3, 4, 5]})
    result = fr.auto(one, tmp_path / "one", minutes=0.2, device="cpu")  # of one user there is a run
    assert result.run.catalog.size == 5
    with refused("unknown-argument"):
        fr.auto(store, tmp_path / "a", minute=3)
    with refused("setting-without-effect"):
        fr.auto(store, tmp_path / "a", items=one)
    with refused("missing-column", "timestamp"):
        fr.auto(one.drop("timestamp"), tmp_path / "a")
    with refused("missing-file"):
        fr.auto(tmp_path / "none.parquet", tmp_path / "a")
    plan = tmp_path / "damaged-auto" / "plan.json"
    plan.parent.mkdir()
    plan.write_text('{"decided": 3}')
    with refused("file-damaged"):
        fr.auto(store, tmp_path / "damaged", minutes=0.2)


def test_contenders_read_what_there_is() -> None:
    bare, rich = (Facts(has, has, has, 0.0, 0.0) for has in (False, True))
    assert {"srt", "hybrid", "sasrec-gaps", "sasrec-features"} == contenders(rich).keys() - contenders(bare).keys()
    assert "neither" in bare.sentences()[0]
    assert any("seen=keep" in said for said in Facts(True, True, True, 0.2, 0.0).sentences())


def test_the_first_sentence_names_what_could_be_left_out() -> None:
    def choice(name: str, value: float, ms: float, size: int, gini: float) -> Choice:
        manifest = {"blend": {"members": [{"name": "a-seed0"}, {"name": "b-seed0"}]}}
        return Choice(name, fr.Run(Path(name), fr.recipe("sasrec"), manifest), value, ms, size, gini)

    best = choice("blend", 0.100, 4.0, 1000, 0.9)
    others = [choice("a", 0.0995, 2.0, 900, 0.8), choice("b", 0.0985, 1.0, 950, 0.7), choice("c", 0.05, 0.1, 1, 0.1)]
    said = sentence_of([best, *others], "ndcg@10")
    assert "took a blend of a and b (ndcg@10 0.1000 on validation, 0.5% more than a)" in said
    assert "the fastest b (-1.5%; 4.0 times as fast" in said
    assert "the smallest a (-0.5%" in said and "the fairest b" in said and "c (" not in said
    assert "nothing else is within 2%: c (-50.0%" in sentence_of([best, others[2]], "ndcg@10")
    assert sentence_of([others[0]], "ndcg@10").endswith("nothing else ended")
