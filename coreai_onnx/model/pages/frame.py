"""The frame of all HTML pages, and pages of tables."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files

from coreai_onnx.messages import printable


def framed(title: str, body: str, *, styles: Sequence[str], scripts: Sequence[str] = ()) -> str:
    """Return a page with the colors and fonts of all pages.

    Args:
        title: Title; text.
        body: Content; markup.
        styles: Names of files in this package, after ``frame.css``.
        scripts: Names of files in this package, after ``theme.js``; they run after the content.
    """
    style = "".join(map(_asset, ("frame.css", *styles)))
    script = "\n".join(map(_asset, ("theme.js", *scripts)))
    # A model may come from anyone: if a name in it passes as markup, it still cannot run a script.
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'"
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(printable(title))}</title><style>{style}</style>"
    )
    content = f"{body}<script>{script}</script>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{content}</body></html>\n'


def _asset(name: str) -> str:
    return (files("coreai_onnx.model.pages") / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the hash by which a content security policy names an inline script or style."""
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


def tables_page(
    title: str, header: Sequence[str], tables: Mapping[str, Sequence[Sequence[str]]], *, empty: str
) -> str:
    """Return a page of tables that have the same header; its first line links to them.

    Args:
        title: Title.
        header: Titles of the columns.
        tables: Rows by name; the first cell of a row is its kind, which gives its color.
        empty: The first line if there are no tables.
    """
    counts = ", ".join(
        f'{len(rows)} in <a href="#{escape(name)}">{escape(name)}</a>'
        for name, rows in tables.items()
    )
    summary = f"Changes: {counts}." if tables else escape(empty)
    parts = [
        f"<header><h1>{escape(printable(title))}</h1>",
        f'<ul class="facts"><li>{summary}</li></ul></header><main>',
    ]
    head = "".join(f"<th>{escape(one)}</th>" for one in header)
    for name, rows in tables.items():
        parts.append(f'<h2 id="{escape(name)}">{escape(name)} ({len(rows)})</h2><table>')
        parts.append(f"<tr>{head}</tr>")
        for row in rows:
            cells = "".join(f"<td>{escape(printable(cell))}</td>" for cell in row)
            parts.append(f'<tr class="{escape(row[0])} mono">{cells}</tr>')
        parts.append("</table>")
    return framed(title, "\n".join([*parts, "</main>"]), styles=("tables.css",))
