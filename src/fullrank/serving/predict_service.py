"""PredictService: what one process of a ranking model's service holds: click probabilities of rows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from secrets import token_hex

from fullrank.serving.base import BaseService
from fullrank.serving.messages import JsonObject, PredictRequest
from fullrank.serving.prediction import ServedPredictor
from fullrank.serving.requests import check_most

READ_HERE = 200
"""Rows up to which a request is read on the event loop: a thread costs some 0.1 ms."""


class PredictService(BaseService[ServedPredictor]):
    """One process. Its store holds which versions answer, and nothing of anybody."""

    problem = "ranking"

    async def predict(self, asked: PredictRequest, request_id: str | None = None) -> JsonObject:
        """The body of an answer: the probability of each row, in their order. Raises `RowMistakes` and `UserError`."""
        check_most("rows", len(asked.rows), self.settings.rows_most)
        user = None if asked.user is None else str(asked.user)
        model = self.versions.for_user(user) if asked.version is None else self.versions.named(asked.version)
        if len(asked.rows) <= READ_HERE:
            frame = model.rows.frame(asked.rows)
        else:
            frame = await asyncio.to_thread(model.rows.frame, asked.rows)
        with self._span("model"):
            found: list[float] = await self.batcher.submit(model.answer, frame, id(model))
        self.telemetry.rows(len(found))
        return {"request_id": request_id or token_hex(8), "version": model.name, "probabilities": found}

    async def check(self) -> JsonObject:
        answer = await self.predict(PredictRequest(rows=[dict.fromkeys(self.model.rows.fields)]))
        return {"version": answer["version"], "columns": len(self.model.rows.fields)}

    def body_schemas(self) -> JsonObject:
        return {"Row": self.model.rows.schema}

    def _open_model(self, folder: Path) -> ServedPredictor:
        return ServedPredictor.open(folder, folder.name, self.settings)

    def _served(self) -> JsonObject:
        return {"columns": len(self.model.rows.fields)}

    def _card(self, model: ServedPredictor) -> JsonObject:
        return model.card()
