"""A model as one Python file that needs no other: the code that builds it comes first."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from coreai_onnx.files.new_files import all_or_nothing
from coreai_onnx.files.saving import write_text
from coreai_onnx.source import builder
from coreai_onnx.source.model_text import ModelText
from coreai_onnx.source.weights_file import write_weights

_ORDER = ("errors tensors schemas weights attributes names tracing checking functions model "
          "saving running").split()  # fmt: skip
"""Files of the builder, each after those that it imports."""
_TITLE = '"""An ONNX model as Python; the model begins at the line MODEL."""'
_MARK = "# " + "-" * 70 + " MODEL"


def single_file(model: ir.Model) -> tuple[str, ModelText]:
    """Return one Python file with a function ``call(...)`` that runs a model.

    Returns:
        The file, and the parts of the model: its large weights are not in the file.
    """
    imports: dict[str, None] = {}
    parts = []
    names: set[str] = set()
    folder = Path(builder.__file__).parent
    for name in _ORDER:
        source = (folder / f"{name}.py").read_text("utf-8")
        tree = ast.parse(source)
        names |= set(_defined(tree))
        parts.append(_without_imports(source, tree, imports))
    text = ModelText(model, reserved=names)
    lines = text.lines("", {"weights": "weights.safetensors", "names": "names.json"})
    tree = ast.parse("\n".join(lines))
    body = _without_imports("\n".join(lines), tree, imports)
    head = [_TITLE, "", "from __future__ import annotations", "", *sorted(imports), ""]
    whole = ["\n".join(head), *parts, _MARK + "\n" + body, "call = Runner(model)"]
    return "\n\n".join(part.strip("\n") + "\n" for part in whole), text


def _defined(tree: ast.Module) -> Iterator[str]:
    for item in tree.body:
        if isinstance(item, ast.FunctionDef | ast.ClassDef):
            yield item.name
        elif isinstance(item, ast.Assign):
            yield from (t.id for t in item.targets if isinstance(t, ast.Name))


def _without_imports(source: str, tree: ast.Module, imports: dict[str, None]) -> str:
    """Return a file without its documentation and imports; keep the imports from elsewhere."""
    lines = source.splitlines()
    for number, item in enumerate(tree.body):
        is_import = isinstance(item, ast.Import | ast.ImportFrom)
        is_for_types = isinstance(item, ast.If) and ast.unparse(item.test) == "TYPE_CHECKING"
        is_title = number == 0 and isinstance(item, ast.Expr)
        if not (is_import or is_for_types or is_title):
            continue
        if isinstance(item, ast.Import | ast.ImportFrom):
            is_ours = isinstance(item, ast.ImportFrom) and (
                item.level or item.module == "__future__"
            )
            if not is_ours:
                imports[ast.unparse(item)] = None
        for line in range(item.lineno - 1, item.end_lineno or item.lineno):
            lines[line] = ""
    return "\n".join(lines).strip("\n")


def write_file(model: ir.Model, path: Path) -> None:
    """Write a model as one Python file, and its weights beside it.

    Raises:
        SaveError: If a file cannot be written.
    """
    source, text = single_file(model)
    write_text(path, source)
    if text.constants.weights:
        with all_or_nothing() as files:
            write_weights(
                files.create(path.with_name("weights.safetensors")), text.constants.weights
            )
