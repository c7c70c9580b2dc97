"""Every public name has a section with an example in docs/api, which test_documents runs."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from importlib import import_module

import pytest

import coreai_onnx
from tests.rules.tree import REPO
from tools.site.hooks import NAME, PACKAGES, public_names

MARKED_DEPRECATED = {"recognised"}
"""Methods that warn: nobody should copy them."""
PAGES = sorted((REPO / "docs" / "api").glob("*.md"))


def sections() -> dict[str, str]:
    """Return the code of each section of docs/api by its heading."""
    found: dict[str, str] = {}
    for page in PAGES:
        _, *parts = NAME.split(page.read_text())
        for heading, body in zip(parts[::2], parts[1::2], strict=True):
            blocks = re.findall(r"^```python\n(.*?)^```", body, re.DOTALL | re.MULTILINE)
            found[heading.replace("\\", "")] = "\n".join(blocks)
    return found


EXAMPLES = sections()


@pytest.mark.parametrize("name", public_names())
def test_a_public_name_has_an_example(name: str) -> None:
    assert re.search(rf"\b{name}\b", EXAMPLES.get(name, "")), f"docs/api has no example of {name}"


def test_the_names_are_those_that_packages_have() -> None:
    """The site reads ``__all__`` without importing."""
    imported = {name for package in PACKAGES for name in import_module(package).__all__}
    assert set(public_names()) == imported


def test_sections_are_about_public_names_and_about_each_once() -> None:
    headings = [h for page in PAGES for h in NAME.findall(page.read_text())]
    assert not [h for h, count in Counter(headings).items() if count > 1]
    modules = {heading for heading in EXAMPLES if "." in heading}
    assert set(EXAMPLES) - modules == set(public_names())
    for module in modules:
        import_module(module)


@pytest.mark.parametrize(
    "name", [n for n in coreai_onnx.__all__ if inspect.isclass(getattr(coreai_onnx, n))]
)
def test_an_example_of_a_class_has_its_methods(name: str) -> None:
    if name == "ExportedKernel":  # the earlier name of ExportedModel
        return
    value = getattr(coreai_onnx, name)
    defined = inspect.getmembers(value, lambda m: inspect.isroutine(m) or isinstance(m, property))
    methods = {method for method, _ in defined if not method.startswith("_")} - MARKED_DEPRECATED
    missing = {m for m in methods if not re.search(rf"\b{m}\b", EXAMPLES[name])}
    assert not missing, f"the example of {name} does not show {sorted(missing)}"
