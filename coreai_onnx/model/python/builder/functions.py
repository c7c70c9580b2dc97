"""Functions of the model: ``@model.function`` on a Python function."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from onnxscript import ir

from .attributes import AttributeReference, attribute
from .errors import failure
from .names import RecordedNames
from .tracing import Call, Trace, active


def as_texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries of metadata as text; values other than strings are written as JSON."""
    return {
        key: entry if isinstance(entry, str) else json.dumps(entry)
        for key, entry in metadata.items()
    }


class Function:
    """A function of the model; calling it in a graph adds a node."""

    def __init__(
        self,
        model_opsets: Mapping[str, int],
        body: Callable[..., Any],
        domain: str,
        name: str,
        *,
        overload: str = "",
        opsets: Mapping[str, int] | None = None,
        attributes: Mapping[str, str] | None = None,
        doc: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare a function.

        Args:
            model_opsets: Domain to version, of the model.
            body: The Python function. Its parameters are the inputs, its keyword-only parameters
                the attributes; defaults are the attributes' default values.
            domain: Domain of the function.
            name: Name of the function.
            overload: Overload of the function.
            opsets: Versions that the body uses; None for those of the model.
            attributes: Parameter to attribute, if it is not a Python identifier.
            doc: Documentation; None for the docstring.
            metadata: Metadata of the function; values other than strings are written as JSON.
        """
        self.name = name
        self.key = (domain, name, overload)
        self.code = body.__code__
        self.__doc__ = body.__doc__ if doc is None else doc
        self._model_opsets = model_opsets
        self._body = body
        self._opsets = opsets
        self._metadata = as_texts(metadata or {})
        parameters = inspect.signature(body).parameters.values()
        keywords = [item for item in parameters if item.kind is item.KEYWORD_ONLY]
        self._inputs = [
            item.name for item in parameters if item.kind is not item.KEYWORD_ONLY
        ]
        self._names = {
            item.name: (attributes or {}).get(item.name, item.name) for item in keywords
        }
        self._given = {
            self._names[item.name]: attribute(
                self._names[item.name], item.default, None, self.code
            )
            for item in keywords
            if item.default is not item.empty
        }

    @property
    def defaults(self) -> dict[str, ir.Attr]:
        """The attributes' default values."""
        return self._given

    @property
    def _types(self) -> dict[str, ir.AttributeType]:
        return {name: item.type for name, item in self._given.items()}

    def __call__(
        self, *inputs: Any, _outputs: int | None = None, **attributes: Any
    ) -> Any:
        """Add a node that calls the function; attributes that are not given have their default.

        Raises:
            BuildError: If there are more inputs, or other attributes, than the function has.
        """
        frame = sys._getframe(1)
        trace = active(frame, self.name)
        if len(inputs) > len(self._inputs):
            count = len(self._inputs)
            raise failure(frame, f"{self.name} takes {count} inputs, not {len(inputs)}")
        settings: dict[str, Any] = dict(self._given)
        for name, value in attributes.items():
            if name not in self._names:
                names = ", ".join(self._names) or "none"
                raise failure(
                    frame, f"{self.name} has no attribute {name!r}; it has {names}"
                )
            settings[self._names[name]] = value
        for name in self._names.values():
            if name not in settings:
                raise failure(frame, f"{self.name} needs the attribute {name!r}")
        ordered = {name: settings[name] for name in self._names.values()}
        domain, op_type, overload = self.key
        count = self._output_count(frame) if _outputs is None else _outputs
        call = Call(domain, op_type, overload, self._types, count)
        return trace.node(call, inputs, ordered, frame)

    def _output_count(self, frame: Any) -> int:
        """Return how many values the body returns: traced once, without effect on the model."""
        if self._count is None:
            if self in _callers.get():
                raise failure(frame, f"{self.name} calls itself, which ONNX forbids")
            # Without recorded names: only the number of outputs is of interest.
            self._count = len(self._trace(RecordedNames({})).outputs)
        return self._count

    _count: int | None = None

    def _trace(self, names: RecordedNames) -> Trace:
        domain, name, overload = self.key
        label = f"{domain}::{name}" + (f":{overload}" if overload else "")
        opsets = self._opsets or self._model_opsets
        trace = Trace(names.graph(label), opsets, is_function=True)
        inputs = [trace.add_input(item, None) for item in self._inputs]
        kinds = self._types
        named = {
            parameter: AttributeReference(
                name, kinds.get(name, ir.AttributeType.UNDEFINED)
            )
            for parameter, name in self._names.items()
        }
        # By these a function that calls itself is found, instead of traced for ever.
        before = _callers.set((*_callers.get(), self))
        try:
            trace.run(self._body, inputs, **named)
        finally:
            _callers.reset(before)
        self._count = len(trace.outputs)
        return trace

    def traced(self, names: RecordedNames) -> ir.Function:
        """Return the function with its body."""
        trace = self._trace(names)
        graph = trace.graph()
        graph.opset_imports.clear()
        graph.opset_imports.update(self._opsets or self._used_opsets(graph))
        attributes = [
            # ONNX stores only the name of an attribute without a default.
            self._given.get(name, ir.Attr(name, ir.AttributeType.UNDEFINED, None))
            for name in self._names.values()
        ]
        domain, name, overload = self.key
        function = ir.Function(
            domain, name, overload, graph=graph, attributes=attributes
        )
        function.doc_string = self.__doc__
        function.metadata_props.update(self._metadata)
        return function

    def _used_opsets(self, graph: ir.Graph) -> dict[str, int]:
        """Return the model's opset, and those of the domains that the body uses."""
        opsets = {"": self._model_opsets.get("", 1)}
        for node in ir.traversal.RecursiveGraphIterator(graph):
            opsets.setdefault(node.domain, self._model_opsets.get(node.domain, 1))
        return opsets


_callers: ContextVar[tuple[Function, ...]] = ContextVar("_callers", default=())
"""The functions that are being traced; each thread has its own."""
