"""Reading model files; errors name the file, the fault, and what to do about it."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import onnx
import onnx.defs
import onnx_ir as ir

from coreai_onnx.errors import LoadError, failures_as, reason_of
from coreai_onnx.messages import without_warnings
from coreai_onnx.model.checks.fixed_attributes import fixed_attributes_fault
from coreai_onnx.model.checks.graph_checks import arrange, size_fault
from coreai_onnx.model.files.external_data import bring_in, check_strings_and_tensors
from coreai_onnx.model.files.new_files import file_fault
from coreai_onnx.model.interface import interface
from coreai_onnx.model.inventory import graphs
from coreai_onnx.model.metadata import (
    ARGUMENTS,
    COMPLEX,
    MUTATED_INPUTS,
    RANGES,
    RELATIONS,
    STATES,
    StateInfo,
    read_arguments,
    read_complex,
    read_mutated_inputs,
    read_ranges,
    read_relations,
    read_states,
)
from coreai_onnx.model.provenance.debug_info import restore

_STARTS = {
    b"version https://git-lfs": "is a pointer of Git LFS, not the model: run git lfs pull",
    b"PK\x03\x04": "is a zip archive, as torch's own files are; a .onnx file is wanted",
    b"<": "is a web page or XML: what was downloaded is not the model",
    b"\x80\x02": "is a pickle; a .onnx file is wanted",
}
"""First bytes of file types that are often mistaken for models, with the name of the type."""
# protobuf parses no message of 2 GiB or more.
_MESSAGE_LIMIT = 1 << 31
_VERSION_LIMIT = 1 << 31
_LOCATION = b"location"
"""The key of a tensor's data file; a serialized message contains it verbatim."""


def load_model(path: str | PathLike[str], *, data: bool = True) -> ir.Model:
    """Read one ``.onnx`` file; weights in a data file are read when they are used.

    Weights are read only from the folder of the model, whatever location the file names.

    Args:
        path: The file.
        data: Whether the weights must be complete. Callers that only need the graph can pass
            False.

    Returns:
        The model, its nodes in topological order. Reading a weight raises `LoadError` if another
        process has written to its data file in the meantime.

    Raises:
        LoadError: The file is missing, unreadable, truncated or not an ONNX model, needs a newer
            ONNX than is installed, its graph is broken, a call has other attributes than its body,
            its data file is missing, too short or in another folder, or its metadata cannot be
            read.
    """
    path = Path(path)
    with failures_as(LoadError, f"{path}: is a broken ONNX model"):
        return _checked(read_proto(path), str(path), path.absolute().parent, data=data)


def read_model(source: bytes | onnx.ModelProto) -> ir.Model:
    """Read a model in memory, with the same checks as a file's; it is not changed.

    Args:
        source: The model, or the content of its file. Its data files are in the current folder.

    Returns:
        The model, its nodes in topological order.

    Raises:
        LoadError: As `load_model`.
    """
    what = "the given bytes" if isinstance(source, bytes) else "the given model"
    with failures_as(LoadError, f"{what}: is a broken ONNX model"):
        proto = _proto_of(source, what) if isinstance(source, bytes) else source
        return _checked(proto, what, Path.cwd(), data=True)


def fault(path: Path) -> str:
    """Return what is wrong with a file that a library failed to load; empty if it is valid."""
    try:
        load_model(path)
    except LoadError as error:
        return str(error)
    return ""


def check_places(source: str | PathLike[str] | bytes | onnx.ModelProto) -> None:
    """Check that a model names no data file outside its folder, before a runtime opens it.

    Args:
        source: A file, or a model in memory, whose folder is the current one.

    Raises:
        LoadError: A weight is in another folder or incomplete, or the model cannot be read.
    """
    if isinstance(source, onnx.ModelProto):
        proto, what, folder = source, "the given model", Path.cwd()
    elif isinstance(source, bytes):
        # A search is faster than parsing, and most models in memory have no data file.
        if _LOCATION not in source:
            return
        what, folder = "the given bytes", Path.cwd()
        proto = _proto_of(source, what)
    else:
        path = Path(source)
        if not _names_a_data_file(path):
            return
        proto, what, folder = read_proto(path), str(path), path.absolute().parent
    if wrong := check_strings_and_tensors(proto, folder, data=True):
        raise LoadError(f"{what}: {wrong}")


def _proto_of(content: bytes, what: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    with failures_as(LoadError, f"{what}: is not an ONNX model"):
        proto.ParseFromString(content)
    return proto


def _names_a_data_file(path: Path) -> bool:
    """Return whether a file may name a data file: such a file contains the ``location`` key."""
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(_LOCATION) >= 0


def _checked(proto: onnx.ModelProto, what: str, folder: Path, *, data: bool) -> ir.Model:
    model = _parsed(proto, what, folder, data=data)
    _check_versions(model, what)
    bring_in(model, folder, data=data)
    _forget_shapes_without_type(model)
    if wrong := arrange(model):
        raise LoadError(f"{what}: {wrong}")
    restore(model)
    if wrong := size_fault(model) or fixed_attributes_fault(model):
        raise LoadError(f"{what}: {wrong}")
    _check_metadata(model, what)
    return model


def _parsed(proto: onnx.ModelProto, what: str, folder: Path, *, data: bool) -> ir.Model:
    if wrong := check_strings_and_tensors(proto, folder, data=data):
        raise LoadError(f"{what}: {wrong}")
    with without_warnings():
        model = ir.from_proto(proto)
    for imports in (model.opset_imports, *(f.opset_imports for f in model.functions.values())):
        if "ai.onnx" in imports:  # the long name of the domain
            imports[""] = imports.pop("ai.onnx")
    return model


def read_proto(path: Path) -> onnx.ModelProto:
    """Parse a model file without its data files and without checks.

    Raises:
        LoadError: The file is missing, unreadable or not an ONNX model.
    """
    start = _start(path)
    try:
        # Not onnx_ir's reader, which lets a file in the current folder name weights anywhere.
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's binary and text errors share no base class
        raise LoadError(f"{path}: {_no_model(start)}\n  {reason_of(error)}") from error
    # protobuf parses many files that are not models; every model imports an opset.
    if not proto.opset_import:
        raise LoadError(f"{path}: {_no_model(start)}\n  it has no opset")
    return proto


def check_file(path: Path) -> None:
    """Check that there is a regular file that a model fits in, before any of it is read.

    A read of a pipe or a device may never end.

    Raises:
        LoadError: If there is none.
    """
    if fault := file_fault(path):
        raise LoadError(f"{path}: {fault}")
    if path.stat().st_size >= _MESSAGE_LIMIT:
        raise LoadError(
            f"{path}: is not an ONNX model: it is larger than 2 GiB; weights belong in a data file"
        )


def _start(path: Path) -> bytes:
    check_file(path)
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror or error}") from error


def _no_model(start: bytes) -> str:
    if not start:
        return "is not an ONNX model: the file is empty; make or fetch it again"
    # A web page may begin with blank lines.
    reasons = (what for head, what in _STARTS.items() if start.lstrip().startswith(head))
    return next(reasons, "is not an ONNX model, or cut short or damaged: make or fetch it again")


def _check_versions(model: ir.Model, what: str) -> None:
    """Reject versions that the installed onnx does not know: their semantics would be guessed."""
    advice = f"update onnx (installed: {onnx.__version__}), or convert the model for an older one"
    if model.ir_version > onnx.IR_VERSION:
        raise LoadError(
            f"{what}: its IR version is {model.ir_version}, the newest supported one is "
            f"{onnx.IR_VERSION}\n  {advice}"
        )
    newest = onnx.defs.onnx_opset_version()
    for imports in (model.opset_imports, *(f.opset_imports for f in model.functions.values())):
        opset = imports.get("", 1)
        if opset > newest:
            raise LoadError(
                f"{what}: its opset is {opset}, the newest supported one is {newest}\n  {advice}"
            )
        if opset < 1:
            raise LoadError(f"{what}: its opset is {opset}; the lowest opset is 1")
        for domain, version in imports.items():
            if not 0 <= version < _VERSION_LIMIT:
                raise LoadError(f"{what}: the version of domain {domain!r} is {version}")


def _forget_shapes_without_type(model: ir.Model) -> None:
    """Remove the shapes of values of unknown type: ONNX has no field for them."""
    for graph in graphs(model):
        for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
            if value.type is None:
                value.shape = None


def _check_metadata(model: ir.Model, what: str) -> None:
    key = STATES
    try:
        _check_pairs(model, read_states(model.metadata_props))
        key = MUTATED_INPUTS
        changed = read_mutated_inputs(model.metadata_props)
        _check_pairs(model, [StateInfo(name, output) for output, name in changed.items()])
        key = RANGES
        read_ranges(model.metadata_props)
        key = RELATIONS
        read_relations(model.metadata_props)
        key = ARGUMENTS
        read_arguments(model.metadata_props)
        key = COMPLEX
        _check_complex(model)
    except ValueError as error:
        raise LoadError(
            f"{what}: its metadata {key} cannot be read: {reason_of(error)}\n"
            "  another tool changed it: convert the model again, or remove that entry"
        ) from error


def _check_complex(model: ir.Model) -> None:
    there = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    if strangers := read_complex(model.metadata_props) - there:
        raise ValueError(f"there is no input or output {min(strangers)!r}")
    interface(model)


def _check_pairs(model: ir.Model, pairs: Iterable[StateInfo]) -> None:
    inputs = {value.name for value in model.graph.inputs}
    outputs = {value.name for value in model.graph.outputs}
    for pair in pairs:
        if pair.input not in inputs or pair.output not in outputs:
            raise ValueError(f"there is no input {pair.input!r} with an output {pair.output!r}")
