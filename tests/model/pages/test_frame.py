"""The frame of all HTML pages, and pages of tables."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

from coreai_onnx.model.pages.frame import framed, tables_page


def test_titles_are_text_and_the_policy_allows_what_the_page_has() -> None:
    text = framed("<b>\ud800", "<p>content</p>", styles=("tables.css",))
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


def test_a_page_of_tables_links_to_each_and_has_every_row() -> None:
    rows = [("added", "<i>", "", "1"), ("changed", "b", "1", "2")]
    text = tables_page("t", ("", "name", "before", "after"), {"nodes": rows}, empty="none")
    assert 'Changes: 2 in <a href="#nodes">nodes</a>.' in text
    assert '<h2 id="nodes">nodes (2)</h2>' in text
    assert "<th></th><th>name</th><th>before</th><th>after</th>" in text
    assert '<tr class="added mono"><td>added</td><td>&lt;i&gt;</td>' in text
    assert "<li>none</li></ul></header><main>\n</main>" in tables_page("t", (), {}, empty="none")
