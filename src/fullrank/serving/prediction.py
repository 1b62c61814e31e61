"""ServedPredictor: one version of a ranking model's service, opened: reads rows, and gives their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float

from fullrank.core.errors import in_context
from fullrank.data.impressions.encoding import transform
from fullrank.inference.predict import ROWS, predict_batch
from fullrank.inference.predictor import Predictor
from fullrank.run import Run
from fullrank.serving.card import field_facts, run_facts
from fullrank.serving.messages import JsonObject
from fullrank.serving.rows import RowReader
from fullrank.serving.settings import ServeSettings


class ServedPredictor:
    """A version: `rows` reads on any thread, `answer` is of the model thread."""

    def __init__(self, run: Run, predictor: Predictor, longest: int):
        self.run, self.name, self.predictor = run, run.path.name, predictor
        self.rows = RowReader(predictor.encoder.schema.declared, longest)

    @classmethod
    def open(cls, folder: str | Path, settings: ServeSettings) -> ServedPredictor:
        """The run in `folder`. Raises `UserError` for a recommender and for a damaged folder."""
        run = Run.open(folder)
        encoder = run.encoder()  # refuses a recommender
        predictor = Predictor(run.model(encoder), encoder, device=settings.device, name=run.path.name)
        return cls(run, predictor, settings.history_most)

    @property
    def blank(self) -> pl.DataFrame:
        """One row in which every column is missing."""
        return self.rows.frame([dict.fromkeys(self.rows.fields)])

    def answer(self, frames: Sequence[pl.DataFrame]) -> list[list[float]]:
        """The click probabilities of each table of rows; all go through the model together."""
        probabilities = self.probabilities(pl.concat(frames)).tolist()
        ends = np.cumsum([len(frame) for frame in frames])
        return [probabilities[end - len(frame) : end] for end, frame in zip(ends, frames, strict=True)]

    def probabilities(self, frame: pl.DataFrame) -> Float[np.ndarray, "R"]:
        """The click probabilities of a table. Raises `UserError` where a column holds what the model refuses."""
        model, encoder = self.predictor.model, self.predictor.encoder
        with in_context("", public=True):
            batches = [transform(encoder, part, "the rows") for part in frame.iter_slices(ROWS)]
        return np.concatenate([predict_batch(model, batch) for batch in batches])

    def card(self) -> JsonObject:
        """The card of the version: facts of its run, and the columns that it reads."""
        return {
            **run_facts(self.run),
            "problem": "ranking",
            "columns": [field_facts(field, self.predictor.encoder) for field in self.rows.fields.values()],
        }
