"""Calls of ONNX models, and the functions they call."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.declaration import DOMAIN, DTYPE_WORDS, ONNX_DOMAIN
from coreai_onnx.export.externalize.onnx_call import callee_of
from coreai_onnx.lower.nodes.values import Value
from coreai_onnx.lower.walk.walker import Walker


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

    def functions(self, others: Sequence[ir.Function]) -> list[ir.Function]:
        """Return the functions; inner functions precede those that call them.

        A composite of a file that is equal to one of the other functions is left out. One that
        differs from the function of its name gets another name that has the kernel.

        Args:
            others: The other functions of the program.
        """
        texts = {function.identifier(): _text(function) for function in others}
        placed: list[ir.Function] = []
        for functions in self._known.values():
            names: dict[ir.OperatorIdentifier, ir.OperatorIdentifier] = {}
            for function in functions:
                old, text = function.identifier(), _text(function)
                new = old if old[0] == ONNX_DOMAIN else _place(function, text, texts)
                function.domain, function.name, _ = names[old] = new
                if new not in texts:
                    texts[new] = text
                    placed.append(function)
            # Now that all functions of the model have their names.
            for function in functions:
                _call(function, names)
        return placed

    def _made(self, functions: list[ir.Function]) -> list[ir.Function]:
        """Return the functions under unique names, or the equal functions of an earlier call."""
        content = b"".join(ir.to_proto(f).SerializeToString() for f in functions)
        if content not in self._known:
            self._rename(functions)
            self._known[content] = functions
        return self._known[content]

    def _rename(self, functions: Sequence[ir.Function]) -> None:
        """Number a model's functions if another model has the names."""
        taken = {function.name for earlier in self._known.values() for function in earlier}
        name, number = functions[-1].name, 1
        while functions[-1].name in taken:
            number += 1
            functions[-1].name = f"{name}.{number}"
        names = {}
        for function in functions[:-1]:
            if (old := function.identifier())[0] == ONNX_DOMAIN:
                function.name = function.name.replace(name, functions[-1].name, 1)
                names[old] = function.identifier()
        for function in functions:
            _call(function, names)


def _call(
    function: ir.Function, names: Mapping[ir.OperatorIdentifier, ir.OperatorIdentifier]
) -> None:
    """Update the names of the functions that a function calls."""
    for node in function.all_nodes():
        if (new := names.get(node.op_identifier())) is not None:
            node.domain, node.op_type, node.overload = new
            function.opset_imports.setdefault(node.domain, 1)


def _place(
    function: ir.Function, text: bytes, texts: Mapping[ir.OperatorIdentifier, bytes]
) -> ir.OperatorIdentifier:
    """Return the identifier for a composite: one that is unused, or has the same body.

    Args:
        function: The composite.
        text: Its body.
        texts: The bodies of the functions so far.
    """
    domain, name, overload = function.identifier()
    plain = name.partition(".")[0]
    # The kernel of a composite is registered under all of its op types.
    names = [name, *(COMPOSITES[plain].op_types() if domain == DOMAIN else ())]
    same = [n for n in names if _dtype(n) == _dtype(name)]
    for candidate in same:
        # A name without a text is unused.
        if texts.get((domain, candidate, overload), text) == text:
            return domain, candidate, overload
    free = (f"{name}.{number}" for number in itertools.count(2))
    return ONNX_DOMAIN, next(n for n in free if (ONNX_DOMAIN, n, "") not in texts), ""


def _dtype(op_type: str) -> str:
    """Return the dtype that a variant names."""
    word = op_type.partition(".")[2].rpartition("_")[2]
    return word if word in DTYPE_WORDS else ""


def _text(function: ir.Function) -> bytes:
    """Return a body without its name and the places of its nodes."""
    proto = ir.to_proto(function)
    proto.name = ""
    for node in proto.node:
        del node.metadata_props[:]
    serialized: bytes = proto.SerializeToString()
    return serialized
