"""Fast forms equal their slow twins at odd sizes, and the modules compute what their equations say."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clicks import FIELDS
from fullrank.analysis.diagnostics.rank_theorems import jacobian
from fullrank.models.ranking import EVERY, FieldTokens
from fullrank.models.ranking.autoint import AutoInt
from fullrank.models.ranking.blocks import Tokeniser
from fullrank.models.ranking.dcnv2 import DCNv2
from fullrank.models.ranking.feed_forwards.gelu import Experts, ExpertsFeedForward, Gelu, GeluFeedForward
from fullrank.models.ranking.feed_forwards.glu import AUTHORS_BLOCK, Glu, GluFeedForward
from fullrank.models.ranking.finalmlp import FinalMLP, bilinear, bilinear_reference
from fullrank.models.ranking.fm import pairs, pairs_reference
from fullrank.models.ranking.mixings import Full, kronecker, transposed, transposed_reference
from fullrank.models.ranking.rankelastor import RankElastor
from fullrank.models.ranking.rankmixer import RankMixer
from fullrank.models.ranking.xdeepfm import interact, interact_reference
from fullrank.ops.ranking_layers import per_token
from fullrank.ops.singular_values import entropy_rank
from refusals import refused
from tiny import close, drawn, shaken
from twins import same


def random(*shape) -> Tensor:
    return drawn(*shape, seed=sum(shape)).requires_grad_()


def test_twins() -> None:
    x, maps, weight = random(5, 7, 3), random(5, 4, 3), random(6, 28)
    same(pairs(x), pairs_reference(x), x)
    same(interact(x, maps, weight), interact_reference(x, maps, weight), x, maps, weight)
    one, two, heads, linear = random(5, 6), random(5, 4), random(2, 3, 2), random(4)
    same(bilinear(one, two, heads, linear), bilinear_reference(one, two, heads, linear), one, two, heads, linear)
    grid = random(3, 5, 15)
    same(transposed(grid), transposed_reference(grid), grid)
    assert torch.equal(transposed(transposed(grid)), grid)
    small, flat = random(5, 5), random(4, 15)
    full = torch.kron(small, torch.eye(3))
    same(kronecker(small, flat, 3), flat @ full.T, small, flat)


@pytest.mark.parametrize(
    ("module", "spec"),
    [
        (GeluFeedForward, Gelu(expansion=1.5)),
        (GeluFeedForward, Gelu(hidden=(3, 7), norm=False)),
        (GluFeedForward, Glu()),
        (GluFeedForward, Glu(inner_skip=True, outer_skip=True, expansion=0.7)),
        (GluFeedForward, Glu(inner_skip=True, bias=False, norm=False)),
        (GluFeedForward, AUTHORS_BLOCK.override("hidden=[6, 6, 5]")),
        (GluFeedForward, Glu(hidden=(3, 7), bias=False, closing=True)),
        (ExpertsFeedForward, Experts(experts=3)),
    ],
)
def test_loop_equals_batched(module, spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, gradients of the input and of every weight, at odd sizes."""
    loop, batched = (shaken(module(5, 7, spec)) for _ in range(2))
    x = random(9, 5, 7)

    def tokens(network, how) -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(f"{module.__module__}.per_token", partial(per_token, how=how))
            return network(x)[0]

    same(tokens(loop, "loop"), tokens(batched, "batched"), x)
    for network, how in ((loop, "loop"), (batched, "batched")):
        tokens(network, how).pow(3).sum().backward()
    for (label, a), (_, b) in zip(loop.named_parameters(), batched.named_parameters(), strict=True):
        assert close(a.grad, b.grad, 1e-3), label


def test_glu_is_equation_4() -> None:
    ffn = shaken(Glu(norm=False).build(3, 4))
    x = random(2, 3, 4)
    one, two, three = (b[:, 0] for b in ffn.biases)
    for t in range(3):
        gate = F.gelu(x[:, t] @ ffn.gate[t] + one[t]) * (x[:, t] @ ffn.value[t] + two[t])
        assert close(ffn(x)[0][:, t], gate @ ffn.down[t] + three[t] + x[:, t] @ ffn.residual[t])


def test_the_authors_block_unit_by_unit() -> None:
    """RMSNorm, GLU, a map where the width changes; behind all of them a map to the token's width, and the input."""
    ffn = shaken(AUTHORS_BLOCK.override("hidden=[5, 5]").build(3, 4))
    x = random(2, 3, 4)

    def glu(unit, inner, t):
        one, two, three = (b[t, 0] for b in unit.biases)
        lifted = inner @ unit.skip[t] + F.gelu(inner @ unit.gate[t] + one)
        return (lifted * (inner @ unit.value[t] + two)) @ unit.down[t] + three + inner @ unit.residual[t]

    (second,) = ffn.further
    assert second.turn is None and list(ffn.turn[0].shape) == [3, 4, 5] and list(ffn.closing[0].shape) == [3, 5, 4]
    for t in range(3):
        state = glu(ffn, ffn.norm(x[:, t]), t) @ ffn.turn[0][t] + ffn.turn[1][t, 0]
        state = glu(second, second.norm(state), t)
        assert close(ffn(x)[0][:, t], state @ ffn.closing[0][t] + ffn.closing[1][t, 0] + x[:, t])


def test_a_unit_of_the_tokens_width_is_what_no_units_are() -> None:
    plain, named = (shaken(AUTHORS_BLOCK.override(one).build(3, 4)) for one in ("hidden=[]", "hidden=[4]"))
    assert torch.equal(plain(random(2, 3, 4))[0], named(random(2, 3, 4))[0])
    with refused("invalid-width", "leaves a width of 5", "4", "closing=true"):
        Glu(hidden=(5,)).build(3, 4)


def test_weights_saved_before_there_were_units_keep_their_names() -> None:
    names = ["gate", "value", "down", "residual", "norm.weight", "biases.0", "biases.1", "biases.2"]
    assert [label for label, _ in Glu().build(3, 4).named_parameters()] == names


def test_the_units_of_the_head_are_dropped_and_normalised() -> None:
    made = RankElastor(tokens=4, width=6, head="mlp", head_dropout=0.25, head_batch_norm=True).build(FIELDS, 4)
    kinds = [type(layer).__name__ for layer in made.head.map]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Dropout", "Linear"] and made.head.map[3].p == 0.25
    for setting in ("head_dropout=0.25", "head_batch_norm=true"):
        with refused("setting-without-effect", "head=flatten"):
            RankElastor(head="flatten").override(setting)


def directions(spec, seed) -> float:
    """Entropy rank of the Jacobian of all blocks at the start, at a random point."""
    torch.manual_seed(seed)
    ranker = spec.build(FIELDS, 16).eval()
    return float(entropy_rank(torch.linalg.svdvals(jacobian(ranker, torch.randn(spec.tokens, spec.width or 0)))))


@pytest.mark.parametrize(
    ("ranker", "random_start", "identity_start"),
    [
        (RankElastor(feed_forward=Glu()), 40, 90),
        (RankElastor(feed_forward=Glu(norm=False), mixing=Full(norm="post")), 40, 90),
        (RankElastor(), 40, 70),
        (RankMixer(), 30, 45),  # of 72: X and its transpose add up to what is symmetric
    ],
    ids=["eq4", "letter", "authors", "rankmixer"],
)
def test_identity_starts_let_deep_stacks_pass(ranker, random_start, identity_start) -> None:
    """Of 128 directions; measured at the start of 16 blocks."""
    sized = ranker.override("tokens=8", "width=16", "blocks=16", "tokeniser.mode=vector")
    for seed in range(2):
        assert directions(sized, seed) < random_start
        assert directions(sized.override("initial=identity"), seed) > identity_start


def test_what_an_identity_start_changes() -> None:
    spec = RankElastor(tokens=4, width=6, blocks=8, tokeniser=Tokeniser(mode="vector"))
    for one in (spec, spec.override("feed_forward=glu"), spec.override("feed_forward=gelu")):
        made = []
        for start in ("xavier", "identity"):
            torch.manual_seed(0)
            made.append(dict(one.override(f"initial={start}").build(FIELDS, 4).named_parameters()))
        before, after = made
        scaled = {k: 0.1 if k.startswith("mixings") else 0.25 for k in before if not torch.equal(before[k], after[k])}
        ends = {"glu": "closing.0" if one.feed_forward == AUTHORS_BLOCK else "down", "gelu": "weights.1"}
        for label, factor in scaled.items():
            if label.endswith("residual"):
                assert torch.equal(after[label], torch.eye(6).expand(4, 6, 6))
            else:
                assert label.endswith(("linear.weight", ends[one.feed_forward.kind_of()])), label
                assert close(after[label], before[label] * factor)
        assert len(scaled) == 8 * (2 if one.feed_forward.kind_of() == "gelu" else 3)
    with refused("no-identity-path", "outer_skip=true"):
        spec.override("initial=identity", "feed_forward.outer_skip=false").build(FIELDS, 4)


def test_mixing_of_paper_and_of_code() -> None:
    x = random(3, 4, 6)
    post = shaken(Full(norm="post").build(4, 6))
    whole = (x.flatten(1) @ (post.linear.weight + torch.eye(24)).T).view(x.shape)
    assert post.linear.bias is None
    assert close(post(x)[0], whole) and close(post(x)[1], post.after(whole))
    pre = shaken(Full().build(4, 6))
    assert close(pre(x)[0], x + pre.linear(pre.before(x.flatten(1))).view(x.shape))


def test_xavier_uses_the_fans_of_one_token() -> None:
    torch.manual_seed(0)
    ffn = Glu(expansion=3.0).build(64, 20)
    assert ffn.gate.std().item() == pytest.approx((2 / 80) ** 0.5, rel=0.02)
    mixing = Full().build(16, 24)
    assert mixing.linear.weight.std().item() == pytest.approx(384**-0.5, rel=0.02)
    assert not mixing.linear.bias.any()


def test_dcnv2_is_the_papers() -> None:
    """Crosses of Eq. 1; the deep part reads the tokens beside them, or what they made where it is stacked."""
    x = random(3, 7, 2)
    for deep, stacked in (((), False), ((5,), False), ((5,), True)):
        structure = {"structure": "stacked"} if stacked else {}
        ranker = shaken(DCNv2(crosses=2, deep={"hidden": deep}, **structure).build(FIELDS, 2)).eval()
        first = state = x.flatten(1)
        for cross in ranker.crosses:
            state = first * cross.linear(state) + state
        if stacked:
            state = ranker.deep(state)
        elif deep:
            state = torch.cat([state, ranker.deep(first)], 1)
        assert close(ranker(FieldTokens(x)).logits, ranker.head(state)[:, 0])


TWO = {"first": {"hidden": [6]}, "second": {"hidden": [4]}, "heads": 2, "gate_hidden": [5]}


def test_finalmlp_is_the_papers() -> None:
    ranker = shaken(FinalMLP(**TWO, first_context=("user", "item"), second_context=("genres",)).build(FIELDS, 2))
    x, contexts = random(3, 7, 2), (random(3, 2, 2), random(3, 1, 2))
    out = ranker(FieldTokens(x, wanted=EVERY, contexts=contexts))
    streams = []
    for number, (gate, deep) in enumerate(zip(ranker.gates, (ranker.first, ranker.second), strict=True)):
        up, _, down = gate.layers
        selected = x.flatten(1) * 2 * torch.sigmoid(down(F.relu(up(contexts[number].flatten(1)))))
        assert close(out.captures[f"selected_{number}"], selected.view(x.shape))
        streams.append(F.relu(deep.layers[0](selected)))
    fusion, (one, two) = ranker.fusion, streams
    logits = fusion.first(one)[:, 0] + fusion.second(two)[:, 0]
    for head in range(2):
        mixed = one[:, 3 * head : 3 * head + 3] @ fusion.weight[head]
        logits = logits + (mixed * two[:, 2 * head : 2 * head + 2]).sum(1)
    assert close(out.logits, logits)


def test_finalmlp_without_gates_reads_the_fields_twice() -> None:
    ranker = shaken(FinalMLP(first={"hidden": [6]}, second={"hidden": [4]}, heads=1, gates=False).build(FIELDS, 2))
    x = random(3, 7, 2)
    one, two = ranker.first(x.flatten(1)), ranker.second(x.flatten(1))
    assert not len(ranker.gates) and close(ranker(FieldTokens(x)).logits, ranker.fusion(one, two))


def test_a_learned_gate_learns_from_its_starting_values() -> None:
    """From a vector of zeros all but its last bias would stand still, as the module says."""
    torch.manual_seed(0)
    ranker = FinalMLP(**TWO).build(FIELDS, 2)
    x = FieldTokens(random(20, 7, 2), contexts=(torch.zeros(20, 0, 2),) * 2)
    ranker(x).logits.sum().backward()
    assert all(p.grad.any() for p in ranker.gates.parameters())
    with torch.no_grad():
        ranker.gates[0].learned.zero_()
    ranker.zero_grad()
    ranker(x).logits.sum().backward()
    assert [bool(p.grad.any()) for p in ranker.gates[0].parameters()] == [False] * 4 + [True]


def test_what_finalmlp_cannot_fuse_is_refused() -> None:
    with refused("width-not-divisible", "second.hidden", 4, 3):
        FinalMLP.parse({"first": {"hidden": [6]}, "second": {"hidden": [4]}, "heads": 3})
    with refused("no-hidden-layers", "first.hidden"):
        FinalMLP.parse({"first": {"hidden": []}})
    with refused("repeated-field", "first_context"):
        FinalMLP.parse({"first_context": ["user", "user"]})
    for name, value in (("gate_hidden", (3,)), ("first_context", ("user",)), ("second_context", ("item",))):
        with refused("setting-without-effect", name, "gates"):
            FinalMLP.parse({"gates": False, name: value})


def test_autoint_adds_its_input_where_the_widths_agree() -> None:
    always, needed = (AutoInt(layers=2, width=4, residual_map=how).build(FIELDS, 3) for how in ("always", "as_needed"))
    assert [isinstance(layer.residual, nn.Linear) for layer in always.layers] == [True, True]
    assert [isinstance(layer.residual, nn.Linear) for layer in needed.layers] == [True, False]
    layer, x = shaken(needed).layers[1], random(2, 7, 4)
    with torch.no_grad():
        layer.value.weight.zero_()  # of the attention nothing is left
    assert close(layer(x), F.relu(x))
    with refused("setting-without-effect", "residual_map"):
        AutoInt.parse({"residual": False, "residual_map": "as_needed"})


def test_rankmixer_block_is_the_papers() -> None:
    spec = RankMixer(tokens=4, width=8, blocks=1, tokeniser=Tokeniser(mode="vector", dropout=0.0))
    ranker = shaken(spec.build(FIELDS, 4))
    out = ranker(FieldTokens(random(3, 7, 4), wanted=EVERY))
    tokens = out.captures["tokens"]
    assert close(out.captures["mixing_0"], tokens + transposed(tokens)), "read before the last norm"
    mixed = ranker.mixings[0].norm(tokens + transposed(tokens))
    ffn = ranker.feed_forwards[0]
    up, down = (w for w in ffn.weights)
    inner = F.gelu(torch.einsum("btd,tdh->bth", mixed, up) + ffn.biases[0][:, 0])
    after = ffn.norm(torch.einsum("bth,thd->btd", inner, down) + ffn.biases[1][:, 0] + mixed)
    assert close(out.captures["ffn_0"], after)
    assert close(out.logits, ranker.head.map(after.mean(1))[:, 0])


def test_widths() -> None:
    """Left out, the width is what the fields fill, rounded up to what block transpose can divide."""
    auto = RankMixer(tokens=4, tokeniser=Tokeniser(mode="vector")).build(FIELDS, 5)
    assert auto.tokenise.width == 12  # 35 numbers, 9 a token, a multiple of 4
    plain = RankElastor(tokens=5, width=None, tokeniser=Tokeniser(mode="none")).build(FIELDS, 5)
    assert plain.tokenise.width == 7
    with refused("width-not-divisible", 10, 4, 12):
        RankMixer(tokens=4, width=10).build(FIELDS, 4)
    with refused("width-not-divisible", 28, 3, "[2, 4, 7, 14, 28]"):
        RankElastor(tokens=3).build(FIELDS, 4)
    with refused("width-not-divisible", 28, "4 x 8"):
        RankMixer(tokens=4, width=8, tokeniser=Tokeniser(mode="none")).build(FIELDS, 4)


@pytest.mark.parametrize("head", ["mlp", "flatten", "mean", "mean_all"])
def test_heads(head) -> None:
    ranker = RankElastor(tokens=4, width=6, head=head).build(FIELDS, 4)
    layers = [m for m in ranker.head.modules() if isinstance(m, nn.Linear)]
    shapes = {"mlp": [(48, 24), (1, 48)], "flatten": [(1, 24)], "mean": [(1, 6)], "mean_all": []}
    assert [tuple(layer.weight.shape) for layer in layers] == shapes[head]
