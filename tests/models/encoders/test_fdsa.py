"""FDSA: what each stream reads, items with features beside their ids, and what it refuses."""

import torch

from fullrank.models.sequential.encoders.fdsa import FDSA
from fullrank.models.sequential.items.features import Features
from fullrank.testing import checks
from parts import Softmax, Transformer, model_with
from refusals import refused
from tiny import ITEMS, catalog, close, histories, padded, shaken

NARROW = Transformer(attention=Softmax(heads=1))
OPEN = Transformer(attention=Softmax(causal=False))


def test_each_stream_reads_its_half() -> None:
    model = shaken(FDSA(features=NARROW).build(7, 10)).eval()
    x, batch = torch.randn(2, 6, 7), padded(histories([6, 4]))
    ids, features = model.ids(x[..., :4], batch).tokens, model.features(x[..., 4:], batch).tokens
    assert close(model(x, batch).tokens, model.join(torch.cat([ids, features], -1)))


def test_goes_on_with_a_history_where_both_streams_do() -> None:
    stream = Transformer(positions="none", attention=Softmax(heads=1, rope=True))
    assert FDSA(ids=stream, features=stream).build(12, 16).continues and not FDSA(ids=stream).build(12, 16).continues
    found = dict(checks(FDSA(ids=stream, features=stream.override("layers=3")), room="encoders"))
    for name in ("steps", "causal", "padding", "learns", "odd_batches"):
        found[name]("cpu")


def test_features_beside_ids() -> None:
    """The id's vector, then the mean of the values' vectors, each weighed by what it is."""
    spec = Features(categorical=("brand", "tags"), numeric=("price",), combine="beside")
    items = shaken(spec.build(7, catalog())).eval()
    brand, tags, price = (catalog().categorical("brand"), catalog().categories("tags"), catalog().numeric(["price"]))
    for i in range(ITEMS):
        numbers = torch.tensor([price.values[i, 0], price.missing[i, 0]])
        values = [items.tables[0].weight[brand.codes[i]]]
        values += [items.tables[1].weight[code] for code in tags.codes[i] if code >= 0]
        values.append(items.linear(numbers))
        weights = torch.stack([items.attend.weight[0] @ value for value in values]).softmax(0)
        mean = sum(weight * value for weight, value in zip(weights, values, strict=True))
        assert close(items.embed(torch.tensor(i)), torch.cat([items.embedding.weight[i], mean]))


def test_refusals() -> None:
    with refused("setting-without-effect", "combine=beside", "ids=false"):
        Features.parse({"categorical": ["brand"], "combine": "beside", "ids": False})
    with refused("encoders-disagree", "model.encoder.ids.attention.causal"):
        FDSA(ids=OPEN).build(8, 10)
    with refused("width-not-divisible", "model.dim"):
        FDSA().build(1, 10)
    with refused("task-needs-other-mask", "next_item", "model.encoder.ids.attention.causal"):
        model_with(dim=8, encoder=FDSA(ids=OPEN, features=OPEN))
