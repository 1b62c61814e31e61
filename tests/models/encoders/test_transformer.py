"""Transformer and feed-forward layers against their formulas, positions by hand, and what their spec refuses."""

import pytest
import torch
import torch.nn.functional as F

from fullrank.models.sequential.encoders.transformer import MLP, SwiGLU, TransformerEncoder
from parts import Softmax, Transformer
from refusals import refused
from tiny import close, histories, padded, shaken

DIM = 6


def encoder(**settings) -> TransformerEncoder:
    return shaken(Transformer.parse({"layers": 1, "norm": "layer", **settings}).build(DIM, 8)).eval()


def case() -> tuple:
    return torch.randn(2, 5, DIM), padded(histories([5, 3]))


def norm(module, x) -> torch.Tensor:
    """LayerNorm written out."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * module.weight + module.bias


def test_pre_norm_block() -> None:
    """x + A(N(x)), then + F(N(.)), and a norm behind the last block (arXiv:2302.13971)."""
    model = encoder(norm_at="pre", positions="none", feed_forward="mlp", activation="gelu", bias=True)
    block = model.blocks[0]
    x, batch = case()
    y = x + block.attention(norm(block.attention_norm, x), batch)
    z = y + block.feed_forward(norm(block.feed_forward_norm, y))
    states = model(x, batch)
    assert close(states.tokens[batch.valid], norm(model.norm_output, z)[batch.valid], 1e-4)
    assert close(states.layers[1][batch.valid], z[batch.valid], 1e-4) and torch.equal(states.layers[0], x)
    bare = encoder(norm_at="pre", positions="none", norm_output=False)
    states = bare(x, batch)
    assert torch.equal(states.tokens, states.layers[1])


def test_post_norm_block() -> None:
    """N(x + A(x)), then N(. + F(.)), and nothing behind it (arXiv:1706.03762)."""
    model = encoder(norm_at="post", positions="none")
    block = model.blocks[0]
    x, batch = case()
    y = norm(block.attention_norm, x + block.attention(x, batch))
    z = norm(block.feed_forward_norm, y + block.feed_forward(y))
    assert close(model(x, batch).tokens[batch.valid], z[batch.valid], 1e-4)


def test_without_feed_forward() -> None:
    model = encoder(feed_forward="none", positions="none", norm_output=False)
    x, batch = case()
    y = x + model.blocks[0].attention(norm(model.blocks[0].attention_norm, x), batch)
    assert close(model(x, batch).tokens[batch.valid], y[batch.valid], 1e-4)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_without_gain(kind) -> None:
    """They compute the norm with a gain of one and no bias, wherever there is a norm, and have nothing to learn."""
    settings = {"norm": kind, "norm_input": True, "positions": "none"}
    bare, full = encoder(norm_affine=False, **settings), encoder(**settings)
    assert not [name for name, _ in bare.named_parameters() if "norm" in name]
    norms = {name: p for name, p in full.named_parameters() if "norm" in name}
    assert len(norms) == 4 * (2 if kind == "layer" else 1)
    for name, parameter in norms.items():
        torch.nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
    full.load_state_dict(bare.state_dict(), strict=False)
    x, batch = case()
    assert close(bare(x, batch).tokens, full(x, batch).tokens)


def test_feed_forward_layers() -> None:
    x = torch.randn(2, 3, 4)
    for activation in ("relu", "gelu", "silu"):
        mlp = MLP(4, 7, activation, True, 0.0)
        shaken(mlp)
        hidden = getattr(F, activation)(x @ mlp.up.weight.T + mlp.up.bias)
        assert close(mlp(x), hidden @ mlp.down.weight.T + mlp.down.bias)
    glu = SwiGLU(4, 7, False, 0.0)
    shaken(glu)
    gate = x @ glu.gate.weight.T
    assert close(glu(x), (gate * gate.sigmoid() * (x @ glu.up.weight.T)) @ glu.down.weight.T)
    assert glu.down.bias is None


@pytest.mark.parametrize(("start", "wanted"), [("start", [[0, 1, 2], [0, 1, 2]]), ("end", [[2, 1, 0], [1, 0, 0]])])
def test_positions(start, wanted) -> None:
    """Counted from a row's first event, or back from its last valid one (0 for the padding behind it)."""
    model = encoder(positions_from=start, scale_input=True)
    batch = padded([[1, 2, 3], [1, 2]])
    x = torch.randn(2, 3, DIM)
    entered = model(x, batch).layers[0]
    assert close(entered, x * DIM**0.5 + model.position.weight[torch.tensor(wanted)])


def test_norm_of_the_input() -> None:
    model = encoder(norm_input=True)
    x, batch = case()
    assert close(model(x, batch).layers[0], norm(model.norm_input, x + model.position.weight[:5]), 1e-4)


def test_a_history_beyond_the_positions() -> None:
    model = encoder()
    assert model(torch.randn(1, 8, DIM), padded(histories([8]))).tokens.shape == (1, 8, DIM)
    with refused("history-too-long", 9, "max_length=8"):
        model(torch.randn(1, 9, DIM), padded(histories([9])))


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({"feed_forward": "swiglu", "activation": "gelu"}, "setting-without-effect", ("activation", "swiglu")),
        ({"feed_forward": "none", "activation": "gelu"}, "setting-without-effect", ("activation", "none")),
        ({"feed_forward": "none", "inner": 5}, "setting-without-effect", ("inner=5", "none")),
        ({"feed_forward": "none", "bias": True}, "setting-without-effect", ("bias=true", "none")),
        ({"positions": "none", "positions_from": "end"}, "setting-without-effect", ("positions_from", "none")),
        ({"norm_at": "post", "norm_output": True}, "setting-without-effect", ("norm_output", "post")),
        ({"norm_at": "post", "norm_output": False}, "setting-without-effect", ("norm_output", "post")),
        ({"layers": 0}, "invalid-setting", ("layers", 0)),
        ({"dropout": 1.0}, "invalid-setting", ("dropout", 1.0)),
    ],
)
def test_refusals(settings, code, named) -> None:
    with refused(code, *named):
        Transformer.parse(settings)


def test_order_is_seen_through_rotation_alone() -> None:
    """Without learned positions and rotation, a bidirectional encoder does not know the order."""
    batch, x, order = padded(histories([5])), torch.randn(1, 5, DIM), torch.tensor([3, 0, 4, 1, 2])
    for rope in (False, True):
        model = encoder(positions="none", attention=Softmax(heads=1, causal=False, rope=rope))
        same = close(model(x, batch).tokens[:, order], model(x[:, order], batch).tokens, 1e-4)
        assert same is (not rope)
