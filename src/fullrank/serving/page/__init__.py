"""The page at `GET /`: one static file without build step or outside asset, and the headers that it is sent with.

The file holds no secret and no data; what it shows it asks of the same service as any client does. Its policy lets the
browser run nothing but the script and the style of this very file (by their hashes) and speak to no other host.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from fullrank.problem import Problem

FILE = Path(__file__).with_name("index.html")


class Page:
    """The page as it lies in the package, read once, and told which family of models it is about."""

    def __init__(self, problem: Problem = "retrieval", file: Path = FILE):
        self.body = file.read_bytes().replace(b'data-problem="retrieval"', f'data-problem="{problem}"'.encode(), 1)

    @cached_property
    def headers(self) -> dict[str, str]:
        """Headers of the answer; `ETag` changes with the file."""
        text = self.body.decode("utf-8")
        script, style = (
            " ".join(f"'sha256-{_digest(found)}'" for found in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S))
            for tag in ("script", "style")
        )
        policy = (
            f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return {
            "Content-Security-Policy": policy,
            "Cache-Control": "no-cache",
            "ETag": f'"{sha256(self.body).hexdigest()[:16]}"',
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }

    def response(self) -> Any:
        """The answer of a FastAPI (Starlette) route."""
        from starlette.responses import Response

        return Response(self.body, media_type="text/html; charset=utf-8", headers=self.headers)


def _digest(text: str) -> str:
    return b64encode(sha256(text.encode("utf-8")).digest()).decode()
