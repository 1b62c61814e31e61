"""A part left out is the identity; accuracy and fairness are those of an evaluation of the sample."""

import numpy as np
import pytest
import torch

from fullrank.analysis.activations import SampleStore, sample_protocol, sample_users
from fullrank.analysis.diagnostics.ablation import Ablation, parts_of, self_attending, silenced
from fullrank.evaluation import Evaluation, evaluate
from fullrank.models.sequential.model.reading import blocks_of
from parts import Focused, LastItem, Seq2Seq, Transformer
from tests.analysis.conftest import STORE, context_of, model_of, recommender, shop, values
from tiny import drawn, histories, padded


@pytest.mark.parametrize("settings", [(), ("task=last_item", "reasoner=plr")], ids=["plain", "reasoning"])
@pytest.mark.parametrize("label", ["attention", "feed_forward"])
def test_without_a_part_is_as_with_a_zero_output(label, settings) -> None:
    model, twin = (model_of(recommender(None, *settings)) for _ in range(2))
    if settings:
        twin.load_state_dict(model.state_dict())
    batch = padded(histories((3, 9, 5), items=30))
    for part in (part for part in parts_of(model) if part.label == label):
        for layer, (block, whole) in enumerate(zip(blocks_of(twin), blocks_of(model), strict=True)):
            fresh = whole.state_dict()
            block.load_state_dict(fresh)
            if part.layer in (layer, None):
                last = block.attention.output if label == "attention" else block.feed_forward.down
                torch.nn.init.zeros_(last.weight)
        with torch.no_grad(), silenced(part.modules):
            found = model.answer(batch).vectors
        assert torch.equal(found, twin.answer(batch).vectors)
    assert not any(m._forward_hooks or "attend_latent" in vars(m) for m in model.modules())


@pytest.mark.parametrize(
    ("label", "outputs"),
    [("decoder_attention", ("attention", "output")), ("cross_attention", ("cross", "output")),
     ("decoder_feed_forward", ("feed_forward", "down"))],
)  # fmt: skip
def test_parts_of_a_decoder_are_left_out_together(label, outputs) -> None:
    """As with zeros for the last matrix of each; a search, token by token, sees the same."""
    spec = recommender(Seq2Seq(layers=1, decoder_layers=2)).model_copy(update={"task": LastItem()})
    model, twin = model_of(spec), model_of(spec)
    batch = padded(histories((3, 9, 5), items=30))
    for block in twin.encoder.decoder:
        torch.nn.init.zeros_(getattr(getattr(block, outputs[0]), outputs[1]).weight)
    (part,) = (part for part in parts_of(model) if part.label == label)
    token = drawn(3, 2, 8, seed=1)

    def answers(one):
        x = one.items.embed(batch.items)
        return one.answer(batch).vectors, one.encoder.step(token, one.encoder.start(x, batch)[1])[0]

    with torch.no_grad():
        with silenced(part.modules):
            found = answers(model)
        for with_hooks, expected in zip(found, answers(twin), strict=True):
            torch.testing.assert_close(with_hooks, expected)
        assert all(not torch.allclose(a, b) for a, b in zip(answers(model), found, strict=True))


def test_parts_are_each_block_and_all_of_a_kind() -> None:
    found = [(part.label, part.layer, len(part.modules)) for part in parts_of(model_of())]
    kinds = [("attention", 0, 1), ("attention", 1, 1), ("attention", None, 2)]
    fed = [("feed_forward", layer, many) for _, layer, many in kinds]
    assert found == [*kinds, *fed, ("mixing", None, 2)]
    bare = recommender(Transformer(layers=1, feed_forward="none"))
    assert [(part.label, part.layer) for part in parts_of(model_of(bare))] == [
        ("attention", 0),
        ("mixing", None),
    ]
    signed = recommender(Transformer(layers=1, attention=Focused(heads=1), feed_forward="none"))
    assert [part.label for part in parts_of(model_of(signed))] == ["attention"], "rows do not sum to one"


@pytest.mark.parametrize("settings", [(), ("task=last_item", "reasoner={kind: rearec, steps: 1}")])
def test_an_event_that_attends_to_itself_is_answered_as_if_it_were_alone(settings) -> None:
    model = model_of(recommender(Transformer(layers=2, positions="none"), *settings), shop())
    long, last = padded(histories((6, 3), items=30)), padded([h[-1:] for h in histories((6, 3), items=30)])
    mixers = parts_of(model)[-1].modules
    with torch.no_grad():
        whole = model.answer(long).vectors
        with self_attending(mixers):
            found, alone = model.answer(long).vectors, model.answer(last).vectors
        assert torch.equal(whole, model.answer(long).vectors), "nothing stays behind"
    torch.testing.assert_close(found, alone)
    assert not torch.allclose(found, whole)


@pytest.mark.parametrize("settings", [(), ("scoring.similarity=cosine", "scoring.temperature=0.1")])
@pytest.mark.parametrize("spec", [Evaluation(), Evaluation(seen="keep", selection="recall@5", popularity="all")])
def test_the_whole_model_is_measured_as_an_evaluation_does(spec, settings) -> None:
    model, some = model_of(recommender(None, *settings)), sample_users(STORE, "test", 17)
    rows = Ablation(context_of(model, some, STORE, evaluation=sample_protocol(spec))).rows()
    found = evaluate(model, SampleStore(STORE, some.users), "test", sample_protocol(spec))
    assert found.protocol["users"] == 17 and np.array_equal(found.per_user.users, np.sort(some.users))
    assert set(found.metrics) == {spec.selection, "fair0.8@1"}
    for name, value in found.metrics.items():
        assert values(rows, name, label="whole") == [value]
    assert len(values(rows, "collapse_share")) == 8
    with torch.no_grad(), silenced((model.encoder.blocks[1].feed_forward,)):
        again = evaluate(model, SampleStore(STORE, some.users), "test", sample_protocol(spec))
    assert values(rows, "fair0.8@1", label="feed_forward", layer=1) == [again.metrics["fair0.8@1"]]
