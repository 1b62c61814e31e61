"""The page at `GET /`: one static file without build step or outside asset, and the headers that it is sent with.

The file holds no secret and no data; what it shows it asks of the same service as any client does. Its policy lets the
browser run nothing but the script and the style of this very file (by their hashes) and speak to no other host.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from fullrank.core.registry import Problem

FILE = Path(__file__).with_name("index.html")


class Page:
    """The page as it lies in the package, read once, and told which family of models it is about.

    `etag` changes with the file; `policy` is its Content-Security-Policy.
    """

    def __init__(self, problem: Problem = "retrieval", file: Path = FILE):
        self.body = file.read_bytes().replace(b'data-problem="retrieval"', f'data-problem="{problem}"'.encode(), 1)
        self.etag = f'"{sha256(self.body).hexdigest()[:16]}"'
        script, style = (
            " ".join(
                f"'sha256-{b64encode(sha256(code).digest()).decode()}'" for code in re.findall(tag, self.body, re.S)
            )
            for tag in (b"<script>(.*?)</script>", b"<style>(.*?)</style>")
        )
        self.policy = (
            f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
