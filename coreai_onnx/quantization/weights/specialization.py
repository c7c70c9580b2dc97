"""Copies functions whose calls pass weights that are quantized in different ways."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import onnx_ir as ir

from coreai_onnx.quantization.weights.products import Call, Products, origin
from coreai_onnx.quantization.weights.rewriting import unused


def specialize(products: Products, kinds: Mapping[ir.Value, Hashable]) -> Products:
    """Give calls that pass weights of different kinds functions of their own.

    A function serves several layers. If a rule selects other bits for one of them, the function is
    copied, as ``Layer.2``, and the call of that layer calls the copy.

    Args:
        products: The products of a model, which is changed.
        kinds: The kind of each initializer that is quantized.

    Returns:
        The products of the model afterwards.
    """
    # A copy calls the same functions, whose calls then may differ: search again after each.
    while (split := _first_mixed(products, kinds)) is not None:
        function, groups = split
        # The first kind keeps the original.
        for calls in groups[1:]:
            copy = function.clone()
            functions = products.model.functions.values()
            names = {one.name for one in functions if one.domain == function.domain}
            copy.name = unused(function.name, names)
            products.model.functions[copy.identifier()] = copy
            for node, _ in calls:
                node.op_type = copy.name
        products = Products(products.model)
    return products


def _first_mixed(
    products: Products, kinds: Mapping[ir.Value, Hashable]
) -> tuple[ir.Function, list[list[Call]]] | None:
    """Return a function with calls of different kinds, and its calls by kind."""
    weights = _parameters(products)
    for function in products.model.functions.values():
        places = [i for i, value in enumerate(function.inputs) if value in weights]
        if not places:
            continue
        groups: dict[Hashable, list[Call]] = {}
        for call in products.calls[function.identifier()]:
            groups.setdefault(_kind(products, call[0], places, kinds), []).append(call)
        if len(groups) > 1:
            return function, list(groups.values())
    return None


def _parameters(products: Products) -> set[ir.Value]:
    """Return the inputs of functions that reach products as weights."""
    waiting = [product.weight for product in products.products]
    parameters: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value in parameters or products.owner(value) is None:
            continue
        parameters.add(value)
        waiting += [origin(passed) for passed in products.arguments(value) if passed is not None]
    return parameters


def _kind(
    products: Products, call: ir.Node, places: list[int], kinds: Mapping[ir.Value, Hashable]
) -> Hashable:
    kind = []
    for place in places:
        value = call.inputs[place] if place < len(call.inputs) else None
        # An argument inside of a function may be several constants, one for each call of that
        # function.
        constants = (products.constants(value) if value is not None else None) or []
        kind.append(frozenset(kinds.get(constant) for constant in constants))
    return tuple(kind)
