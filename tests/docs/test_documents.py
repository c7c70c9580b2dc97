"""The Python blocks of README and docs run, each document in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import types
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

from coreai_onnx.errors import KernelsNotBuiltError, ToolchainError
from tests.docs import tutorials
from tests.rules.tree import REPO, files

DOCUMENTS = [
    n for n in files() if n == "README.md" or (n.startswith("docs/") and n.endswith(".md"))
]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(REPO / "tests")  # a reader is in the root of the repository
    document = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()]).parse(REPO / name)
    module = types.ModuleType("a_readers_module")  # onnxscript reads the module of a function
    monkeypatch.setitem(sys.modules, module.__name__, module)
    document.namespace = vars(module)
    try:
        for example in document.examples():
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                example.evaluate()
            if name.startswith(tutorials.FOLDER):
                shown = tutorials.OUTPUT.match(document.text, example.region.end)
                tutorials.assert_shown(shown[1] if shown else "", printed.getvalue())
    except (ToolchainError, KernelsNotBuiltError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("", "one\n"),
        ("one\n", "one two\n"),
        ("one\n  ...\ntwo\n", "one\n  more\n"),
        ("[2, 10]", "[2, 11]"),
        ("accuracy 0.95", "accuracy 0.7"),
        ("error 1.0e-07", "error nan"),
    ],
)
def test_another_output_is_noticed(shown: str, printed: str) -> None:
    with pytest.raises(AssertionError):
        tutorials.assert_shown(shown, printed)


def test_the_readme_has_an_example() -> None:
    document = Sybil(parsers=[PythonCodeBlockParser()]).parse(REPO / "README.md")
    assert list(document.examples())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    source = re.sub(r"```.*?```", "", (REPO / name).read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", source)
    missing = [t for t in targets if not (REPO / name).parent.joinpath(t).exists()]
    assert not missing, f"{name} links to nothing: {missing}"
