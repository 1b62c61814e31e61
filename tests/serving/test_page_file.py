"""The page as a file: small, whole, with a policy that lets it speak to its own service alone."""

import re
from base64 import b64encode
from hashlib import sha256

from fullrank.serving.page import FILE, Page

TEXT = FILE.read_text(encoding="utf-8")
MOST = 60_000


def test_it_is_small_and_needs_nothing_else() -> None:
    assert len(TEXT.encode()) < MOST
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=\"?(https?:)?//", TEXT)
    assert re.findall(r"https?://[^\s'\"]+", TEXT) and set(re.findall(r"https?://[^\s'\"]+", TEXT)) == {
        "http://www.w3.org/2000/svg"
    }
    assert "@import" not in TEXT and "url(" not in TEXT and "eval(" not in TEXT


def test_no_markup_is_made_of_text() -> None:
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"):
        assert way not in TEXT, f"{way} would let a title bring markup"
    assert not re.search(r"<[a-z]+[^>]*\s(style|on[a-z]+)=", TEXT.split("<script>")[0]), "the policy refuses these"


def test_the_policy_names_the_script_and_the_style_by_their_hashes() -> None:
    policy = Page().policy
    assert "unsafe" not in policy and "default-src 'none'" in policy and "connect-src 'self'" in policy
    for tag in ("script", "style"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", TEXT, re.S)
        digest = b64encode(sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_it_is_sent_as_it_lies() -> None:
    page = Page()
    assert page.body == FILE.read_bytes() and page.etag.startswith('"') and page.etag != Page("ranking").etag
