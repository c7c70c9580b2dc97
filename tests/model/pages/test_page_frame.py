"""The frame of HTML pages."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

from coreai_onnx.model.pages.page_frame import framed


def test_titles_are_text_and_the_policy_allows_what_the_page_has() -> None:
    text = framed("<b>\ud800", "<p>content</p>", styles=("diff.css",))
    assert "<title>&lt;b&gt;" in text
    assert text.encode().endswith(b"</script></body></html>\n")
    assert "<body><p>content</p>" in text
    for kind in ("style", "script"):
        (found,) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = b64encode(sha256(found.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in text


def test_every_page_follows_the_theme_of_the_reader() -> None:
    text = framed("t", "", styles=())
    assert "prefers-color-scheme: dark" in text
    assert ':root[data-theme="dark"]' in text
