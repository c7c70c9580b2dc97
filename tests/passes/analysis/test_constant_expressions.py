from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.constant_expressions import constant_expression
from coreai_onnx.passes.engine import graphs as gs


def constant(name: str, values: object, dtype: type = np.int64) -> gs.Constant:
    return gs.Constant(name, np.asarray(values, dtype))


def made(op: str, *inputs: gs.Tensor, outputs: int = 1, **attrs: object) -> list[gs.Variable]:
    results = [gs.Variable(f"{op}_{i}") for i in range(outputs)]
    gs.Node(op, attrs=attrs, inputs=list(inputs), outputs=results)
    return results


def test_a_recipe_outlives_its_graph() -> None:
    bytes_ = constant("packed", [0x21, 0x43], np.uint8)
    (low,) = made("BitwiseAnd", bytes_, constant("mask", 15, np.uint8))
    (high,) = made("BitShift", bytes_, constant("by", 4, np.uint8), direction="RIGHT")
    axis = constant("axis", [1])
    pair = [made("Unsqueeze", half, axis)[0] for half in (low, high)]
    (steps,) = made("Concat", *pair, axis=1)
    recipe = constant_expression(steps)
    assert recipe is not None
    assert [c.name for c in recipe.constants].count("packed") == 1
    for node in (steps.inputs[0], low.inputs[0]):
        node.inputs.clear()
    np.testing.assert_array_equal(recipe.values(), [[1, 2], [3, 4]])


def test_results_of_one_node_are_told_apart() -> None:
    first, second = made("Split", constant("x", [1, 2, 3, 4]), outputs=2, axis=0)
    (difference,) = made("Sub", second, first)
    recipe = constant_expression(difference)
    assert recipe is not None
    np.testing.assert_array_equal(recipe.values(), [2, 2])
    np.testing.assert_array_equal(recipe(np.array([0, 0, 5, 7])), [5, 7])


def test_a_constant_is_its_own_recipe() -> None:
    recipe = constant_expression(constant("x", [1, 2]))
    assert recipe is not None
    np.testing.assert_array_equal(recipe.values(), [1, 2])


def test_what_depends_on_inputs_or_on_the_runtime_has_none() -> None:
    x, given = constant("x", [1, 2]), gs.Variable("given")
    assert constant_expression(made("Add", x, given)[0]) is None
    assert constant_expression(made("RandomUniformLike", x)[0]) is None
    assert constant_expression(made("DequantizeLinear", x, x)[0]) is None
    (quotient,) = made("Div", x, constant("zero", 0))
    recipe = constant_expression(quotient)
    assert recipe is not None
    assert recipe.values() is None


def test_long_chains_are_not_followed() -> None:
    tensor: gs.Tensor = constant("x", [1])
    for _ in range(200):
        (tensor,) = made("Neg", tensor)
    assert constant_expression(tensor) is None
