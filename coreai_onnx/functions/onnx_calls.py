"""Calls of ONNX models, and the functions they call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from coreai_onnx.export.externalize.onnx_call import callee_of
from coreai_onnx.lower.values import Value
from coreai_onnx.lower.walker import Walker


@dataclass
class OnnxCalls:
    """Lowers calls of ONNX models; equal models share their functions."""

    _functions: dict[str, list[ir.Function]] = field(default_factory=dict)
    _known: dict[bytes, list[ir.Function]] = field(default_factory=dict)

    def __call__(
        self, walker: Walker, tensors: Sequence[Value], weights: Sequence[Value], tag: str
    ) -> list[Value]:
        """Lower one call.

        Raises:
            ConversionError: If the model cannot be converted to the opset of the conversion.
        """
        if tag not in self._functions:
            self._functions[tag] = self._made(callee_of(tag).functions_at(walker.context.opset))
        main = self._functions[tag][-1]
        outputs = len(main.outputs)
        return walker.op.call(main.domain, main.name, [*tensors, *weights], {}, outputs=outputs)

    def functions(self) -> list[ir.Function]:
        """Return the functions; inner functions precede those that call them."""
        return [function for functions in self._known.values() for function in functions]

    def _made(self, functions: list[ir.Function]) -> list[ir.Function]:
        """Return the functions, or equal ones made before, under names of their own."""
        content = b"".join(ir.to_proto(f).SerializeToString() for f in functions)
        if content not in self._known:
            self._rename(functions)
            self._known[content] = functions
        return self._known[content]

    def _rename(self, functions: Sequence[ir.Function]) -> None:
        """Number a model's functions if another model has the names."""
        taken = {function.name for function in self.functions()}
        name, number = functions[-1].name, 1
        while functions[-1].name in taken:
            number += 1
            functions[-1].name = f"{name}.{number}"
        renamed = {f.name: f.name.replace(name, functions[-1].name, 1) for f in functions[:-1]}
        for function in functions[:-1]:
            function.name = renamed[function.name]
        for node in (node for function in functions for node in function.all_nodes()):
            if node.domain == functions[-1].domain:
                node.op_type = renamed[node.op_type]
