"""Constants that reach a tensor directly, or as arguments of the function that it is in."""

from __future__ import annotations

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import model_bodies


def constants_behind(graph: gs.Graph, tensor: gs.Tensor) -> list[gs.Constant] | None:
    """Return the constants that a tensor may be; None if it may be something else.

    An input of a function is what any call of it passes.

    Args:
        graph: A graph of the model.
        tensor: A tensor that its nodes read.
    """
    if isinstance(tensor, gs.Constant):
        return [tensor]
    bodies = model_bodies(graph)
    passed = None if bodies is None else bodies.passed(tensor)
    if not passed:
        return None
    found = [constants_behind(graph, argument) for argument in passed]
    if any(constants is None for constants in found):
        return None
    return list({id(one): one for constants in found for one in constants or ()}.values())
