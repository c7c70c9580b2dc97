"""Makes the targets of Reshapes constant."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.shape_values import ShapeValueAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, set_input
from coreai_onnx.passes.engine.match import Dim, attribute_of, is_standard, shape_of
from coreai_onnx.passes.engine.why import Why


def constant_reshapes(graph: gs.Graph, why: Why) -> int:
    """Reshape to a computed shape → to a constant one: 0 copies a dim, -1 infers one.

    Reshape(x:[batch, seq, 384], Concat(batch, seq, 12, 32))
    becomes     Reshape(x, [0, 0, 12, 32])
    """
    edit, analysis, count = Edit(graph), ShapeValueAnalysis(), 0
    for node in graph.nodes:
        if not is_standard(node, "Reshape") or isinstance(node.inputs[1], gs.Constant):
            continue
        if attribute_of(node, "allowzero", 0) != 0:
            why("allowzero gives 0 another meaning", node)
            continue
        wanted = analysis.of(node.inputs[1])
        if wanted is None or wanted.is_scalar:
            why("the target shape is not known", node)
            continue
        target = target_of(shape_of(node.inputs[0]), wanted.items)
        if target is None:
            why("too few dims of the target are known", node)
            continue
        values = np.array(target, dtype=np.int64)
        set_input(node, 1, edit.constant(f"{node.outputs[0].name}_shape", values))
        count += 1
    edit.finish()
    return count


def target_of(shape: tuple[Dim, ...] | None, wanted: tuple[Dim, ...]) -> list[int] | None:
    """Return ``wanted`` as ints, 0 for a dim copied from the input, one -1 for an inferred dim.

    A -1 cannot be inferred beside a copied dim that is 0 at run time (an empty batch), so the two
    are combined only if the computed target already had the -1.
    """
    target: list[int] = []
    for index, dim in enumerate(wanted):
        if isinstance(dim, int):
            target.append(dim)
        elif dim is not None and shape is not None and shape[index : index + 1] == (dim,):
            target.append(0)
        else:
            target.append(-1)
    if min(target, default=0) < -1 or target.count(-1) > 1:
        return None
    return None if -1 in target and 0 in target and -1 not in wanted else target
