"""A client of the service: `Client(url).recommend(user="42")`, over urllib3."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import urllib3

from fullrank.core.errors import UserError, brief
from fullrank.core.readers import read_json_text


class Client:
    """Calls of one service. `key` is an API key where it asks for one; threads may share a client."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 10.0):
        """Raises `UserError` for what is no http(s) address, and for a
        key that no header can hold."""
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise UserError(
                f"url={brief(url, 80)} is no address of a service; give one such as http://127.0.0.1:8000",
                code="not-an-address",
            )
        self.url = url.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if key is not None:
            if not (isinstance(key, str) and key.isascii() and key.isprintable()):
                raise UserError(
                    "key= is no API key; `fullrank keys add` makes one of letters and digits", code="not-a-key"
                )
            self._headers["authorization"] = f"Bearer {key}"
        # only what may be sent twice is sent again
        self._pool = urllib3.PoolManager(timeout=timeout, retries=urllib3.Retry(2, redirect=0, backoff_factor=0.2))

    def recommend(self, **request: Any) -> dict[str, Any]:
        """The answer to one request, as `POST /v1/recommend` takes it: user=, history=, k=, exclude=, ..."""
        return self.call("POST", "/v1/recommend", request)

    def recommend_batch(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The answers, or problems, of several requests."""
        return self.call("POST", "/v1/recommend:batch", {"requests": list(requests)})["answers"]

    def predict(self, rows: Sequence[Mapping[str, Any]], **request: Any) -> list[float]:
        """The click probability of each row, of a service whose run is a ranking model."""
        return self.call("POST", "/v1/predict", {"rows": list(rows), **request})["probabilities"]

    def similar(self, item: Any, k: int = 10) -> dict[str, Any]:
        """The k items most like one."""
        return self.call("GET", f"/v1/items/{quote(str(item), safe='')}/similar?k={int(k)}")

    def add_events(self, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Store events: user, item, and event_id or time, so that sending them again stores them once."""
        return self.call("POST", "/v1/events", {"events": list(events)})

    def put_items(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Add or change items."""
        return self.call("POST", "/v1/items", {"items": list(items)})

    def put_user(self, user: Any, features: Mapping[str, Any]) -> dict[str, Any]:
        """Put what the ranker reads of a user."""
        return self.call("PUT", f"/v1/users/{quote(str(user), safe='')}", {"features": dict(features)})

    def history(self, user: Any, limit: int = 100) -> dict[str, Any]:
        """A user's last events."""
        return self.call("GET", f"/v1/users/{quote(str(user), safe='')}/history?limit={int(limit)}")

    def forget(self, user: Any) -> dict[str, Any]:
        """Delete a user's events, features and logged answers."""
        return self.call("DELETE", f"/v1/users/{quote(str(user), safe='')}")

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Any route. Raises `UserError` with the service's own sentence where it refuses, and where it is not there."""
        try:
            data = None if body is None else json.dumps(body)
            response = self._pool.request(method, self.url + path, body=data, headers=self._headers)
        except urllib3.exceptions.HTTPError as error:
            reason = str(getattr(error, "reason", error)).rpartition(": ")[2]
            raise UserError(
                f"no answer from {self.url} ({reason}): is the service running (`fullrank serve RUN`)?",
                code="service-unreachable",
            ) from None
        try:
            tree = read_json_text(response.data)
        except UserError:
            raise UserError(
                f"{self.url}{path} answered with status {response.status} and no JSON; is it a fullrank service?",
                code="not-a-service",
            ) from None
        if response.status >= 400:
            said = tree if isinstance(tree, dict) else {}
            raise UserError(
                f"the service refused ({response.status}): {said.get('detail', 'it says no reason')}",
                code=str(said.get("code", "service-refused")),
            )
        return tree
