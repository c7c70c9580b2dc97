"""Walks an FX graph in order and lowers each node."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import sympy
import torch
from torch import fx

from coreai_onnx.composites import TORCH_OPS
from coreai_onnx.errors import ConversionError, CoreaiError, LoweringError, Where
from coreai_onnx.export.compat.torch_names import HigherOrderOperator, OpOverload, pytree
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import TracedNode
from coreai_onnx.lower.nodes.values import POWERS, ir_dtype, is_complex, mark_powers, real_part
from coreai_onnx.lower.walk import torchlib
from coreai_onnx.lower.walk.binding import (
    bind_arguments,
    declared_arguments,
    is_number_for_tensor,
    only_first_used,
    read_results,
    resolve,
    signature_of,
)
from coreai_onnx.lower.walk.context import Context
from coreai_onnx.lower.walk.decompose import decompose
from coreai_onnx.lower.walk.location import where_of
from coreai_onnx.lower.walk.registry import (
    Lowering,
    builtin_lowering,
    higher_order_lowering,
)
from coreai_onnx.lower.walk.user_lowerings import ADVICE as CORRECT_IT
from coreai_onnx.lower.walk.user_lowerings import call_lowering

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_READS_ELEMENT = ("aten._local_scalar_dense.default", "aten.item.default")
IGNORED = frozenset(
    {
        "aten._assert_async.default",
        "aten._assert_async.msg",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
        "aten._functional_sym_constrain_range.default",
        "aten._functional_sym_constrain_range_for_size.default",
        "aten._functional_assert_async.msg",
        "aten._functional_assert_scalar.default",
    }
)
"""Runtime checks of the exported program, which are not lowered."""


class Walker:
    """Lowers the nodes of FX graphs to one scope.

    Args:
        context: The conversion.
        op: Creates nodes in the scope.
        modules: Graph modules that ``get_attr`` nodes refer to.
        weights: Values of the program's weights, by path and by storage.
        inherited: The location of the decomposed op, for the nodes of a decomposition.
        origin: The decomposed op.
    """

    def __init__(
        self,
        context: Context,
        op: OpBuilder,
        modules: torch.nn.Module,
        weights: dict[Any, ir.Value] | None = None,
        *,
        inherited: Where | None = None,
        origin: str = "",
    ) -> None:
        """Start without values."""
        self.context, self.op, self.modules = context, op, modules
        self.weights = {} if weights is None else weights
        self._values: dict[fx.Node, Any] = {}
        self._inherited = inherited
        self._around: Where = op.scope.where or Where()
        self._origin = origin

    def walk(
        self, graph: fx.Graph, inputs: Sequence[Any], step: Callable[[], Any] = lambda: None
    ) -> Any:
        """Lower every node.

        Args:
            graph: The graph; its placeholders are bound to ``inputs`` in order.
            inputs: Values, dims, numbers or None.
            step: Called after each node, for a progress bar.

        Returns:
            The result of the output node, with nodes replaced by values.
        """
        operands = iter(inputs)
        for node in graph.nodes:
            if node.op == "placeholder":
                self._values[node] = next(operands)
            elif node.op == "output":
                return resolve(node.args[0], self.value_of)
            else:
                self.op.scope.where = self._where(node)
                self._values[node] = self._lower(node)
                step()
        raise ConversionError("the graph has no output node")

    @property
    def values(self) -> Mapping[fx.Node, Any]:
        """The value, dim, number or list of them that each lowered node became."""
        return self._values

    def value_of(self, node: fx.Node) -> Any:
        """Return the value of a node that has been lowered."""
        return self._values[node]

    def weight(self, path: str, storage: Any) -> ir.Value:
        """Return the value of a weight by its path, or by its storage.

        Raises:
            ConversionError: If the program has no such weight.
        """
        # By storage if the weight is tied to one that the program has under another path.
        for key in (path, storage):
            if key is not None and key in self.weights:
                return self.weights[key]
        raise ConversionError(
            f"the weight {path} of an externalized module is not a weight of the program",
            self.op.scope.where,
            "externalize a module that holds it",
        )

    def keep_weight(self, path: str, storage: Any, value: ir.Value) -> None:
        """Register a value as a weight by its path and its storage."""
        self.weights[path] = value
        if storage is not None:
            self.weights[storage] = value

    def submodule(self, node: fx.Node) -> Any:
        """Return what a ``get_attr`` node refers to: a graph module, or a tensor."""
        target: Any = self.modules
        for part in str(node.target).split("."):
            target = getattr(target, part)
        return target

    def _where(self, node: fx.Node) -> Where:
        """Return the location of a node; without metadata, that of the enclosing node."""
        if self._inherited is not None:
            return self._inherited
        where = where_of(node)
        return where if where != Where() else self._around

    def inside(self, op: OpBuilder, modules: torch.nn.Module) -> Walker:
        """Return a walker for a graph that a node of this walker's graph calls."""
        return Walker(
            self.context, op, modules, self.weights, inherited=self._inherited, origin=self._origin
        )

    # ------------------------------------------------------------------ one node
    def _lower(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            attribute = self.submodule(node)
            return self.op.const(attribute) if isinstance(attribute, torch.Tensor) else attribute
        if node.op != "call_function":
            raise ConversionError(
                f"{node.op} {node.target} in an exported graph", self._where(node)
            )
        value = node.meta.get("val")
        if node.target is operator.getitem:
            source, index = node.args
            return self.value_of(source)[index]  # type: ignore[arg-type]  # fx arguments
        if node.target in (torch.ops.aten.size.default, torch.ops.aten.stride.default):
            return self._layout(node)
        if isinstance(value, _SYMBOLIC):
            return self._symbolic(node, value)
        # Arithmetic of Python on sizes whose result torch knows.
        if isinstance(value, int | float | bool) and not _is_op(node.target):
            return value
        name = str(node.target)
        if name in IGNORED or (value is None and _computes_nothing(node)):
            return None
        examples = tuple(n.meta.get("val") for n in node.all_input_nodes)
        self.op.scope.traced = TracedNode(examples, value, self._origin or name)
        try:
            result = self._call(node, name)
        except CoreaiError:
            if self.context.missing:  # then what follows computes with stand-ins
                return self._settle(node, _MISSING)
            raise
        except Exception as error:  # a lowering may be any code, the user's included
            if self.context.missing:  # may be a consequence; missing ops are reported at the end
                return self._settle(node, _MISSING)
            raise LoweringError(
                f"{name}: {type(error).__name__}: {error}", self._where(node), self._advice(name)
            ) from error
        return self._settle(node, result)

    def _layout(self, node: fx.Node) -> list[Any]:
        """Return all sizes or strides of a tensor, which decompositions read."""
        example = node.args[0].meta["val"]  # type: ignore[union-attr]  # fx arguments
        sizes = example.shape if node.target is torch.ops.aten.size.default else example.stride()
        return [self.context.expression(n) for n in sizes]

    def _symbolic(self, node: fx.Node, value: Any) -> Any:
        """Return the expression of a symbolic number; bind the symbol of one read from a tensor."""
        expression = self.context.expression(value)
        if str(node.target) in _READS_ELEMENT and isinstance(expression, sympy.Basic):
            (symbol,) = expression.free_symbols or (None,)
            # The first read binds the symbol; others of the same element are the same number.
            if symbol is not None and not self.op.scope.dims.knows(symbol):
                element = self.op.reshape(self.value_of(node.args[0]), [])  # type: ignore[arg-type]
                wide = (
                    ir.DataType.DOUBLE if isinstance(value, torch.SymFloat) else ir.DataType.INT64
                )
                self.op.scope.dims.bind_scalar(symbol, self.op.cast(element, wide))
        return expression

    def _call(self, node: fx.Node, name: str) -> Any:
        if isinstance(node.target, HigherOrderOperator):
            higher_order = higher_order_lowering(name)
            if higher_order is not None:
                return higher_order(self, node)
        if not isinstance(node.target, OpOverload):
            self.context.miss(name, self._where(node), self._origin)
            return _MISSING
        if self.context.module_calls is not None and name.startswith("coreai_onnx."):
            args, kwargs = bind_arguments(node, self.value_of)
            return self.context.module_calls(self, node, args, kwargs)
        args, kwargs = bind_arguments(node, self.value_of)
        if is_number_for_tensor(node.target, args):
            args[0] = self.op.const(args[0])
        lowering = self._lowering(node, name, (args, kwargs))
        self.op.only_first_used = only_first_used(node)
        # Before the lowering, so that passes and kernels find the op whole.
        result = self._composite(name, lowering, args, kwargs)
        if result is NotImplemented and lowering is not None:
            result = self._lowered(node, name, lowering, args, kwargs)
        if result is not NotImplemented:
            return result
        body = self._decomposition(node, name)
        if body is not None:
            return self._inline(node, body)
        lowered = torchlib.lowering(node.target)
        if lowered is not None:
            return lowered(self.op, *args, **kwargs)
        self.context.miss(name, self._where(node), self._origin)
        return _MISSING

    def _composite(
        self, name: str, lowering: Lowering | None, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Return the results of an op that is a composite, otherwise NotImplemented."""
        composite = TORCH_OPS.get(name)
        if composite is None or name in self.context.user_lowerings:
            return NotImplemented
        count = len(composite.inputs)
        inputs, attributes = args[:count], [*args[count:], *kwargs.values()]
        # An op of this package has no lowering but its composite.
        if lowering is not None and not self.op.keeps(*inputs):
            return NotImplemented
        named = {a.name: v for a, v in zip(composite.attributes, attributes, strict=True)}
        outputs = self.op.composite_outputs(composite, inputs, **named)
        return outputs if len(outputs) > 1 else outputs[0]

    def _lowered(
        self, node: fx.Node, name: str, lowering: Lowering, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Return what a lowering returns; NotImplemented if it leaves an op to torch."""
        self.context.keep_functions(lowering)
        if name in self.context.user_lowerings:  # those take all arguments
            call = (self.op, args, kwargs)
            return call_lowering(lowering, name, call, read_results(node), self._where(node))
        arguments, keywords = declared_arguments(lowering, node.target, args, kwargs)
        return lowering(self.op, *arguments, **keywords)

    def _advice(self, name: str) -> str:
        """Return the advice for a defect of an op's lowering."""
        if name in self.context.user_lowerings:
            return CORRECT_IT
        return "this is a defect of its lowering: please report it with these lines"

    def _lowering(self, node: fx.Node, name: str, arguments: Any) -> Lowering | None:
        """Return the user's lowering, or else the built-in one for real or complex tensors."""
        user = self.context.user_lowerings.get(name)
        if user is not None:
            return user
        outputs = pytree.tree_leaves(node.meta.get("val"))
        # Operands may be real and results complex, or the reverse, as in FFTs.
        complex_ = any(is_complex(x) for x in pytree.tree_leaves(arguments)) or any(
            isinstance(x, torch.Tensor) and x.is_complex() for x in outputs
        )
        return builtin_lowering(name, complex=complex_)

    # ------------------------------------------------------------------ decompositions
    def _decomposition(self, node: fx.Node, name: str) -> fx.GraphModule | None:
        leaves, _ = pytree.tree_flatten((node.args, dict(node.kwargs)))
        key = (name, *(signature_of(leaf) for leaf in leaves))
        return self.context.decomposed(key, lambda: decompose(node))

    def _inline(self, node: fx.Node, body: fx.GraphModule) -> Any:
        leaves, _ = pytree.tree_flatten((node.args, dict(node.kwargs)))
        inputs = [self.value_of(leaf) for leaf in leaves if isinstance(leaf, fx.Node)]
        nested = Walker(
            self.context,
            self.op,
            body,
            self.weights,
            inherited=self._where(node),
            origin=self._origin or str(node.target),
        )
        return nested.walk(body.graph, inputs)

    # ------------------------------------------------------------------ results
    def _settle(self, node: fx.Node, result: Any) -> Any:
        """Set the dtype, dims and name of results to those in the exported program."""
        expected = node.meta.get("val")
        if result is _MISSING:
            return pytree.tree_map(self._stand_in, expected)
        if isinstance(expected, torch.Tensor):
            return self._settle_one(node.name, expected, result)
        if isinstance(expected, list | tuple):
            results = list(result) if isinstance(result, list | tuple) else [result]
            # A lowering may omit results at the end that nothing reads.
            if len(results) < len(expected):
                results += [None] * (len(expected) - len(results))
            return [
                self._settle_one(f"{node.name}_{i}", e, r) if isinstance(e, torch.Tensor) else r
                for i, (e, r) in enumerate(zip(expected, results, strict=False))
            ]
        return result

    def _settle_one(self, name: str, expected: torch.Tensor, x: Any) -> Any:
        if x is None:
            return None
        if not isinstance(x, ir.Value):
            x = self.op.const(x) if isinstance(x, int | float | bool) else self.op.dim(x)
        if expected.dtype == POWERS and x.dtype == ir.DataType.FLOAT:
            dtype = x.dtype
            mark_powers(x)
        else:
            dtype = ir_dtype(real_part(expected.dtype))
        if x.dtype is None:
            x.dtype = dtype
        x = self.op.cast(x, dtype)
        dims = self.context.stored_dims(expected)
        present_dims = x.meta.get("dims")
        if present_dims is not None and len(present_dims) != len(dims):
            raise LoweringError(
                f"{name}: the lowering made rank {len(present_dims)}, torch says {len(dims)}",
                self.op.scope.where,
                self._advice(self.op.scope.traced.op),
            )
        self.context.describe(x, expected)
        self.op.scope.dims.bind_axes(x, dims)
        _rename(self.op, x, name)
        return x

    def _stand_in(self, expected: Any) -> Any:
        """Return a placeholder value, so that the rest of the program can be checked."""
        if not isinstance(expected, torch.Tensor):
            return expected
        x = self.context.value_like("missing", expected)
        self.op.scope.dims.bind_axes(x, self.context.stored_dims(expected))
        return x


class _Missing:
    """Marks the result of an op without a lowering."""


_MISSING = _Missing()


def _rename(op: OpBuilder, x: ir.Value, name: str) -> None:
    """Rename a new value to its name in the exported program."""
    if x.meta.pop("unnamed", False):  # inputs, weights and shared values keep theirs
        x.name = op.scope.names.unique(name)


def _is_op(target: Any) -> bool:
    return isinstance(target, OpOverload | HigherOrderOperator)


def _computes_nothing(node: fx.Node) -> bool:
    """Whether a call has no result and can only be a check."""
    return not isinstance(node.target, HigherOrderOperator) and not node.users
