"""Rewrites a model with quantized weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx_ir as ir

from coreai_onnx.composites.declaration import DOMAIN
from coreai_onnx.errors import QuantizationError
from coreai_onnx.model.delegated_parts import BACKEND
from coreai_onnx.model.inventory import CONTRIB_DOMAIN, STANDARD_DOMAIN, graphs
from coreai_onnx.quantization.weights.packed_weights import PackedWeight
from coreai_onnx.quantization.weights.products import MatrixWeight, Product, Products, Root, origin

Parts = dict[str, ir.Value]
"""The values of a packed weight in one graph, by the names of the inputs of the composites."""
DIVISORS = "input_scales"
"""The part that inputs are multiplied by before the product."""
_BIAS = 2


FewBitFunctions = Callable[
    [str, ir.DataType, Sequence[str], Mapping[str, int | Sequence[int]]], str
]
"""Adds the function of a composite of few bits to a model unless it is there, and returns its op
type; see `coreai_onnx.bodies.quantized.FewBitBodies`."""
BodiesOf = Callable[[ir.Model], FewBitFunctions]
"""Returns the functions of a model; whoever quantizes hands it in, as it is written with torch."""


class Rewriting:
    """Rewrites one model.

    Args:
        products: The products of the model.
        packed: The packed weights.
        bodies: The functions of the model.
    """

    def __init__(
        self,
        products: Products,
        packed: Mapping[MatrixWeight, PackedWeight],
        bodies: FewBitFunctions,
    ) -> None:
        """Prepare the rewriting; nothing is changed yet."""
        self.products = products
        self.packed = {weight.value: done for weight, done in packed.items()}
        self._by_rows = {weight.value: weight.by_rows for weight in packed}
        self.bodies = bodies
        self._dtypes = {
            value: product.dtype
            for product in products.products
            for value in self._constants(product)
        }
        self._parts: dict[object, Parts] = {}
        self._replaced: set[ir.OperatorIdentifier] = set()

    def run(self) -> None:
        """Replace every product whose weight is packed, and remove what is no longer used."""
        for product in self.products.products:
            packed = [self._packed_for(value, product) for value in self._constants(product)]
            # After `specialize`, all weights that an input of a function may be have one scheme:
            # the first stands for them.
            if packed and packed[0] is not None and None not in packed:
                self._rewrite(product, packed[0])
        # Only when all products are rewritten is it known which weights nothing reads.
        for product in self.products.products:
            self._remove_unused(product.weight)
        self._remove_bodies()

    def _constants(self, product: Product) -> list[ir.Value]:
        return self.products.constants(product.weight) or []

    def _packed_for(self, value: ir.Value, product: Product) -> PackedWeight | None:
        """Return the packed weight of an initializer; None if the product needs its transpose."""
        same = self._by_rows.get(value) == product.by_rows
        return self.packed.get(value) if same else None

    def _remove_bodies(self) -> None:
        """Remove the bodies of composites that were replaced, if nothing else calls them."""
        functions = self.products.model.functions
        roots: list[Root] = [self.products.model.graph, *functions.values()]
        called = {node.op_identifier() for root in roots for node in root.all_nodes()}
        for key in self._replaced - called:
            functions.pop(key, None)

    def _rewrite(self, product: Product, packed: PackedWeight) -> None:
        node, parts = product.node, self._parts_of(product.weight)
        source = node.inputs[1] if not product.is_lookup else node.inputs[0]
        sizes = {"bits": packed.scheme.bits, "group_size": _group_of(packed)}
        attributes = {**sizes, "scale_bits": 0}
        if product.is_lookup:
            self._lookup(node, parts, product.dtype, attributes)
        else:
            attributes["activation_bits"] = packed.scheme.activation_bits
            self._product(product, parts, attributes)
        for root in (product.root, self.products.model.graph):  # onnxruntime inlines functions
            root.opset_imports.setdefault(DOMAIN, 1)
        if source is not None:
            remove_makers(source)

    def _product(self, product: Product, parts: Parts, attributes: dict[str, int]) -> None:
        node, inputs = product.node, product.inputs
        x = inputs[0]
        if DIVISORS in parts:
            # A product by reciprocals, which costs less than a division.
            x = self._before(node, "Mul", x, parts[DIVISORS])
        if product.is_gathered:
            arguments: dict[str, ir.Value | None] = {"lhs": x, **parts, "indices": inputs[1]}
            self._call(node, "gather_mm_nbits", arguments, product.dtype, attributes)
            return
        bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
        arguments = {"input": x, **parts, "bias": bias}
        self._call(node, "linear_nbits", arguments, product.dtype, attributes)

    def _lookup(
        self, node: ir.Node, parts: Parts, dtype: ir.DataType, attributes: dict[str, int]
    ) -> None:
        scales = self._before(node, "Cast", parts["scales"], to=int(dtype))
        arguments = {**parts, "scales": scales, "indices": node.inputs[1]}
        self._call(node, "embedding_nbits", arguments, dtype, attributes)

    def _call(
        self,
        node: ir.Node,
        name: str,
        arguments: Mapping[str, ir.Value | None],
        dtype: ir.DataType,
        attributes: dict[str, int],
    ) -> None:
        """Turn a node into a call; it keeps its name, outputs and source."""
        present = [key for key, value in arguments.items() if value is not None]
        op_type = self.bodies(name, dtype, present, attributes)
        function = self.products.model.functions[DOMAIN, op_type, ""]
        self._replaced.add(node.op_identifier())
        # In place rather than a new node: results keep their names, source positions and readers.
        node.domain, node.op_type, node.version = DOMAIN, op_type, None
        node.resize_inputs(len(function.inputs))
        for index, declared in enumerate(function.inputs):
            node.replace_input_with(index, arguments.get(declared.name or ""))
        node.attributes.clear()
        node.attributes.update({k: ir.AttrInt64(k, v) for k, v in attributes.items()})

    def _before(
        self, node: ir.Node, op: str, *inputs: ir.Value | None, **attributes: int
    ) -> ir.Value:
        """Insert a node before another one, and return its result."""
        inserted = ir.node(op, inputs, attributes, name=f"{node.name}.{op}")
        inserted.metadata_props.update(node.metadata_props)
        inserted.outputs[0].name = f"{node.outputs[0].name}.{op}"
        source = inputs[0]
        if source is not None and source.type is not None:  # bodies of functions have no types
            to = attributes.get("to")
            value_type = source.type if to is None else ir.TensorType(ir.DataType(to))
            inserted.outputs[0].type, inserted.outputs[0].shape = value_type, source.shape
        node.prepend(inserted)
        return inserted.outputs[0]

    # ------------------------------------------------------------------ values
    def _parts_of(self, weight: ir.Value) -> Parts:
        """Return the parts of a weight where it is an initializer or an input of a function."""
        function = self.products.owner(weight)
        if function is not None:
            if weight not in self._parts:
                self._parts[weight] = self._inputs(weight, function)
            return self._parts[weight]
        # Equal weights share one packed weight, so that a tied head and embedding are stored once.
        key = (id(self.packed[weight]), id(weight.graph))
        if key not in self._parts:
            self._parts[key] = self._initializers(weight, self.packed[weight])
        return self._parts[key]

    def _initializers(self, weight: ir.Value, packed: PackedWeight) -> Parts:
        graph, arrays = weight.graph, packed.parts
        assert isinstance(graph, ir.Graph)
        if packed.divisors is not None:
            arrays[DIVISORS] = (1 / packed.divisors).astype(self._dtypes[weight].numpy())
        parts: Parts = {}
        for part, array in arrays.items():
            name = unused(f"{(weight.name or '').removesuffix('.T')}.{part}", graph.initializers)
            parts[part] = ir.val(name, const_value=ir.tensor(array, name=name))
            graph.register_initializer(parts[part])
        return parts

    def _inputs(self, weight: ir.Value, function: ir.Function) -> Parts:
        """Add inputs for the parts to a function, and pass them in all calls."""
        calls = self.products.calls[function.identifier()]
        arguments = [value for value in self.products.arguments(weight) if value is not None]
        passed = [self._parts_of(origin(value)) for value in arguments]
        parts: Parts = {}
        for part in passed[0]:
            parts[part] = ir.Value(name=f"{weight.name}.{part}")
            # The last input of a delegated part is what its backend made of it.
            index = len(function.inputs) - (BACKEND in function.metadata_props)
            function.inputs.insert(index, parts[part])
            for (call, _), values in zip(calls, passed, strict=True):
                inputs = [*call.inputs[:index], values[part], *call.inputs[index:]]
                call.resize_inputs(len(inputs))
                for at in range(index, len(inputs)):
                    call.replace_input_with(at, inputs[at])
        return parts

    def _remove_unused(self, weight: ir.Value) -> None:
        if weight.uses() or weight.is_graph_output():
            return
        # The weight may be passed through functions: each of their inputs and arguments goes as
        # well.
        function = self.products.owner(weight)
        if function is None:
            graph = weight.graph
            if isinstance(graph, ir.Graph):
                graph.initializers.pop(weight.name or "", None)
            return
        arguments, index = self.products.arguments(weight), list(function.inputs).index(weight)
        for call, _ in self.products.calls[function.identifier()]:
            rest = [value for at, value in enumerate(call.inputs) if at != index]
            call.resize_inputs(len(rest))
            for at, value in enumerate(rest):
                call.replace_input_with(at, value)
        del function.inputs[index]
        for value in arguments:
            if value is not None:
                source = origin(value)
                remove_makers(value)
                self._remove_unused(source)


def _group_of(packed: PackedWeight) -> int:
    return int(packed.codes.shape[-1]) * 8 // packed.scheme.bits


def remove_makers(value: ir.Value) -> None:
    """Remove the Transposes and Casts that make a value, as far as nothing else reads them."""
    node = value.producer()
    while node is not None and not value.uses() and not value.is_graph_output():
        above = node.inputs[0]
        assert node.graph is not None
        # ``safe`` also detaches its inputs: the next maker then has no reader either.
        node.graph.remove(node, safe=True)
        if above is None:
            return
        value, node = above, above.producer()


def unused(name: str, taken: Collection[str | None], first: int = 2) -> str:
    """Return a name that is not taken: with a number from ``first`` on, if it is."""
    numbered = (f"{name}.{i}" for i in itertools.count(first))
    return name if name not in taken else next(n for n in numbered if n not in taken)


_FEW_BITS = {
    (STANDARD_DOMAIN, "linear_nbits"), (STANDARD_DOMAIN, "embedding_nbits"),
    (STANDARD_DOMAIN, "gather_mm_nbits"), (CONTRIB_DOMAIN, "MatMulNBits"),
    (CONTRIB_DOMAIN, "GatherBlockQuantized"), (CONTRIB_DOMAIN, "QMoE"),
}  # fmt: skip
_INTEGERS = {
    ("", "DequantizeLinear"), ("", "MatMulInteger"), ("", "QLinearMatMul"), ("", "ConvInteger"),
    ("", "QLinearConv"), (STANDARD_DOMAIN, "blockwise_shift_scale"),
    (STANDARD_DOMAIN, "lut_to_dense"),
}  # fmt: skip


def refuse_few_bits(model: ir.Model) -> None:
    """Check that a model has no products or lookups with weights of few bits.

    Raises:
        QuantizationError: The model has some.
    """
    _refuse(model, _FEW_BITS, "have weights of few bits")


def refuse_integers(model: ir.Model) -> None:
    """Check that a model in which nothing can be quantized has no integers for weights.

    Raises:
        QuantizationError: The model has some.
    """
    _refuse(model, _INTEGERS, "compute with integers, or dequantize them")


def _refuse(model: ir.Model, ops: set[tuple[str, str]], what: str) -> None:
    # The op type of a composite has the words of its variant after a dot.
    op_types = [(n.domain, n.op_type.partition(".")[0]) for graph in graphs(model) for n in graph]
    if count := sum(op in ops for op in op_types):
        raise QuantizationError(
            f"the model is quantized already: {count} of its nodes {what}\n"
            "  quantize the original model, with rules for layers that need other bits"
        )
