"""A service that answers as `fullrank serve` does, without a model: what the page is driven against.

It has everything that a service may have at once (two versions, a ranker, a reasoner, columns of every kind), and
switches (`Fake`) for what it may lack. Numbers follow from the ids alone.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from fullrank.serving.routes import Page

TITLES = [
    "Rose hand cream, 50 ml", "Rose water toner", "Shea butter hand balm with almond oil", "Lip balm, honey",
    "Night cream with retinol", "Clay mask, green", "Sun milk SPF 50", "Micellar water, 400 ml", "Bamboo hair brush",
    "Argan oil shampoo", "Coconut conditioner", "Nail polish, deep red", "Eyeliner pen, black", "Volume mascara",
    "Vitamin C serum", "Hyaluronic acid booster", "Aloe vera gel", "Tea tree face wash", "Beard oil, cedar",
    "Shaving soap in a wooden bowl", "Make-up sponge &amp; case &#9733; &lt;i&gt; &unknown;",
    "Cotton pads, 120", "Perfume, bergamot and cedar",
    "A very long title that goes on and on: intensive overnight repair treatment for dry and stressed hair with nine "
    "precious oils, wheat protein and a comb, gift box of three", "Dry shampoo", "Foot cream with urea",
    "Hostile <img src=x onerror=\"document.title='owned'\"> & <b>bold</b>", "Bath salt, lavender",
]  # fmt: skip
BANDS = ("head", "middle", "tail")
COLUMNS = [
    {"name": "title", "kind": "text"},
    {"name": "in_stock", "kind": "bool"},
    {"name": "category", "kind": "category", "values": ["body", "face", "hair"]},
    {"name": "price", "kind": "number", "min": 1.5, "max": 60.0},
    {"name": "brand", "kind": "text"},
]
FEATURES = {
    "event": [{"name": "rating", "kind": "categorical", "values": ["1", "2", "3"]}, {"name": "gap", "kind": "time"}],
    "request": [
        {"name": "device", "kind": "categorical", "values": ["desk", "phone"]},
        {"name": "hour", "kind": "time"},
    ],
    "user": [{"name": "age", "kind": "numeric"}, {"name": "interests", "kind": "bag"}],
}


@dataclass
class Fake:
    """What the service does and has heard."""

    key: str | None = None
    rich: bool = True
    """Whether the model has attention, vectors, a reasoner, a ranker, columns and a second version."""
    fails: str | None = None
    """A problem's detail that every recommendation answers with."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of POST /v1/recommend."""
    delay: float = 0.0


def build(fake: Fake) -> FastAPI:
    app, page = FastAPI(docs_url=None, redoc_url=None), Page()

    def described(at: int) -> dict:
        return {"item": f"i{at}", "title": TITLES[at], "popularity": BANDS[at % 3], "columns": {}}

    def number(item) -> int:
        text = str(item).removeprefix("i")
        return int(text) if text.isdecimal() and int(text) < len(TITLES) else -1

    def problem(status: int, detail: str, code: str) -> JSONResponse:
        tree = {"type": "about:blank", "title": code, "status": status, "detail": detail, "code": code}
        return JSONResponse(tree, status, media_type="application/problem+json")

    @app.middleware("http")
    async def keys(request: Request, call_next):
        if fake.key is not None and request.url.path.startswith("/v1/"):
            if request.headers.get("authorization") != f"Bearer {fake.key}":
                return problem(401, "a key is needed", "key-needed")
        return await call_next(request)

    @app.get("/")
    def root():
        safe = {"content-security-policy": page.policy, "x-content-type-options": "nosniff"}
        return Response(page.body, media_type="text/html; charset=utf-8", headers=safe)

    @app.get("/v1/versions")
    def versions():
        names = ["monday", "tuesday"] if fake.rich else ["monday"]
        return {"active": "monday", "split": {"monday": 1.0}, "versions": [{"name": one} for one in names]}

    @app.get("/v1/model")
    def model(version: str = "monday"):
        return card(version, fake.rich)

    @app.get("/v1/items")
    def items(query: str = "", limit: int = 20):
        words = query.lower().split()
        found = [at for at, title in enumerate(TITLES) if all(word in title.lower() for word in words)]
        return {"items": [described(at) for at in found[:limit]]}

    @app.get("/v1/items/{item}")
    def item(item: str):
        at = number(item)
        return problem(404, f"there is no item {item!r}", "unknown-item") if at < 0 else described(at)

    @app.get("/v1/users/{user}/history")
    def history(user: str, limit: int = 100):
        own = [3, 8, 14] if user == "42" else []
        told = {8: {"features": {"rating": 2}}}
        events = [{"item": f"i{at}", "time": 0.0, "title": TITLES[at]} | told.get(at, {}) for at in own]
        return {"user": user, "events": events}

    @app.post("/v1/recommend")
    async def recommend(request: Request):
        asked = await request.json()
        fake.asked.append(asked)
        if fake.delay:
            time.sleep(fake.delay)
        if fake.fails is not None:
            return problem(422, fake.fails, "made-up")
        events = [one["item"] if isinstance(one, dict) else one for one in asked["history"]]
        own = [at for at in map(number, events) if at >= 0]
        told = asked.get("features") or {}
        seed = sum((n + 1) * at for n, at in enumerate(own)) + len(asked.get("version") or "") + len(told)
        order = sorted(range(len(TITLES)), key=lambda at: (at * 37 + seed * 11) % 101)
        order = [at for at in order if asked["seen"] == "keep" or at not in own]
        if (asked.get("filters") or {}).get("category") == ["hair"]:
            order = order[:3]
        shown = [
            {**described(at), "score": 9.5 - n / 3}
            | ({"because": alike(at, own), "moved": {f"request.{name}": 0.25 for name in told}} if fake.rich else {})
            for n, at in enumerate(order[: asked["k"]])
        ]
        answer = {"request_id": "r", "version": asked.get("version") or "monday", "items": shown}
        answer |= {"source": "model" if own else "popular", "ranked": fake.rich and asked.get("ranker", True)}
        if fake.rich and own:
            answer["attention"] = attention(own)
        return answer

    return app


def alike(at: int, own: list) -> list:
    found = [{"item": f"i{one}", "title": TITLES[one], "similarity": 0.9 - (at + one) % 7 / 10} for one in own[-3:]]
    return sorted(found, key=lambda one: -one["similarity"])


def attention(own: list) -> list:
    total = sum(range(1, len(own) + 1))
    return [
        {"item": f"i{at}", "title": TITLES[at], "shares": [(n + 1) / total, 1 / len(own)]} for n, at in enumerate(own)
    ]


def card(version: str, rich: bool) -> dict:
    found = {
        "version": version, "recipe": "plr" if rich else "popularity", "kind": "recommender", "parameters": 1_600_000,
        "items": len(TITLES), "dim": 64, "layers": 2, "max_length": 50,
        "data": {"name": "beauty", "fingerprint": "e245d8107bf9", "users": 22332, "items": 28, "events": 198215},
        "trained": "2026-11-23T01:41:25+00:00", "validation": {"metric": "ndcg@10", "value": 0.0571, "epoch": 9},
        "reasoning": {"steps": 2, "most_steps": 4, "streams": 3} if rich else None, "has_ranker": rich,
        "ranker": {"recipe": "rankmixer", "parameters": 900_000} if rich else None, "columns": COLUMNS if rich else [],
        **({"features": FEATURES} if rich else {}),
        "collapse": {"reading": "This model has no item vectors, so there is no spectrum to look at."},
        "fairness": {"reading": "No histories were at hand."},
    }  # fmt: skip
    if rich:
        bands = [
            {"band": "head", "items": 0.05, "events": 0.33, "shown": 0.42},
            {"band": "middle", "items": 0.21, "events": 0.33, "shown": 0.35},
            {"band": "tail", "items": 0.74, "events": 0.34, "shown": 0.23},
        ]
        found["collapse"] = {
            "vectors": 28, "directions": 64, "effective_rank": 57.4, "stable_rank": 14.2, "first_share": 0.07,
            "popularity_correlation": 0.3, "spectrum": [[n, 1 / n**0.5] for n in range(1, 65)],
            "reading": "They count as 57 of 64 directions: nothing collapsed.",
        }  # fmt: skip
        found["fairness"] = {
            "source": "sample", "histories": 256, "places": 10, "bands": bands, "different_items": 28,
            "reading": "Popular items are shown more often than people choose them.",
        }  # fmt: skip
    return found
