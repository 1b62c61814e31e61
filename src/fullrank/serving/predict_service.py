"""PredictService: what one process of a ranking model's service holds: click probabilities of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

from fullrank.serving.base import BaseService
from fullrank.serving.messages import PredictRequest
from fullrank.serving.prediction import ServedPredictor
from fullrank.serving.requests import check_most
from fullrank.serving.stores import Document

READ_HERE = 200
"""Rows up to which a request is read on the event loop: a thread costs some 0.1 ms."""


class PredictService(BaseService[ServedPredictor]):
    """One process. Its store holds which versions answer, and nothing of anybody."""

    problem = "ranking"

    async def predict(self, asked: PredictRequest, request_id: str | None = None) -> dict[str, Any]:
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

    async def check(self) -> dict[str, Any]:
        answer = await self.predict(PredictRequest(rows=[dict.fromkeys(self.model.rows.fields)]))
        return {"version": answer["version"], "columns": len(self.model.rows.fields)}

    def body_schemas(self) -> dict[str, Any]:
        return {"Row": self.model.rows.schema}

    def _open_model(self, folder: Path) -> ServedPredictor:
        return ServedPredictor.open(folder, folder.name, self.settings)

    def _adopt(self, model: ServedPredictor) -> None:
        """A version reads nothing that changes."""

    def _keep(self, documents: Sequence[Document]) -> None:
        """Versions keep what they need of these."""

    async def _take_in(self) -> None:
        for document in await self.store.documents(self._sequence):
            self.versions.follow(document)
            self._sequence = document.sequence

    def _opened(self) -> None:
        """Nothing is written beside answers."""

    async def _flush(self) -> None:
        """Nothing is kept back."""

    def _served(self) -> dict[str, Any]:
        return {"columns": len(self.model.rows.fields)}

    def _count(self) -> None:
        """No gauge."""

    def _card(self, model: ServedPredictor) -> dict[str, Any]:
        return model.card()

    def _changing_card(self, model: ServedPredictor) -> dict[str, Any]:
        return {}
