"""Reading model files. What is wrong with one is told with its name, and what to do about it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import onnx
import onnx.defs
import onnx_ir as ir

from coreai_onnx.contents import (
    COMPLEX,
    RANGES,
    RELATIONS,
    STATES,
    initializers,
    interface,
    read_complex,
    read_states,
)
from coreai_onnx.debug_info import restore
from coreai_onnx.errors import LoadError
from coreai_onnx.table import size_text

_STARTS = {
    b"version https://git-lfs": "is a pointer of Git LFS, not the model: run git lfs pull",
    b"PK\x03\x04": "is a zip archive, as torch's own files are; a .onnx file is wanted",
    b"<": "is a web page or XML: what was downloaded is not the model",
    b"\x80\x02": "is a pickle; a .onnx file is wanted",
}
"""How files begin that are often taken for models, and what they are."""
_MESSAGE_LIMIT = 1 << 31


def load_model(path: str | PathLike[str], *, data: bool = True) -> ir.Model:
    """Read one ``.onnx`` file; weights in a data file stay there until they are used.

    Weights are read from the folder of the model only, wherever the file says they are.

    Args:
        path: The file.
        data: Whether the weights have to be there whole. A reader of the graph alone can do
            without.

    Returns:
        The model, its nodes in an order in which they can run.

    Raises:
        LoadError: The file is missing, unreadable, cut short or no ONNX model, is of a newer ONNX
            than is installed, its graph is broken, its data file is missing, too short or in
            another folder, or its metadata cannot be read.
    """
    path = Path(path)
    model = _parsed(path)
    _check_versions(model, path)
    _check_weights(model, path, data=data)
    restore(model)
    for name, body in _bodies(model):
        _check_body(body, name, path)
    _check_metadata(model, path)
    return model


def fault(path: Path) -> str:
    """Return what is wrong with a file that something else could not load; empty if nothing is."""
    try:
        load_model(path)
    except LoadError as error:
        return str(error)
    return ""


def reason_of(error: BaseException) -> str:
    """Return the first line of what an error goes back to: libraries wrap errors in errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error) or type(error).__name__).partition("\n")[0]


def tensors_of(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Yield the name and tensor of every initializer, and of every tensor in an attribute."""
    for value in initializers(model):
        if value.const_value is not None:
            yield value.name or "", value.const_value
    for node, attribute in _tensor_attributes(model):
        yield f"{node.name or node.op_type}.{attribute.name}", attribute.value


def _parsed(path: Path) -> ir.Model:
    start = _start(path)
    try:
        # Not onnx_ir's reader, which lets a file in the current folder name weights anywhere.
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's errors and those of its text formats share no base
        raise LoadError(f"{path}: {_no_model(path, start)}\n  {reason_of(error)}") from error
    if not proto.opset_import:
        raise LoadError(f"{path}: {_no_model(path, start)}\n  it has no opset")
    _check_positions(proto, path)
    try:
        with _without_warnings():
            return ir.from_proto(proto)
    except Exception as error:  # onnx_ir's errors share no base class
        raise LoadError(f"{path}: is a broken ONNX model\n  {reason_of(error)}") from error


def _check_positions(proto: onnx.ModelProto, path: Path) -> None:
    """Check that positions in data files are numbers, which onnx_ir takes for granted."""
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not entry.value.isdecimal():
                raise LoadError(f"{path}: weight {tensor.name!r} has the {entry.key} {entry.value}")


def _start(path: Path) -> bytes:
    """Return how the file begins."""
    if not path.is_file():
        raise LoadError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror or error}") from error


def _no_model(path: Path, start: bytes) -> str:
    if not start:
        return "is not an ONNX model: the file is empty; make or fetch it again"
    if path.stat().st_size >= _MESSAGE_LIMIT:
        return "is not an ONNX model: it is larger than 2 GiB; weights belong in a data file"
    known = (what for head, what in _STARTS.items() if start.lstrip().startswith(head))
    return next(known, "is not an ONNX model, or cut short or damaged: make or fetch it again")


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep onnx_ir from printing what is checked here and told as an error."""
    logger = logging.getLogger("onnx_ir.serde")

    def drop(record: logging.LogRecord) -> bool:
        return record.levelno > logging.WARNING

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def _check_versions(model: ir.Model, path: Path) -> None:
    """Refuse what the installed onnx does not know: its meaning would be guessed."""
    advice = f"update onnx (installed: {onnx.__version__}), or convert the model for an older one"
    if model.ir_version > onnx.IR_VERSION:
        raise LoadError(
            f"{path}: its IR version is {model.ir_version}, the newest that is known here is "
            f"{onnx.IR_VERSION}\n  {advice}"
        )
    newest = onnx.defs.onnx_opset_version()
    for imports in (model.opset_imports, *(f.opset_imports for f in model.functions.values())):
        opset = imports.get("", 1)
        if opset > newest:
            raise LoadError(
                f"{path}: its opset is {opset}, the newest that is known here is {newest}"
                f"\n  {advice}"
            )
        if opset < 1:
            raise LoadError(f"{path}: its opset is {opset}; opsets begin with 1")


def _check_weights(model: ir.Model, path: Path, *, data: bool) -> None:
    folder = path.absolute().parent
    for name, tensor in tensors_of(model):
        if isinstance(tensor, ir.ExternalTensor):
            tensor.base_dir = folder
            wrong = _place(tensor, path) or (_contents(tensor) if data else "")
        else:
            wrong = _held(tensor) if data else ""
        if wrong:
            raise LoadError(f"{path}: weight {name!r} {wrong}")
    for node, attribute in _tensor_attributes(model):
        if data and isinstance(attribute.value, ir.ExternalTensor):
            # Only initializers are written to a data file, so this one is brought in.
            tensor = attribute.value
            node.attributes[attribute.name] = ir.AttrTensor(
                attribute.name, ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
            )


def _place(tensor: ir.ExternalTensor, path: Path) -> str:
    """Return what is wrong with where a weight is said to be."""
    location = str(tensor.location)
    folder = path.absolute().parent
    if not location:
        return "is in a data file without a name"
    if Path(location).is_absolute() or not _inside(folder / location, folder):
        return (
            f"is said to be in {location}, outside of the model's folder, and is not read from "
            f"there\n  if that is meant, copy that file to {folder} and save the model again"
        )
    return ""


def _inside(file: Path, folder: Path) -> bool:
    """Return whether a path stays in a folder, as it is written and with links followed."""
    depth = 0
    for part in file.relative_to(folder).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return file.resolve().is_relative_to(folder.resolve())


def _contents(tensor: ir.ExternalTensor) -> str:
    """Return what is wrong with the part of a data file that a weight is in."""
    file = Path(tensor.path)
    shape = tensor.shape.numpy()
    if min(shape, default=0) < 0:
        return f"has the shape {list(shape)}"
    if not file.exists():
        return f"is in {file}, which is not there\n  a model and its data file travel together"
    if not file.is_file():
        return f"is in {file}, which is not a file"
    if file.stat().st_nlink > 1:
        return f"is in {file}, which has other names (hard links)\n  make it a copy of its own"
    if tensor.length not in (None, tensor.nbytes):
        return f"takes {tensor.nbytes} bytes, but {tensor.length} are said to be in {file}"
    start, size = tensor.offset or 0, file.stat().st_size
    if start < 0 or start + tensor.nbytes > size:
        return (
            f"is at bytes {start} to {start + tensor.nbytes} of {file}, which has {size} "
            f"({size_text(size)})\n  the data file was cut short, or is that of another model"
        )
    return ""


def _held(tensor: ir.TensorProtocol) -> str:
    """Return what is wrong with a weight that the model file holds itself."""
    shape = tensor.shape.numpy()
    if min(shape, default=0) < 0:
        return f"has the shape {list(shape)}"
    proto = tensor.raw if isinstance(tensor, ir.TensorProtoTensor) else None
    if proto is None or tensor.dtype == ir.DataType.STRING:
        return ""
    try:
        size = len(proto.raw_data) if proto.HasField("raw_data") else tensor.numpy().size
    except ValueError as error:
        return f"is broken: {reason_of(error)}"
    expected = tensor.nbytes if proto.HasField("raw_data") else math.prod(shape)
    return "" if size == expected else f"has {size} bytes, its shape takes {expected}"


def _tensor_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    for _, body in _bodies(model):
        for node in ir.traversal.RecursiveGraphIterator(body):
            for attribute in list(node.attributes.values()):
                if not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR:
                    yield node, attribute


def _bodies(model: ir.Model) -> list[tuple[str, ir.Graph | ir.Function]]:
    functions = ((f"function {f.domain}::{f.name}", f) for f in model.functions.values())
    return [("the graph", model.graph), *functions]


def _check_body(body: ir.Graph | ir.Function, name: str, path: Path) -> None:
    """Check that every value comes from somewhere, and bring nodes into order."""
    if _check_reads(body, frozenset(), name, path):
        return
    try:
        body.sort()
    except ValueError as error:
        raise LoadError(f"{path}: {name} is broken: its nodes read each other in a circle") from (
            error
        )


def _check_reads(
    graph: ir.Graph | ir.Function, outer: frozenset[ir.Value], name: str, path: Path
) -> bool:
    """Return whether the nodes are in order.

    Raises:
        LoadError: A node or an output reads what nothing produces.
    """
    ready = set(outer) | set(graph.inputs)
    if isinstance(graph, ir.Graph):
        ready |= set(graph.initializers.values())
    every = ready | {value for node in graph for value in node.outputs}
    in_order = True
    for node in graph:
        for value in node.inputs:
            if value is None or value in ready:
                continue
            if value not in every:
                raise LoadError(
                    f"{path}: {name} is broken: {node.op_type} node {node.name!r} reads "
                    f"{value.name!r}, which nothing produces"
                )
            in_order = False
        for inner in _subgraphs(node):
            in_order &= _check_reads(inner, frozenset(every), name, path)
        ready |= set(node.outputs)
    for value in graph.outputs:
        if value not in every:
            raise LoadError(f"{path}: {name} is broken: nothing produces the output {value.name!r}")
    return in_order


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH:
            yield attribute.value
        elif not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.value


def _check_metadata(model: ir.Model, path: Path) -> None:
    key = STATES
    try:
        _read_states(model)
        key = RANGES
        for bounds in json.loads(model.metadata_props.get(key) or "{}").values():
            bounds.items()
        key = RELATIONS
        for relation in json.loads(model.metadata_props.get(key) or "[]"):
            relation["holds"].strip()
        key = COMPLEX
        _read_complex(model)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LoadError(
            f"{path}: its metadata {key} cannot be read: {reason_of(error)}\n"
            "  another tool changed it: convert the model again, or remove that entry"
        ) from error


def _read_complex(model: ir.Model) -> None:
    there = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    if strangers := read_complex(model.metadata_props) - there:
        raise ValueError(f"there is no input or output {min(strangers)!r}")
    interface(model)


def _read_states(model: ir.Model) -> None:
    inputs = {value.name for value in model.graph.inputs}
    outputs = {value.name for value in model.graph.outputs}
    for state in read_states(model.metadata_props):
        if state.input not in inputs or state.output not in outputs:
            raise ValueError(f"there is no input {state.input!r} with an output {state.output!r}")
