"""Bounds of the numbers in Specs: far above what anybody published, below what a tensor or a loop cannot take.

Every number of a Spec has both bounds (`fullrank.testing.settings.check_bounds` looks), and a list of numbers a largest
length: what a file says reaches memory, loops and optimisers as a number that they can take, or it is refused with a
sentence. Bounds are for each number alone; what a model needs in all is counted before it is built (`core/memory.py`).
Types of what many settings are (`Width`, `DropoutRate`, ...) have their bounds in them: ``dropout: DropoutRate = 0.1``.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MOST_SEED = 2**63 - 1
"""What torch and numpy both take."""
MOST_COUNT = 2**31 - 1
"""Rows, users, items, events, steps of training, buckets of a hash."""
MOST_PARTS = 1024
"""Parts of a model that are made or run one by one: layers, heads, experts, steps of reasoning or of a search."""
MOST_WIDTH = 2**17
"""Numbers in a vector."""
MOST_LENGTH = 2**20
"""Events of a history, tokens of a text, values of a bag."""
MOST_LIST = 10**6
"""Places of a ranked list, items kept by a search, negatives of a query."""
MOST_BINS = 10**5
"""Buckets of a number, bins of a curve, and resamplings behind an interval."""
MOST_EPOCHS = 10**6
"""Passes over the data."""
MOST_ROUNDS = 10**4
"""Rounds of an algorithm that repeats itself until it settles, such as k-means."""
MOST_FACTOR = 1e9
"""Weights of losses, temperatures, norms: squares of it stay finite in float32."""
LEAST_TEMPERATURE = 1e-6
"""Scores are divided by it: above this they stay finite in float32."""
MOST_VALUE = 1e18
"""Values of a column that are compared, either sign."""
MOST_TIME = 10**12
"""Seconds since 1970, either sign: 31,000 years."""
MOST_ENTRIES = 1000
"""Numbers in a list of settings, and settings in a mapping."""

SeedNumber = Annotated[int, Field(ge=0, le=MOST_SEED)]
Parts = Annotated[int, Field(ge=1, le=MOST_PARTS)]
Width = Annotated[int, Field(ge=1, le=MOST_WIDTH)]
Several = Annotated[int, Field(ge=2, le=MOST_PARTS)]
Expansion = Annotated[float, Field(gt=0, le=MOST_PARTS)]
"""Width of a hidden layer as a multiple of another."""
Widths = Annotated[tuple[Width, ...], Field(max_length=MOST_PARTS)]
Names = Annotated[tuple[str, ...], Field(max_length=MOST_ENTRIES)]
Length = Annotated[int, Field(ge=1, le=MOST_LENGTH)]
ListLength = Annotated[int, Field(ge=1, le=MOST_LIST)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
CountFromZero = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
DropoutRate = Annotated[float, Field(ge=0, lt=1)]
Factor = Annotated[float, Field(ge=0, le=MOST_FACTOR)]
"""Weight of a term that 0 leaves out."""
PositiveFactor = Annotated[float, Field(gt=0, le=MOST_FACTOR)]
Temperature = Annotated[float, Field(ge=LEAST_TEMPERATURE, le=MOST_FACTOR)]
Seconds = Annotated[int, Field(ge=-MOST_TIME, le=MOST_TIME)]
