"""Training that starts from a run: as it is, its top blocks alone, in stages, held where it was."""

from __future__ import annotations

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
from fullrank.models.sequential.regularizers.ewc import EWC
from fullrank.run import Run
from refusals import refused
from tests.training.conftest import tiny

QUIET = {"progress": False, "device": "cpu"}
BLOCK = "encoder.blocks.{}."


def weights(run: Run) -> dict[str, Tensor]:
    return read_tensors(run.path / "weights.safetensors")


def moved(before: Run, after: Run) -> set[str]:
    """The parameters that training has changed."""
    learned = {name for name, _ in before.model().named_parameters()}
    return {name for name in learned if not torch.equal(weights(before)[name], weights(after)[name])}


@pytest.fixture(scope="module")
def run(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Run:
    spec = tiny("training.max_epochs=2", "model.encoder.positions=learned")
    return fr.train(spec, market, tmp_path_factory.mktemp("runs") / "run", **QUIET)


@pytest.fixture(scope="module")
def importance(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fr.fisher_information(run, tmp_path_factory.mktemp("fisher") / "f.safetensors", batches=3, device="cpu")


def test_no_epoch_takes_the_weights_as_they_are(run: Run, market: Store, tmp_path: Path) -> None:
    same = fr.train("same", market, tmp_path / "same", init_from=run, set=["training.max_epochs=0"], **QUIET)
    assert not moved(run, same) and same.manifest["finished"]
    assert fr.evaluate(same).metrics == fr.evaluate(run).metrics
    again = fr.train(out=same.path, resume=True, **QUIET)
    assert not moved(run, again)
    fr.evaluate(fr.Run.open(same.path))
    with refused("no-run-to-start-from", "max_epochs=0"):
        fr.train(tiny("training.max_epochs=0"), market, tmp_path / "none", **QUIET)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("top", [0, 1, 2])
def test_what_lies_below_the_top_blocks_stays(run: Run, market: Store, tmp_path: Path, top: int) -> None:
    settings = ["training.max_epochs=1", f"training.top_blocks={top}"]
    after = fr.train("same", market, tmp_path / "run", init_from=run, set=settings, **QUIET)
    changed = moved(run, after)
    below = ("items.", "encoder.position.", *(BLOCK.format(place) for place in range(2 - top)))
    assert changed and not {name for name in changed if name.startswith(below)}
    above = {name for name, _ in run.model().named_parameters() if not name.startswith(below)}
    assert changed == above, "all that is not frozen learns"


def test_top_blocks_that_are_not_there(run: Run, market: Store, tmp_path: Path) -> None:
    with refused("setting-out-of-range", "top_blocks=3", "2 blocks"):
        fr.train("same", market, tmp_path / "a", init_from=run, set=["training.top_blocks=3"], **QUIET)
    with refused("no-run-to-start-from", "top_blocks"):
        fr.train(tiny("training.top_blocks=1"), market, tmp_path / "b", **QUIET)
    gru = fr.train("gru4rec", market, tmp_path / "gru", set=["training.max_epochs=1", "model.dim=8"], **QUIET)
    with refused("encoder-without-blocks", "top_blocks"):
        fr.train("same", market, tmp_path / "c", init_from=gru, set=["training.top_blocks=1"], **QUIET)


def test_the_last_weights_may_be_kept(market: Store, tmp_path: Path) -> None:
    """At a rate that spoils what was learned, the best epoch is not the last."""
    settings = ["training.max_epochs=3", "training.lr=3", "training.clip_norm=1"]
    best, last = (
        fr.train(tiny(*settings, f"training.keep={keep}"), market, tmp_path / keep, **QUIET)
        for keep in ("best", "last")
    )
    checkpoint = next((last.path / "checkpoints").glob("step-*")) / "weights.safetensors"
    final = read_tensors(checkpoint)
    assert all(torch.equal(final[name], tensor) for name, tensor in weights(last).items())
    scores = [row["validation/ndcg@10"] for row in best.rows() if row["event"] == "epoch"]
    assert max(scores) > scores[-1], "the data no longer shows it"
    assert not torch.equal(weights(best)["items.embedding.weight"], weights(last)["items.embedding.weight"])


def test_the_last_weights_are_kept_where_patience_ends(market: Store, tmp_path: Path) -> None:
    settings = ["training.max_epochs=9", "training.lr=3", "training.clip_norm=1", "training.patience=1"]
    run = fr.train(tiny(*settings, "training.keep=last"), market, tmp_path / "run", **QUIET)
    checkpoint = next((run.path / "checkpoints").glob("step-*")) / "weights.safetensors"
    assert torch.equal(read_tensors(checkpoint)["items.embedding.weight"], weights(run)["items.embedding.weight"])
    assert fr.evaluate(run).metrics


def test_fisher_is_the_mean_of_squared_gradients(run: Run, market: Store, tmp_path: Path) -> None:
    """Against one batch after another, without dropout, on batches of a size of their own."""
    plain = fr.train(tiny("training.max_epochs=1", dropout=0.0), market, tmp_path / "run", **QUIET)
    made = fr.fisher_information(plain, tmp_path / "f", batches=3, batch_size=100, device="cpu")
    held, model = read_tensors(made), plain.model()
    assert isinstance(model, RecommenderModel)
    from fullrank.training.retrieval_data import RetrievalData

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


def test_a_heavy_weight_holds_what_mattered(run: Run, importance: Path, market: Store, tmp_path: Path) -> None:
    """Where F is large the weights stay closer to where they were than without the penalty."""
    on = {}
    for weight in (1e-9, 1e5):
        spec = run.spec.override("training.max_epochs=2", "seed=4")
        penalty = EWC(weight=weight, fisher=str(importance))
        model = spec.model.model_copy(update={"penalties": (penalty,)})
        spec = spec.model_copy(update={"model": model})
        on[weight] = fr.train(spec, market, tmp_path / str(weight), init_from=run, **QUIET)
    held = read_tensors(importance)
    away = {
        weight: sum(
            float((held["fisher." + name] * (weights(after)[name] - weights(run)[name]) ** 2).sum())
            for name, _ in run.model().named_parameters()
        )
        for weight, after in on.items()
    }
    assert away[1e5] < away[1e-9] / 3


def test_without_a_file_it_holds_on_to_the_start_and_resumes_to_the_same_weights(
    run: Run, market: Store, tmp_path: Path
) -> None:
    """A run that was cut off reads where it started from its source, not where it was cut off."""
    settings = ["training.max_epochs=3", "model.penalties=[{kind: ewc, weight: 10}]", "seed=2"]
    whole = fr.train("same", market, tmp_path / "whole", init_from=run, set=settings, **QUIET)

    class Cut:
        def on_epoch(self, state: Any) -> dict[str, float]:
            if state.epoch == 2:
                raise KeyboardInterrupt
            return {}

    with pytest.raises(KeyboardInterrupt):
        fr.train("same", market, tmp_path / "cut", init_from=run, set=settings, callbacks=[Cut()], **QUIET)
    resumed = fr.train(out=tmp_path / "cut", resume=True, **QUIET)
    assert all(torch.equal(tensor, weights(resumed)[name]) for name, tensor in weights(whole).items())
    with refused("no-run-to-start-from", "ewc"):
        fr.train(tiny("model.penalties=[{kind: ewc}]"), market, tmp_path / "none", **QUIET)


def test_a_file_of_another_model_or_a_damaged_one(run: Run, importance: Path, market: Store, tmp_path: Path) -> None:
    def on(path: Path, *settings: str) -> None:
        given = [f"model.penalties=[{{kind: ewc, fisher: {path}}}]", *settings]
        fr.train("same", market, tmp_path / "run", init_from=run, set=given, **QUIET)

    with refused("missing-file", "nowhere"):
        on(tmp_path / "nowhere")
    (tmp_path / "text").write_text("no tensors")
    with refused("file-damaged", "text"):
        on(tmp_path / "text")
    held = read_tensors(importance)
    lacking = {name: tensor for name, tensor in held.items() if name != "fisher.items.embedding.weight"}
    write_tensors(tmp_path / "lacking", lacking)
    with refused("fisher-of-other-model", "items.embedding.weight", "no numbers"):
        on(tmp_path / "lacking")
    write_tensors(tmp_path / "nan", {name: tensor * float("nan") for name, tensor in held.items()})
    with refused("fisher-of-other-model", "not finite"):
        on(tmp_path / "nan")
    write_tensors(tmp_path / "below", {name: -tensor - 1 for name, tensor in held.items()})
    with refused("file-damaged", "below 0"):
        on(tmp_path / "below")
    assert not (tmp_path / "run").exists()


def test_a_run_answers_without_the_file(run: Run, importance: Path, market: Store, tmp_path: Path) -> None:
    kept = tmp_path / "f"
    kept.write_bytes(importance.read_bytes())
    after = fr.finetune(run, market, tmp_path / "run", stages=0, ewc=kept, set=["training.max_epochs=1"], **QUIET)
    kept.unlink()
    assert len(fr.recommend(after, histories={"me": market.catalog.ids[:3].to_list()}, k=5)) == 5


def test_settings_without_effect(run: Run, market: Store, tmp_path: Path) -> None:
    with refused("setting-without-effect", "stage_epochs", "stages=0"):
        fr.finetune(run, market, tmp_path / "a", stages=0, stage_epochs=3, **QUIET)
    with refused("setting-without-effect", "ewc_weight"):
        fr.finetune(run, market, tmp_path / "a", ewc_weight=3.0, **QUIET)
    gru = fr.train("gru4rec", market, tmp_path / "gru", set=["training.max_epochs=1", "model.dim=8"], **QUIET)
    with refused("encoder-without-blocks", "stages=0"):
        fr.finetune(gru, market, tmp_path / "a", **QUIET)
    zero = fr.train("same", market, tmp_path / "zero", init_from=run, set=["training.max_epochs=0"], **QUIET)
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
