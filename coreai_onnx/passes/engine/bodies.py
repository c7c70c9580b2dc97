"""Bodies of the composites that passes create.

Passes import neither torch nor the writers of bodies: whoever runs passes hands a writer in. If the
model already has an equal body, that function is called: functions are compared by what they do,
not by which stage created them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.checks.fixed_attributes import FIXED
from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.calls import CallIndex, sorted_callers_first
from coreai_onnx.passes.engine.graphs import attribute_graphs, context_of, with_subgraphs
from coreai_onnx.passes.engine.importer import Importer
from coreai_onnx.passes.engine.match import STANDARD_DOMAINS
from coreai_onnx.passes.engine.why import Why

_FUNCTIONS_SINCE = 8
"""The first IR version in which a model can contain functions."""
_DTYPE_WORDS = ("float64", "bfloat16", "float16")
"""Variant words of dtypes whose bodies may differ from the float32 body."""
_MAKERS: set[Callable[..., int]] = set()
"""The passes that `makes_functions` decorated, which the target ``"portable"`` leaves out."""


BodyWriter = Callable[[str, str, int], ir.Function | None]
"""Returns the body of a composite, perhaps the same object as before.

Called with its op type and variant or a part of a body (``skip_rms_norm/sum``), the dtype of the
first input, and the opset; returns None if there is no body for the dtype.
"""


class Bodies:
    """The functions of a model while passes run on it."""

    def __init__(self, main: gs.Graph, write_body: BodyWriter | None = None) -> None:
        """Index the functions of a model.

        Args:
            main: The main graph.
            write_body: Writes the bodies of composites; None if the model gets no new ones.
        """
        self._main, self._write_body = main, write_body
        self._by_name: dict[tuple[str, str], gs.Function] = {}
        self._indexed: Sequence[gs.Function] = ()
        self._calls = CallIndex()
        self._outlines: dict[tuple[str, str], tuple[Any, ...]] = {}

    @property
    def opset(self) -> int:
        """The ``ai.onnx`` opset of the model."""
        return int(self._main.opset)

    def provide_composite(
        self, name: str, dtype: np.dtype[Any] | None, *op_types: str
    ) -> str | None:
        """Make sure that the model has the body of a composite for a dtype.

        Args:
            name: Op type, with the variant that distinguishes its bodies: ``geglu.tanh``.
            dtype: Dtype of the first input.
            *op_types: Names for the function in order of preference, instead of ``name``.

        Returns:
            The op type to call; None if there is no body for the dtype, or if every name that it
            could have belongs to another body.
        """
        written = self._written(name, dtype)
        if written is None or dtype is None:
            return None
        key = name, dtype.name
        if key not in self._outlines:  # a pass asks once for every place that it rewrites
            self._outlines[key] = outline(Importer().function(written))
        present = self._equal(name, self._outlines[key], written.metadata_props.get(FIXED, ""))
        return present or self._add(_copied(written), op_types or (name,), dtype)

    def provide(self, function: gs.Function, dtype: np.dtype[Any] | None) -> str | None:
        """Make sure that the model has a function of a composite; return the op type to call.

        Args:
            function: The function, called by its op type.
            dtype: Dtype of the first input.

        Returns:
            The op type; None if every name that the function could have belongs to another body.
        """
        present = self._equal(function.name, outline(function), _fixed(function))
        return present or self._add(function, (function.name,), dtype)

    def body(self, name: str, dtype: np.dtype[Any] | None) -> gs.Function | None:
        """Return a new function with the body of a composite; None if there is none for the dtype.

        Args:
            name: Op type, with the variant, or a part of a body: ``skip_rms_norm/sum``.
            dtype: Dtype of the first input.
        """
        written = self._written(name, dtype)
        return None if written is None else _copied(written)

    def _written(self, name: str, dtype: np.dtype[Any] | None) -> ir.Function | None:
        if dtype is None or self._write_body is None:
            return None
        return self._write_body(name, dtype.name, self.opset)

    def _equal(self, name: str, structure: tuple[Any, ...], fixed: str) -> str | None:
        """Return the op type of the function of a composite that has the outline.

        A function of an old file has no fixed attributes in its metadata.
        """
        for function in self._main.functions:
            same = function.domain == STANDARD_DOMAIN and _plain(function.name) == _plain(name)
            if same and _fixed(function) in ("", fixed) and outline(function) == structure:
                return function.name
        return None

    def _add(
        self, function: gs.Function, op_types: Sequence[str], dtype: np.dtype[Any] | None
    ) -> str | None:
        """Add a function under the first name that is free; None if the model cannot have it."""
        # Callers treat this as a name that is taken, so an old model keeps its plain ops.
        if (self._main.ir_version or _FUNCTIONS_SINCE) < _FUNCTIONS_SINCE:
            return None
        # A taken name belongs to a body that `_equal` found to be another one, perhaps of the user.
        free = (name for name in _names(op_types, dtype) if self.named(name) is None)
        op_type = next(free, None)
        if op_type is None:
            return None
        function.name = op_type
        self._main.functions.append(function)
        function.bodies = self
        # The runner looked for pure functions before this one existed. Composites are pure; without
        # this line, equal calls would stay apart.
        self._set_pure(self._main.pure_calls | {(STANDARD_DOMAIN, op_type)})
        return op_type

    def named(self, name: str) -> gs.Function | None:
        """Return the function of a composite, with its variant."""
        return self.find(STANDARD_DOMAIN, name)

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
                if (node.domain, node.op) == (STANDARD_DOMAIN, old):
                    node.op = new
        function.name = new
        self._indexed = ()
        self._calls = CallIndex()
        pure = self._main.pure_calls
        if (STANDARD_DOMAIN, old) in pure:
            self._set_pure(pure - {(STANDARD_DOMAIN, old)} | {(STANDARD_DOMAIN, new)})
        return True

    def find(self, domain: str, name: str) -> gs.Function | None:
        """Return the function of a domain and a name."""
        functions = self._main.functions
        # Passes add and remove functions; `rename` resets the index, as the number stays the same.
        if self._indexed is not functions or len(self._by_name) != len(functions):
            self._indexed = functions
            # Reversed, so that the first of two functions with one name is the one that is found.
            self._by_name = {(f.domain, f.name): f for f in reversed(functions)}
        return self._by_name.get((domain, name))

    def _graphs(self) -> Iterator[gs.Graph]:
        for root in (self._main, *self._main.functions):
            yield from with_subgraphs(root)

    def _set_pure(self, calls: frozenset[tuple[str, str]]) -> None:
        for graph in self._graphs():
            graph.pure_calls = calls

    def callers_first(self) -> Iterator[gs.Function]:
        """Yield every function after its callers, functions added during the iteration included."""
        done: set[int] = set()
        while left := [function for function in self._main.functions if id(function) not in done]:
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

    def passed(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        """Return what calls pass for an input of a function; nothing for any other tensor."""
        for function in self._main.functions:
            for index, declared in enumerate(function.inputs):
                if declared is tensor:
                    return self.arguments(function)[index]
        return []


def _copied(written: ir.Function) -> gs.Function:
    """Import a copy of a body, since passes change a body and its metadata."""
    return Importer().function(written.clone())


def _plain(name: str) -> str:
    """Return the name of the composite for an op type or for a part of its body."""
    return name.partition(".")[0].partition("/")[0]


def _fixed(function: gs.Function) -> str:
    """Return the fixed attributes of a body as its metadata has them; empty if unknown."""
    source = function.source
    return "" if source is None else source.metadata_props.get(FIXED, "")


def _names(op_types: Sequence[str], dtype: np.dtype[Any] | None) -> Iterator[str]:
    """Yield the names that a function may have: a second dtype has a name of its own."""
    yield from op_types
    if dtype is not None and dtype.name in _DTYPE_WORDS:
        yield f"{op_types[-1]}{'_' if '.' in op_types[-1] else '.'}{dtype.name}"


def makes_functions(one: Callable[[gs.Graph, Why, Bodies], int]) -> Callable[[gs.Graph, Why], int]:
    """Return the pass that calls a function with the model's functions, to which it may add.

    The pass does nothing where no function can be added. It does not run for targets whose models
    have no functions.

    Args:
        one: Rewrites a graph; returns the number of rewrites.
    """

    @functools.wraps(one)
    def run(graph: gs.Graph, why: Why) -> int:
        bodies = bodies_of(graph)
        return 0 if bodies is None else one(graph, why, bodies)

    _MAKERS.add(run)
    return run


def can_make_functions(one: Callable[..., int]) -> bool:
    """Whether a pass may add functions to the model."""
    return one in _MAKERS


def model_bodies(graph: gs.Graph) -> Bodies | None:
    """Return the functions of the model that a graph belongs to; None outside of a run."""
    bodies = context_of(graph).bodies
    return bodies if isinstance(bodies, Bodies) else None


def bodies_of(graph: gs.Graph) -> Bodies | None:
    """Return the model's functions for a graph that may call more of them.

    Returns None for the body of a composite, since it could call itself.
    """
    if isinstance(graph, gs.Function) and graph.domain == STANDARD_DOMAIN:
        return None
    return model_bodies(graph)


def outline(function: gs.Function) -> tuple[Any, ...]:
    """Return the structure of a function without doc strings and names of tensors and nodes."""
    numbers: dict[int, int] = {}

    # Numbers in the order of first appearance: two bodies are equal whatever their tensors are
    # called.
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
    if isinstance(value, gs.AnyConstant):
        values = np.asarray(value.values)
        return f"{values.dtype.name} {values.shape} {values.tobytes().hex()}"
    if isinstance(value, gs.Graph):
        return f"graph {id(value)}"  # bodies with branches never compare equal
    return repr(list(value)) if isinstance(value, list | tuple) else repr(value)


def append_body(first: gs.Function, second: gs.Function) -> bool:
    """Let a function also compute another one of its result; return False if that is impossible.

    first(a, b) → s, second(x, w) → y     becomes     first(a, b, w) → y, s

    The nodes are copied, so that ``second`` stays as it is. Types are not copied: a body holds for
    every dtype and shape. The metadata are those of ``second``.

    Args:
        first: A function with one output, which is changed.
        second: A function whose first input is that output, and whose nodes have no subgraphs.
    """
    # A subgraph reads outer tensors by identity, which a copy of the node alone would not redirect.
    if any(attribute_graphs(node) for node in second.nodes):
        return False
    names = first.names
    (joint,) = first.outputs
    copies: dict[gs.Tensor, gs.Tensor] = {second.inputs[0]: joint}

    def copied(tensor: gs.Tensor) -> Any:
        if tensor.is_empty():
            return gs.Variable.empty()
        if tensor not in copies:
            name = names.claim(tensor.name)
            copies[tensor] = (
                gs.Constant(name, tensor.values)
                if isinstance(tensor, gs.Constant)
                else gs.Variable(name)
            )
        return copies[tensor]

    first.inputs.extend(copied(tensor) for tensor in second.inputs[1:])
    outputs = [copied(tensor) for tensor in second.outputs]
    for node in second.nodes:
        inputs, results = ([copied(t) for t in tensors] for tensors in (node.inputs, node.outputs))
        # Both bodies were written on their own, so their names may collide.
        name = names.claim(node.name)
        first.nodes.append(gs.Node(node.op, name, dict(node.attrs), inputs, results, node.domain))
    first.outputs = [*outputs, joint]
    for name, default in second.attrs.items():
        first.attrs.setdefault(name, default)
    if first.source is not None and second.source is not None:
        first.source.metadata_props.clear()
        first.source.metadata_props.update(second.source.metadata_props)
    return True
