"""What the generators of documentation pages share: write the page, or compare it."""

from __future__ import annotations

import argparse
from pathlib import Path


def write_or_check(generator: str, page: Path, text: str) -> int:
    """Write a page, or with ``--check`` compare it; return the exit status of the program.

    Args:
        generator: The file of the program, ``__file__``.
        page: The file to write, in ``docs``.
        text: What it must contain.
    """
    name = f"docs/{page.name}"
    parser = argparse.ArgumentParser(description=f"Write {name}.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if not parser.parse_args().check:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.is_file() and page.read_text(encoding="utf-8") == text:
        return 0
    print(f"{name} is stale: run python tools/{Path(generator).name}")
    return 1
