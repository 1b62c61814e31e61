"""Training that starts from a run: as it is, its top blocks alone, in stages, held where it was."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

import fullrank as fr
from fullrank.core.spec import Spec
from fullrank.core.tensor_files import read_tensors, write_tensors
from fullrank.data.events.store import Store
from fullrank.models.sequential.model import RecommenderModel
from fullrank.run import Run
from refusals import refused
from tests.training.conftest import Runs, Stop, Stopped, column, same_weights, weights

QUIET = {"progress": False, "device": "cpu"}
BLOCK = "encoder.blocks.{}."


def moved(before: Run, after: Run) -> set[str]:
    """The parameters that training has changed."""
    learned = {name for name, _ in before.model().named_parameters()}
    return {name for name in learned if not torch.equal(weights(before)[name], weights(after)[name])}


@pytest.fixture(scope="module")
def run(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Runs(market, tmp_path_factory.mktemp("runs"))(
        "run", "training.max_epochs=2", "model.encoder.positions=learned"
    )


class On:
    """``on("name", "setting")``: going on from the run in that folder of the test's."""

    def __init__(self, run: Run, store: Store, home: Path) -> None:
        self.run, self.store, self.home = run, store, home

    def __call__(self, name: str, *settings: str, init_from: Run | None = None, **how: Any) -> Run:
        start = init_from or self.run
        return fr.train("same", self.store, self.home / name, init_from=start, set=settings, **QUIET, **how)


@pytest.fixture
def on(run: Run, market: Store, tmp_path: Path) -> On:
    return On(run, market, tmp_path)


@pytest.fixture(scope="module")
def gru(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "gru"
    return fr.train("gru4rec", market, out, set=["training.max_epochs=1", "model.dim=8"], **QUIET)


@pytest.fixture(scope="module")
def importance(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fr.fisher_information(run, tmp_path_factory.mktemp("fisher") / "f.safetensors", batches=3, device="cpu")


def test_no_epoch_takes_the_weights_as_they_are(run: Run, on: On, runs: Runs) -> None:
    same = on("same", "training.max_epochs=0")
    assert not moved(run, same) and same.manifest["finished"]
    assert fr.evaluate(same).metrics == fr.evaluate(run).metrics
    again = fr.train(out=same.path, resume=True, **QUIET)
    assert not moved(run, again)
    fr.evaluate(fr.Run.open(same.path))
    with refused("no-run-to-start-from", "max_epochs=0"):
        runs("none", "training.max_epochs=0")
    assert not (runs.home / "none").exists()


@pytest.mark.parametrize("top", [0, 1, 2])
def test_what_lies_below_the_top_blocks_stays(run: Run, on: On, top: int) -> None:
    below = ("items.", "encoder.position.", *(BLOCK.format(place) for place in range(2 - top)))
    above = {name for name, _ in run.model().named_parameters() if not name.startswith(below)}
    after = on("run", "training.max_epochs=1", f"training.top_blocks={top}")
    assert moved(run, after) == above, "all that is not frozen learns, and nothing else"


def test_top_blocks_that_are_not_there(on: On, gru: Run, runs: Runs) -> None:
    with refused("setting-out-of-range", "top_blocks=3", "2 blocks"):
        on("a", "training.top_blocks=3")
    with refused("no-run-to-start-from", "top_blocks"):
        runs("b", "training.top_blocks=1")
    with refused("encoder-without-blocks", "top_blocks"):
        on("c", "training.top_blocks=1", init_from=gru)


SPOILED = ("training.lr=3", "training.clip_norm=1")
"""A rate that spoils what was learned: the best epoch is not the last."""


def at_the_end(run: Run) -> dict[str, Tensor]:
    return read_tensors(next((run.path / "checkpoints").glob("step-*")) / "weights.safetensors")


def test_the_last_weights_may_be_kept(runs: Runs) -> None:
    best, last = (runs(keep, "training.max_epochs=3", *SPOILED, f"training.keep={keep}") for keep in ("best", "last"))
    final = at_the_end(last)
    assert all(torch.equal(final[name], tensor) for name, tensor in weights(last).items())
    scores = column(best, "validation/ndcg@10")
    assert max(scores) > scores[-1], "the data no longer shows it"
    assert not same_weights(best, last)


def test_the_last_weights_are_kept_where_patience_ends(runs: Runs) -> None:
    run = runs("run", "training.max_epochs=9", *SPOILED, "training.patience=1", "training.keep=last")
    assert torch.equal(at_the_end(run)["items.embedding.weight"], weights(run)["items.embedding.weight"])
    assert fr.evaluate(run).metrics


def test_fisher_is_the_mean_of_squared_gradients(runs: Runs, market: Store, tmp_path: Path) -> None:
    """Against one batch after another, without dropout, on batches of a size of their own."""
    plain = runs("run", "training.max_epochs=1", dropout=0.0)
    made = fr.fisher_information(plain, tmp_path / "f", batches=3, batch_size=100, device="cpu")
    held, model = read_tensors(made), plain.model()
    assert isinstance(model, RecommenderModel)
    from fullrank.training.data_module import RetrievalData

    loader = RetrievalData(plain.spec.override("training.batch_size=100"), market, plain.catalog).loader(model)
    expected: dict[str, Any] = {}
    for k in range(3):
        model.zero_grad()
        sum(model(loader.batch(k)).values()).backward()  # type: ignore[union-attr]
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            expected[name] = expected.get(name, 0) + parameter.grad**2 / 3
    for name, value in expected.items():
        torch.testing.assert_close(held["fisher." + name], value)
        assert torch.equal(held["weights." + name], weights(plain)[name])
    assert set(held) == {kind + name for name in expected for kind in ("fisher.", "weights.")}


def test_fisher_is_the_same_again(run: Run, tmp_path: Path) -> None:
    first, second = (fr.fisher_information(run, tmp_path / name, batches=2, device="cpu") for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_ewc_is_its_equation(run: Run, importance: Path) -> None:
    """sum over parameters of F (theta - theta*)^2, and its gradient 2 F (theta - theta*)."""
    held = read_tensors(importance)
    model = run.spec.override(f"model.penalties=[{{kind: ewc, weight: 3, fisher: {importance}}}]").model
    whole = model.build(run.catalog)  # type: ignore[attr-defined]
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
            parameter.copy_(held["weights." + name] + 0.1 * noise)
    frozen = next(name for name, _ in whole.named_parameters() if "attention" in name)
    whole.get_parameter(frozen).requires_grad_(False)
    from fullrank.testing.inputs import histories, padded

    value = whole.penalties["ewc"](whole.step(padded(histories([5, 3]))))
    value.backward()
    expected = 0.0
    for name, parameter in whole.named_parameters():
        if name != frozen:
            away = parameter.detach() - held["weights." + name]
            expected += 3 * float((held["fisher." + name] * away**2).sum())
            torch.testing.assert_close(parameter.grad, 6 * held["fisher." + name] * away)
    assert value.item() == pytest.approx(expected, rel=1e-5) and expected > 0


def test_a_heavy_weight_holds_what_mattered(run: Run, importance: Path, on: On) -> None:
    """Where F is large the weights stay closer to where they were than without the penalty."""
    held, away = read_tensors(importance), {}
    for weight in ("1e-9", "1e5"):
        penalty = f"model.penalties=[{{kind: ewc, weight: {weight}, fisher: {importance}}}]"
        after = weights(on(weight, "training.max_epochs=2", "seed=4", penalty))
        away[weight] = sum(
            float((held["fisher." + name] * (after[name] - weights(run)[name]) ** 2).sum())
            for name, _ in run.model().named_parameters()
        )
    assert away["1e5"] < away["1e-9"] / 3


def test_without_a_file_it_holds_on_to_the_start_and_resumes_to_the_same_weights(on: On, runs: Runs) -> None:
    """A run that was cut off reads where it started from its source, not where it was cut off."""
    settings = ("training.max_epochs=3", "model.penalties=[{kind: ewc, weight: 10}]", "seed=2")
    with pytest.raises(Stopped):
        on("cut", *settings, callbacks=[Stop(2)])
    resumed = fr.train(out=on.home / "cut", resume=True, **QUIET)
    assert same_weights(on("whole", *settings), resumed)
    with refused("no-run-to-start-from", "ewc"):
        runs("none", "model.penalties=[{kind: ewc}]")


def test_a_file_of_another_model_or_a_damaged_one(importance: Path, on: On, tmp_path: Path) -> None:
    held = read_tensors(importance)
    (tmp_path / "text").write_text("no tensors")
    lacking = {name: tensor for name, tensor in held.items() if name != "fisher.items.embedding.weight"}
    write_tensors(tmp_path / "lacking", lacking)
    write_tensors(tmp_path / "nan", {name: tensor * float("nan") for name, tensor in held.items()})
    write_tensors(tmp_path / "below", {name: -tensor - 1 for name, tensor in held.items()})
    for name, code, told in (
        ("nowhere", "missing-file", "nowhere"),
        ("text", "file-damaged", "text"),
        ("lacking", "fisher-of-other-model", "items.embedding.weight"),
        ("nan", "fisher-of-other-model", "not finite"),
        ("below", "file-damaged", "below 0"),
    ):
        with refused(code, told):
            on("run", f"model.penalties=[{{kind: ewc, fisher: {tmp_path / name}}}]")
    assert not (tmp_path / "run").exists()


def test_a_run_answers_without_the_file(run: Run, importance: Path, market: Store, tmp_path: Path) -> None:
    kept = tmp_path / "f"
    kept.write_bytes(importance.read_bytes())
    after = fr.finetune(run, market, tmp_path / "run", stages=0, ewc=kept, set=["training.max_epochs=1"], **QUIET)
    kept.unlink()
    assert len(fr.recommend(after, histories={"me": market.catalog.ids[:3].to_list()}, k=5)) == 5


def test_settings_without_effect(run: Run, gru: Run, on: On, market: Store, tmp_path: Path) -> None:
    with refused("setting-without-effect", "stage_epochs", "stages=0"):
        fr.finetune(run, market, tmp_path / "a", stages=0, stage_epochs=3, **QUIET)
    with refused("setting-without-effect", "ewc_weight"):
        fr.finetune(run, market, tmp_path / "a", ewc_weight=3.0, **QUIET)
    with refused("encoder-without-blocks", "stages=0"):
        fr.finetune(gru, market, tmp_path / "a", **QUIET)
    zero = on("zero", "training.max_epochs=0")
    with refused("no-epochs", str(zero.path)):
        fr.finetune(zero, market, tmp_path / "a", **QUIET)
    popular = fr.train("popularity", market, tmp_path / "popular", **QUIET)
    with refused("baseline-without-training", "popular"):
        fr.fisher_information(popular, tmp_path / "f", batches=2)


@pytest.mark.slow
def test_stages_free_one_block_after_another(run: Run, market: Store, importance: Path, tmp_path: Path) -> None:
    settings = ["training.max_epochs=2", "training.lr=1e-3"]
    made = fr.finetune(run, market, tmp_path / "run", stage_epochs=1, ewc=importance, set=settings, **QUIET)
    stages = [Run.open(tmp_path / "run.stages" / f"top-{top}") for top in (1, 2)]
    assert [one.spec.training.top_blocks for one in (*stages, made)] == [1, 2, None]
    assert [one.spec.training.max_epochs for one in (*stages, made)] == [1, 1, 2]
    assert [Path(one.manifest["init_from"]) for one in (*stages, made)] == [
        run.path.resolve(), stages[0].path.resolve(), stages[1].path.resolve(),
    ]  # fmt: skip
    assert not {name for name in moved(run, stages[0]) if name.startswith(("items.", BLOCK.format(0)))}
    assert {name for name in moved(stages[1], made) if name.startswith("items.")}
    penalties: list[Spec] = [*made.spec.model.penalties]  # type: ignore[attr-defined]
    assert [one.kind_of() for one in penalties] == ["ewc"]
    unbroken = {name: tensor.clone() for name, tensor in weights(made).items()}
    with refused("folder-holds-a-run"):
        fr.finetune(run, market, tmp_path / "run", stage_epochs=1, ewc=importance, set=settings, **QUIET)
    shutil.rmtree(made.path)
    again = fr.finetune(
        run, market, tmp_path / "run", stage_epochs=1, ewc=importance, set=settings, resume=True, **QUIET
    )
    assert all(torch.equal(tensor, weights(again)[name]) for name, tensor in unbroken.items())
    with refused("other-spec", "lr"):
        others = [*settings[:1], "training.lr=2e-3"]
        fr.finetune(run, market, tmp_path / "run", stage_epochs=1, ewc=importance, set=others, resume=True, **QUIET)
    onward = fr.finetune(stages[0], market, tmp_path / "on", stages=0, set=["training.max_epochs=1"], **QUIET)
    assert onward.spec.training.top_blocks is None and onward.spec.training.keep == "best"


def test_text_items_start_on_another_shop(tmp_path: Path) -> None:
    """Titles are all that two shops share; users and items of the second are new to the run."""
    words = ["red", "blue", "green", "small", "large", "soft"]

    def shop(name: str, items: int, shift: int) -> Store:
        rows = [(f"{name}{u}", f"{name}{(u * 3 + t * 2) % items}", t) for u in range(50) for t in range(6)]
        events = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
        titles = [f"{words[n % 6]} {words[(n + shift) % 5]} thing" for n in range(items)]
        goods = pl.DataFrame({"item_id": [f"{name}{n}" for n in range(items)], "title": titles})
        return fr.prepare(events, tmp_path / name, items=goods)

    small = ["model.dim=8", "model.encoder.layers=1", "training.max_epochs=1", "model.items.fields=[title]",
             "evaluation.sampled=null", "evaluation.bootstrap=0"]  # fmt: skip
    both = fr.join_stores([shop("a", 20, 1), shop("b", 25, 2)], tmp_path / "both", weights=[1, 0.5])
    general = fr.train("srt", both, tmp_path / "general", set=small, **QUIET)
    target = shop("c", 15, 3)
    zero = fr.train("same", target, tmp_path / "zero", init_from=general, set=["training.max_epochs=0"], **QUIET)
    assert zero.catalog.size == target.num_items
    name = "encoder.blocks.0.attention.qkv.weight"
    assert torch.equal(weights(zero)[name], weights(general)[name])
    tuned = fr.finetune(general, target, tmp_path / "tuned", stage_epochs=1, set=["training.max_epochs=1"], **QUIET)
    assert set(fr.evaluate(tuned).metrics) == set(fr.evaluate(zero).metrics)
