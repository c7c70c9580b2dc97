"""Which states may be updated in the memory of their old value."""

from __future__ import annotations

import pytest

from coreai_onnx.model.metadata import STATES
from coreai_onnx.runtime.states.in_place import updated_in_place
from tests.support.small_models import counter_model, parse, rows_model

PAIRS = {STATES: [{"input": "cache", "output": "cache_out"}]}
HEAD = '<ir_version: 10, opset_import: ["": 24, "own": 1]>'
GRAPH = HEAD + "agraph (float[4, 2] cache, int64[1, 1] i, float[1, 2] x) => (float[4, 2] cache_out"
BODY = HEAD.replace("ir_version: 10, ", 'domain: "own", ')


def test_an_update_that_alone_reads_the_state() -> None:
    (update,) = updated_in_place(rows_model()).values()
    assert (update.node.name, update.calls, update.writes_rows) == ("update", (), False)
    assert update.index is update.node.inputs[1]
    assert update.elements is update.node.inputs[2]


def test_a_state_that_another_node_reads() -> None:
    assert updated_in_place(rows_model(reads_old=True)) == {}


def test_an_operator_that_reads_all_of_the_state() -> None:
    assert updated_in_place(counter_model()) == {}


@pytest.mark.parametrize(
    ("nodes", "safe"),
    [
        ("cache_out = ScatterND(cache, i, x)", True),
        ("cache_out = ScatterElements<axis = 0>(cache, i, x)", True),
        ("cache_out = TensorScatter<axis = 1>(cache, x)", True),
        ("s = Shape(cache)  cache_out = ScatterND(cache, i, x)", True),
        ("new = ScatterND(cache, i, x)  cache_out = Identity(new)", True),
        ("a = ScatterND(cache, i, x)  cache_out = ScatterND(a, i, x)", False),
        ("flat = Reshape(cache, s)  cache_out = ScatterND(cache, i, x)", False),
        ("n = Neg(cache)  cache_out = ScatterND(n, i, x)", False),
        ("n = Neg(x)  cache_out = ScatterND(n, i, cache)", False),
        ("cache_out = Identity(cache)", False),
        ("cache_out = ScatterND(cache, i, cache)", False),
    ],
)
def test_forms_of_updates(nodes: str, safe: bool) -> None:
    model = parse(f"{GRAPH}) {{ {nodes} }}", PAIRS)
    assert ("cache" in updated_in_place(model)) is safe


@pytest.mark.parametrize(
    ("body", "safe"),
    [
        ("new = ScatterND(old, i, x)  sums = Neg(new)", True),
        ("new = ScatterND(old, i, x)  sums = Neg(old)", False),
        ("new = Add(old, x)  sums = Neg(new)", False),
    ],
)
def test_updates_in_functions(body: str, safe: bool) -> None:
    text = f"""{GRAPH}, float[4, 2] y) {{ cache_out, y = own.update(cache, i, x) }}
    {BODY} update (old, i, x) => (new, sums) {{ {body} }}"""
    updates = updated_in_place(parse(text, PAIRS))
    assert ("cache" in updates) is safe
    for update in updates.values():
        assert [node.op_type for node in (*update.calls, update.node)] == ["update", "ScatterND"]


def test_a_branch_that_reads_the_state() -> None:
    text = f"""{GRAPH}, float[4, 2] y) {{ cache_out = ScatterND(cache, i, x)
      c = Constant<value = bool {{1}}>()
      y = If (c) <then_branch = t () => (float[4, 2] a) {{ a = Neg(cache) }},
                  else_branch = e () => (float[4, 2] b) {{ b = Neg(cache_out) }}> }}"""
    assert updated_in_place(parse(text, PAIRS)) == {}


def test_two_inputs_of_one_update() -> None:
    """The positions depend on the state: they are read before it is written, by another node."""
    text = f"""{GRAPH}) {{ l = Cast<to = 7>(cache)  cache_out = ScatterND(cache, l, x) }}"""
    assert updated_in_place(parse(text, PAIRS)) == {}
