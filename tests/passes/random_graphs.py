"""Random graphs for the tests of all passes together."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx_ir as ir

from tests.passes.rewriting import parse

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
        """Store an array as an initializer or a node."""
        name = f"c{len(self.initializers) + len(self.nodes)}"
        tensor = ir.tensor(array, name=name)
        if self.draw(st.booleans()):
            value = ir.Value(name=name, const_value=tensor)
            self.initializers.append(value)
            return value
        node = ir.node("Constant", [], {"value": tensor})
        node.outputs[0].name = name
        node.outputs[0].const_value = tensor
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


def ranked(g: Drawn, value: float, dtype: ir.DataType) -> ir.Value:
    """Draw a constant of one element, with axes of its own."""
    rank = g.one([0, 0, 0, 1, 2, 4])
    return g.constant(np.full([1] * rank, value, dtype.numpy()))


def broadcast(shape, other: ir.Value) -> tuple[Dim, ...]:
    return (1,) * (len(other.const_value.shape) - len(shape)) + tuple(shape)


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
    if g.draw(st.booleans()):
        g.add(g.one(["Add", "Sub", "Mul"]), [x, g.one(partners)], shape, dtype)
        return
    other = ranked(g, g.draw(st.integers(-2, 2)), dtype)
    pair = [x, other] if g.draw(st.booleans()) else [other, x]
    g.add(g.one(["Add", "Sub", "Mul"]), pair, broadcast(shape, other), dtype)


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


def zeros(g: Drawn, x, shape, dtype) -> None:
    """Choose among constant zeros of both signs, and keep the sign in a product."""
    if dtype != ir.DataType.FLOAT:
        return
    first, second = (np.array(g.draw(st.permutations([0.0, -0.0])), np.float32) for _ in range(2))
    if g.draw(st.booleans()):
        mask = g.constant(np.array(g.draw(st.lists(st.booleans(), min_size=2, max_size=2))))
        k = g.add("Where", [mask, g.constant(first), g.constant(second)], [2], dtype)
        k = g.add("Gather", [k, g.constant(np.array(0))], [], dtype)
    else:
        op = g.one(["ReduceMax", "ReduceMin"])
        k = g.add(op, [g.constant(first)], [], dtype, {"keepdims": 0})
    g.add("Mul", [x, k], shape, dtype)


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


def floats(g: Drawn, x, shape, dtype) -> None:
    g.add(g.one(["Relu", "Sigmoid", "Tanh", "Softplus", "Erf", "Reciprocal"]), [x], shape, dtype)


def combined(g: Drawn, op, x, value, shape, dtype, *, swapped=False) -> tuple[ir.Value, tuple]:
    """Combine a value with a constant of one element; return the result and its shape."""
    other = ranked(g, value, dtype)
    wide = broadcast(shape, other)
    return g.add(op, [other, x] if swapped else [x, other], wide, dtype), wide


def together(g: Drawn, op, x, shape, y, other, dtype) -> tuple[ir.Value, tuple]:
    """Combine two values of which one has more axes of size 1."""
    wide = max(tuple(shape), tuple(other), key=len)
    return g.add(op, [x, y] if g.draw(st.booleans()) else [y, x], wide, dtype), wide


def gelu(g: Drawn, x, shape, dtype) -> None:
    """Spell a gelu, and maybe gate something with it."""
    inner, wide = combined(g, "Div", x, 2**0.5, shape, dtype)
    erf = g.add("Erf", [inner], wide, dtype)
    shifted, wide = combined(g, "Add", erf, 1.0, wide, dtype, swapped=g.draw(st.booleans()))
    product, wide = together(g, "Mul", x, shape, shifted, wide, dtype)
    result, wide = combined(g, "Mul", product, 0.5, wide, dtype, swapped=g.draw(st.booleans()))
    gate(g, result, wide, shape, dtype)


def silu(g: Drawn, x, shape, dtype) -> None:
    """Spell a silu, and maybe gate something with it."""
    factor = g.add("Sigmoid", [x], shape, dtype)
    gate(g, g.add("Mul", [x, factor], shape, dtype), shape, shape, dtype)


def gate(g: Drawn, x, wide, shape, dtype) -> None:
    partners = [v for v, s, d in g.values if s == shape and d == dtype]
    if partners and g.draw(st.booleans()):
        together(g, "Mul", x, wide, g.one(partners), shape, dtype)


def norm(g: Drawn, x, shape, dtype) -> None:
    """Spell the normalization of the last axis."""
    if not isinstance(shape[-1], int):
        return
    square, wide = combined(g, "Pow", x, 2.0, shape, dtype)
    axes = g.constant(np.array([-1], np.int64))
    mean = g.add("ReduceMean", [square, axes], (*wide[:-1], 1), dtype)
    wide = (*wide[:-1], 1)
    shifted, wide = combined(g, "Add", mean, 0.5, wide, dtype)
    root = g.add("Sqrt", [shifted], wide, dtype)
    wide = (*wide[:-1], shape[-1]) if len(wide) > len(shape) else tuple(shape)
    scale = g.constant(np.arange(1, shape[-1] + 1).astype(dtype.numpy()))
    quotient = g.add("Div", [x, root], wide, dtype)
    g.add("Mul", [scale, quotient] if g.draw(st.booleans()) else [quotient, scale], wide, dtype)


def product(g: Drawn, x, shape, dtype) -> None:
    """Multiply with a constant matrix and add a row or a scalar."""
    if not isinstance(shape[-1], int) or len(shape) < 2:
        return
    size = g.draw(st.integers(1, 3))
    matrix = g.constant(np.arange(shape[-1] * size).reshape(shape[-1], size).astype(dtype.numpy()))
    wide = (*shape[:-1], size)
    y = g.add("MatMul", [x, matrix], wide, dtype)
    if g.draw(st.booleans()):
        row = g.constant(np.arange(size).astype(dtype.numpy()).reshape(g.one([[-1], [1, -1]])))
        g.add("Add", [y, row] if g.draw(st.booleans()) else [row, y], wide, dtype)
    else:
        combined(g, "Add", y, 1.0, wide, dtype)


def reduce(g: Drawn, x, shape, dtype) -> None:
    axis, keepdims = g.draw(st.integers(0, len(shape) - 1)), g.draw(st.integers(0, 1))
    out = [1 if i == axis else d for i, d in enumerate(shape) if keepdims or i != axis]
    axes = g.constant(np.array([g.one([axis, axis - len(shape)])], np.int64))
    op = g.one(["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean"])
    g.add(op, [x, axes], out, dtype, {"keepdims": keepdims})


def where(g: Drawn, x, shape, dtype) -> None:
    limit = ranked(g, 0.0, dtype)
    wide = broadcast(shape, limit)
    condition = g.add("Less", [x, limit], wide, ir.DataType.BOOL)
    g.values.pop()
    other = ranked(g, -1.0, dtype)
    wide = max(wide, broadcast(shape, other), key=len)
    g.add("Where", [condition, x, other], wide, dtype)


ROUNDED = (floats, gelu, silu, norm, product, reduce, where)
"""Steps on floats whose results passes may round in another way."""
STEPS = (unary, binary, cast, transpose, reshape, reshape_by_constant, unsqueeze, expand, slice_,
         concat, call, branch, constants_only, zeros, sizes)  # fmt: skip


@st.composite
def models(draw: st.DrawFn, steps=STEPS) -> ir.Model:
    g = Drawn(draw, opset=draw(st.sampled_from([18, 20, 21, 23])))
    for name, shape in (("x", ("batch", "seq", 4)), ("w", ("batch", 6))):
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        g.inputs.append(value)
        g.values.append((value, shape, ir.DataType.FLOAT))
    for _ in range(draw(st.integers(1, 14))):
        step = g.one(steps)
        x, shape, dtype = g.one([*g.values[-4:], g.values[0]])
        if step in ROUNDED and dtype != ir.DataType.FLOAT:
            continue
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


def inputs_of(model: ir.Model, binding: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        v.name: rng.integers(
            -3, 4, [binding[d.value] if isinstance(d, ir.SymbolicDim) else d for d in v.shape]
        ).astype(np.float32)
        for v in model.graph.inputs
    }
