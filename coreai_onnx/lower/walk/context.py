"""The state of one conversion: settings, registered lowerings, and ops without a lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import onnx_ir as ir
import sympy
import torch
from torch import fx

from coreai_onnx.errors import UnsupportedOp, Where
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.nodes.values import (
    Dim,
    Dims,
    Value,
    as_dim,
    ir_dtype,
    mark_complex,
    real_part,
    set_dims,
)
from coreai_onnx.lower.walk.registry import CallsFunctions, Lowering
from coreai_onnx.targets.releases import Release


@dataclass
class Context:
    """Settings and collections of one conversion.

    Attributes:
        opset: Version of the ``ai.onnx`` operator set.
        oldest: The oldest onnxruntime that must run the model; None for the newest.
        composites: Receives composite calls; None if ops are decomposed.
        user_lowerings: Lowerings registered on the converter, by qualified op name; they take
            precedence.
        module_calls: Lowers a call of an externalized module (an op of this package).
        symbols: New names of the program's symbols (the names of the user's ``Dim``).
        step: Called once per lowered node of the program, for a progress bar.
        functions: Functions that lowerings call, for the model.
        nested: What the FX nodes of each graph inside of a node became: the graph module, the graph
            and the values.
    """

    opset: int
    oldest: Release | None = None
    composites: CompositeCalls | None = None
    user_lowerings: Mapping[str, Lowering] = field(default_factory=dict)
    module_calls: Callable[..., Any] | None = None
    symbols: dict[sympy.Symbol, sympy.Symbol] = field(default_factory=dict)
    step: Callable[[], None] = lambda: None
    functions: list[ir.Function] = field(default_factory=list)
    nested: list[tuple[fx.GraphModule, ir.Graph, Mapping[fx.Node, Any]]] = field(
        default_factory=list
    )
    _missing: dict[tuple[str, str], list[Where]] = field(default_factory=dict)
    _decomposed: dict[Any, fx.GraphModule | None] = field(default_factory=dict)

    def dim(self, x: Any) -> Dim:
        """Return a size of the exported program with the symbol names of this conversion."""
        expression = as_dim(x)
        return (
            expression if isinstance(expression, int) else as_dim(expression.xreplace(self.symbols))
        )

    def dims(self, tensor: torch.Tensor) -> Dims:
        """Return the dims of a fake tensor."""
        return tuple(self.dim(d) for d in tensor.shape)

    def stored_dims(self, tensor: torch.Tensor) -> Dims:
        """Return the dims of the value of a fake tensor, with a trailing 2 for a complex one."""
        dims = self.dims(tensor)
        return (*dims, 2) if tensor.is_complex() else dims

    def value_like(self, name: str, tensor: torch.Tensor) -> Value:
        """Return a new value with the dtype and the dims of a fake tensor."""
        value = ir.Value(name=name, type=ir.TensorType(ir_dtype(real_part(tensor.dtype))))
        return self.describe(value, tensor)

    def describe(self, x: Value, tensor: torch.Tensor) -> Value:
        """Set the dims of a value to those of a fake tensor, and mark a complex one."""
        if tensor.is_complex():
            mark_complex(x)
        return set_dims(x, self.stored_dims(tensor))

    def expression(self, x: Any) -> Any:
        """Return the expression of a symbolic number, or the number if it has only one value."""
        if not isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
            return x
        expression = x.node.expr.xreplace(self.symbols)
        if expression.is_Integer:
            return int(expression)
        if expression.is_number and expression.is_real:
            return float(expression)
        if expression in (sympy.true, sympy.false):
            return bool(expression)
        return expression

    def miss(self, name: str, where: Where, origin: str = "") -> None:
        """Record a use of an op that has no lowering.

        Args:
            name: The op.
            where: The location in the user's model.
            origin: The op of the user's program whose decomposition uses it; empty if the user's
                program calls it directly.
        """
        # By the op that the user's program calls: that is what the user can change.
        key = (origin, name) if origin else (name, "")
        self._missing.setdefault(key, []).append(where)

    @property
    def missing(self) -> list[UnsupportedOp]:
        """The ops without a lowering that were recorded so far."""
        return [
            UnsupportedOp(name, tuple(places), inner)
            for (name, inner), places in self._missing.items()
        ]

    def share(self, outer: Context) -> None:
        """Share missing ops and functions with another conversion's context."""
        # Decompositions are traced with the symbols and the fake mode of one program.
        self._missing, self._decomposed = outer._missing, {}
        self.functions = outer.functions

    def keep_functions(self, lowering: Lowering) -> None:
        """Collect the functions that the nodes of a lowering call; most call none."""
        if hasattr(lowering, "functions_at"):  # isinstance with a protocol is much slower
            calls = cast(CallsFunctions, lowering)
            names = {f.identifier() for f in self.functions}
            functions = calls.functions_at(self.opset)
            self.functions += [f for f in functions if f.identifier() not in names]

    def decomposed(
        self, key: Any, trace: Callable[[], fx.GraphModule | None]
    ) -> fx.GraphModule | None:
        """Return the decomposition for a signature, traced once.

        A decomposition that creates sizes (``nonzero``) is traced each time, since every call needs
        its own symbols.
        """
        if key in self._decomposed:
            return self._decomposed[key]
        body = trace()
        # Also the absence of a rule is kept: to look for one is not free.
        if body is None or not any("unbacked_bindings" in n.meta for n in body.graph.nodes):
            self._decomposed[key] = body
        return body
