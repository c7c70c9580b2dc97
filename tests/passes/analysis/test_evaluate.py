"""Each rule against onnxruntime, to the bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from coreai_onnx.passes.analysis.evaluate import (
    RULES,
    CannotEvaluateError,
    can_evaluate,
    evaluate,
    rearrange,
)
from tests.passes.rewriting import run

LIMIT = 1 << 20
I64 = np.int64


def ints(*values) -> np.ndarray:
    return np.array(values, I64)


F = np.array([[-1.5, 0.0, 2.5], [3.25, -4.0, 5.0]], np.float32)
G = np.array([[2.0, -3.0, 0.5], [1.0, 7.0, -2.0]], np.float32)
I = np.array([[-7, 7, 5], [-5, 9, 1]], I64)  # noqa: E741
J = np.array([[2, -2, 3], [3, -4, 5]], I64)
B = np.array([[True, False, True], [False, False, True]])
U = np.array([0, 1, 7, 0x5A, 0xA5, 255], np.uint8)
C = np.array([[True, True, False], [False, True, True]])

CASES = [
    *((op, [F, G], {}) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Greater",
                                  "GreaterOrEqual", "Less", "LessOrEqual")),
    *((op, [F.astype(np.float16), G.astype(np.float16)], {}) for op in ("Add", "Sub", "Mul", "Div")),
    *((op, [F.astype(np.float64), G.astype(np.float64)], {}) for op in ("Add", "Sub", "Mul", "Div")),
    *((op, [I, J], {}) for op in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Less")),
    *((op, [I.astype(np.int32), J.astype(np.int32)], {}) for op in ("Add", "Div", "Mod")),
    ("Mod", [I, J], {"fmod": 1}),
    ("Mod", [F, G], {"fmod": 1}),
    *((op, [B, C], {}) for op in ("And", "Or", "Xor", "Equal")),
    ("Where", [B, F, G], {}),
    ("Where", [B, I, ints(3)], {}),
    *((op, [F], {}) for op in ("Abs", "Neg", "Floor", "Ceil", "Round", "Reciprocal")),
    ("Sqrt", [np.abs(F)], {}),
    ("Abs", [I], {}), ("Neg", [I], {}), ("Not", [B], {}),
    *(("Cast", [F], {"to": to}) for to in (1, 6, 7, 9, 10, 11)),
    *(("Cast", [I], {"to": to}) for to in (1, 6, 9, 11)),
    ("Cast", [B], {"to": 1}), ("Cast", [B], {"to": 7}),
    ("Cast", [F.astype(np.float64)], {"to": 10}),
    ("CastLike", [F, I], {}),
    ("Reshape", [F, ints(3, -1)], {}), ("Reshape", [F, ints(0, 3, 1)], {}),
    ("Reshape", [F[:0], ints(0, 3)], {"allowzero": 1}),
    ("Flatten", [F[None]], {"axis": -1}), ("Flatten", [F], {"axis": 0}),
    ("Squeeze", [F[None, :, None], ints(0, 2)], {}), ("Squeeze", [F[None, :, None]], {}),
    ("Unsqueeze", [F, ints(0, -1)], {}),
    ("Transpose", [F], {}), ("Transpose", [F[None]], {"perm": [1, 2, 0]}),
    ("Concat", [F, G], {"axis": 1}), ("Concat", [F, G, F], {"axis": -2}),
    ("Split", [np.arange(7, dtype=np.float32)], {"num_outputs": 3}),
    ("Split", [np.arange(7, dtype=np.float32), ints(1, 4, 2)], {}),
    ("Slice", [F, ints(0), ints(1)], {}),
    ("Slice", [F, ints(-1, 2), ints(-99, -99), ints(0, 1), ints(-1, -2)], {}),
    ("Slice", [F, ints(1), ints(2**63 - 1), ints(-1)], {}),
    ("Slice", [F, ints(5), ints(-9), ints(1), ints(-1)], {}),
    ("Slice", [F, ints(2), ints(1), ints(1), ints(1)], {}),
    ("Gather", [F, ints(1, -1)], {"axis": 1}), ("Gather", [I, np.array(1, I64)], {}),
    ("Gather", [F, np.array([[0], [1]], I64)], {"axis": -1}),
    ("Expand", [F[:1], ints(4, 2, 1)], {}), ("Tile", [F, ints(2, 1)], {}),
    ("Range", [np.array(2, I64), np.array(11, I64), np.array(3, I64)], {}),
    ("Range", [np.array(5, I64), np.array(-4, I64), np.array(-2, I64)], {}),
    ("ConstantOfShape", [ints(2, 3)], {}),
    ("ConstantOfShape", [ints(2)], {"value": np.array([7], np.int32)}),
    ("Shape", [F], {}), ("Shape", [F[None]], {"start": 1, "end": -1}), ("Size", [F], {}),
    ("ReduceSum", [I, ints(1)], {"keepdims": 0}), ("ReduceSum", [I], {}),
    ("ReduceSum", [I], {"noop_with_empty_axes": 1}),
    ("ReduceProd", [I, ints(0)], {}),
    ("ReduceMax", [F, ints(-1)], {"keepdims": 0}), ("ReduceMin", [I], {"keepdims": 0}),
    ("CumSum", [I, np.array(1, I64)], {}),
    ("Clip", [I, np.array(-2, I64), np.array(6, I64)], {}), ("Clip", [U, np.array(3, np.uint8)], {}),
    ("BitwiseAnd", [U, np.array(15, np.uint8)], {}), ("BitwiseOr", [U, U[::-1]], {}),
    ("BitwiseXor", [U, np.array(15, np.uint8)], {}), ("BitwiseNot", [U], {}), ("BitwiseNot", [I], {}),
    ("BitShift", [U, np.array(4, np.uint8)], {"direction": "RIGHT"}),
    ("BitShift", [U, np.array(3, np.uint8)], {"direction": "LEFT"}),
    ("Trilu", [F], {}), ("Trilu", [F, np.array(-1, I64)], {"upper": 0}), ("Trilu", [I], {"upper": 0}),
]  # fmt: skip


def node_of(op, arrays, attrs, outputs=1) -> gs.Node:
    attrs = {k: gs.Constant("", v) if isinstance(v, np.ndarray) else v for k, v in attrs.items()}
    inputs = [gs.Constant(f"i{n}", array) for n, array in enumerate(arrays)]
    return gs.Node(op, "n", attrs, inputs, [gs.Variable(f"o{n}") for n in range(outputs)])


def in_onnxruntime(op, arrays, attrs, outputs) -> list[np.ndarray]:
    values = [
        ir.Value(
            name=f"i{n}",
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
        )
        for n, array in enumerate(arrays)
    ]
    attrs = {k: ir.tensor(v) if isinstance(v, np.ndarray) else v for k, v in attrs.items()}
    node = ir.node(op, values, attrs, num_outputs=len(outputs))
    for n, (value, expected) in enumerate(zip(node.outputs, outputs, strict=True)):
        value.name = f"o{n}"
        value.type = ir.TensorType(ir.DataType.from_numpy(expected.dtype))
    graph = ir.Graph(values, node.outputs, nodes=[node], opset_imports={"": 21}, name="g")
    return run(ir.Model(graph, ir_version=10), {f"i{n}": a for n, a in enumerate(arrays)})


@pytest.mark.parametrize(
    ("op", "arrays", "attrs"),
    CASES,
    ids=[f"{n}-{op}-{a[0].dtype}" for n, (op, a, _) in enumerate(CASES)],
)
def test_rule_agrees_with_onnxruntime(op, arrays, attrs) -> None:
    outputs = 3 if op == "Split" else 1
    results = evaluate(node_of(op, arrays, attrs, outputs), arrays, limit=LIMIT)
    for actual, expected in zip(results, in_onnxruntime(op, arrays, attrs, results), strict=True):
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        assert actual.tobytes() == expected.tobytes()


SPECIAL = np.array([0, -0.0, 1, -1, 0.5, -2.5, 1e-40, -1e-40, 3e38, 65504, 70000, np.inf, -np.inf])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Where", "Abs", "Neg",
                                "Floor", "Ceil", "Round", "Sqrt", "Reciprocal", "ReduceMax", "ReduceMin"])  # fmt: skip
def test_zeros_and_infinities_are_those_of_onnxruntime(op: str, dtype: type) -> None:
    """A rule refuses the special numbers for which it would return another zero."""
    with np.errstate(over="ignore"):
        numbers = SPECIAL.astype(dtype)
    pairs = np.stack(np.meshgrid(numbers, numbers), axis=-1).reshape(-1, 2)
    arrays = [pairs[:, :1], pairs[:, 1:]]
    if op.startswith("Reduce"):
        arrays = [pairs, ints(1)]
    elif op == "Where":
        arrays = [np.full((len(pairs), 1), True), *arrays]
    elif op in ("Abs", "Neg", "Floor", "Ceil", "Round", "Sqrt", "Reciprocal"):
        arrays = arrays[:1]
    attrs = {"fmod": 1} if op == "Mod" else {}
    (expected,) = in_onnxruntime(op, arrays, attrs, [pairs[:, :1]])
    folded = 0
    for row, wanted in enumerate(expected):
        parts = [
            array if array is arrays[-1] and op.startswith("Reduce") else array[row : row + 1]
            for array in arrays
        ]
        try:
            (actual,) = evaluate(node_of(op, parts, attrs), parts, limit=LIMIT)
        except CannotEvaluateError:
            continue
        np.testing.assert_array_equal(actual[0], wanted)
        if not np.isnan(wanted):
            assert np.signbit(actual[0]) == np.signbit(wanted)
        folded += 1
    assert folded > len(pairs) // 2


@pytest.mark.parametrize("op", ["Exp", "Log", "Sin", "Cos", "Pow"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_functions_are_rounded_once(op, dtype) -> None:
    x = np.linspace(0.1, 5, 50).astype(dtype)
    arrays = [x, x[::-1]] if op == "Pow" else [x]
    (actual,) = evaluate(node_of(op, arrays, {}), arrays, limit=LIMIT)
    wide = [array.astype(np.longdouble) for array in arrays]
    exact = {"Exp": np.exp, "Log": np.log, "Sin": np.sin, "Cos": np.cos, "Pow": np.power}[op](*wide)
    assert actual.dtype == dtype
    bits = {2: np.int16, 4: np.int32}[np.dtype(dtype).itemsize]
    steps = actual.view(bits).astype(I64) - exact.astype(np.float64).astype(dtype).view(bits)
    assert not steps.any()


REFUSED = [
    ("Cast", [np.array([3e9], np.float32)], {"to": 6}, "out of range"),
    ("Cast", [np.array([np.nan], np.float32)], {"to": 7}, "out of range"),
    ("Cast", [F], {"to": 17}, "casts to float8_e4m3fn"),
    ("Cast", [np.array(["a"], object)], {"to": 1}, "strings"),
    ("Cast", [np.array([1.00048828125 + 2**-30])], {"to": 10}, "twice"),
    ("Div", [I, np.zeros_like(I)], {}, "division by zero"),
    ("Div", [np.array([-(2**63)], I64), ints(-1)], {}, "overflow"),
    ("Mod", [I, np.zeros_like(I)], {}, "division by zero"),
    ("Max", [F, np.full_like(F, np.nan)], {}, "nan"),
    ("Max", [np.array([0.0], np.float32), np.array([-0.0], np.float32)], {}, "sign of zero"),
    ("Where", [B, np.full_like(F, -0.0), G], {}, "sign of zero"),
    (
        "Where",
        [B, np.full_like(F, -0.0).astype(ml_dtypes.bfloat16), G.astype(ml_dtypes.bfloat16)],
        {},
        "sign of zero",
    ),
    *(
        (op, [np.array([0.0, -0.0], np.float32)], {}, "sign of zero")
        for op in ("ReduceMax", "ReduceMin")
    ),
    ("Range", [np.float32(0), np.float32(1), np.float32(0.1)], {}, "sum floats"),
    ("ReduceSum", [F], {}, "order of a float sum"),
    ("ReduceMax", [F[:0]], {}, "reduction of nothing"),
    ("CumSum", [F, np.array(0)], {}, "integer sums"),
    ("Clip", [F], {}, "only integers are clipped"),
    ("BitShift", [U, np.array(8, np.uint8)], {"direction": "LEFT"}, "shifts by all bits"),
    ("Exp", [F.astype(np.float64)], {}, "runtime's choice"),
    ("Reshape", [F, ints(4)], {}, "inputs do not fit"),
    ("ConstantOfShape", [ints(1 << 11, 1 << 11)], {}, "bigger than the limit"),
    ("Tile", [F, ints(1 << 11, 1 << 11)], {}, "bigger than the limit"),
    ("Add", [np.zeros((1 << 11, 1), I64), np.zeros((1, 1 << 11), I64)], {}, "bigger"),
    ("Range", [np.array(0), np.array(1 << 40), np.array(1)], {}, "bigger than the limit"),
    ("Concat", [F, G], {"axis": gs.Node.AttributeRef("axis", int)}, "known only to the caller"),
]


@pytest.mark.parametrize(("op", "arrays", "attrs", "reason"), REFUSED)
def test_refusals_have_a_reason(op, arrays, attrs, reason) -> None:
    arrays = [np.asarray(array) for array in arrays]
    with pytest.raises(CannotEvaluateError, match=reason):
        evaluate(node_of(op, arrays, attrs), arrays, limit=LIMIT)


def test_every_rule_has_a_case() -> None:
    tested = {op for op, _, _ in CASES} | {"Exp", "Log", "Sin", "Cos", "Pow"}
    assert tested == set(RULES)
    assert can_evaluate("Add")
    assert not can_evaluate("QuantizeLinear")


def test_narrow_integers_move_unharmed() -> None:
    values = np.array([-8, 7, 0, 1], ml_dtypes.int4)
    (moved,) = evaluate(
        node_of("Reshape", [values, ints(2, 2)], {}), [values, ints(2, 2)], limit=LIMIT
    )
    assert moved.dtype == ml_dtypes.int4
    assert moved.astype(int).tolist() == [[-8, 7], [0, 1]]


def test_objects_are_moved_like_numbers() -> None:
    names = np.array(["batch", 128, None], object)
    node = gs.Node("Gather", attrs={"axis": 0}, inputs=[gs.Variable("x")] * 2)
    assert rearrange(node, [names, np.array([-1, 0])]).tolist() == [None, "batch"]
    assert rearrange(node, [names, np.array(0)]).shape == ()
    with pytest.raises(CannotEvaluateError, match="IndexError"):
        rearrange(node, [names, np.array([-4])])
