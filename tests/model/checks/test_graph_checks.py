"""What passes and runtimes take for granted of a graph is checked when it is loaded."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from coreai_onnx.model.checks.graph_checks import arrange
from tests.support.small_models import layers_model, parse


def graph(
    nodes: str, head: str = '"": 21, "f": 1, "ai.coreai": 1', functions: str = ""
) -> ir.Model:
    return parse(f"""<ir_version: 10, opset_import: [{head}]>
    g (float[2, 4] x, float[2, 4] y, bool c) => (float[2, 4] z) {{ {nodes} }}
    {functions}""")


TWICE = """<domain: "f", opset_import: ["": 21, "f": 1]>
    twice (a, b) => (r) { s = Neg(b)  r = Add(a, s) }"""


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ('z = Where("", "", "")', "Where node '' has 0 of the 3 inputs that it needs"),
        ("z = Where(c, x)", "has 2 of the 3 inputs"),
        ("z = Neg(x, y)", "Neg node '' has 2 inputs, at most 1 are allowed"),
        ("z, r = Neg(x)", "has 2 outputs, at most 1 are allowed"),
        ("z = Cast(x)", "lacks the attribute 'to'"),
        ('z = Cast<to = "float">(x)', "has the attribute 'to' of the type STRING"),
        ("z = Slice<starts = [0], ends = [1]>(x)", "has 1 of the 3 inputs that it needs"),
        ("z = RMSNormalization(x, y)", "is an operator since opset 23, this one is 21"),
        ("z = ai.coreai.scaled_dot_product_attention(x, y)", "has 2 of the 3 inputs"),
        ("z = ai.coreai.rms_norm()", "has 0 of the 1 inputs"),
        ("z, r = ai.coreai.rms_norm(x, y)", "has 2 outputs, at most 1 are allowed"),
    ],
)
def test_nodes_are_those_of_their_operators(nodes: str, message: str) -> None:
    assert message in arrange(graph(nodes))


@pytest.mark.parametrize(
    ("head", "nodes"),
    [
        ('"": 9', "z = Slice<starts = [0], ends = [1]>(x)"),
        ('"": 12', "a = Unsqueeze<axes = [0]>(x)  z = Squeeze<axes = [0]>(a)"),
        ('"": 21, "com.microsoft": 1', "z = com.microsoft.Gelu(x)"),
        ('"": 21, "mine": 1', 'z = mine.Neg(x, "", y)'),
        ('"": 21', "z = NoOpOfOnnx(x)"),
        ('"": 21', "z = Clip(x)"),
    ],
)
def test_nodes_that_are_right_or_unknown_pass(head: str, nodes: str) -> None:
    assert arrange(graph(nodes, head)) == ""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("f.twice(x, y)", ""),
        ("f.twice(x, y, x)", "has 3 inputs, at most 2 are allowed"),
        ("f.twice(x)", "lacks the input 'b', which the function needs"),
    ],
)
def test_calls_are_those_of_their_functions(call: str, message: str) -> None:
    wrong = arrange(graph(f"z = {call}", functions=TWICE))
    assert message in wrong
    assert bool(wrong) is bool(message)


def test_what_a_function_needs_for_others_it_needs() -> None:
    outer = '<domain: "f", opset_import: ["f": 1]> outer (a, b) => (r) { r = f.twice(a, b) }'
    model = graph("z = f.outer(x)", functions=outer + TWICE)
    assert "outer node '' lacks the input 'b'" in arrange(model)


@pytest.mark.parametrize("length", [1, 2, 3000])
def test_functions_that_call_themselves_are_told(length: int) -> None:
    functions = "".join(
        f'<domain: "f", opset_import: ["f": 1]> '
        f"f{i} (a) => (r) {{ r = f.f{(i + 1) % length}(a) }}\n"
        for i in range(length)
    )
    assert "is broken: it calls itself" in arrange(graph("z = f.f0(x)", functions=functions))


def test_functions_in_a_long_row_do_not_call_themselves() -> None:
    functions = "".join(
        f'<domain: "f", opset_import: ["": 21, "f": 1]> f{i} (a) => (r) {{ r = {op}(a) }}\n'
        for i, op in enumerate([f"f.f{i + 1}" for i in range(3000)] + ["Neg"])
    )
    assert arrange(graph("z = f.f0(x)", functions=functions)) == ""


def test_the_optional_first_input_of_an_old_scan_may_be_absent() -> None:
    scan = "z = Scan<num_scan_inputs = 1, body = g (float a) => (float b) { b = Neg(a) }>({})"
    assert arrange(graph(scan.replace("{}", '"", x'), '"": 8')) == ""
    assert "has 1 inputs, at least 2 are needed" in arrange(graph(scan.replace("{}", "x"), '"": 8'))


def test_operators_without_an_opset() -> None:
    assert "of which no opset is imported" in arrange(graph("z = Neg(x)", '"f": 1'))


def test_a_model_that_is_whole_is_left_as_it_is() -> None:
    model = layers_model()
    nodes = list(model.graph)
    assert arrange(model) == ""
    assert list(model.graph) == nodes


BRANCHES = "If(c) <then_branch = t () => (r) {{ {} }}, else_branch = e () => (r) {{ r = Neg(x) }}>"


@pytest.mark.parametrize("branch", ["r = Neg(late)", f"r = {BRANCHES.format('r = Neg(late)')}"])
def test_nodes_follow_what_their_subgraphs_read(branch: str) -> None:
    model = graph(f"z = {BRANCHES.format(branch)} late = Abs(y)")
    assert arrange(model) == ""
    assert [node.op_type for node in model.graph] == ["Abs", "If"]


def test_a_subgraph_does_not_read_the_result_of_its_own_node() -> None:
    model = graph(f"z = {BRANCHES.format('r = Neg(z)')}")
    assert "its nodes read each other in a circle" in arrange(model)
