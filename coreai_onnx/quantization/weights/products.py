"""Finds the products, products of experts and lookups of a model whose weights are constants."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.provenance.debug_info import SCOPE
from coreai_onnx.model.standard.op_schemas import ONNX_DOMAINS

FLOATS = (
    ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE,
)  # fmt: skip
Root = ir.Graph | ir.Function
"""The main graph or a function."""
Call = tuple[ir.Node, Root]
_MATRIX = 2
_STACK = 3
_INDICES = 3
"""The place of the input of ``gather_mm`` that selects matrices."""


@dataclass(frozen=True, eq=False)
class Product:
    """A node that multiplies by, or looks up rows of, a matrix that it gets as a constant.

    Attributes:
        node: ``MatMul`` or ``Gemm``; ``Gather`` for a lookup; ``gather_mm`` for experts, whose
            matrices are stacked.
        weight: The matrix before its Transpose and Cast: an initializer, or an input of a function.
        by_rows: Whether the matrix has a row for each output, ``[N, K]``.
        dtype: The dtype of the product.
        root: The main graph or the function that has the node, perhaps in a subgraph.
    """

    node: ir.Node
    weight: ir.Value
    by_rows: bool
    dtype: ir.DataType
    root: Root

    @property
    def is_lookup(self) -> bool:
        """Whether the node takes rows."""
        return self.node.op_type == "Gather"

    @property
    def is_gathered(self) -> bool:
        """Whether each row has the matrix of an expert."""
        return _is_gather_mm(self.node)

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """The input of the product; with the matrix of each of its rows for experts."""
        places = (0, _INDICES) if self.is_gathered else (0,)
        return tuple(value for i in places if (value := self.node.inputs[i]) is not None)


@dataclass(frozen=True, eq=False)
class MatrixWeight:
    """A constant matrix, or the stacked matrices of experts, and how products use it.

    Attributes:
        value: The initializer.
        tensor: Its data.
        products: The products that read it, also in functions that get it as an argument.
        paths: Module paths of the products; the name of the initializer where that is unknown.
    """

    value: ir.Value
    tensor: ir.TensorProtocol
    products: tuple[Product, ...]
    paths: tuple[str, ...]

    @property
    def path(self) -> str:
        """Module path of the first product."""
        return self.paths[0]

    @property
    def name(self) -> str:
        """The name of the initializer."""
        return self.value.name or ""

    @property
    def by_rows(self) -> bool:
        """Whether the matrix has a row for each output, ``[N, K]``."""
        return self.products[0].by_rows

    @property
    def is_lookup(self) -> bool:
        """Whether rows are looked up in it, even if products read it as well."""
        return any(product.is_lookup for product in self.products)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of outputs and inputs, ``(N, K)``; ``(experts, N, K)`` for experts."""
        *lead, first, second = (int(dim) for dim in self.tensor.shape.numpy())
        return (*lead, first, second) if self.by_rows else (*lead, second, first)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def matrix(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the values with a row for each output, in `shape`; a view."""
        values: np.ndarray[Any, np.dtype[Any]] = self.tensor.numpy()
        return values if self.by_rows else values.swapaxes(-1, -2)


class Products:
    """The products of a model, and the constants that reach them.

    Attributes:
        model: The model.
        products: All of them, in the order of the nodes.
    """

    def __init__(self, model: ir.Model) -> None:
        """Search all graphs of a model except the bodies of standard composites."""
        self.model = model
        self.calls: dict[ir.OperatorIdentifier, list[Call]] = defaultdict(list)
        """The calls of each function, with the main graph or function that each is in."""
        # ``all_nodes`` visits loops and branches too, whose products belong to the function around
        # them.
        nodes = [(node, root) for root in searched(model) for node in root.all_nodes()]
        for node, root in nodes:
            if node.op_identifier() in model.functions:
                self.calls[node.op_identifier()].append((node, root))
        self._owners = {
            value: function for function in model.functions.values() for value in function.inputs
        }
        candidates = [self._product(node, root) for node, root in nodes]
        indices = {p.inputs[1] for p in candidates if p is not None and p.is_gathered}
        self.products = [p for p in candidates if p is not None and not _is_bias(p, indices)]

    def weights(self) -> list[MatrixWeight]:
        """Return the constant matrices of the products, in order."""
        readers: dict[ir.Value, list[Product]] = {}
        for product in self.products:
            for value in self.constants(product.weight) or ():
                readers.setdefault(value, []).append(product)
        return [
            # Codes are packed along rows of outputs: a product with the transpose cannot read them.
            _weight(value, [p for p in products if p.by_rows == products[0].by_rows])
            for value, products in readers.items()
        ]

    def owner(self, value: ir.Value) -> ir.Function | None:
        """Return the function that has a value as an input, or None."""
        return self._owners.get(value)

    def arguments(self, value: ir.Value) -> list[ir.Value | None]:
        """Return what the calls of its function pass for an input."""
        function = self._owners[value]
        index = list(function.inputs).index(value)
        calls = self.calls[function.identifier()]
        return [call.inputs[index] if index < len(call.inputs) else None for call, _ in calls]

    def _dtype(self, value: ir.Value) -> ir.DataType:
        """Return the dtype of a constant, after the Casts that it goes through."""
        node = value.producer()
        if node is not None:
            return ir.DataType(node.attributes["to"].as_int())
        if value in self._owners:
            (first, *_) = [argument for argument in self.arguments(value) if argument is not None]
            return self._dtype(first)
        assert value.const_value is not None
        return value.const_value.dtype

    def constants(
        self, value: ir.Value, ranks: tuple[int, ...] = (_MATRIX, _STACK)
    ) -> list[ir.Value] | None:
        """Return the initializers that a value may be; None if it may be something else.

        Args:
            value: A value; an input of a function may be what any call passes.
            ranks: Possible ranks of the initializers.
        """
        value = origin(value)
        if value in self._owners:
            # A function is rewritten for all of its calls, so that each call must pass a constant.
            initializers: list[ir.Value] = []
            for argument in self.arguments(value):
                inner = None if argument is None else self.constants(argument, ranks)
                if inner is None:
                    return None
                initializers += inner
            return list(dict.fromkeys(initializers))
        tensor = value.const_value
        # A caller may replace an initializer that is an input: its value is not known.
        if not value.is_initializer() or tensor is None or value.is_graph_input():
            return None
        return [value] if len(tensor.shape) in ranks and tensor.dtype in FLOATS else None

    def _product(self, node: ir.Node, root: Root) -> Product | None:
        gathered = _is_gather_mm(node)
        if (node.domain not in ONNX_DOMAINS and not gathered) or len(node.inputs) < _MATRIX:
            return None
        operand, rank = (_stack_of(node), _STACK) if gathered else (_matrix_of(node), _MATRIX)
        if operand is None or not self.constants(operand[0], (rank,)):
            return None
        # linear_nbits adds a row of constants; Gemm also takes matrices, columns and scalars.
        if not self._has_plain_bias(node):
            return None
        factor, by_rows = operand
        return Product(node, origin(factor), by_rows, self._dtype(factor), root)

    def _has_plain_bias(self, node: ir.Node) -> bool:
        """Whether the bias of a Gemm, if it has one, is a constant row."""
        bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > _MATRIX else None
        return bias is None or bool(self.constants(bias, ranks=(1,)))


def searched(model: ir.Model) -> Iterator[Root]:
    """Yield the main graph and the functions that may hold products of the user's model."""
    yield model.graph
    for function in model.functions.values():
        if function.domain != STANDARD_DOMAIN:
            yield function


def origin(value: ir.Value) -> ir.Value:
    """Return the value before Casts from one floating dtype to another.

    Weights may be stored in 16 bits for a computation in float32.
    """
    while (node := value.producer()) is not None and _is_cast(node):
        above = node.inputs[0]
        assert above is not None
        value = above
    return value


def _is_cast(node: ir.Node) -> bool:
    cast = node.op_type == "Cast" and node.domain in ONNX_DOMAINS and node.inputs[0] is not None
    return cast and node.attributes["to"].as_int() in FLOATS


def _is_bias(product: Product, indices: set[ir.Value]) -> bool:
    """Whether a lookup takes the biases of experts."""
    # A small table, whose rows are added to sums: few bits would save little and shift every
    # result.
    return product.is_lookup and product.node.inputs[1] in indices


def _is_gather_mm(node: ir.Node) -> bool:
    return node.domain == STANDARD_DOMAIN and node.op_type.partition(".")[0] == "gather_mm"


def _stack_of(node: ir.Node) -> tuple[ir.Value, bool] | None:
    """Return the matrices of experts, and whether they have a row per output."""
    inputs = [*node.inputs, None, None][: _INDICES + 1]
    # gather_mm_nbits selects matrices only: rows that are selected as well, or batches, have no
    # place.
    plain = inputs[2] is None and inputs[_INDICES] is not None
    if inputs[1] is None or not plain or node.attributes.get_int("num_batch_axes", 0) != 0:
        return None
    return inputs[1], node.attributes.get_int("transpose_rhs", 0) != 0


def _matrix_of(node: ir.Node) -> tuple[ir.Value, bool] | None:
    """Return the constant factor before its Transpose, and whether it has a row per output."""
    if node.op_type == "Gather":
        # Rows are contiguous codes; along another axis a lookup would cut through them.
        plain = node.attributes.get_int("axis", 0) == 0
        return (node.inputs[0], True) if plain and node.inputs[0] is not None else None
    if node.op_type == "Gemm":
        # linear_nbits has no factors, and no transposed input.
        plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
        turned = node.attributes.get_int("transA", 0)
        if turned or not plain:
            return None
        by_rows = bool(node.attributes.get_int("transB", 0))
    elif node.op_type == "MatMul":
        by_rows = False
    else:
        return None
    value = node.inputs[1]
    while value is not None and (turn := value.producer()) is not None:
        # A weight may be stored in 16 bits: its Cast to float32 is a part of it.
        if _is_cast(turn) and origin(value).producer() is None:
            break
        if turn.op_type != "Transpose" or turn.domain not in ONNX_DOMAINS:
            return None
        if list(turn.attributes.get_ints("perm", [1, 0])) != [1, 0]:
            return None
        value, by_rows = turn.inputs[0], not by_rows
    return None if value is None else (value, by_rows)


def _weight(value: ir.Value, products: list[Product]) -> MatrixWeight:
    tensor = value.const_value
    assert tensor is not None
    paths = (path for product in products for path in _paths(value, product))
    return MatrixWeight(value, tensor, tuple(products), tuple(dict.fromkeys(paths)))


def _paths(value: ir.Value, product: Product) -> list[str]:
    """Return the module paths of a product.

    The node of a function belongs to all calls: an argument is known by its name. The weights of
    experts, of which a module has several, are known by their names as well.
    """
    inside = product.weight is not value
    scope = "" if inside else product.node.metadata_props.get(SCOPE, "")
    name = (value.name or "").removesuffix(".T").removesuffix(".weight")
    if product.is_gathered:
        return [name, scope] if scope else [name]
    return [scope or name]
