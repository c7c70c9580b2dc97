"""The gated delta rule through onnxruntime against its declared reference in double."""

from __future__ import annotations

import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from coreai_onnx.composites.declaration import DOMAIN
from coreai_onnx.composites.gated_delta import GATED_DELTA_UPDATE as COMPOSITE
from tests.custom_ops.single_op import DTYPES, ONNX_TYPES, double, run_op_outputs
from tests.support.tolerances import assert_close

OP = "gated_delta_update"
BOTH = (True, True)
TYPE_NAMES = {"float": 1, "float16": 10, "double": 11, "bfloat16": 16}
SHAPES = [
    # batch, heads, value heads, length, Dk, Dv
    (1, 2, 2, 1, 16, 16),
    (2, 2, 4, 1, 5, 130),
    (1, 2, 2, 20, 16, 16),
    (2, 1, 3, 7, 6, 9),
    (1, 1, 1, 200, 32, 33),
]


def tokens(shape, dtype=torch.float32, gates=None):
    B, H, V, S, Dk, Dv = shape
    q, k, v = torch.randn(B, H, S, Dk), torch.randn(B, H, S, Dk), torch.randn(B, V, S, Dv)
    g = -torch.nn.functional.softplus(torch.randn(B, V, S))
    beta = torch.sigmoid(torch.randn(B, V, S))
    gate = gates or dtype
    return [q.to(dtype), (k / Dk**0.5).to(dtype), v.to(dtype), g.to(gate), beta.to(gate)]


def state_of(shape, dtype):
    B, _, V, _, Dk, Dv = shape
    return torch.randn(B, V, Dk, Dv).to(dtype)


def check(kernels, inputs, dtype, threads=1, **attributes):
    actual = run_op_outputs(kernels, OP, inputs, outputs=BOTH, threads=threads, **attributes)
    wanted = COMPOSITE.reference(*(double(x) for x in inputs), **attributes)
    for got, want in zip(actual, wanted, strict=True):
        assert_close(got, want.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [1, 0])
@pytest.mark.parametrize("state", ["", "own", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_the_reference(kernels, shape, state, norm, dtype):
    inputs = tokens(shape, dtype)
    if state:
        inputs.append(state_of(shape, dtype if state == "own" else torch.float32))
    check(kernels, inputs, dtype, threads=2, use_qk_l2_norm=norm)


@pytest.mark.parametrize("gates", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gates_of_any_floating_type(kernels, dtype, gates):
    check(kernels, tokens(SHAPES[3], dtype, gates), dtype)


@pytest.mark.parametrize("state_dtype", ["", "own", "float32"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_state_has_the_type_of_the_initial_one(kernels, dtype, state_dtype):
    """The op's own if there is none, also with gates in float32."""
    shape = (1, 1, 2, 3, 4, 5)
    inputs = tokens(shape, dtype, torch.float32)
    if state_dtype:
        inputs.append(state_of(shape, dtype if state_dtype == "own" else torch.float32))
    want = inputs[5].dtype if state_dtype else dtype
    names = [f"in{i}" for i in range(len(inputs))]
    fed = [TensorProto.FLOAT] * len(inputs)  # cast inside: numpy has no bfloat16
    nodes = [
        helper.make_node("Cast", [n], [f"{n}_cast"], to=ONNX_TYPES[x.dtype])
        for n, x in zip(names, inputs, strict=True)
    ]
    op = helper.make_node(OP, [f"{n}_cast" for n in names], ["output", "state"], domain=DOMAIN)
    graph = helper.make_graph(
        [*nodes, op],
        OP,
        [
            helper.make_tensor_value_info(n, f, list(x.shape))
            for n, f, x in zip(names, fed, inputs, strict=True)
        ],
        [
            helper.make_tensor_value_info("output", ONNX_TYPES[dtype], None),
            helper.make_tensor_value_info("state", ONNX_TYPES[want], None),
        ],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)],
        ir_version=10,
    )
    assert output_types(kernels, model, names, inputs) == [
        onnx.helper.tensor_dtype_to_string(ONNX_TYPES[t]) for t in (dtype, want)
    ]


def output_types(kernels, model, names, inputs):
    options = ort.SessionOptions()
    options.add_session_config_entry("coreai.op_types", "gated_delta_update")
    options.register_custom_ops_library(str(kernels))
    session = ort.InferenceSession(model.SerializeToString(), options)
    feeds = {
        n: ort.OrtValue.ortvalue_from_numpy(x.float().numpy())
        for n, x in zip(names, inputs, strict=True)
    }
    known = {
        "tensor(float)": 1,
        "tensor(float16)": 10,
        "tensor(bfloat16)": 16,
        "tensor(double)": 11,
    }
    values = session.run_with_ort_values(["output", "state"], feeds)
    return [onnx.helper.tensor_dtype_to_string(known[v.data_type()]) for v in values]


def test_a_session_of_steps_is_one_long_run(kernels):
    shape = (1, 2, 2, 9, 8, 8)
    inputs = tokens(shape)
    long = run_op_outputs(kernels, OP, inputs, outputs=BOTH)
    state = torch.zeros(1, 2, 8, 8)
    outputs = []
    for t in range(9):
        step = [x[:, :, t : t + 1] for x in inputs]
        output, state = run_op_outputs(kernels, OP, [*step, state], outputs=BOTH)
        outputs.append(output)
    assert_close(torch.cat(outputs, dim=1), long[0])
    assert_close(state, long[1])


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_state_may_go_unused(kernels, dtype, shape):
    inputs = [*tokens(shape, dtype), state_of(shape, torch.float32)]
    both = run_op_outputs(kernels, OP, inputs, outputs=BOTH)
    (alone,) = run_op_outputs(kernels, OP, inputs, outputs=(True, False))
    assert torch.equal(alone, both[0])


@pytest.mark.parametrize(
    "shape",
    [
        (0, 1, 1, 3, 4, 5),
        (1, 0, 0, 3, 4, 5),
        (1, 1, 2, 0, 4, 5),
        (1, 1, 1, 1, 4, 0),
        (1, 1, 1, 3, 4, 0),
    ],
)
def test_empty(kernels, shape):
    inputs = [*tokens(shape), state_of(shape, torch.float32)]
    output, state = run_op_outputs(kernels, OP, inputs, outputs=BOTH)
    B, _, V, S, Dk, Dv = shape
    assert output.shape == (B, S, V, Dv)
    assert state.shape == (B, V, Dk, Dv)
    if S == 0:
        assert_close(state, inputs[5])


def test_sizes_beside_a_zero_are_not_gone_through(kernels):
    # Item by item, this many would take for ever.
    inputs = tokens((2**40, 1, 1, 0, 4, 4))
    (output,) = run_op_outputs(kernels, OP, inputs, outputs=(True,))
    assert output.shape == (2**40, 0, 1, 4)
    output, state = run_op_outputs(kernels, OP, tokens((2**40, 1, 1, 0, 0, 4)), outputs=BOTH)
    assert output.shape == (2**40, 0, 1, 4)
    assert state.shape == (2**40, 1, 0, 4)


@settings(max_examples=60)
@given(
    sizes=st.tuples(*[st.integers(1, n) for n in (2, 3, 3, 30, 40, 150)]),
    norm=st.integers(0, 1),
    state=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_random_shapes(kernels, sizes, norm, state, dtype):
    batch, heads, group, length, key_dim, value_dim = sizes
    shape = (batch, heads, heads * group, length, key_dim, value_dim)
    inputs = tokens(shape, dtype)
    if state:
        inputs.append(state_of(shape, dtype))
    check(kernels, inputs, dtype, use_qk_l2_norm=norm)


def changed(index, *shape, dtype=torch.float32):
    """Fitting inputs but for one."""
    inputs = [*tokens(SHAPES[3]), state_of(SHAPES[3], torch.float32)]
    inputs[index] = torch.ones(shape, dtype=dtype)
    return inputs


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (changed(0, 2, 7, 6), r"must have rank 4: query \[2, 7, 6\]"),
        (changed(1, 2, 1, 7, 5), "query and key must have the same shape"),
        (changed(2, 1, 3, 7, 9), "the batch size and length of query"),
        (changed(2, 2, 3, 8, 9), "the batch size and length of query"),
        (changed(0, 2, 0, 7, 6)[:1] + changed(1, 2, 0, 7, 6)[1:], "must be a multiple"),
        (changed(3, 2, 3, 6), "g and beta must have the first three sizes of value"),
        (changed(4, 2, 1, 7), "g and beta must have the first three sizes of value"),
        (changed(4, 2, 3, 7, dtype=torch.int64), "input beta is int64, expected float"),
        (changed(5, 2, 3, 9, 6), r"initial_state of shape \[2, 3, 9, 6\] must be \[2, 3, 6, 9\]"),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, inputs, message):
    if inputs[0].shape[1] == 0:
        inputs[1] = inputs[0]
    with pytest.raises(Exception, match=rf"{OP}: .*{message}"):
        run_op_outputs(kernels, OP, inputs, outputs=BOTH)
