"""Route of click probabilities, of a service whose run is a ranking model."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from fullrank.serving.messages import PredictRequest
from fullrank.serving.openapi import PredictAnswer
from fullrank.serving.predict_service import PredictService
from fullrank.serving.routes import answer, read, takes


def add(app: FastAPI) -> None:
    app.post("/v1/predict", response_model=PredictAnswer, openapi_extra=takes(PredictRequest), tags=["probabilities"])(
        predict
    )


async def predict(request: Request) -> Response:
    """The click probability of each row."""
    service: PredictService = request.app.state.service
    return answer(await service.predict(await read(request, PredictRequest), request.state.request_id))
