"""Models of the positions that updates in place write to."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from coreai_onnx.model.metadata import STATES
from coreai_onnx.runtime.states.in_place import (
    PositionsModel,
    UnknownPositionsError,
    updated_in_place,
)
from tests.support.small_models import parse

HEAD = 'opset_import: ["": 24, "own": 1, "ai.coreai": 1]'
KV = "cache_out = ai.coreai.kv_cache_update(cache, made, i)"


def model(update: str) -> ir.Model:
    """A cache that ``update`` writes ``made`` to; the network before it is one ``Exp``."""
    text = f"""<ir_version: 11, {HEAD}>
    agraph (float[2, h, t, 16] x, int64[1] i, float[2, 2, 512, 16] cache)
      => (float[2, 2, 512, 16] cache_out)
    <int64[9000] table, float[2, h, t, 16] made>
    {{ made = Exp(x)  {update} }}
    <domain: "own", {HEAD}> update (old, new, first) => (result)
    {{ n = Shape<start = 2, end = 3>(new)  p = Add(first, n)
      result = TensorScatter<axis = 2>(old, new, p) }}"""
    positions_model = parse(text, {STATES: [{"input": "cache", "output": "cache_out"}]})
    table = ir.Value(name="table", const_value=ir.tensor(np.arange(9000), name="table"))
    positions_model.graph.register_initializer(table)
    for node in positions_model.graph:
        for i, value in enumerate(node.inputs):
            if value is not None and value.name == "table":
                node.replace_input_with(i, table)
    return positions_model


def collected(update: str) -> tuple[PositionsModel, str, ir.Model]:
    whole = model(update)
    positions = PositionsModel(whole)
    name = positions.add(updated_in_place(whole)["cache"])
    return positions, name, positions.build()


def run(positions_model: ir.Model, name: str, **feeds: list[int]) -> list[int]:
    session = ort.InferenceSession(ir.to_proto(positions_model).SerializeToString())
    assert {node.name for node in session.get_inputs()} == feeds.keys()
    arrays = {key: np.array(value) for key, value in feeds.items()}
    return list(session.run([name], arrays)[0])


def test_an_input() -> None:
    _, name, positions_model = collected(KV)
    assert run(positions_model, name, i=[7]) == [7]


def test_a_few_operations_without_the_network() -> None:
    text = "one = Constant<value_ints = [1]>()  p = Add(i, one)  " + KV.replace("i)", "p)")
    _, name, positions_model = collected(text)
    assert {node.op_type for node in positions_model.graph} == {"Constant", "Add", "Identity"}
    assert run(positions_model, name, i=[7]) == [8]


@pytest.mark.parametrize(
    "update",
    [
        "n = Shape<start = 2, end = 3>(made)  p = Add(i, n)  " + KV.replace("i)", "p)"),
        "cache_out = own.update(cache, made, i)",
    ],
    ids=["in the graph", "in a function"],
)
def test_the_shape_of_what_the_network_computes_is_an_input(update: str) -> None:
    positions, name, positions_model = collected(update)
    (shape,) = positions.shapes
    assert positions.shapes[shape] == ("t",)
    assert run(positions_model, name, i=[7], **{shape: [3]}) == [10]


def test_the_shape_of_an_input_is_its_own() -> None:
    positions, name, positions_model = collected(
        "n = Shape<start = 2, end = 3>(cache)  p = Sub(n, i)  " + KV.replace("i)", "p)")
    )
    assert not positions.shapes
    session = ort.InferenceSession(ir.to_proto(positions_model).SerializeToString())
    feeds = {"i": np.array([7]), "cache": np.zeros((2, 2, 512, 16), np.float32)}
    assert session.run([name], feeds)[0].tolist() == [505]


def test_equal_positions_are_computed_once() -> None:
    whole = model(KV)
    update = updated_in_place(whole)["cache"]
    positions = PositionsModel(whole)
    assert positions.add(update) == positions.add(update)
    assert len(positions.build().graph.outputs) == 1


def test_all_from_zero() -> None:
    positions, name, _ = collected("cache_out = TensorScatter(cache, made)")
    assert (name, positions.outputs) == ("", {})


NEGATIONS = " ".join(f"i{n + 1} = Neg(i{n})" for n in range(200)).replace("i0)", "i)")


@pytest.mark.parametrize(
    "update",
    [
        "r = RandomUniform<shape = [1]>()  p = Cast<to = 7>(r)  " + KV.replace("i)", "p)"),
        "p = Gather(table, i)  " + KV.replace("i)", "p)"),
        f"{NEGATIONS}  {KV.replace('i)', 'i200)')}",
    ],
    ids=["random", "large constant", "many nodes"],
)
def test_positions_that_are_not_known_before_the_call(update: str) -> None:
    with pytest.raises(UnknownPositionsError):
        collected(update)


def test_what_was_copied_in_vain_is_left_out() -> None:
    whole = model("n = Neg(i)  r = RandomUniform<shape = [1]>()  c = Cast<to = 7>(r)"
                  "  p = Add(n, c)  " + KV.replace("i)", "p)"))  # fmt: skip
    positions = PositionsModel(whole)
    with pytest.raises(UnknownPositionsError):
        positions.add(updated_in_place(whole)["cache"])
    assert not list(positions.build().graph)


def test_a_number_of_rows_that_is_not_known() -> None:
    text = "u = Unsqueeze(made, i)  s = Squeeze(u, i)  " + KV.replace("made", "s")
    whole = model(text)
    with pytest.raises(UnknownPositionsError):
        PositionsModel(whole).shape(updated_in_place(whole)["cache"])
