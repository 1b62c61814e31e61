"""Vectors of moments in the calendar: fields of a date as learned Fourier series (MOJITO, SIGIR 2023).

A moment is seven whole numbers (UTC): year, month, day, weekday, day of the year, week (ISO 8601)
and hour. With x one of them, each of its `width` codes is sum_n a_n sin(n x / 10^p) + b_n cos(n x /
10^p), with p, a and b learned, and the codes of all fields become one vector by a linear map. The
kernel of such codes: Xu et al. 2019 (arXiv:1911.12864).

Differs: a year counts from 1970, other fields from 0, where the authors' code counts from the first
year of the data and from 1: a sine and a cosine of a shifted number are those of the number, mixed.
Codes have no bias of their own beside that of the linear map. Years stop at 2169.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.constraints import Parts, Width
from fullrank.core.spec import Spec
from fullrank.ops.calendar_fields import FIELDS, calendar_fields
from fullrank.ops.starting_values import start_small


class CalendarCodes(Spec):
    """Fourier codes of calendar fields."""

    width: Width = 16
    """Codes of each field."""
    harmonics: Parts = 3
    """Sines and cosines of a code."""
    decades: float = Field(8.0, ge=0, le=30)
    """The longest of a field's first periods is 10 to this power; they start evenly spread between 1 and that."""

    def build(self, dim: int, *, short: bool = False) -> Calendar:
        """`short` vectors start as long as those of items, to which they are added,
        and not several times as long."""
        return Calendar(dim, self, short)


class Calendar(nn.Module):
    """Times -> vectors. The codes of all values that fields can have are made once for each call, and looked up."""

    numbers: Tensor
    offsets: Tensor

    def __init__(self, dim: int, spec: CalendarCodes, short: bool):
        super().__init__()
        sizes = list(FIELDS.values())
        self.sizes = sizes
        self.register_buffer("numbers", torch.cat([torch.arange(n) for n in sizes]).float(), persistent=False)
        self.register_buffer("offsets", torch.tensor([0, *sizes]).cumsum(0)[:-1], persistent=False)
        self.register_buffer("orders", torch.arange(1.0, spec.harmonics + 1), persistent=False)
        self.periods = nn.Parameter(torch.linspace(0, spec.decades, spec.width).repeat(len(sizes), 1))
        self.waves = nn.Parameter(torch.empty(len(sizes), spec.width, 2 * spec.harmonics))
        for wave in self.waves.unbind(0):
            nn.init.xavier_uniform_(wave.data)
        self.joined = nn.Linear(len(sizes) * spec.width, dim)
        start_small(self)
        if short:  # a sum over all codes, of about one each
            self.joined.weight.data /= self.joined.in_features**0.5

    def forward(self, times: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        rows = calendar_fields(times) + self.offsets
        vectors = self._vectors().index_select(0, rows.flatten()).view(*rows.shape, -1)
        return vectors.sum(-2) + self.joined.bias

    def _vectors(self) -> Float[Tensor, "n D"]:
        """The vector that each value of each field adds: its codes through the
        field's part of the linear map."""
        maps = self.joined.weight.T.view(len(self.sizes), -1, self.joined.out_features)
        vectors = []
        for field, numbers in enumerate(self.numbers.split(self.sizes)):
            angles = numbers[:, None, None] / 10.0 ** self.periods[field, :, None] * self.orders
            codes = (torch.cat([angles.sin(), angles.cos()], -1) * self.waves[field]).sum(-1)
            # element by element, since FLOPs count matrix products, as of each row: this
            # is made once for a call
            vectors.append((codes[..., None] * maps[field]).sum(-2))
        return torch.cat(vectors)
