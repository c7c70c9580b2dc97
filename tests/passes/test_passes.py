"""Random graphs: all passes together keep every bit, every output, and have nothing left to do."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.passes import run_passes
from tests.passes.rewriting import parse, run, same_bytes

BINDINGS = ({"batch": 2, "seq": 3}, {"batch": 1, "seq": 1}, {"batch": 3, "seq": 1})
DTYPES = (ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.DOUBLE, ir.DataType.INT32)
CALLEE = """<ir_version: 10, opset_import: ["": 21, "ai.coreai": 1]>
main (float[1] x) => (float[1] y) { y = ai.coreai.f <by = 2.0> (x) }
<domain: "ai.coreai", opset_import: ["": 21]>
f <by: float = 3.0> (x) => (y) {
  two = Constant <value_float = 2.0> ()
  three = Constant <value = float {3.0}> ()
  k = Mul (two, three)
  b = Constant <value_float: float = @by> ()
  i = Identity (x)
  p = Mul (i, k)
  q = Mul (x, k)
  r = Add (p, b)
  dead = Neg (q)
  y = Add (r, q)
}"""
Dim = int | str


@dataclass
class Drawn:
    """A graph while it is drawn."""

    draw: st.DrawFn
    opset: int
    inputs: list[ir.Value] = field(default_factory=list)
    initializers: list[ir.Value] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)
    values: list[tuple[ir.Value, tuple[Dim, ...], ir.DataType]] = field(default_factory=list)
    calls: bool = False

    def one(self, options):
        return self.draw(st.sampled_from(list(options)))

    def constant(self, array: np.ndarray) -> ir.Value:
        name = f"c{len(self.initializers) + len(self.nodes)}"
        tensor = ir.tensor(array, name=name)
        if self.draw(st.booleans()):
            value = ir.Value(name=name, const_value=tensor)
            self.initializers.append(value)
            return value
        node = ir.node("Constant", [], {"value": tensor})
        node.outputs[0].name = name
        self.nodes.append(node)
        return node.outputs[0]

    def add(self, op, inputs, shape, dtype, attrs=None, domain="") -> ir.Value:
        node = ir.node(op, inputs, attrs or {}, domain=domain)
        node.name = f"n{len(self.nodes)}"
        value = node.outputs[0]
        value.name = f"v{len(self.nodes)}"
        if self.draw(st.integers(0, 3)):
            value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)
        self.nodes.append(node)
        self.values.append((value, tuple(shape), dtype))
        return value

    def shape_vector(self, source: ir.Value, shape, wanted) -> ir.Value:
        """Compute a shape at run time from dims of ``source`` and constants."""
        dtype = ir.DataType.INT64
        parts = []
        shape_of = self.add("Shape", [source], [len(shape)], dtype)
        self.values.pop()
        for dim in wanted:
            if isinstance(dim, str) or (dim in shape and self.draw(st.booleans())):
                index = self.constant(np.array([shape.index(dim)], np.int64))
                parts.append(self.add("Gather", [shape_of, index], [1], dtype))
            else:
                parts.append(self.constant(np.array([dim], np.int64)))
        return self.add("Concat", parts, [len(wanted)], dtype, {"axis": 0})


def unary(g: Drawn, x, shape, dtype) -> None:
    g.add(
        g.one(["Neg", "Abs", "Identity", "Sum"])
        if dtype != ir.DataType.INT64 and dtype != ir.DataType.INT32
        else g.one(["Neg", "Abs", "Identity"]),
        [x],
        shape,
        dtype,
    )


def binary(g: Drawn, x, shape, dtype) -> None:
    partners = [v for v, s, d in g.values if s == shape and d == dtype]
    other = (
        g.one(partners)
        if g.draw(st.booleans())
        else g.constant(np.array(g.draw(st.integers(-2, 2)), dtype.numpy()))
    )
    g.add(g.one(["Add", "Sub", "Mul"]), [x, other], shape, dtype)


def cast(g: Drawn, x, shape, dtype) -> None:
    to = g.one(DTYPES)
    g.add("Cast", [x], shape, to, {"to": int(to)})


def transpose(g: Drawn, x, shape, dtype) -> None:
    perm = g.draw(st.permutations(range(len(shape))))
    g.add("Transpose", [x], [shape[i] for i in perm], dtype, {"perm": list(perm)})


def reshape(g: Drawn, x, shape, dtype) -> None:
    target = list(shape)
    known = [i for i, dim in enumerate(shape) if isinstance(dim, int)]
    if len(known) > 1 and known[1] == known[0] + 1 and g.draw(st.booleans()):
        target[known[0] : known[0] + 2] = [shape[known[0]] * shape[known[1]]]
    elif g.draw(st.booleans()):
        target.insert(g.draw(st.integers(0, len(target))), 1)
    vector = g.shape_vector(x, shape, target)
    g.add("Reshape", [x, vector], target, dtype)


def reshape_by_constant(g: Drawn, x, shape, dtype) -> None:
    target = [0 if isinstance(d, str) or g.draw(st.booleans()) else d for d in shape]
    if target and g.draw(st.booleans()):
        target[g.draw(st.integers(0, len(target) - 1))] = -1
    g.add("Reshape", [x, g.constant(np.array(target, np.int64))], shape, dtype)


def unsqueeze(g: Drawn, x, shape, dtype) -> None:
    axis = g.draw(st.integers(0, len(shape)))
    wide = [*shape[:axis], 1, *shape[axis:]]
    y = g.add("Unsqueeze", [x, g.constant(np.array([axis], np.int64))], wide, dtype)
    if g.draw(st.booleans()):
        g.add("Squeeze", [y, g.constant(np.array([axis], np.int64))], shape, dtype)


def expand(g: Drawn, x, shape, dtype) -> None:
    target = [g.one([1, d]) if isinstance(d, int) else d for d in shape]
    vector = (
        g.shape_vector(x, shape, target)
        if g.draw(st.booleans())
        else g.constant(np.ones(len(shape), np.int64))
    )
    g.add("Expand", [x, vector], shape, dtype)


def slice_(g: Drawn, x, shape, dtype) -> None:
    axes = [i for i, d in enumerate(shape) if isinstance(d, int) and d > 1]
    if not axes or g.draw(st.booleans()):
        axis, start, end, out = g.draw(st.integers(0, len(shape) - 1)), 0, 2**63 - 1, list(shape)
    else:
        axis = g.one(axes)
        start = g.draw(st.integers(0, 1))
        end = g.draw(st.integers(start + 1, shape[axis] + 1))
        out = list(shape)
        out[axis] = min(end, shape[axis]) - start
    bounds = [g.constant(np.array([n], np.int64)) for n in (start, end, axis)]
    g.add("Slice", [x, *bounds], out, dtype)


def concat(g: Drawn, x, shape, dtype) -> None:
    axes = [i for i, d in enumerate(shape) if isinstance(d, int)]
    count = g.draw(st.integers(1, 2)) if axes else 1
    axis = g.one(axes) if axes else 0
    out = [d * count if i == axis and count > 1 else d for i, d in enumerate(shape)]
    g.add("Concat", [x] * count, out, dtype, {"axis": axis})


def call(g: Drawn, x, shape, dtype) -> None:
    if dtype == ir.DataType.FLOAT:
        g.calls = True
        attrs = {"by": 2.0} if g.draw(st.booleans()) else {}
        g.add("f", [x], shape, dtype, attrs, domain="ai.coreai")


def branch(g: Drawn, x, shape, dtype) -> None:
    bodies = {}
    for key, ops in (("then_branch", ["Identity", "Neg"]), ("else_branch", ["Abs", "Identity"])):
        value, nodes = x, []
        for op in ops:
            nodes.append(ir.node(op, [value]))
            value = nodes[-1].outputs[0]
            value.name = f"{key[:4]}{len(g.nodes)}_{len(nodes)}"
        value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)
        bodies[key] = ir.Graph([], [value], nodes=nodes, name=f"{key}{len(g.nodes)}")
    condition = g.constant(np.array(g.draw(st.booleans())))
    g.add("If", [condition], shape, dtype, bodies)


def constants_only(g: Drawn, x, shape, dtype) -> None:
    a, b = (g.constant(np.array(g.draw(st.integers(-3, 3)), dtype.numpy())) for _ in range(2))
    k = g.add(g.one(["Add", "Mul", "Sub"]), [a, b], [], dtype)
    g.add("Add", [x, k], shape, dtype)


def sizes(g: Drawn, x, shape, dtype) -> None:
    g.add(g.one(["Shape", "Size"]), [x], [len(shape)], ir.DataType.INT64)
    if g.nodes[-1].op_type == "Size":
        value, _, kind = g.values.pop()
        value.shape = ir.Shape([]) if value.shape is not None else None
        g.values.append((value, (), kind))


STEPS = (unary, binary, cast, transpose, reshape, reshape_by_constant, unsqueeze, expand, slice_,
         concat, call, branch, constants_only, sizes)  # fmt: skip


@st.composite
def models(draw: st.DrawFn) -> ir.Model:
    g = Drawn(draw, opset=draw(st.sampled_from([18, 20, 21, 23])))
    for name, shape in (("x", ("batch", "seq", 4)), ("w", ("batch", 6))):
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        g.inputs.append(value)
        g.values.append((value, shape, ir.DataType.FLOAT))
    for _ in range(draw(st.integers(1, 14))):
        step = g.one(STEPS)
        x, shape, dtype = g.one([*g.values[-4:], g.values[0]])
        if shape or step in (unary, binary, cast, constants_only):
            step(g, x, shape, dtype)
    produced = [entry for entry in g.values if entry[0].producer() is not None]
    hypothesis.assume(produced)
    unread = [entry for entry in produced if not entry[0].uses()]
    dropped = draw(st.integers(0, max(0, len(unread) - 1)))  # leaves something dead
    outputs = unread[dropped // 2 :] + draw(st.lists(st.sampled_from(produced), max_size=2))
    outputs = list({entry[0].name: entry for entry in outputs}.values())
    for value, shape, dtype in outputs:
        value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)
    graph = ir.Graph(
        g.inputs,
        [value for value, _, _ in outputs],
        nodes=g.nodes,
        initializers=g.initializers,
        opset_imports={"": g.opset, "ai.coreai": 1},
        name="g",
    )
    functions = list(parse(CALLEE).functions.values())
    if g.opset != 21:
        for function in functions:
            function.opset_imports[""] = g.opset
    return ir.Model(graph, ir_version=10, functions=functions)


@hypothesis.given(models())
@hypothesis.settings(max_examples=300)
def test_all_passes_keep_every_bit(drawn: ir.Model) -> None:
    before, model = ir.from_proto(ir.to_proto(drawn)), ir.from_proto(ir.to_proto(drawn))
    onnx.checker.check_model(ir.to_proto(before), full_check=True)
    interface = [v.name for v in (*model.graph.inputs, *model.graph.outputs)]
    run_passes(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [v.name for v in (*model.graph.inputs, *model.graph.outputs)] == interface
    again = ir.from_proto(ir.to_proto(model))
    assert same_bytes(again, model)
    assert run_passes(again).total == 0
    assert same_bytes(again, model)
    for binding in BINDINGS:
        rng = np.random.default_rng(0)
        feeds = {
            v.name: rng.integers(
                -3, 4, [binding[d.value] if isinstance(d, ir.SymbolicDim) else d for d in v.shape]
            ).astype(np.float32)
            for v in model.graph.inputs
        }
        for expected, actual in zip(run(before, feeds), run(model, feeds), strict=True):
            assert actual.dtype == expected.dtype
            assert actual.shape == expected.shape
            assert actual.tobytes() == expected.tobytes()
