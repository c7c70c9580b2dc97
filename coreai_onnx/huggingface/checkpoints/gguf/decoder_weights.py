"""The weights of an exported decoder, by the paths of its modules.

They are the constants that the nodes of a module use: modules with equal weights share an
initializer, whose name is that of one of them.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from coreai_onnx.composites.few_bits import EMBEDDING_NBITS, GATHER_MM_NBITS, LINEAR_NBITS
from coreai_onnx.composites.products import GATHER_MM
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedMatrix
from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.weight_formats import NAMES

_INPUTS = {
    one.name: tuple(each.name for each in one.inputs)
    for one in (LINEAR_NBITS, EMBEDDING_NBITS, GATHER_MM_NBITS)
}
"""The names of the inputs of composites with a weight of few bits."""
_ROTARY = "model.model.rotary_emb"
_NORMS = {"rms_norm": 1, "skip_rms_norm": 2}


class DecoderWeights:
    """The weights in a graph, by the paths of their modules."""

    def __init__(self, graph: ir.Graph, source: Path) -> None:
        """Sort the nodes by module."""
        self.source = source
        self.nodes: dict[str, list[ir.Node]] = defaultdict(list)
        for node in graph:
            self.nodes[(node.name or "").rpartition(".")[0]].append(node)

    def weight(self, module: str) -> np.ndarray | PackedMatrix | None:
        """Return the weight of a module, with outputs first; None if there is none."""
        # Other nodes of the module may look up its scales.
        for node in sorted(self.nodes[module], key=lambda one: _composite(one) not in _INPUTS):
            composite = _composite(node)
            if composite in _INPUTS:
                return self._packed(node, composite, module)
            place = _NORMS.get(composite, {"MatMul": 1, "Gemm": 1, "Gather": 0}.get(node.op_type))
            if place is None or (value := constant(node.inputs[place])) is None:
                continue
            transposed = node.op_type == "MatMul" or (
                node.op_type == "Gemm" and not node.attributes.get_int("transB", 0)
            )
            return value.T if transposed else value
        return None

    def experts(self, module: str) -> list[Callable[[], np.ndarray | PackedMatrix]]:
        """Return what reads the stacked weights of experts, in the order of their products.

        Each is ``[experts, outputs, inputs]``; parts of a packed one have the experts first.
        """
        stacks: list[Callable[[], np.ndarray | PackedMatrix]] = []
        for node in self.nodes[module]:
            composite = _composite(node)
            if composite == GATHER_MM_NBITS.name:
                stacks.append(functools.partial(self._packed, node, composite, module))
            elif composite == GATHER_MM.name and (value := constant(node.inputs[1])) is not None:
                transposed = node.attributes.get_int("transpose_rhs", 0)
                matrices = value if transposed else value.swapaxes(1, 2)
                stacks.append(functools.partial(np.asarray, matrices))
        return stacks

    def bias(self, module: str) -> np.ndarray | None:
        """Return the bias of a module; None if there is none."""
        for node in self.nodes[module]:
            candidates: Sequence[ir.Value | None]
            if node.op_type.startswith("linear_nbits"):
                place = _INPUTS["linear_nbits"].index("bias")
                candidates = node.inputs[place : place + 1]
            else:
                candidates = {"Add": node.inputs, "Gemm": node.inputs[2:]}.get(node.op_type, ())
            for candidate in candidates:
                if (value := constant(candidate)) is not None:
                    return value
        return None

    def _packed(self, node: ir.Node, composite: str, module: str) -> PackedMatrix:
        inputs = dict(zip(_INPUTS[composite], node.inputs, strict=False))
        x = node.inputs[0]
        producer = None if x is None else x.producer()
        # Inputs that are rounded by the composite itself are no reason: llama.cpp rounds them, too.
        if composite == "linear_nbits" and producer in self.nodes[module]:
            raise ModelSourceError(
                f"{self.source}: the inputs of {module} are reordered, scaled or rounded before"
            )
        parts: dict[str, Any] = {name: _tensor(constant(inputs.get(name))) for name in NAMES}
        return PackedMatrix(
            **parts,
            bits=node.attributes.get_int("bits", 4),
            scale_bits=node.attributes.get_int("scale_bits", 0),
        )

    def frequencies(self, layers: str, *, only: bool) -> np.ndarray | None:
        """Return the frequencies of the positions of a type of layers; None without such layers.

        Args:
            layers: The type of the layers.
            only: Whether the model has no other.
        """
        for node in self.nodes[_ROTARY]:
            for value in node.inputs if node.op_type == "Mul" else ():
                if value is not None and (only or layers in (value.name or "")):
                    numbers = constant(value)
                    if numbers is not None:
                        return numbers.ravel()
        return None


def _composite(node: ir.Node) -> str:
    """Return the name of the composite that a node calls; empty if it calls none."""
    return node.op_type.partition(".")[0] if node.domain == STANDARD_DOMAIN else ""


def constant(value: ir.Value | None) -> np.ndarray | None:
    """Return a constant in the dtype in which it is stored; None if it depends on an input."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Constant":
        return np.asarray(node.attributes["value"].as_tensor().numpy())
    if node.op_type == "Cast":
        return constant(node.inputs[0])
    if node.op_type == "Gather":  # scales of FP4
        values, places = (constant(one) for one in node.inputs)
        return None if values is None or places is None else values[places]
    if node.op_type == "Add":  # the weights of Gemma's norms are 1 more than stored
        terms = [constant(one) for one in node.inputs]
        numbers = [term.astype(np.float32) for term in terms if term is not None]
        return numbers[0] + numbers[1] if len(numbers) == len(terms) else None
    return None


def _tensor(part: np.ndarray | None) -> torch.Tensor | None:
    if part is None:
        return None
    # torch does not read bfloat16 of NumPy, nor memory that it may not write to.
    return torch.from_numpy(part.astype(np.uint8 if part.dtype == np.uint8 else np.float32))
