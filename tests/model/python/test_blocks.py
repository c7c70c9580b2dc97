"""Modules that repeat are one function and a loop."""

from __future__ import annotations

import pytest

from coreai_onnx.model.python import blocks
from coreai_onnx.model.python.blocks import BlockCall, Loop, components, module_items
from coreai_onnx.model.python.constants import Constants
from tests.model.python.modules import layered


def items(count: int, odd: int | None = None):
    model = layered(count, odd=odd)
    return module_items(list(model.graph), set(model.graph.outputs), Constants(model))


def test_equal_layers_are_a_loop() -> None:
    (loop,) = items(5)
    assert isinstance(loop, Loop)
    assert [call.path for call in loop.calls] == [(f"layers.{i}",) for i in range(5)]
    assert loop.carried == {0: 0}
    assert loop.calls[0].function.title == "Block"


def test_another_layer_divides_the_loop() -> None:
    first, odd, last = items(5, odd=2)
    assert isinstance(first, Loop)
    assert isinstance(odd, BlockCall)
    assert isinstance(last, Loop)
    assert (len(first.calls), len(last.calls)) == (2, 2)
    assert first.calls[0].function is last.calls[0].function is not odd.function


def test_one_layer_is_a_call_or_its_nodes() -> None:
    (call,) = items(1)
    assert isinstance(call, BlockCall)


def test_a_result_inside_the_loop_that_is_used_elsewhere_ends_it() -> None:
    model = layered(4)
    model.graph.outputs.append(model.graph.node(7).outputs[0])
    found = module_items(list(model.graph), set(model.graph.outputs), Constants(model))
    assert [len(item.calls) if isinstance(item, Loop) else 1 for item in found] == [2, 2]


def test_components_keep_the_index_with_its_list() -> None:
    assert components("model.layers.3.mlp") == ("model", "layers.3", "mlp")
    assert components("0.1") == ("0.1",)
    assert components("layers.007.²") == ("layers", "007", "²")
    assert components("") == ()


def test_calls_in_a_row_that_are_no_loop_are_looked_at_once() -> None:
    """Each module takes what the one before the last returned."""
    seen = []
    model = layered(120)
    for layer in range(2, 120):
        value = model.graph.node(f"layers.{layer - 2}.Mul").outputs[0]
        model.graph.node(f"layers.{layer}.MatMul").replace_input_with(0, value)
    follows = blocks._follows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_follows", lambda *pair: seen.append(pair) or follows(*pair))
        found = module_items(list(model.graph), set(model.graph.outputs), Constants(model))
    assert len(found) > 100
    assert 100 < len(seen) < 300
