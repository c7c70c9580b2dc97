"""The sources of sessions: files, bytes, models in memory, and programs."""

from __future__ import annotations

import math
from os import PathLike
from pathlib import Path
from typing import Protocol, runtime_checkable

import onnx
import onnx_ir as ir

from coreai_onnx.errors import LoadError, SessionError
from coreai_onnx.messages import without_warnings
from coreai_onnx.model.files.loading import check_file, check_places, fault, load_model, read_model
from coreai_onnx.model.interface import LORA_A, LORA_B
from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.metadata import fields, read_states


@runtime_checkable
class HasModel(Protocol):
    """A program: anything that has the onnx_ir model of its main entrypoint."""

    @property
    def model(self) -> ir.Model:
        """The model to run."""


_ADD_LOW_RANK = (STANDARD_DOMAIN, "add_low_rank", "")

Source = str | PathLike[str] | bytes | onnx.ModelProto | ir.Model | HasModel
"""The source of a session: a file, its bytes, a model in memory, or a converted program."""


class ModelSource:
    """A source in one of three forms: exactly one of the first three attributes is not None.

    Attributes:
        path: The file.
        content: A model in ONNX's own format, serialized or not.
        model: The model in memory.
        name: What messages call it: the path, "the given bytes", "the program".
        folder: The folder of the data files that a model in memory refers to, if it has any.
    """

    folder: Path | None = None

    def __init__(self, source: Source) -> None:
        """Tell the forms apart.

        Raises:
            SessionError: If it is not a source.
        """
        self.path = Path(source) if isinstance(source, str | PathLike) else None
        self.content = source if isinstance(source, bytes | onnx.ModelProto) else None
        self.model = source.model if isinstance(source, HasModel) else None
        self.name = str(source) if self.path else "the program"
        if isinstance(source, ir.Model):
            self.model = source
        elif self.content is not None:
            self.name = f"the given {'bytes' if isinstance(source, bytes) else 'model'}"
        elif self.path is None and not isinstance(self.model, ir.Model):
            what = type(source).__name__
            raise SessionError(f"cannot open a {what}; give a path, a model or a program")

    def read(self) -> ir.Model:
        """Return the model, with the origin of its nodes.

        Raises:
            LoadError: If it cannot be read.
        """
        if self.model is not None:
            return self.model
        if self.path is not None:
            return load_model(self.path)
        assert self.content is not None
        return read_model(self.content)

    def graph(self, most: float = math.inf) -> ir.Model | None:
        """Return the model unchecked; None if broken, or in a file of more than ``most`` bytes."""
        if self.model is not None:
            return self.model
        try:
            with without_warnings():
                if self.path is not None:
                    return ir.load(self.path) if self.path.stat().st_size <= most else None
                content = self.content
                proto = (
                    onnx.ModelProto.FromString(content) if isinstance(content, bytes) else content
                )
                assert proto is not None
                return ir.from_proto(proto)
        except Exception:  # noqa: BLE001 - onnxruntime reports the fault
            return None

    def op_types(self) -> list[str] | None:
        """Return the standard composites of a file without reading its weights; None if unknown.

        Their functions are fields of the model after the graph, which contains the weights.
        """
        if self.path is None:
            return None
        with self.path.open("rb") as file:
            try:
                number = onnx.ModelProto.FUNCTIONS_FIELD_NUMBER
                functions = [*map(onnx.FunctionProto.FromString, fields(file, number))]
            except Exception:  # noqa: BLE001 - onnxruntime reports the fault
                return None
        return sorted({one.name for one in functions if one.domain == STANDARD_DOMAIN}) or None

    def without_adapters(self, model: ir.Model) -> ModelSource | None:
        """Return the model of a file without inputs for adapters; None if it has none.

        Args:
            model: What `graph` has read from the file; it is changed.

        Raises:
            SessionError: If a data file is outside of the model's folder.
        """
        if self.path is None or not _remove_adapters(model):
            return None
        self.check_places()
        source = ModelSource(model)
        source.name, source.folder = self.name, self.path.absolute().parent
        return source

    def check_file(self) -> None:
        """Check that there is a regular file that a model fits in.

        Raises:
            SessionError: If there is not.
        """
        try:
            if self.path is not None:
                check_file(self.path)
        except LoadError as error:
            raise SessionError(str(error)) from error

    def check_places(self) -> None:
        """Check the location of weights first: some versions of onnxruntime read any file.

        Raises:
            SessionError: If one is outside of the model's folder.
        """
        stored = self.content if self.path is None else self.path
        try:
            if stored is not None:
                check_places(stored)
        except LoadError as error:
            raise SessionError(f"cannot load {error}") from error

    def fault(self) -> str:
        """Return what is wrong with a file that a library failed to load; empty if unknown."""
        return "" if self.path is None else fault(self.path)


def model_of(source: Source) -> ir.Model:
    """Return the model of a source, with the origin of its nodes.

    Raises:
        LoadError: If it cannot be read.
        SessionError: If it is not a source.
    """
    return ModelSource(source).read()


def _remove_adapters(model: ir.Model) -> bool:
    """Remove the inputs for adapters and the nodes that add them; return whether all could be."""
    graph = model.graph
    defaults = [x for x in graph.inputs if x.name in graph.initializers]
    inputs = [x for x in defaults if (x.name or "").endswith((LORA_A, LORA_B))]
    nodes = {node for value in inputs for node in value.consumers()}
    # Files for other targets add them by operators that may serve something else, too.
    if not inputs or any(x.op_identifier() != _ADD_LOW_RANK for x in nodes):
        return False
    for node in nodes:
        total, result = node.inputs[0], node.outputs[0]
        assert total is not None
        result.replace_all_uses_with(total, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        if total.is_graph_output():
            # An output of the model keeps its name, by which it is asked for.
            name, result.name = result.name, None
            total.name = name
    for value in inputs:
        graph.inputs.remove(value)
        del graph.initializers[value.name or ""]
    return True


def initial_values(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Return the initial values of the states, which are read when they are used."""
    values = {}
    for state in read_states(model.metadata_props):
        value = model.graph.initializers.get(state.input)
        if value is not None and value.const_value is not None:
            values[state.input] = value.const_value
    return values
