"""The programs of docs/tutorials/deploying.md, written and run as a reader would."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tests.examples import apps

PAGE = (apps.REPO / "docs" / "tutorials" / "deploying.md").read_text(encoding="utf-8")
FILE = re.compile(r"```(?:cpp|js|html)\n(?://|<!--) (\w+\.\w+)(?: -->)?\n(.*?)```", re.DOTALL)
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
NUMBERS = "-1.329, -0.388, 0.774"


def section(title: str) -> str:
    """Return the text below a heading."""
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    return found


def make_model(folder: Path) -> Path:
    """Run the first block of the page and return the file it writes."""
    (source,) = re.findall(r"```python\n(.*?)```", section("The file"), re.DOTALL)
    printed = apps.run([sys.executable, "-c", source], folder, PYTHONPATH=str(apps.REPO))
    assert printed == f"[{NUMBERS}]\n"
    return folder / "encoder.onnx"


def begin(title: str, folder: Path, model: Path) -> None:
    """Put the model and the files of a section, whose first lines have their names, in a folder."""
    shutil.copy(model, folder)
    for name, source in FILE.findall(section(title)):
        (folder / name).write_text(source, encoding="utf-8")


def run_commands(title: str, folder: Path, **environment: str) -> None:
    """Run the commands of a section but a server, and compare what they print."""
    for block in CONSOLE.findall(section(title)):
        for command in block.removeprefix("$ ").split("\n$ "):
            line, _, shown = command.strip().partition("\n")
            if "http.server" not in line:
                printed = apps.run(["bash", "-c", line], folder, **environment).strip()
                assert shown in (printed, "...")
