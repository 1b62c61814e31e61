"""Costs: what is measured, and what is made of it."""

from __future__ import annotations

import json

import pytest
from scaling_settings import TINY

from fullrank.data.pack import Store
from fullrank.errors import UserError
from fullrank.scaling import cost as module
from fullrank.scaling.cost import Cost, measure_cost, measure_costs
from fullrank.scaling.grid import Grid
from fullrank.scaling.jobs import Job


def jobs(cells: str, **settings: object) -> list[Job]:
    return Grid.from_text(f"{{cells: {cells}, set: {json.dumps(TINY | settings)}}}").jobs()
