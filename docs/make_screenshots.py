"""Takes the pictures of the service's page: ``python docs/make_screenshots.py runs/sasrec`` (or ``--url URL``), and of
a report: ``python docs/make_screenshots.py --report report.html``.

A run on amazon-beauty is served on a free port, its page is opened in a Chromium that is there already (on the path, or
named by FULLRANK_CHROMIUM) at three sizes and colours, and what it shows is written to docs/images. The report in the
docs is of runs on a generated marketplace, `fullrank demo` makes such ones.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

OUT = Path(__file__).parent / "images"
SOUGHT = ("cuticle oil", "natural nail base coat", "opi nail lacquer", "seche vite top coat", "sable nail art brushes")
"""Titles of the history: the first item that is found for each."""
MOST = 200_000
"""Bytes of a picture."""
PICTURES: dict[str, dict[str, Any]] = {
    "serve_page_light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 1000}},
    "serve_page_dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 1000}},
    "serve_page_phone": {"color_scheme": "light", "viewport": {"width": 375, "height": 812}, "device_scale_factor": 2},
}
REPORT: dict[str, dict[str, Any]] = {
    "report_page_light": {"color_scheme": "light", "viewport": {"width": 1200, "height": 2300}},
    "report_page_dark": {"color_scheme": "dark", "viewport": {"width": 1200, "height": 1400}},
    "report_page_wide": {"color_scheme": "light", "viewport": {"width": 1600, "height": 1000}},
    "report_page_phone": {"color_scheme": "light", "viewport": {"width": 500, "height": 1500}},
}
"""Pictures of a report: what stands at its top."""


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("run", nargs="?", help="a run folder, which is served for as long as this takes")
    words.add_argument("--url", help="a service that runs already")
    words.add_argument("--compare", help="a version of that service that stands beside the first in the dark picture")
    words.add_argument("--report", type=Path, help="a page of `fullrank report`")
    words.add_argument("--out", type=Path, default=OUT)
    given = words.parse_args()
    if given.report is not None:
        take_report(given.report, given.out)
        return
    if (given.run is None) == (given.url is None):
        words.error("name a run, or the --url of a service")
    if given.url is not None:
        take(given.url.rstrip("/") + "/", given.out, given.compare)
        return
    with served(given.run) as url:
        take(url, given.out, given.compare)


@contextmanager
def served(run: str) -> Iterator[str]:
    """The address of a service of a run, with a store of its own that is thrown away."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as place:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        words = ["serve", run, "--port", str(port), "--store", str(Path(place) / "events.sqlite")]
        process = subprocess.Popen([sys.executable, "-m", "fullrank", *words])
        url = f"http://127.0.0.1:{port}/"
        try:
            for _ in range(600):
                try:
                    urlopen(url + "readyz", timeout=1).close()
                    break
                except OSError:
                    if process.poll() is not None:
                        raise SystemExit(f"fullrank serve {run} ended with status {process.returncode}") from None
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def take(url: str, out: Path, compare: str | None = None) -> None:
    """Write the three pictures of the page at this address."""
    from playwright.sync_api import sync_playwright

    found = [_first(url, words) for words in SOUGHT]
    fragment = "#h=" + ",".join(quote(str(one), safe="") for one in found if one is not None)
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = _browser(driver)
        for name, how in PICTURES.items():
            page = browser.new_page(**how)
            beside = f"&k=5&b={quote(compare, safe='')}" if compare and name.endswith("dark") else "&k=6"
            page.goto(url + fragment + beside)
            page.wait_for_selector("#lists[aria-busy=false]")
            page.wait_for_selector("#cards .soft")
            page.wait_for_timeout(2500)  # titles, and figures of the card that are computed in the background
            phone = name.endswith("phone")
            if phone:  # a phone shows a part: the list
                page.evaluate("document.getElementById('results').scrollIntoView()")
            picture = out / f"{name}.png"
            picture.write_bytes(smaller(page.screenshot(full_page=not phone)))
            print(f"{picture} ({picture.stat().st_size:,} bytes)")
            page.close()
        browser.close()


def take_report(page_file: Path, out: Path) -> None:
    """Write the pictures of the top of a report."""
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = _browser(driver)
        for name, how in REPORT.items():
            page = browser.new_page(**how)
            page.goto(page_file.resolve().as_uri())
            picture = out / f"{name}.png"
            picture.write_bytes(smaller(page.screenshot()))
            print(f"{picture} ({picture.stat().st_size:,} bytes)")
            page.close()
        browser.close()


def _browser(driver: Any) -> Any:
    """A Chromium that is there already."""
    program = os.environ.get("FULLRANK_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    return driver.chromium.launch(executable_path=program, args=["--no-sandbox"] if root else [])


def _first(url: str, words: str) -> Any:
    """The id of the first item that is found by its title; None where there is none."""
    with urlopen(f"{url}v1/items?limit=1&query={quote(words)}", timeout=30) as answer:
        found = json.load(answer)["items"]
    return found[0]["item"] if found else None


def smaller(png: bytes) -> bytes:
    """The picture in as many colours as fit into `MOST` bytes (a page of text needs few)."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32, 16):
        made = io.BytesIO()
        picture.quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
        if made.tell() < MOST:
            break
    return made.getvalue()


if __name__ == "__main__":
    main()
