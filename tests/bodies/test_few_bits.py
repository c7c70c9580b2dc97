"""Bodies of products and lookups with few-bit weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from tests.composites.matrix import EXPERT_CASES, model_of
from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.composite_cases import CASES
from tests.support.tolerances import assert_close

CASE = Case(
    "linear_nbits",
    ((1, 64), (6, 2, 16), (6, 2), (6, 2), None, (6,)),
    {"group_size": 32},
    {1: torch.uint8, 2: torch.bfloat16, 3: torch.uint8},
    "constants",
    256,
)


def as_constants(case: Case) -> onnx.ModelProto:
    """Return a model of a call and an op after it; all inputs but the first are initializers."""
    inputs = case.inputs(torch.float32)
    proto = ir.to_proto(case.model(torch.float32, dynamic=True))
    proto.graph.node.append(onnx.helper.make_node("Erf", ["result_0"], ["erf"]))
    proto.graph.output[0].name = "erf"
    given = (x for x in inputs if x is not None)
    for value, tensor in list(zip(list(proto.graph.input), given, strict=True))[1:]:
        proto.graph.input.remove(value)
        constant = ir.to_proto(ir.tensor(tensor))
        constant.name = value.name
        proto.graph.initializer.append(constant)
    return proto


@pytest.mark.parametrize("bits", [8, 6, 5, 4, 3, 2])
def test_a_constant_weight_is_unpacked_when_the_model_is_loaded(bits: int, tmp_path: Path) -> None:
    codes = (6, 2, 4 * bits)
    case = Case(CASE.composite, (CASE.shapes[0], codes, *CASE.shapes[2:]), {"bits": bits},
                CASE.dtypes, "constants", 256)  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(as_constants(case).SerializeToString(), options)
    optimized = onnx.load(options.optimized_model_filepath)
    types = [node.op_type for node in optimized.graph.node]
    assert types == ["Gemm", "Erf"]
    weights = {w.name: w for w in optimized.graph.initializer}
    assert np.dtype(np.float32) in {onnx.numpy_helper.to_array(w).dtype for w in weights.values()}
    assert (64, 6) in {tuple(w.dims) for w in weights.values()}


def test_a_variant_names_bits_rounding_zeros_palette_and_bias() -> None:
    calls = [(c, torch.float32) for c in CASES if c.composite == "linear_nbits"]
    model, _ = model_of(calls, 23)
    names = {function.name for function in model.functions.values()}
    assert {"linear_nbits", "linear_nbits.bits2_rounded_palette_bias"} <= names
    assert {"linear_nbits.bits8_rounded_zero_points_bias", "linear_nbits.zero_points"} <= names
    assert not any(name.rpartition(".")[2].isdigit() for name in names)


def case(tokens: int, experts: int = 4) -> Case:
    return Case(
        "gather_mm_nbits",
        ((tokens, 1, 1, 64), (experts, 6, 2, 16), (experts, 6, 2), (tokens, 2)),
        {"group_size": 32},
        {1: torch.uint8, 3: torch.int64},
        limit=256,
    )


def inputs_of(some: Case) -> list[torch.Tensor]:
    inputs = [x for x in some.inputs(torch.float32) if x is not None]
    inputs[3] %= inputs[1].shape[0]
    return inputs


def test_one_body_serves_every_number_of_tokens_and_experts() -> None:
    model = case(5).model(torch.float32, dynamic=True)
    for tokens, experts in ((5, 4), (300, 4), (2, 60), (0, 3)):
        other = case(tokens, experts)
        inputs = inputs_of(other)
        assert_close(run_model(model, inputs)[0], other.expected(inputs))


def test_experts_without_tokens_are_not_unpacked() -> None:
    some = case(6)
    inputs = inputs_of(some)
    inputs[3][:] = 2
    inputs[2][[0, 1, 3]] = float("nan")
    (actual,) = run_model(some.model(torch.float32, dynamic=True), inputs)
    assert_close(actual, some.expected(inputs))
    assert np.isfinite(actual).all()


def test_weights_are_read_in_the_loop_only() -> None:
    """Outside of it only the shape of the codes is read; a turn takes the parts of one matrix."""
    (function,) = case(5).model(torch.float32, dynamic=True).functions.values()
    (loop,) = (n for n in function if n.op_type == "Loop")
    for part in function.inputs[1:3]:
        readers = [n for n in part.consumers() if n.op_type != "Shape"]
        assert [n.op_type for n in readers] == ["Gather"]
        assert readers[0].graph is loop.attributes["body"].as_graph()


def test_an_index_outside_is_an_error() -> None:
    some = case(2)
    inputs = inputs_of(some)
    inputs[3][0, 0] = 4
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="bounds"):
        run_model(some.model(torch.float32, dynamic=True), inputs)


def test_a_variant_names_bits_rounding_zeros_and_palette() -> None:
    model, _ = model_of([(c, torch.float32) for c in EXPERT_CASES], 23)
    names = {function.name for function in model.functions.values()}
    wanted = {"gather_mm_nbits", "gather_mm_nbits.bits2_rounded_palette"}
    assert wanted | {"gather_mm_nbits.bits8_rounded_zero_points"} <= names
    assert not any(name.rpartition(".")[2].isdigit() for name in names)


def test_rows_are_selected_first_and_variants_are_named() -> None:
    calls = [(c, torch.float32) for c in CASES if c.composite == "embedding_nbits"]
    model, _ = model_of(calls, 23)
    names = {function.name for function in model.functions.values()}
    assert {"embedding_nbits", "embedding_nbits.bits2_palette"} <= names
    assert "embedding_nbits.bits8_like" in names
    assert {"embedding_nbits.zero_points", "embedding_nbits.bits8_zero_points"} <= names
    assert not any(name.rpartition(".")[2].isdigit() for name in names)
    plain = model.functions["ai.coreai", "embedding_nbits", ""]
    ops = [node.op_type for node in plain]
    assert ops.index("Gather") < ops.index("Div")
    assert ops.count("Gather") == 2
