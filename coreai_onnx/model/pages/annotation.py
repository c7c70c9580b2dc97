"""The user's lines of Python with numbers beside them.

The text of the lines is in the file of the model; the files of the source are not needed. With
them, the lines between are shown too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coreai_onnx.messages import printable

_AROUND = 2
"""Lines that are shown before and after a line with numbers."""


def annotated(
    lines: Mapping[str, Sequence[str]],
    header: Sequence[str],
    code: Mapping[str, str],
    folder: Path | None = None,
) -> str:
    """Return lines of Python with cells before them, file by file.

    Args:
        lines: The cells of each line, by ``model.py:41``.
        header: Titles of the cells.
        code: The text of the lines that the model knows, by ``model.py:41``.
        folder: Where the files are; None to show the lines of the model only. A file whose lines
            differ from those of the model is not shown, and no file outside of the folder is read.
    """
    files: dict[str, set[int]] = {}
    for source in (*lines, *code):
        file, _, digits = source.rpartition(":")
        # Metadata may hold anything: int() refuses a text of thousands of digits.
        if file and digits.isascii() and digits.isdecimal() and len(digits) < 9:
            files.setdefault(file, set()).add(int(digits))
    widths = [
        max(len(title), *(len(cells[i]) for cells in lines.values())) if lines else len(title)
        for i, title in enumerate(header)
    ]
    parts = [_row(header, widths, "line", "code")]
    for file, numbers in sorted(files.items()):
        texts = {n: code.get(f"{file}:{n}", "") for n in numbers}
        text = _text(file, texts, folder)
        marked = {n for n in numbers if f"{file}:{n}" in lines}
        parts += ["", printable(file)]
        before = 0
        for number in _shown(marked, text, set(texts)):
            if before and number > before + 1:
                parts.append(_row([""] * len(header), widths, "", "…"))
            before = number
            cells = lines.get(f"{file}:{number}", [""] * len(header))
            parts.append(_row(cells, widths, str(number), text.get(number, texts.get(number, ""))))
    return "\n".join(parts)


def _row(cells: Sequence[str], widths: Sequence[int], number: str, code: str) -> str:
    left = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return f"{left}  {number:>5}  {printable(code)}".rstrip()


def _shown(marked: set[int], text: Mapping[int, str], numbers: set[int]) -> Iterator[int]:
    """Yield the numbers of the lines to show: those near a marked one, or all that are known."""
    if not text:
        yield from sorted(numbers)
        return
    near = {n + by for n in marked for by in range(-_AROUND, _AROUND + 1)}
    yield from (number for number in sorted(near | numbers) if number in text)


def _text(file: str, lines: Mapping[int, str], folder: Path | None) -> dict[int, str]:
    """Return the lines of a file; empty if it is missing or differs from the model's lines."""
    if folder is None:
        return {}
    try:
        root = folder.resolve()
        path = (root / file).resolve()
        # A model may come from anyone, and name any file.
        if not path.is_relative_to(root) or not path.is_file():
            return {}
        text = dict(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    except (OSError, ValueError):  # a name that no file can have, or no text
        return {}
    same = all(text.get(n, "").strip().startswith(line.strip()) for n, line in lines.items())
    return text if same else {}
