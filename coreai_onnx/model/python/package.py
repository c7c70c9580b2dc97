"""Packages that hold a model as Python: written, imported, and checked against the model."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnx_ir as ir

from coreai_onnx.errors import LoadError, SaveError, failures_as
from coreai_onnx.messages import without_warnings
from coreai_onnx.model.files.external_data import bring_in
from coreai_onnx.model.files.new_files import file_fault
from coreai_onnx.model.inventory import initializers
from coreai_onnx.model.python import builder
from coreai_onnx.model.python.identifiers import IdentifierScope, identifier
from coreai_onnx.model.python.layout import keyed, laid_out
from coreai_onnx.model.python.model_text import ModelText
from coreai_onnx.model.python.record import Record, text_of
from coreai_onnx.model.python.weights_file import write_weights

BUILDER = "_builder"
"""The folder of a written package that builds the model."""
Weights = Mapping[str, ir.TensorProtocol]
_numbers = itertools.count()
importing = threading.RLock()
"""Held while packages are written and read: ``sys.dont_write_bytecode`` belongs to all threads, and
``ast.parse`` of Python 3.11 may fail while two threads are in it."""


def write_package(models: Mapping[str, ir.Model], folder: Path) -> dict[str, Weights]:
    """Write a package from which ``python -m`` builds the models again.

    Args:
        models: Entrypoint to model.
        folder: The package; an earlier package is replaced, other files are not.

    Returns:
        Entrypoint to the weights that were written.

    Raises:
        SaveError: If the folder holds something else, cannot be written, or a model has what
            Python source cannot express.
    """
    if not folder.name.isidentifier():
        raise SaveError(f"{folder}: the name of a package must be a name in Python")
    try:
        is_empty = folder.is_dir() and not any(folder.iterdir())
        if folder.exists() and not is_empty and not (folder / BUILDER).is_dir():
            raise SaveError(f"{folder} exists and was not written by to_python")
        # In the same file system as the package, because `replace` cannot move between two.
        with tempfile.TemporaryDirectory(dir=folder.absolute().parent) as temporary:
            package = Path(temporary) / folder.name
            package.mkdir()
            what = f"{folder}: the model cannot be written as Python"
            with importing, failures_as(SaveError, what):
                weights = _write(models, package)
            folder.mkdir(exist_ok=True)
            # `replace` cannot put a folder in the place of one that has files.
            shutil.rmtree(folder / BUILDER, ignore_errors=True)
            for path in sorted(package.iterdir()):
                path.replace(folder / path.name)
    except OSError as error:
        if isinstance(error, SaveError):
            raise
        raise SaveError(f"cannot write {folder}: {error.strerror or error}") from error
    return weights


def write_frame(folder: Path, modules: Mapping[str, str]) -> None:
    """Write the parts of a package that are the same for all models.

    Args:
        folder: The package.
        modules: Entrypoint to the name of its model file.
    """
    source = Path(builder.__file__).parent
    # In a checkout, linters keep their settings and caches there.
    ignored = shutil.ignore_patterns("__pycache__", "*.toml", ".*")
    shutil.copytree(source, folder / BUILDER, ignore=ignored)
    (folder / "__init__.py").write_text(_initial(modules), "utf-8")
    (folder / "__main__.py").write_text(_MAIN, "utf-8")


def _write(models: Mapping[str, ir.Model], folder: Path) -> dict[str, Weights]:
    modules = _module_names(models)
    texts = {name: ModelText(model) for name, model in models.items()}
    for name, text in texts.items():
        weights = text.constants
        what = folder.name if len(texts) == 1 else f"{folder.name}, entrypoint {identifier(name)}"
        title = f"{what}: edit it, and build it with `python -m {folder.name} build FILE.onnx`."
        lines = text.lines(title)
        (folder / f"{modules[name]}.py").write_text("\n".join(lines) + "\n", "utf-8")
        with (folder / f"{modules[name]}.safetensors").open("wb") as file:
            write_weights(file, weights.weights)
    write_frame(folder, modules)
    for name, text in texts.items():
        _record(folder, modules[name], text)
    return {name: text.constants.weights for name, text in texts.items()}


def _module_names(models: Mapping[str, ir.Model]) -> dict[str, str]:
    """Return the names of the model files: ``model``, or ``model_`` with the entrypoint."""
    if len(models) == 1:
        return dict.fromkeys(models, "model")
    scope = IdentifierScope()
    return {name: scope.new(f"model_{identifier(name)}") for name in models}


def _initial(modules: Mapping[str, str]) -> str:
    first = next(iter(modules.values()))
    lines = ['"""A model as Python: `python -m` this package with `build model.onnx`."""', ""]
    imports = ["from ._builder.running import Runner"]
    imports += [
        f"from .{module} import model" if len(modules) == 1
        else f"from .{module} import model as {module}"
        for module in modules.values()
    ]  # fmt: skip
    models = laid_out("MODELS = ", keyed(modules.items()))
    lines += [*sorted(imports), "", *models, f"call = Runner({first})"]
    return "\n".join(lines) + "\n"


_MAIN = '''"""Builds the model: `python -m` this package with `build model.onnx`."""

import sys

from . import MODELS
from ._builder.saving import command

sys.exit(command(MODELS))
'''


def _record(folder: Path, module: str, text: ModelText) -> None:
    """Write the names of nodes, and check that the package builds the model."""
    path = folder / f"{module}.names.json"
    with imported(folder) as package:
        names = sys.modules[f"{package.__name__}.{BUILDER}.names"].RecordedNames
        mine = sys.modules[f"{package.__name__}.{module}"].model
        first = names({})
        mine.trace(first)
        traces = {trace.names.key: trace for trace in first.traces}
        record = Record(text.model, text.constants, traces).content()
        # The digest is that of a second trace: the record decides where constants are made.
        again = names(record)
        mine.trace(again)
        record = {"digest": again.digest(), **record}
        path.write_text(text_of(record), "utf-8")
        difference = _difference(text.model, mine.build())
    if difference:
        raise SaveError(f"the model cannot be written as Python exactly: {difference}")


@contextlib.contextmanager
def imported(folder: Path) -> Iterator[Any]:
    """Import a written package under a name of its own, while active."""
    name = f"_coreai_source_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    importing.acquire()
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(package)
        yield package
    finally:
        sys.dont_write_bytecode = before
        importing.release()
        for key in [key for key in list(sys.modules) if key == name or key.startswith(f"{name}.")]:
            del sys.modules[key]


def read_package(folder: Path) -> dict[str, ir.Model]:
    """Import a written package, which runs its Python, and build its models.

    Returns:
        Entrypoint to model; the weights are read when they are used, from the files that the
        package has now.

    Raises:
        LoadError: If to_python did not write the folder, or its Python is invalid; the message
            names the line.
    """
    if file_fault(folder / "__init__.py") or not (folder / BUILDER).is_dir():
        raise LoadError(f"{folder} was not written by to_python: no __init__.py, or no builder")
    try:
        with imported(folder.absolute()) as package:
            models = {name: model.build() for name, model in package.MODELS.items()}
    except Exception as error:  # the package may hold any Python
        raise LoadError(f"{folder}: {fault_of(error, folder.absolute())}") from error
    for model in models.values():
        # onnx_ir's own references do not notice when their file changes.
        bring_in(model, folder.absolute(), data=True)
    return models


def fault_of(error: Exception, folder: Path) -> str:
    """Return what is wrong in the Python of a folder, beginning with its file and line."""
    if type(error).__name__ == "BuildError":
        return str(error)
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename or '').name}:{error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if Path(frame.filename).parent == folder]
    place = f"{Path(mine[-1].filename).name}:{mine[-1].lineno}: " if mine else ""
    return f"{place}{type(error).__name__}: {error}"


def _difference(model: ir.Model, built: ir.Model) -> str:
    """Return where two models differ, weights apart; empty if they are the same."""
    left, right = skeleton(model), skeleton(built)
    if left.SerializeToString(deterministic=True) == right.SerializeToString(deterministic=True):
        return ""
    pairs = zip(str(left).splitlines(), str(right).splitlines(), strict=False)
    return next((f"{a.strip()} became {b.strip()}" for a, b in pairs if a != b), "its size")


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return a model as a message in which initializers have types and shapes, but no data."""
    values = [v for v in initializers(model) if v.const_value is not None]
    kept = [value.const_value for value in values]
    try:
        for value, tensor in zip(values, kept, strict=True):
            assert tensor is not None
            value.const_value = ir.ExternalTensor(
                "weights", 0, tensor.nbytes if tensor.dtype != ir.DataType.STRING else 0,
                tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or "",
            )  # fmt: skip
        with without_warnings():
            proto = ir.to_proto(model)
    finally:
        for value, tensor in zip(values, kept, strict=True):
            value.const_value = tensor
    # The entries are a map, which onnx_ir writes in the order of their insertion.
    proto.metadata_props.sort(key=lambda entry: entry.key)
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        _use_raw_data(nodes)
    return proto


def _use_raw_data(nodes: Iterable[onnx.NodeProto]) -> None:
    """Write the tensors of attributes in one way: ONNX has two, with and without a type's field."""
    for node in nodes:
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                _use_raw_data(graph.node)
            tensor = attribute.t
            if tensor.data_type not in (ir.DataType.UNDEFINED, ir.DataType.STRING):
                stored = ir.serde.TensorProtoTensor(tensor)
                plain = ir.Tensor(stored.numpy(), dtype=stored.dtype, name=tensor.name or None)
                attribute.t.CopyFrom(ir.to_proto(plain))
