"""A model file's declarations, and what they are built to."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onnxscript import ir

from .checking import check
from .errors import BuildError, failure, place
from .functions import Function, as_texts
from .names import RecordedNames
from .tensors import constant, type_and_shape
from .tracing import Trace
from .weights import StoredWeight, Weights, WeightsFile

IR_VERSION = 10
"""Version of the ONNX format unless the file says another."""
METADATA = {
    "ranges": "coreai.range_constraints",
    "relations": "coreai.relations",
    "states": "coreai.states",
    "complex": "coreai.complex",
}
"""Keywords, and the entries of the model's metadata that they are."""


class Model:
    """A model: its functions, its graph, and where its weights are."""

    def __init__(
        self,
        file: str,
        *,
        opsets: Mapping[str, int],
        ir_version: int = IR_VERSION,
        metadata: Mapping[str, Any] | None = None,
        digest: str | None = None,
        **about: Any,
    ) -> None:
        """Declare a model.

        The weights of ``model.py`` are in ``model.safetensors``, and the names of its nodes in
        ``model.names.json``.

        Args:
            file: The model file, ``__file__``.
            opsets: Domain to version.
            ir_version: Version of the ONNX format.
            metadata: Metadata of the model; values other than strings are written as JSON.
            digest: Digest of the weights; None if other weights may take their place.
            **about: ``domain``, ``model_version`` and ``doc_string`` of the model; ``ranges`` of
                its symbolic dims, ``states``, ``relations`` and ``complex``, see `METADATA`.

        Raises:
            BuildError: If the weights are missing, or have another digest.
        """
        self.file = Path(file)
        self.opsets = dict(opsets)
        self.ir_version = ir_version
        self.metadata = dict(metadata or {})
        self.metadata |= {
            METADATA[n]: about.pop(n) for n in list(about) if n in METADATA
        }
        self.about = about
        self.weights = Weights(
            WeightsFile(self.file.with_suffix(".safetensors"), digest)
        )
        self.functions: dict[tuple[str, str, str], Function] = {}
        self.takes: Mapping[str, Any] | None = None
        self._names = self.file.with_suffix(".names.json")
        self._graph: Callable[..., Any] | None = None
        self._inputs: Mapping[str, str] = {}
        self._outputs: Mapping[str, Any] = {}
        _check_names(self.file)

    def function(
        self, domain: str, name: str | None = None, **about: Any
    ) -> Callable[[Callable[..., Any]], Function]:
        """Declare a function of the model: parameters are inputs, keywords are attributes.

        Args:
            domain: Its domain.
            name: Its name in the model; None for the name in Python.
            **about: See `Function`.
        """

        def declare(body: Callable[..., Any]) -> Function:
            function = Function(
                self.opsets, body, domain, name or body.__name__, **about
            )
            first = self.functions.setdefault(function.key, function)
            if first is not function:
                raise failure(
                    body.__code__,
                    f"there is a function {function.name!r} already, at {place(first.code)}",
                )
            return function

        return declare

    def graph(
        self,
        *,
        outputs: Mapping[str, Any],
        inputs: Mapping[str, str] | None = None,
        takes: Mapping[str, Any] | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declare the graph: parameters are inputs, defaults are the values that they may omit.

        Args:
            outputs: Name to type, in the order in which the function returns them.
            inputs: Parameter to name in the model, if it is not a Python identifier.
            takes: The arguments of ``call(...)``, see `flattened`; None for one for each input.
        """

        def declare(body: Callable[..., Any]) -> Callable[..., Any]:
            if self._graph is not None:
                raise failure(body.__code__, "there is a graph already")
            self._graph, self._outputs, self._inputs = body, outputs, inputs or {}
            self.takes = takes
            return body

        return declare

    # ------------------------------------------------------------------ building
    def build(self, names: RecordedNames | None = None) -> ir.Model:
        """Trace the graph and the functions.

        Args:
            names: Names of the nodes; None reads the file beside the model file.

        Returns:
            The model; it reads its weights from the file when they are needed.

        Raises:
            BuildError: If the file asks for something that ONNX does not have.
        """
        names = RecordedNames.read(self._names) if names is None else names
        main, functions = self.trace(names)
        exact = names.is_exact
        defaults = {key: item.defaults for key, item in self.functions.items()}
        names.apply(defaults, exact=exact)
        self._finish_interface(main)
        main.result.opset_imports.clear()
        main.result.opset_imports.update(self._opsets(names))
        metadata = as_texts(self.metadata)
        metadata |= names.record.get("model_metadata", {})
        model = ir.Model(
            main.result,
            ir_version=self.ir_version,
            functions=functions,
            metadata_props=metadata,
            **(names.record.get("producer", {}) | self.about),
        )
        # The recorded model has its types already; only those of an edited one are
        # inferred.
        if not exact:
            check(model, {node: trace.places[site] for trace in names.traces
                          for site, node in trace.sites.items()})  # fmt: skip
        return model

    def trace(self, names: RecordedNames) -> tuple[Trace, list[ir.Function]]:
        """Trace the graph and the functions, without names."""
        main = self._traced(names)
        return main, [function.traced(names) for function in self.functions.values()]

    def _traced(self, names: RecordedNames) -> Trace:
        if self._graph is None:
            raise BuildError(
                f"{self.file.name}: no function is declared with @model.graph"
            )
        trace = Trace(names.graph(""), self.opsets)
        code = self._graph.__code__
        arguments = []
        named = {}
        # eval_str, because annotations are texts in a file that postpones them.
        for name, parameter in inspect.signature(
            self._graph, eval_str=True
        ).parameters.items():
            actual = self._inputs.get(name, name)
            value = trace.add_input(actual, parameter.annotation)
            if parameter.kind is parameter.KEYWORD_ONLY:
                named[name] = value
            else:
                arguments.append(value)
            default = parameter.default
            if default is not parameter.empty:
                tensor = (
                    default.load()
                    if isinstance(default, StoredWeight)
                    else constant(default)
                )
                trace.add_initializer(actual, tensor)
        trace.run(self._graph, arguments, **named)
        # Initializers without uses appear nowhere in the Python.
        for name in names.record.get("unused", ()):
            trace.add_initializer(name, self.weights[name].load())
        if len(trace.outputs) != len(self._outputs):
            count = len(trace.outputs)
            raise failure(
                code, f"{count} values are returned, {len(self._outputs)} declared"
            )
        self._separate_outputs(trace)
        trace.graph()
        return trace

    def _separate_outputs(self, trace: Trace) -> None:
        """Copy values that cannot be outputs themselves: inputs, constants, other outputs."""
        names = list(self._outputs)
        seen: set[ir.Value] = set()
        for position, (name, value) in enumerate(
            zip(names, trace.outputs, strict=True)
        ):
            is_new = value.producer() is not None and value not in seen
            if not is_new and value.name != name:
                trace.outputs[position] = trace.copied(value)
            seen.add(trace.outputs[position])

    def _finish_interface(self, main: Trace) -> None:
        for value, (name, annotation) in zip(
            main.outputs, self._outputs.items(), strict=True
        ):
            value.name = name
            value.type, value.shape = type_and_shape(annotation)

    def _opsets(self, names: RecordedNames) -> dict[str, int]:
        """Return the declared opsets, and version 1 of domains that only nodes name."""
        used = (node.domain for trace in names.traces for node in trace.nodes)
        return self.opsets | {d: 1 for d in used if d not in self.opsets}


def _check_names(file: Path) -> None:
    """Check that no two functions of a file have one name: Python would keep the last.

    Raises:
        BuildError: If two have.
    """
    tree = ast.parse(file.read_text("utf-8"))
    inner = [item.body for item in tree.body if isinstance(item, ast.FunctionDef)]
    for body in (tree.body, *inner):
        lines: dict[str, int] = {}
        for item in body:
            if not isinstance(item, ast.FunctionDef):
                continue
            if item.name in lines:
                raise BuildError(
                    f"{file.name}:{item.lineno}: there is a function {item.name!r} already, "
                    f"in line {lines[item.name]}"
                )
            lines[item.name] = item.lineno
