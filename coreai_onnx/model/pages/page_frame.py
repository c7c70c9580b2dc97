"""The frame of all HTML pages: one file with its styles and scripts, which needs no network.

A content security policy allows these styles and scripts only.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
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
