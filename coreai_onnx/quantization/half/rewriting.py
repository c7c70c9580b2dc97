"""Rewrites a model so that the chosen nodes compute in 16 bits, with Casts to those that do not."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import graphs
from coreai_onnx.model.standard.model_protos import subgraphs
from coreai_onnx.quantization.half.bodies import results
from coreai_onnx.quantization.half.choices import Choices
from coreai_onnx.quantization.half.values import LIMIT, constants, narrowed

_SMALLEST = 64
"""Weights with fewer elements stay float32 where float32 reads them; a Cast costs more."""


class HalfRewriting:
    """Changes the dtypes of values, constants and attributes, and inserts Casts."""

    def __init__(self, choices: Choices, wide: Collection[str]) -> None:
        """Decide the dtype of every value.

        Args:
            choices: The nodes and values that keep float32.
            wide: Names of inputs and outputs of the model that stay float32.
        """
        self.choices, self.values, self.dtype = choices, choices.values, choices.dtype
        self.wide = set(wide)
        self._half: set[ir.Value] = set()
        self._converted = {node for root in self.values.roots for node in root}
        self._casts: dict[tuple[ir.Value, bool], ir.Value] = {}
        self._names = _names(choices.model)
        # Callees come first: what a caller wants of an argument depends on the input it becomes.
        for function in self.values.functions[::-1]:
            self._half |= {v for v in function.inputs if self._is_wanted(v)}
        for root in self.values.roots:
            self._place(root)

    def run(self) -> int:
        """Rewrite the model; return the number of nodes that compute in 16 bits."""
        count = sum(self._rewrite_graph(root) for root in self.values.outermost)
        for value in self._half:
            if value.type is not None:
                value.type = ir.TensorType(self.dtype)
        return count

    def _rewrite_graph(self, root: ir.Graph | ir.Function) -> int:
        """Rewrite a graph and its bodies, in the order in which a Cast must precede its readers."""
        count = 0
        # A copy of the list, because Casts are inserted on the way.
        for node in list(root):
            count += self._rewrite(node)
            count += sum(
                self._rewrite_graph(b) for b in subgraphs(node) if b in self.values.holders
            )
        self._finish(root)
        return count

    # ------------------------------------------------------------------ dtypes
    def _place(self, root: ir.Graph | ir.Function) -> None:
        """Find the values of a graph that have 16 bits."""
        if isinstance(root, ir.Graph):
            wide = self.wide if root is self.choices.model.graph else ()
            may = self.values.may_be_half
            self._half |= {v for v in root.inputs if may(v) and v.name not in wide}
        for value, _ in constants(root):
            if self._is_wanted(value) and value.name not in self.wide:
                self._half.add(value)
        for node in root:
            if node.op_type == "Constant" or node in self.choices.kept:
                continue
            function = self.values.callee(node)
            if function is not None:
                halves = [self.values.may_be_half(v) for v in node.outputs]
            else:
                halves = self.choices.half_outputs(node)
            self._half |= {v for v, half in zip(node.outputs, halves, strict=False) if half}

    def _is_wanted(self, value: ir.Value) -> bool:
        """Return whether a constant, or an input of a function, is stored in 16 bits."""
        if not self.values.may_be_half(value):
            return False
        narrow = [self._wants(use.node, use.idx) for use in value.uses()]
        if all(narrow):
            return True
        kept = [u.node for u, half in zip(value.uses(), narrow, strict=True) if not half]
        # A reader that accumulates in float32 may cast a weight of 16 bits, which halves the file;
        # one that rounding would change gets float32.
        hard = any(n not in self.choices.kept or not self.choices.kept[n].store for n in kept)
        return not hard and (value.const_value is None or value.const_value.size >= _SMALLEST)

    def _wants(self, node: ir.Node, index: int) -> bool:
        """Return whether a node reads an input in 16 bits."""
        if node not in self._converted or node in self.choices.kept:
            return False
        function = self.values.callee(node)
        if function is not None:
            return function.inputs[index] in self._half
        return self.choices.half_inputs(node)[index]

    # ------------------------------------------------------------------ nodes
    def _rewrite(self, node: ir.Node) -> bool:
        if node.op_type == "Constant":
            self._narrow_constant(node)
            return False
        narrow = [self._wants(node, index) for index in range(len(node.inputs))]
        for index, value in enumerate(list(node.inputs)):
            if value is not None and self.values.is_float(value):
                node.replace_input_with(index, self._read(value, node, half=narrow[index]))
        for inner, index, value in self._captured(node):
            if self.values.is_float(value):
                inner.replace_input_with(index, self._read(value, node, half=False))
        if node.outputs and node.outputs[0] in self._half:
            self._change_attributes(node)
        computes = any(narrow) or any(value in self._half for value in node.outputs)
        # The report counts computations; a Cast does none.
        return computes and node.op_type != "Cast"

    def _change_attributes(self, node: ir.Node) -> None:
        if node.op_type == "Cast":
            node.attributes["to"] = ir.AttrInt64("to", int(self.dtype))
        elif node.op_type == "ConstantOfShape":
            fill = node.attributes.get("value")
            # Without a value, ONNX fills with 0 in float32.
            tensor = ir.tensor(np.zeros(1, np.float32)) if fill is None else fill.as_tensor()
            node.attributes["value"] = ir.AttrTensor("value", narrowed(tensor, self.dtype, ""))

    def _narrow_constant(self, node: ir.Node) -> None:
        value = node.outputs[0]
        tensor = ir.convenience.get_const_tensor(value) if value in self._half else None
        if tensor is not None:
            small = narrowed(tensor, self.dtype, value.name or "")
            # ``value_float`` and ``value_floats`` are float32 by definition; only ``value`` has a
            # dtype.
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", small)
            value.const_value = small

    def _read(self, value: ir.Value, node: ir.Node, *, half: bool) -> ir.Value:
        """Return a value in 16 bits or in float32, by a Cast before its first reader.

        The Cast of a value that a body reads from outside is outside: a loop needs it once.
        """
        if (value in self._half) == half:
            return value
        if (value, half) not in self._casts:
            node, source = self.values.reader(value, node), value
            # Below float16's range a fill becomes minus infinity, and softmax of a row of these is
            # NaN.
            if half and value in self.values.fills:
                source = self._limited(value, node)
            cast = self._cast(source, half=half, name=f"{value.name}")
            node.prepend(cast)
            self._casts[value, half] = cast.outputs[0]
        return self._casts[value, half]

    def _cast(self, value: ir.Value, *, half: bool, name: str) -> ir.Node:
        dtype = self.dtype if half else ir.DataType.FLOAT
        name = self._unused(f"{name}.{_word(dtype)}")
        cast = ir.node("Cast", [value], {"to": int(dtype)}, name=name)
        result = cast.outputs[0]
        result.name, result.type, result.shape = cast.name, ir.TensorType(dtype), value.shape
        return cast

    def _unused(self, name: str) -> str:
        """Return a name that no value and no node has: a Cast has the name of its result."""
        unused = name
        while unused in self._names:
            unused = f"{unused}.2"
        self._names.add(unused)
        return unused

    def _limited(self, value: ir.Value, node: ir.Node) -> ir.Value:
        """Clip a mask to the finite range, so that a fully masked row does not become NaN."""
        # 3.38e38 is less than the largest bfloat16, 3.3895e38, so that rounding cannot make it
        # infinite.
        limit = LIMIT if self.dtype == ir.DataType.FLOAT16 else 3.38e38
        ends = []
        for name, end in (("least", -limit), ("largest", limit)):
            tensor = ir.tensor(np.asarray(end, np.float32))
            name = self._unused(f"{value.name}.{name}")
            constant = ir.node("Constant", [], {"value": tensor}, name=name)
            constant.outputs[0].name = constant.name
            node.prepend(constant)
            ends.append(constant.outputs[0])
        clip = ir.node("Clip", [value, *ends], name=self._unused(f"{value.name}.finite"))
        result = clip.outputs[0]
        result.name, result.type, result.shape = clip.name, value.type, value.shape
        node.prepend(clip)
        return result

    def _captured(self, node: ir.Node) -> Iterator[tuple[ir.Node, int, ir.Value]]:
        """Yield the reads of outer values in the bodies of a node that keep float32."""
        bodies = [graph for graph in subgraphs(node) if graph not in self.values.holders]
        nodes = [inner for graph in bodies for inner in graph.all_nodes()]
        inside = {value for inner in nodes for value in inner.outputs}
        for inner in nodes:
            for index, value in enumerate(inner.inputs):
                if value is not None and value not in inside:
                    yield inner, index, value

    # ------------------------------------------------------------------ ends
    def _finish(self, root: ir.Graph | ir.Function) -> None:
        """Convert initializers, and give the outputs their dtypes."""
        if isinstance(root, ir.Graph):
            for value in root.initializers.values():
                if value in self._half and value.const_value is not None:
                    name = value.name or ""
                    value.const_value = narrowed(value.const_value, self.dtype, name)
        if isinstance(root, ir.Graph) and root in self.values.holders:
            self._finish_body(root)
            return
        for index, value in enumerate(list(root.outputs)):
            # An output that is an input has the dtype in which it was given.
            if not self.values.is_float(value) or value.producer() is None:
                continue
            half = value not in self.values.flagged
            half = half and not (isinstance(root, ir.Graph) and value.name in self.wide)
            if half != (value in self._half):
                self._cast_output(root, index, value, half=half)

    def _finish_body(self, body: ir.Graph) -> None:
        """Give the outputs of a body the dtypes of the results that they become."""
        for position, result in results(self.values.holders[body]):
            value, half = body.outputs[position], result in self._half
            if self.values.is_float(value) and half != (value in self._half):
                cast = self._cast(value, half=half, name=value.name or "")
                body.append(cast)
                body.outputs[position] = cast.outputs[0]

    def _cast_output(
        self, root: ir.Graph | ir.Function, index: int, value: ir.Value, *, half: bool
    ) -> None:
        """Put a Cast before an output, which keeps its name."""
        name = value.name or ""
        # Callers know the output by its name, so the value before the Cast is renamed.
        cast = self._cast(value, half=half, name=name)
        value.name = self._unused(f"{name}.{_word(ir.DataType.FLOAT if half else self.dtype)}")
        cast.outputs[0].name = name
        root.append(cast)
        root.outputs[index] = cast.outputs[0]


def _names(model: ir.Model) -> set[str | None]:
    """Return the names of all nodes and values, also in the bodies of functions."""
    roots: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    # ONNX requires names that are unique in a graph and all of its subgraphs.
    names = {value.name for root in roots for value in root.inputs}
    for graph in graphs(model):
        names |= {value.name for value in graph.initializers.values()}
        for node in graph:
            names |= {node.name, *(value.name for value in node.outputs)}
    return names


def _word(dtype: ir.DataType) -> str:
    return "float32" if dtype == ir.DataType.FLOAT else dtype.name.lower()
