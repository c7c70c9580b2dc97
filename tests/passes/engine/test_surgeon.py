"""Everything of a model survives the crossing into graph-surgeon and back."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from coreai_onnx.errors import PassError
from coreai_onnx.passes import close_model, open_model
from tests.passes.rewriting import parse, same_bytes

RICH = """
<ir_version: 10, producer_name: "coreai_onnx", producer_version: "9.9", model_version: 3,
 opset_import: ["": 23, "ai.coreai": 1, "ai.coreai.user": 2],
 doc_string: "a model", metadata_props: ["coreai.entrypoint": "main"]>
main (float[batch, seq, 4] x, bool[1] flag, float[2] state = {1, 2})
 => (float[batch, seq, 4] y, float[2] state_out, float[] scalar)
<float[4] unused = {1, 2, 3, 4}, float[4] w = {1, 1, 1, 1}, float[batch, seq, 4] h>
{
  [encoder_norm] h = ai.coreai.norm <eps = 0.5> (x, w)
  two = Constant <value = float {2}> ()
  [encoder_if] z = If (flag) <
    then_branch = then_graph () => (float[batch, seq, 4] t) {
      three = Constant <value_float = 3.0> ()
      a = Mul (h, two)
      t = Mul (a, three)
    },
    else_branch = else_graph () => (float[batch, seq, 4] e) { e = Neg (h) }
  >
  clipped = Clip (z, , two)
  k = Constant <value_ints = [2]> ()
  y = ai.coreai.norm (clipped, w)
  values, indices = TopK <axis = -1, largest = 0> (clipped, k)
  state_out = Add (state, state)
  scalar = ReduceSum <keepdims = 0> (values)
}
<domain: "ai.coreai", opset_import: ["": 23, "ai.coreai.user": 2], doc_string: "x / rms(x)">
norm <eps: float = 0.1, axis: int = -1, mode> (x, w) => (y)
{
  [load_eps] e = Constant <value_float: float = @eps> ()
  half = Constant <value = float {0.5}> ()
  a = Add (x, e)
  b = ai.coreai.user.scale <by: float = @eps> (a)
  y = Mul (b, half)
}
<domain: "ai.coreai.user", opset_import: ["": 23]>
scale <by> (x) => (y)
{
  f = Constant <value_float: float = @by> ()
  y = Mul (x, f)
}
"""


def rich() -> ir.Model:
    """RICH with metadata and doc strings on everything that can bear them."""
    proto = onnx.parser.parse_model(RICH)
    graphs = [proto.graph]
    while graphs:
        graph = graphs.pop()
        graph.doc_string = f"graph {graph.name}"
        graph.metadata_props.add(key="coreai.graph", value=graph.name)
        for number, node in enumerate(graph.node):
            node.doc_string = f"doc {number}"
            node.metadata_props.add(key="coreai.scope", value=f"layer.{number}")
            node.name = node.name or f"{graph.name}/{number}"
            graphs += [a.g for a in node.attribute if a.HasField("g")]
        for info in (*graph.input, *graph.output, *graph.value_info):
            info.doc_string = f"doc of {info.name}"
            info.metadata_props.add(key="coreai.value", value=info.name)
    for function in proto.functions:
        function.metadata_props.add(key="coreai.function", value=function.name)
        for number, node in enumerate(function.node):
            node.metadata_props.add(key="coreai.scope", value=f"body.{number}")
            node.doc_string = f"doc {number}"
            node.name = node.name or f"{function.name}/{number}"
    return ir.from_proto(proto)


def crossed(model: ir.Model) -> ir.Model:
    close_model(open_model(model), model)
    return model


def test_round_trip_keeps_every_byte() -> None:
    before, after = rich(), rich()
    old_graph = after.graph
    crossed(after)
    assert after.graph is not old_graph
    assert same_bytes(before, after)


def test_round_trip_of_the_proto_text_shows_metadata() -> None:
    proto = ir.to_proto(crossed(rich()))
    assert {p.key: p.value for p in proto.metadata_props} == {"coreai.entrypoint": "main"}
    assert (proto.producer_name, proto.producer_version, proto.ir_version) == (
        "coreai_onnx", "9.9", 10,
    )  # fmt: skip
    assert {i.domain: i.version for i in proto.opset_import} == {
        "": 23, "ai.coreai": 1, "ai.coreai.user": 2,
    }  # fmt: skip
    assert proto.graph.node[0].name == "encoder_norm"
    assert proto.graph.node[0].metadata_props[0].value == "layer.0"
    assert proto.graph.node[0].doc_string == "doc 0"
    assert proto.graph.metadata_props[0].value == "main"
    then_graph = next(a.g for n in proto.graph.node for a in n.attribute if a.name == "then_branch")
    assert then_graph.node[0].metadata_props[0].key == "coreai.scope"
    assert proto.graph.input[0].doc_string == "doc of x"
    assert proto.graph.input[0].metadata_props[0].value == "x"
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == ["batch", "seq", 4]


def test_functions_keep_defaults_references_and_metadata() -> None:
    norm, scale = ir.to_proto(crossed(rich())).functions
    assert (norm.domain, norm.name, norm.doc_string) == ("ai.coreai", "norm", "x / rms(x)")
    assert [(a.name, a.f or a.i) for a in norm.attribute_proto] == [
        ("eps", pytest.approx(0.1)), ("axis", -1),
    ]  # fmt: skip
    assert list(norm.attribute) == ["mode"]
    assert norm.metadata_props[0].value == "norm"
    assert norm.node[0].attribute[0].ref_attr_name == "eps"
    assert norm.node[0].name == "load_eps"
    assert [n.metadata_props[0].value for n in norm.node] == [f"body.{i}" for i in range(5)]
    assert {i.domain: i.version for i in norm.opset_import} == {"": 23, "ai.coreai.user": 2}
    assert list(scale.attribute) == ["by"]


def test_overload_survives() -> None:
    model = parse("main (float[2] x) => (float[2] y) { y = ai.coreai.f (x) }")
    model.graph[0].overload = "wide"
    assert crossed(model).graph[0].overload == "wide"


def test_a_state_default_stays_an_input_and_an_initializer() -> None:
    model = crossed(rich())
    assert [v.name for v in model.graph.inputs] == ["x", "flag", "state"]
    assert list(model.graph.initializers) == ["state", "unused", "w"]
    assert model.graph.initializers["state"] is model.graph.inputs[2]
    assert isinstance(open_model(rich()).inputs[2], gs.Variable)


def test_weights_are_the_same_objects() -> None:
    model = rich()
    before = {name: value.const_value for name, value in model.graph.initializers.items()}
    graph = open_model(model)
    for tensor in graph.constants:
        assert tensor.values.shape == tuple(tensor.shape)  # reading changes nothing
    close_model(graph, model)
    for name, value in model.graph.initializers.items():
        assert value.const_value is before[name]


def test_weights_are_not_read() -> None:
    def fail() -> ir.Tensor:
        raise AssertionError("the weight was read")

    model = parse("main (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }")
    lazy = ir.LazyTensor(
        fail, dtype=ir.DataType.FLOAT, shape=ir.Shape((1 << 20, 1 << 20)), name="w"
    )
    model.graph.initializers["w"].const_value = lazy
    assert crossed(model).graph.initializers["w"].const_value is lazy


@pytest.mark.parametrize(
    "dtype",
    [
        ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz,
        np.float16, np.float64, np.bool_, np.uint8, np.complex64,
    ],
)  # fmt: skip
def test_every_dtype_survives_as_initializer_and_constant(dtype) -> None:
    values = np.array([0, 1, 1, 0, 1], dtype=dtype)
    initializer = ir.Value(name="w", const_value=ir.tensor(values, name="w"))
    constant = ir.node("Constant", [], {"value": ir.tensor(values, name="c")})
    constant.outputs[0].name = "c"
    outputs = []
    nodes = [constant]
    for source in (initializer, constant.outputs[0]):
        nodes.append(ir.node("Identity", [source]))
        nodes[-1].outputs[0].name = f"{source.name}_out"
        nodes[-1].outputs[0].type = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
        nodes[-1].outputs[0].shape = ir.Shape([5])
        outputs += nodes[-1].outputs
    graph = ir.Graph([], outputs, nodes=nodes, initializers=[initializer], opset_imports={"": 23})
    model = ir.Model(graph, ir_version=10)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    opened = open_model(model)
    for tensor in opened.constants:
        assert tensor.dtype == np.dtype(dtype)
        assert tensor.values.tobytes() == values.tobytes()
    close_model(opened, model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_loop_with_captures_survives() -> None:
    text = """
    main (int64 n, float[2] x) => (float[2] y, float[k, 2] scan) <bool c = {1}>
    {
      one = Constant <value = float {1}> ()
      y, scan = Loop (n, c, x) <
        body = step (int64 i, bool cond, float[2] carried)
          => (bool cond_out, float[2] next, float[2] seen) <float[2] local = {1, 2}> {
          cond_out = Identity (cond)
          a = Add (carried, x)
          b = Add (a, local)
          next = Mul (b, one)
          seen = Identity (next)
        }
      >
    }"""
    assert same_bytes(crossed(parse(text)), parse(text))


def test_names_shared_by_sibling_subgraphs_become_unique() -> None:
    text = """
    main (bool c, float[2] x) => (float[2] y)
    {
      y = If (c) <
        then_branch = a () => (float[2] r) { t = Neg (x)  r = Abs (t) },
        else_branch = b () => (float[2] r) { t = Exp (x)  r = Neg (t) }
      >
    }"""
    graph = open_model(parse(text))
    names = [t.name for g in graph.subgraphs() for n in g.nodes for t in n.outputs]
    assert names == ["t", "r", "t_1", "r_1"]
    model = crossed(parse(text))
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_sequences_and_optional_outputs_survive() -> None:
    text = """
    main (seq(float[2]) s, float[2] x) => (float[2] y, seq(float[2]) t)
    {
      i = Constant <value_int = 0> ()
      y = SequenceAt (s, i)
      t = SequenceInsert (s, x)
      m, mask = Dropout (x)
    }"""
    assert same_bytes(crossed(parse(text)), parse(text))


def test_strings_and_types_survive() -> None:
    text = """
    main () => (string[2] y, string[1] z, optional(float[2]) o)
    {
      y = Constant <value_strings = ["a", "b"]> ()
      t = Constant <value = string[1] {"c"}> ()
      z = Identity (t)
      o = Optional <type = optional(float[2])> ()
    }"""
    assert same_bytes(crossed(parse(text)), parse(text))


def test_external_weights_stay_where_they_are(tmp_path) -> None:
    np.arange(6, dtype=np.float32).tofile(tmp_path / "w.bin")
    model = parse("main (float[6] x) => (float[6] y) <float[6] w = {0}> { y = Add (x, w) }")
    external = ir.ExternalTensor(
        "w.bin", 0, 24, ir.DataType.FLOAT, shape=ir.Shape((6,)), name="w", base_dir=str(tmp_path)
    )
    model.graph.initializers["w"].const_value = external
    graph = open_model(model)
    assert graph.constants[0].values.tolist() == [0, 1, 2, 3, 4, 5]
    close_model(graph, model)
    assert model.graph.initializers["w"].const_value is external


def test_graph_surgeon_itself_can_export_what_came_through_the_door() -> None:
    text = "main (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }"
    proto = gs.export_onnx(open_model(parse(text)))
    onnx.checker.check_model(proto, full_check=True)
    assert [n.op_type for n in proto.graph.node] == ["Add"]


def test_a_value_from_nowhere_is_an_error() -> None:
    ghost, y = ir.Value(name="ghost"), ir.Value(name="y")
    node = ir.Node("", "Neg", [ghost], outputs=[y], name="bad")
    model = ir.Model(ir.Graph([], [y], nodes=[node], opset_imports={"": 23}), ir_version=10)
    with pytest.raises(PassError, match="Neg node 'bad': 'ghost' is produced by nothing"):
        open_model(model)


def chain(length: int) -> ir.Model:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", 4]))
    nodes, value = [], x
    for number in range(length):
        other = value if number % 3 else x
        node = ir.Node("", "Add", [value, other], name=f"layer.{number}")
        node.metadata_props["coreai.scope"] = f"model.layers.{number}"
        node.outputs[0].name = f"v{number}"
        node.outputs[0].type, node.outputs[0].shape = x.type, ir.Shape(["n", 4])
        nodes.append(node)
        value = node.outputs[0]
    return ir.Model(ir.Graph([x], [value], nodes=nodes, opset_imports={"": 23}), ir_version=10)


@pytest.mark.slow
def test_time_is_linear() -> None:
    """Doubling the nodes may not quadruple the time; ratios hold on a busy machine too."""

    def seconds(model: ir.Model) -> float:
        start = time.process_time()
        crossed(model)
        return time.process_time() - start

    small, big = chain(1000), chain(8000)
    seconds(chain(100))
    best_small = min(seconds(small) for _ in range(5))
    best_big = min(seconds(big) for _ in range(3))
    assert best_big / best_small < 8 * 3


def test_the_model_is_untouched_until_it_is_closed() -> None:
    model = rich()
    graph = open_model(model)
    graph.nodes.clear()
    graph.functions.clear()
    assert same_bytes(model, rich())
