"""The pictures of the documents are there, are shown, and are small."""

from __future__ import annotations

import ast
import struct

from tests.rules.tree import REPO

PICTURES = REPO / "docs" / "netron"
LARGEST = 200 << 10


def scenes() -> dict[str, tuple[int, int]]:
    """Picture and size of the window, as the tool that makes them has them."""
    tree = ast.parse((REPO / "tools" / "make_screenshots.py").read_text())
    (node,) = (
        n.value for n in ast.walk(tree) if isinstance(n, ast.AnnAssign) and n.target.id == "SCENES"
    )
    rows = [[ast.unparse(cell) for cell in row.elts[:4]] for row in node.elts]
    return {ast.literal_eval(row[0]): ast.literal_eval(row[3]) for row in rows}


def test_every_picture_is_made_by_the_tool_and_shown() -> None:
    page = (REPO / "docs" / "netron.md").read_text()
    assert {file.stem for file in PICTURES.iterdir()} == set(scenes())
    for picture in scenes():
        assert f"](netron/{picture}.png)" in page


def test_pictures_are_small_and_whole() -> None:
    for picture, size in scenes().items():
        content = (PICTURES / f"{picture}.png").read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert content.endswith(b"IEND\xaeB`\x82")
        assert struct.unpack(">II", content[16:24]) == size
        assert len(content) < LARGEST
