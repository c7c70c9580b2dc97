"""Fuses the products of adapters with the sums after them: add_low_rank."""

from __future__ import annotations

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import dtype_of, made_by, same_known_shape, shape_of
from coreai_onnx.passes.engine.why import Why


@makes_functions
@rewrites("Add")
def fuse_low_rank(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Add of a product with two inputs of the model, as adapters are → add_low_rank.

    MatMul(x, a) → h, MatMul(h, b) → d, Add(y, d) → z
    becomes     add_low_rank(y, x, a, b) → z

    The kernel returns the memory of ``y`` where the rank is 0: an absent adapter costs one node
    that computes nothing. The body has the nodes that were there.
    """
    for total, delta in (node.inputs, node.inputs[::-1]):
        second = made_by(delta, "MatMul")
        first = None if second is None else made_by(second.inputs[0], "MatMul")
        if second is None or first is None or not (_is_input(first) and _is_input(second)):
            continue
        if edit.only_reader(delta) is None or edit.only_reader(first.outputs[0]) is None:
            return why("something else reads a product of the adapter", node)
        rank, same_shape = len(shape_of(total) or ()), same_known_shape(total, node.outputs[0])
        if not same_shape or len(shape_of(first.inputs[0]) or ()) != rank:
            return why("the result is not known to keep the shape of a term", node)
        op_type = bodies.provide_composite("add_low_rank", dtype_of(total))
        if op_type is None:
            return why("the model's add_low_rank has another body", node)
        inputs = [total, first.inputs[0], first.inputs[1], second.inputs[1]]
        edit.become(node, op_type, inputs, domain=STANDARD_DOMAIN, version=1)
        return True
    return False


def _is_input(product: gs.Node) -> bool:
    """Whether a product multiplies by an input of the graph, which may have a default."""
    factor = product.inputs[1]
    return not isinstance(factor, gs.AnyConstant) and not factor.inputs and not factor.is_empty()
