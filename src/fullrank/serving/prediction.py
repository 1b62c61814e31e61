"""ServedPredictor: one version of a ranking model's service, opened: what its rows are, and their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from fullrank.data.impressions.encoding import transform
from fullrank.data.impressions.fields import Categorical
from fullrank.data.impressions.vocabulary import Vocabulary
from fullrank.inference.predict import ROWS, predict_batch
from fullrank.inference.predictor import Predictor
from fullrank.run import Run
from fullrank.serving.card import FEW, run_facts
from fullrank.serving.rows import RowReader
from fullrank.serving.settings import ServeSettings


class ServedPredictor:
    """A version: `rows` reads on any thread, `answer` is of the model thread."""

    def __init__(self, run: Run, name: str, predictor: Predictor, longest: int):
        self.run, self.name, self.predictor = run, name, predictor
        self.rows = RowReader(predictor.encoder.schema, longest)

    @classmethod
    def open(cls, folder: str | Path, name: str, settings: ServeSettings) -> ServedPredictor:
        """The run in `folder`. Raises `UserError` for a recommender and for a damaged folder."""
        run = Run.open(folder)
        encoder = run.encoder()  # refuses a recommender
        predictor = Predictor(run.model(encoder), encoder, device=settings.device, name=name)
        return cls(run, name, predictor, settings.history_most)

    @property
    def blank(self) -> pl.DataFrame:
        """One row in which every column is missing."""
        return self.rows.frame([dict.fromkeys(self.rows.fields)])

    def answer(self, frames: Sequence[pl.DataFrame]) -> list[list[float]]:
        """The click probabilities of each table of rows; all go through the model together."""
        found = self.probabilities(pl.concat(frames)).tolist()
        ends = np.cumsum([len(frame) for frame in frames])
        return [found[end - len(frame) : end] for end, frame in zip(ends, frames, strict=True)]

    def probabilities(self, frame: pl.DataFrame) -> Float[np.ndarray, "R"]:
        """The click probabilities of a table. Raises `UserError` where a column holds what the model refuses."""
        model, encoder, device = self.predictor.model, self.predictor.encoder, self.predictor.device
        return np.concatenate([
            predict_batch(model, transform(encoder, part, "the rows"), device) for part in frame.iter_slices(ROWS)
        ])  # fmt: skip

    def card(self) -> dict[str, Any]:
        """What the model is, was trained on, and reads."""
        return {
            **run_facts(self.run, self.name),
            "problem": "ranking",
            "columns": [self._described(name) for name in self.rows.fields],
        }

    def _described(self, name: str) -> dict[str, Any]:
        """A column for a form: `kind`, and the values of a category that has few."""
        field, encoder = self.rows.fields[name], self.predictor.encoder
        found = {"name": name, "kind": field.kind}
        if isinstance(field, Categorical):
            known = encoder.lookup(field)
            if isinstance(known, Vocabulary) and len(known.values) <= FEW:
                return found | {"values": sorted(known.values.to_list())}
        return found
