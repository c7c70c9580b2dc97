"""Models as one Python file or text: for users, and for reviews."""

from __future__ import annotations

import ast
import base64
import io
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import LoadError, SaveError
from coreai_onnx.model.files.external_data import FileTensor
from coreai_onnx.model.files.new_files import all_or_nothing
from coreai_onnx.model.files.saving import raw_bytes
from coreai_onnx.model.inventory import initializers
from coreai_onnx.model.python import builder
from coreai_onnx.model.python.builder.weights import embed
from coreai_onnx.model.python.model_text import ModelText, import_lines, imports_of
from coreai_onnx.model.python.package import (
    fault_of,
    importing,
    read_package,
    write_frame,
    write_package,
)
from coreai_onnx.model.python.weights_file import AbsentTensor, digest_of, size_of, write_weights

_ORDER = ("errors tensors schemas weights attributes names tracing checking functions arguments "
          "model saving values running").split()  # fmt: skip
"""Files of the builder, each after those that it imports."""
_TITLE = '''"""An ONNX model as Python: `call(...)` runs it.

The model is above the line RUNTIME; what follows is the same in every file.
"""'''
_MARK = "# " + "-" * 70 + " RUNTIME"
_HEAD = '''def declared() -> Model:
    """Declare the functions and the graph of the model."""'''
_END = "model = declared()\ncall = Runner(model)\n"
_EMBED = re.compile(r'''^embed\(\n    "(\w+)",\n    """\n([\w+/=\n]*)""",\n\)\n''', re.MULTILINE)
_EMBEDDED_BYTES = 1 << 20  # 1 MiB: more of them would make a file that editors do not open
_COLUMNS = 88


def single_file(
    model: ir.Model, takes: Mapping[str, Any] | None = None
) -> tuple[str, dict[str, ir.TensorProtocol]]:
    """Return one Python file with a function ``call(...)`` that runs a model.

    Args:
        model: The model.
        takes: The arguments of ``call(...)``, as `builder.arguments.flattened` takes them; None
            for one for each input.

    Returns:
        The file, and the weights, which are not in it.
    """
    with importing:
        return _single_file(model, takes)


def _single_file(
    model: ir.Model, takes: Mapping[str, Any] | None
) -> tuple[str, dict[str, ir.TensorProtocol]]:
    folder = Path(builder.__file__).parent
    sources = [(folder / f"{name}.py").read_text("utf-8") for name in _ORDER]
    text = ModelText(model, depth=1, takes=takes)
    parts = text.parts()
    mine = imports_of([line for part in parts for line in part])
    trees = [ast.parse(source) for source in [*sources, "\n".join(mine)]]
    head = [_TITLE, "", "from __future__ import annotations", "", *_imports(trees), "", _HEAD]
    lines = [line for part in parts for line in ["", *part]]
    below = [_without_imports(source, ast.parse(source)) for source in sources]
    whole = "\n".join([*head, *lines[1:], "", "    return model"])
    return "\n\n".join(p.strip("\n") + "\n" for p in [whole, _MARK, *below, _END]), (
        text.constants.weights
    )


def with_weights(model: ir.Model, takes: Mapping[str, Any] | None = None) -> str:
    """Return the file of `single_file`, with weights of up to 1 MiB in its last lines."""
    text, weights = single_file(model, takes)
    if not weights or sum(map(size_of, weights.values())) > _EMBEDDED_BYTES:
        return text
    file, digest = io.BytesIO(), digest_of(weights)
    write_weights(file, weights, digest)
    data = base64.b64encode(file.getvalue()).decode()
    lines = "\n".join(data[i : i + _COLUMNS] for i in range(0, len(data), _COLUMNS))
    embedded = f'embed(\n    "{digest}",\n    """\n{lines}\n""",\n)\n'
    return text.removesuffix(_END) + embedded + _END


def _imports(trees: list[ast.Module]) -> Iterator[str]:
    """Yield the imports from elsewhere: those of one module once, Python's own first."""
    names: dict[str, set[str]] = defaultdict(set)
    for item in (item for tree in trees for item in tree.body):
        if isinstance(item, ast.Import):
            names[ast.unparse(item)] = set()
        elif isinstance(item, ast.ImportFrom) and not item.level and item.module != "__future__":
            names[item.module or ""] |= {alias.name for alias in item.names} - {"TYPE_CHECKING"}
    is_python = {
        module: module.removeprefix("import ").partition(".")[0] in sys.stdlib_module_names
        for module in names
    }
    for is_first in (True, False):
        modules = [module for module in names if is_python[module] == is_first]
        for module in sorted(modules, key=lambda module: (bool(names[module]), module)):
            items = sorted(names[module])
            yield from import_lines(module, items) if items else [module]
        yield ""


def _without_imports(source: str, tree: ast.Module) -> str:
    """Return a file without its documentation and imports."""
    lines = source.splitlines()
    for number, item in enumerate(tree.body):
        is_import = isinstance(item, ast.Import | ast.ImportFrom)
        is_for_types = isinstance(item, ast.If) and ast.unparse(item.test) == "TYPE_CHECKING"
        is_title = number == 0 and isinstance(item, ast.Expr)
        if is_import or is_for_types or is_title:
            for line in range(item.lineno - 1, item.end_lineno or item.lineno):
                lines[line] = ""
    return "\n".join(lines).strip("\n")


def write_file(model: ir.Model, path: Path, takes: Mapping[str, Any] | None = None) -> None:
    """Write a model as one Python file, and its weights beside it under the same name.

    Raises:
        SaveError: If a file cannot be written, or does not end in ``.py``.
    """
    if path.suffix != ".py":
        raise SaveError(f"{path}: the name of a Python file must end in .py")
    source, weights = single_file(model, takes)
    try:
        with all_or_nothing() as files:
            files.create(path).write(source.encode())
            if weights:
                file = files.create(path.with_suffix(".safetensors"))
                write_weights(file, weights, digest_of(weights))
    except OSError as error:
        if isinstance(error, SaveError):
            raise
        raise SaveError(f"cannot write {path}: {error.strerror or error}") from error


def read_source(text: str) -> tuple[ir.Model, dict[str, Any] | None]:
    """Build the model of a file that contains its weights; runs what is above the line RUNTIME.

    Returns:
        The model, and the arguments of ``call(...)``.

    Raises:
        LoadError: If the text is not such a file, or its Python is wrong; names the line.
    """
    source, mark, rest = text.partition(_MARK) if isinstance(text, str) else ("", "", "")
    if not mark:
        raise LoadError(f"the source is not what export_and_codegen returns: no line {_MARK!r}")
    # Nothing below the line is run: the builder of this package takes its place.
    for digest, data in _EMBED.findall(rest):
        embed(digest, data)
    with importing, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "source.py"
        path.write_text(source, "utf-8")
        space = {name: getattr(builder, name) for name in builder.__all__}
        space["__file__"] = str(path)
        try:
            exec(compile(source, path, "exec"), space)  # noqa: S102 - as documented
            declared = space["declared"]()
            return declared.build(), declared.takes
        except Exception as error:  # the text may hold any Python
            what = fault_of(error, path.parent)
            if path.with_suffix(".safetensors").name in what:
                what = "its weights are not in it; export_python(...) keeps them with the source"
            raise LoadError(f"the source cannot be built: {what}") from error


_NAMES_MARK = "# names, types and origins of nodes, and types of weights: for coreai_onnx.from_text"


def to_text(model: ir.Model) -> str:
    """Return a model as text without the data of its initializers.

    Raises:
        SaveError: If the model has what Python source cannot express.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "text"
        weights = write_package({"main": model}, folder)["main"]
        source = (folder / "model.py").read_text("utf-8")
        names = (folder / "model.names.json").read_text("utf-8")
    # Only initializers lose their data: a tensor in an attribute may be a shape.
    mine = {id(value.const_value) for value in model.graph.initializers.values()}
    described = {
        name: _described(tensor, with_data=id(tensor) not in mine)
        for name, tensor in weights.items()
    }
    lines = ["{", *(f" {json.dumps(n)}: {json.dumps(d)}," for n, d in described.items())]
    lines[-1] = lines[-1].rstrip(",")
    comments = [f"# {line}" for line in (*names.splitlines(), *lines, "}")]
    return "\n".join([source, "", _NAMES_MARK, *comments]) + "\n"


def _described(tensor: ir.TensorProtocol, *, with_data: bool) -> list[Any]:
    entry: list[Any] = [tensor.dtype.name, list(tensor.shape.numpy())]
    if with_data:
        entry.append(base64.b64encode(raw_bytes(tensor)).decode())
    return entry


def from_text(text: str) -> ir.Model:
    """Return the model of a text; it runs the Python in it.

    The initializers have types and shapes; reading their data raises `LoadError`.

    Raises:
        LoadError: If the text is not a model, or its Python is wrong; names the line.
    """
    source, mark, rest = text.partition(f"\n\n{_NAMES_MARK}\n")
    comments = [line.removeprefix("# ") for line in rest.splitlines()]
    try:
        decoder = json.JSONDecoder()
        # Two JSON texts follow each other: the names, and the weights.
        names, end = decoder.raw_decode("\n".join(comments))
        weights = json.loads("\n".join(comments)[end:])
        tensors = {name: _tensor(name, *entry) for name, entry in weights.items()}
    except (ValueError, TypeError, LookupError) as error:
        what = "its last lines are damaged" if mark else f"it has no line {_NAMES_MARK!r}"
        raise LoadError(f"the text is not a model: {what}") from error
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "text"
        folder.mkdir()
        write_frame(folder, {"main": "model"})
        (folder / "model.py").write_text(source + "\n", "utf-8")
        (folder / "model.names.json").write_text(json.dumps(names), "utf-8")
        with (folder / "model.safetensors").open("wb") as file:
            write_weights(file, tensors)
        model = read_package(folder)["main"]
        for value in initializers(model):
            tensor = tensors.get(value.name or "")
            if isinstance(value.const_value, FileTensor):
                value.const_value = tensor or value.const_value
    return model


def _tensor(name: str, dtype: str, shape: list[int], data: str = "") -> ir.TensorProtocol:
    kind = ir.DataType[dtype]
    if not data:
        return AbsentTensor(name, kind, shape)
    raw = base64.b64decode(data)
    proto = ir.to_proto(ir.Tensor(np.zeros(0, np.uint8), name=name))
    proto.data_type, proto.raw_data = kind.value, raw
    proto.dims[:] = shape
    return ir.serde.TensorProtoTensor(proto)
