"""A server that answers with the body it was sent, by the service's own server and framework: what HTTP alone costs."""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI, Request, Response

from fullrank.serving.server import SWITCH, uvicorn_options
from fullrank.serving.settings import ServeSettings


def main() -> None:
    sys.setswitchinterval(SWITCH)
    app = FastAPI(docs_url=None, redoc_url=None)

    @app.post("/echo")
    async def echo(request: Request) -> Response:
        return Response(await request.body(), media_type="application/json")

    @app.get("/readyz")
    async def ready() -> Response:
        return Response(b"{}", media_type="application/json")

    uvicorn.run(app, **uvicorn_options(ServeSettings.parse({"run": "", "port": int(sys.argv[1])})))


if __name__ == "__main__":
    main()
