"""Bodies of the composites that passes create.

Passes do not import torch, so they cannot run the writers of ``coreai_onnx/functions``. The bodies
that they need are generated from these writers, in ONNX's text form (``composite_bodies.py``). If
the model already has an equal body, that function is called: functions are compared by what they
do, not by which stage created them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import onnx_ir as ir

from coreai_onnx.passes.engine.calls import CallIndex, sorted_callers_first
from coreai_onnx.passes.engine.composite_bodies import BODIES, FORMULAS
from coreai_onnx.passes.engine.context import context_of, with_subgraphs
from coreai_onnx.passes.engine.importer import Importer
from coreai_onnx.passes.engine.integrity import too_new
from coreai_onnx.passes.engine.match import DOMAIN, STANDARD_DOMAINS

_FUNCTIONS_SINCE = 8
"""The first IR version in which a model can contain functions."""


class Bodies:
    """The functions of a model while passes run on it."""

    def __init__(self, main: gs.Graph) -> None:
        """Index the functions of a model.

        Args:
            main: The main graph.
        """
        self._main = main
        self._by_name: dict[tuple[str, str], gs.Function] = {}
        self._indexed: Sequence[gs.Function] = ()
        self._calls = CallIndex()
        self._outlines: dict[str, tuple[Any, ...]] = {}

    @property
    def opset(self) -> int:
        """The ``ai.onnx`` opset of the model."""
        return int(self._main.opset)

    def provide_composite(self, name: str, dtype: np.dtype[Any] | None) -> str | None:
        """Make sure that the model has the body of a composite for a dtype.

        Args:
            name: Op type, with the variant that distinguishes its bodies: ``geglu.tanh``.
            dtype: Dtype of the first input.

        Returns:
            The op type to call; None if there is no body for the dtype, or if every name that it
            could have belongs to another body.
        """
        composite, _, variant = name.partition(".")
        word = "" if dtype is None else dtype.name
        text = _text(name, word, self.opset)
        if text is None:
            return None
        if text not in self._outlines:  # a pass asks once for every place that it rewrites
            self._outlines[text] = outline(self._parsed(name, text, "", {}))
        wanted = self._outlines[text]
        for function in self._main.functions:
            own = function.domain == DOMAIN and function.name.partition(".")[0] == composite
            if own and outline(function) == wanted:
                return str(function.name)
        own_dtype = f"{name}_{word}" if variant else f"{name}.{word}"
        for op_type in (name, own_dtype) if word != "float32" else (name,):
            if self.named(op_type) is None:
                return self.provide(op_type, text, FORMULAS[composite])
        return None

    def provide(
        self, name: str, text: str, doc: str = "", calls: Mapping[str, str] | None = None
    ) -> str | None:
        """Make sure that the model has a function; return its name.

        Args:
            name: Op type of the composite, with its variant: ``rms_norm``, ``geglu.tanh``.
            text: Signature without the name, and nodes: ``<eps: float> (x) => (y) { … }``.
            doc: Doc string: the formula.
            calls: Maps the names of composites in the text, which cannot contain ``rms_norm.2``,
                to the names of the functions.

        Returns:
            The op type to call, or None if the model has another function of that name, or is too
            old for this one.
        """
        wanted = self._parsed(name, text, doc, calls or {})
        old = (self._main.ir_version or _FUNCTIONS_SINCE) < _FUNCTIONS_SINCE
        if old or too_new(wanted, self.opset, known=False):
            return None
        known = self.named(name)
        if known is not None:
            return name if outline(known) == outline(wanted) else None
        self._main.functions.append(wanted)
        context_of(wanted).bodies = self
        self._set_pure(context_of(self._main).pure_calls | {(DOMAIN, name)})
        return name

    def named(self, name: str) -> gs.Function | None:
        """Return the function of a composite, with its variant."""
        return self.find(DOMAIN, name)

    def function(self, node: gs.Node) -> gs.Function | None:
        """Return the function that a node calls."""
        return self.find(node.domain or "", node.op)

    def rename(self, old: str, new: str) -> bool:
        """Change the variant of a composite's function and of all its calls; False if it exists."""
        function = self.named(old)
        if function is None or self.named(new) is not None:
            return False
        for graph in self._graphs():
            for node in graph.nodes:
                if (node.domain, node.op) == (DOMAIN, old):
                    node.op = new
        function.name = new
        self._indexed = ()
        self._calls = CallIndex()
        pure = context_of(self._main).pure_calls
        if (DOMAIN, old) in pure:
            self._set_pure(pure - {(DOMAIN, old)} | {(DOMAIN, new)})
        return True

    def find(self, domain: str, name: str) -> gs.Function | None:
        """Return the function of a domain and a name."""
        functions = self._main.functions
        if self._indexed is not functions or len(self._by_name) != len(functions):
            self._indexed = functions
            self._by_name = {(f.domain, f.name): f for f in reversed(functions)}
        return self._by_name.get((domain, name))

    def _graphs(self) -> Iterator[gs.Graph]:
        for root in (self._main, *self._main.functions):
            yield from with_subgraphs(root)

    def _set_pure(self, calls: frozenset[tuple[str, str]]) -> None:
        for graph in self._graphs():
            context_of(graph).pure_calls = calls

    def callers_first(self) -> Iterator[gs.Function]:
        """Yield every function after its callers, functions added during the iteration included."""
        done: set[int] = set()
        while left := [one for one in self._main.functions if id(one) not in done]:
            functions, count = self._main.functions, len(self._main.functions)
            for chosen in sorted_callers_first(left):
                if self._main.functions is not functions or len(functions) != count:
                    break  # a pass added functions, or removed some
                done.add(id(chosen))
                yield chosen

    def changed(self, root: gs.Graph) -> None:
        """Record that the calls in a root graph may have changed."""
        self._calls.changed(root)

    def calls(self, function: gs.Function) -> list[gs.Node]:
        """Return the nodes that call a function, in any graph."""
        key = function.domain, function.name
        nodes = self._calls.of(key, (self._main, *self._main.functions))
        return [node for node in nodes if (node.domain or "", node.op) == key]

    def arguments(self, function: gs.Function) -> list[list[gs.Tensor]]:
        """Return, for each input of a function, the tensors that its calls pass."""
        calls = self.calls(function)
        absent = gs.Variable.empty()
        return [
            [node.inputs[i] if i < len(node.inputs) else absent for node in calls]
            for i in range(len(function.inputs))
        ]

    def _parsed(self, name: str, text: str, doc: str, calls: Mapping[str, str]) -> gs.Function:
        head = f'<domain: "{DOMAIN}", opset_import: ["": {self.opset}, "{DOMAIN}": 1]>\n'
        proto = onnx.parser.parse_function(f"{head}{name.replace('.', '_')} {text}")
        proto.name, proto.doc_string = name, doc
        for index, node in enumerate(proto.node):
            node.name = node.output[0] or f"{node.op_type}_{index}"
            if node.domain == DOMAIN:
                node.op_type = calls.get(node.op_type, node.op_type)
        if not any(node.domain for node in proto.node):
            del proto.opset_import[1]
        function = ir.from_proto(proto)
        assert isinstance(function, ir.Function)
        return Importer().function(function)


def _text(name: str, dtype: str, opset: int) -> str | None:
    """Return the text of a composite's body; None if there is none for the dtype."""
    found = (b for b in BODIES[name] if dtype in b.dtypes and b.since <= opset)
    newest = max(found, key=lambda body: body.since, default=None)
    return None if newest is None else newest.text


def bodies_of(graph: gs.Graph) -> Bodies | None:
    """Return the model's functions for a graph that may call more of them.

    Returns None for the body of a composite, since it could call itself.
    """
    if isinstance(graph, gs.Function) and graph.domain == DOMAIN:
        return None
    return context_of(graph).bodies


def outline(function: gs.Function) -> tuple[Any, ...]:
    """Return the structure of a function without doc strings and names of tensors and nodes."""
    numbers: dict[int, int] = {}

    def number(tensor: gs.Tensor) -> Any:
        if tensor.is_empty():
            return ""
        if isinstance(tensor, gs.Constant):
            return _frozen(tensor)
        return numbers.setdefault(id(tensor), len(numbers))

    inputs = tuple(number(tensor) for tensor in function.inputs)
    nodes = tuple(
        (
            "" if node.domain in STANDARD_DOMAINS else node.domain,
            node.op,
            tuple(number(tensor) for tensor in node.inputs),
            tuple(sorted((key, _frozen(value)) for key, value in node.attrs.items())),
            tuple(number(tensor) for tensor in node.outputs),
        )
        for node in function.nodes
    )
    return inputs, nodes, tuple(number(tensor) for tensor in function.outputs)


def _frozen(value: Any) -> str:
    if isinstance(value, gs.Node.AttributeRef):
        return f"@{value.name}"
    if isinstance(value, gs.Constant):
        values = np.asarray(value.values)
        return f"{values.dtype.name} {values.shape} {values.tobytes().hex()}"
    if isinstance(value, gs.Graph):
        return f"graph {id(value)}"  # bodies with branches never compare equal
    return repr(list(value)) if isinstance(value, list | tuple) else repr(value)
