"""What builds the site: links out of docs/, patterns in the navigation, and the check of pages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tools.site.check_pages import faults
from tools.site.hooks import on_config, on_page_markdown


def page(uri: str) -> SimpleNamespace:
    return SimpleNamespace(file=SimpleNamespace(src_uri=uri))


@pytest.mark.parametrize(
    ("uri", "markdown", "expected"),
    [
        ("index.md", "[a](docs/state.md#b)", "[a](state.md#b)"),
        ("index.md", "![a](docs/netron/after.png)", "![a](netron/after.png)"),
        ("index.md", "[`a`](CONTRIBUTING.md)", "[`a`](contributing.md)"),
        ("index.md", "[license](LICENSE)", "license"),
        ("state.md", "[a](../custom_ops/README.md)", "[a](native_library.md)"),
        ("state.md", "[a](README.md#api) [b](#c)", "[a](contents.md#api) [b](#c)"),
        ("api/passes.md", "[a](../passes.md)", "[a](../passes.md)"),
        ("native_library.md", "[a](../docs/passes.md)", "[a](passes.md)"),
        ("examples.md", "[a](cpp/)", "a"),
        ("examples.md", "[a](python/x.py)", "[a](examples/python/x.py)"),
        ("state.md", "```text\n[a](../x.md)\n```", "```text\n[a](../x.md)\n```"),
        ("state.md", "[a](https://b.c/d.md)", "[a](https://b.c/d.md)"),
    ],
)
def test_links_are_those_of_the_site(uri: str, markdown: str, expected: str) -> None:
    assert on_page_markdown(markdown, page(uri)) == expected


def test_a_public_name_gets_its_documentation() -> None:
    markdown = on_page_markdown("## convert\n\n```python\n## convert\n```\n", page("api/x.md"))
    assert markdown.count("::: coreai_onnx.convert\n") == 1
    assert markdown.endswith("```python\n## convert\n```\n")


def test_a_pattern_stands_for_the_other_pages(tmp_path) -> None:
    (tmp_path / "guides").mkdir()
    for name in ("a.md", "b.md", "come_1.md", *(f"guides/{letter}.md" for letter in "abcd")):
        (tmp_path / name).touch()
    (tmp_path / "guides" / "index.md").write_text("* [D](d.md)\n* [B](b.md)\n")
    nav = [{"One": ["b.md", "*.md"]}, {"Two": ["guides/*.md"]}]
    config = on_config(SimpleNamespace(docs_dir=tmp_path, nav=nav))
    assert config.nav == [
        {"One": ["b.md", "a.md", "come_1.md"]},
        {"Two": [f"guides/{name}.md" for name in ("index", "d", "b", "a", "c")]},
    ]


def test_a_pattern_without_pages_is_an_error(tmp_path) -> None:
    (tmp_path / "come_1.md").touch()
    nav = [{"One": ["*.md"]}, {"Two": ["come_*.md"]}]  # "One" takes the page of "Two"
    with pytest.raises(ValueError, match=r"no page is left for come_\*\.md"):
        on_config(SimpleNamespace(docs_dir=tmp_path, nav=nav))


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<a href="b.html#c">', ""),
        ('<a href="https://other.host/x">', ""),
        ('<a href="d.html">', "links to d.html, which is not there"),
        ('<a href="b.html#d">', "links to b.html#d, which has no such anchor"),
        ('<a href="#d">', "links to #d, which has no such anchor"),
        ('<script src="https://cdn.host/x.js"></script>', "loads https://cdn.host/x.js"),
        ('<link rel="stylesheet" href="//fonts.host/x">', "loads //fonts.host/x"),
        ("<style>@import url(https://fonts.host/x)</style>", "loads from another host"),
    ],
)
def test_a_page_is_checked(tmp_path, html: str, fault: str) -> None:
    (tmp_path / "a.html").write_text(html)
    (tmp_path / "b.html").write_text('<p id="c">')
    assert faults(tmp_path) == ([f"a.html {fault}"] if fault else [])
