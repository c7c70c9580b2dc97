"""Hooks of mkdocs: pages outside docs/, patterns in the navigation, and the API reference.

The pages stay as GitHub shows them. A page of ``docs/api`` has one section for each public name
with an example; here its heading is replaced by the signature and the docstring.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "docs/examples/README.md": "examples.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "custom_ops/README.md": "native_library.md",
}
"""Pages that are not in docs/, or not where the site has them, and their place on the site.

A page named README would become the index of its section in the navigation."""
PACKAGES = (
    "coreai_onnx",
    "coreai_onnx.composites",
    "coreai_onnx.debugging",
    "coreai_onnx.delegation",
    "coreai_onnx.huggingface",
    "coreai_onnx.huggingface.generation",
    "coreai_onnx.passes",
    "coreai_onnx.quantization",
    "coreai_onnx.runtime",
    "coreai_onnx.runtime.memory",
    "coreai_onnx.scale",
)
"""Packages whose ``__all__`` is public; a name belongs to the first that has it."""

_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(
    r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)"
)
NAME = re.compile(r"^## ([\w.\\]+)$", re.MULTILINE)
"""The heading of a public name, or of a module."""


def on_config(config: Any) -> Any:
    """Replace the patterns of the navigation by pages."""
    docs = Path(config.docs_dir)
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    _expand(config.nav, pages - _named(config.nav), docs)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/, and the style sheet."""
    from mkdocs.structure.files import File  # the tests import this file without mkdocs

    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    style = Path(__file__).with_name("site.css")
    files.append(File.generated(config, style.name, abs_src_path=str(style)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write links as the site has them, and documentation below names."""
    uri = page.file.src_uri
    source = next((s for s, p in OUTSIDE.items() if p == uri), f"docs/{uri}")
    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(lambda m: _link(m, source, uri), text) for text in parts[::2]]
    if uri.startswith("api/"):
        parts[::2] = [NAME.sub(_documented, text) for text in parts[::2]]
    return "".join(parts)


def public_names() -> dict[str, str]:
    """Return the public names and the package that has each."""
    names: dict[str, str] = {}
    for package in PACKAGES:
        folder = ROOT.joinpath(*package.split("."))
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                for name in ast.literal_eval(node.value):
                    names.setdefault(name, package)
    return names


def _named(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return {
        name for entry in (nav.values() if isinstance(nav, dict) else nav) for name in _named(entry)
    }


def _expand(nav: Any, pages: set[str], docs: Path) -> None:
    """Replace patterns in a list of entries.

    Raises:
        ValueError: If no page matches a pattern.
    """
    for entry in list(nav):
        if isinstance(entry, dict):
            for inner in entry.values():
                if isinstance(inner, list):
                    _expand(inner, pages, docs)
        elif "*" in entry:
            pattern = re.compile(entry.replace(".", r"\.").replace("*", "[^/]*"))
            found = [page for page in pages if pattern.fullmatch(page)]
            if not found:
                raise ValueError(f"navigation: no page is left for {entry}")
            found.sort(key=functools.partial(_place, _index((docs / entry).parent)))
            pages.difference_update(found)
            nav[nav.index(entry) : nav.index(entry) + 1] = found


def _index(folder: Path) -> str:
    """Return the page that lists the pages of a folder, if there is one."""
    index = folder / "index.md"
    return index.read_text("utf-8") if index.is_file() else ""


def _place(index: str, page: str) -> tuple[bool, int, str]:
    """Return a key that sorts the index first, then pages as it links them, then the others."""
    name = page.rpartition("/")[2]
    position = index.find(f"]({name})")
    return name != "index.md", position if position >= 0 else len(index), page


def _link(match: re.Match[str], source: str, uri: str) -> str:
    """Return a link from one page to another; only the text if the target is not on the site."""
    picture, text, path, anchor = match.groups()
    target = os.path.normpath(Path(source).parent / path)
    place = OUTSIDE.get(target) or (
        target.removeprefix("docs/") if target.startswith("docs/") else ""
    )
    if not place or (ROOT / target).is_dir():
        return text
    relative = os.path.relpath(place, Path(uri).parent)
    return f"{picture}[{text}]({relative}{anchor or ''})"


def _documented(match: re.Match[str]) -> str:
    """Return what mkdocstrings replaces by the documentation, below the anchor of the heading."""
    name = match[1].replace("\\", "")
    if "." in name:
        return f"::: {name}\n    options: {{show_root_heading: false, show_root_toc_entry: false}}"
    return f'<a id="{name.lower()}"></a>\n\n::: {public_names()[name]}.{name}\n\n**Example**'
