"""DCNv2 and RankElastor as one writes them first: a table per field, a module per token, a plain training loop.

Each takes over the weights of the library's model of the same settings, so that both must give the same losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fullrank.data.batch import Impressions
from fullrank.data.impressions.schema import FieldInfo
from fullrank.models.ranking.dcnv2 import DCNv2Ranker


class PlainFields(nn.Module):
    """A table per field; a bag is the mean of its rows."""

    def __init__(self, fields: Sequence[FieldInfo], dim: int):
        super().__init__()
        self.kinds = [field.kind for field in fields]
        self.tables = nn.ModuleList(nn.Embedding(field.size, dim) for field in fields)

    def forward(self, batch: Impressions) -> Tensor:
        vectors, column, bag = [], 0, 0
        for kind, table in zip(self.kinds, self.tables, strict=True):
            if kind == "categorical":
                vectors.append(table(batch.categorical[:, column]))
                column += 1
            else:
                ids, lengths = batch.bags[bag].ids, batch.bags[bag].lengths.clamp_min(1)
                inside = torch.arange(ids.shape[1]) < lengths[:, None]
                vectors.append((table(ids) * inside[..., None]).sum(1) / lengths[:, None])
                bag += 1
        return torch.stack(vectors, 1)

    @torch.no_grad()
    def take(self, table: Tensor) -> None:
        for mine, rows in zip(self.tables, table.split([len(t.weight) for t in self.tables]), strict=True):  # type: ignore[misc,arg-type]
            mine.weight.copy_(rows)  # type: ignore[union-attr,operator]


class PlainDCNv2(nn.Module):
    """Three crosses beside a perceptron."""

    def __init__(self, fields: Sequence[FieldInfo], dim: int, ours: DCNv2Ranker):
        super().__init__()
        self.fields = PlainFields(fields, dim)
        self.crosses = nn.ModuleList(_copied(cross.linear) for cross in ours.crosses)  # type: ignore[arg-type]
        assert ours.deep is not None
        layers: list[nn.Module] = []
        for layer in ours.deep.layers:
            layers.append(_copied(layer) if isinstance(layer, nn.Linear) else nn.ReLU())
        self.deep = nn.Sequential(*layers)
        self.head = _copied(ours.head)

    def forward(self, batch: Impressions) -> Tensor:
        first = x = self.fields(batch).flatten(1)
        for cross in self.crosses:
            x = first * cross(x) + x
        return self.head(torch.cat([x, self.deep(first)], 1)).squeeze(1)  # type: ignore[no-any-return]


class PlainToken(nn.Module):
    """One token's gated network."""

    def __init__(self, ours: Any, token: int):
        super().__init__()
        bias = [part[token, 0] for part in ours.biases]
        self.gate, self.value = _linear(ours.gate[token], bias[0]), _linear(ours.value[token], bias[1])
        self.down, self.residual = _linear(ours.down[token], bias[2]), _linear(ours.residual[token], None)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.gate(x)) * self.value(x)) + self.residual(x)  # type: ignore[no-any-return]


class PlainBlock(nn.Module):
    """Full mixing, then a network per token."""

    def __init__(self, mixing: Any, feed_forward: Any, tokens: int):
        super().__init__()
        self.before, self.after = _norm(mixing.before), _norm(mixing.after)
        self.linear, self.norm = _copied(mixing.linear), _norm(feed_forward.norm)
        self.tokens = nn.ModuleList(PlainToken(feed_forward, token) for token in range(tokens))

    def forward(self, x: Tensor) -> Tensor:
        x = self.after(x + self.linear(self.before(x.flatten(1))).reshape(x.shape))
        x = self.norm(x)
        return torch.stack([network(x[:, t]) for t, network in enumerate(self.tokens)], 1)


class PlainRankElastor(nn.Module):
    """The recipe: chunks of the fields through one perceptron, blocks, a head of two layers."""

    def __init__(self, fields: Sequence[FieldInfo], dim: int, ours: Any):
        super().__init__()
        self.fields, self.chunks = PlainFields(fields, dim), ours.tokenise.tokens
        self.norm, self.up, self.down = (
            _norm(ours.tokenise.norm),
            _copied(ours.tokenise.up),
            _copied(ours.tokenise.down),
        )
        pairs = zip(ours.mixings, ours.feed_forwards, strict=True)
        self.blocks = nn.ModuleList(PlainBlock(mixing, network, self.chunks) for mixing, network in pairs)
        first, last = ours.head.map[0], ours.head.map[2]
        self.head = nn.Sequential(_copied(first), nn.ReLU(), _copied(last))

    def forward(self, batch: Impressions) -> Tensor:
        x = self.norm(self.fields(batch).flatten(1))
        x = self.down(F.relu(self.up(x.reshape(len(x), self.chunks, -1))))
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(1)).squeeze(1)  # type: ignore[no-any-return]


class PlainLoop:
    """Rows in memory, drawn anew each epoch; AdamW as torch offers it; the gradient's norm cut at `clip`."""

    def __init__(self, model: nn.Module, rows: Impressions, *, size: int, lr: float, clip: float):
        self.model, self.rows, self.size, self.clip = model, rows, size, clip
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
        self.order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))

    def step(self, k: int) -> float:
        """One optimizer step on batch k of the epoch; its loss."""
        low = k * self.size % max(1, len(self.order) - self.size + 1)
        return self.learn(_chosen(self.rows, self.order[low : low + self.size]))

    def learn(self, batch: Impressions) -> float:
        assert batch.labels is not None
        loss = F.binary_cross_entropy_with_logits(self.model(batch), batch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss.item()


def plain_of(ours: Any, fields: Sequence[FieldInfo]) -> nn.Module:
    """The plain twin of a click model, with its weights."""
    kind = PlainDCNv2 if isinstance(ours.ranker, DCNv2Ranker) else PlainRankElastor
    made = kind(fields, ours.embedding.spec.dim, ours.ranker)
    made.fields.take(ours.embedding.tables[0].table)
    return made


def _chosen(rows: Impressions, at: Tensor) -> Impressions:
    bags = tuple(type(bag)(bag.ids[at], bag.lengths[at]) for bag in rows.bags)
    labels = None if rows.labels is None else rows.labels[at]
    return Impressions(rows.categorical[at], rows.numeric[at], rows.missing[at], bags, labels)


def _copied(linear: nn.Linear) -> nn.Linear:
    return _linear(linear.weight.T, linear.bias)


@torch.no_grad()
def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with this [inner, outer] matrix."""
    made = nn.Linear(*weight.shape, bias=bias is not None)
    made.weight.copy_(weight.T)
    if bias is not None:
        made.bias.copy_(bias)
    return made


def _norm(norm: Any) -> nn.RMSNorm:
    made = nn.RMSNorm(norm.normalized_shape, eps=norm.eps)
    made.load_state_dict(norm.state_dict())
    return made
