"""Bodies: one for several dtypes, attributes by reference, every node named."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from coreai_onnx.bodies.body import BodyBuilder, Variant, lower_body
from coreai_onnx.bodies.trace import Example, trace_reference
from coreai_onnx.composites import COMPOSITES
from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


def rms_body(dtype: torch.dtype = torch.float16) -> ir.Function:
    composite = COMPOSITES["rms_norm"]
    examples = (Example(dtype, ("A1", "D")), Example(dtype, ("D",)))
    traced = trace_reference(composite, examples, {"axes": (-1,)}, ("eps",))
    return lower_body(composite, examples, traced, 18)


def test_attributes_are_read_by_reference() -> None:
    function = rms_body()
    references = [
        a.ref_attr_name for n in function.all_nodes() for a in n.attributes.values() if a.is_ref()
    ]
    assert references == ["eps"]
    assert function.attributes["eps"].value == pytest.approx(1e-5)


def test_no_cast_names_the_dtype_of_the_trace() -> None:
    function = rms_body()
    casts = [n.attributes["to"].value for n in function.all_nodes() if n.op_type == "Cast"]
    assert ir.DataType.FLOAT16 not in casts
    assert any(n.op_type == "CastLike" for n in function.all_nodes())
    assert all(n.name for n in function.all_nodes())
    assert all(v.type is None for n in function.all_nodes() for v in n.outputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_one_body_holds_for_several_dtypes(dtype: torch.dtype) -> None:
    case = Case("rms_norm", ((3, 8), (8,)), {"eps": 1e-3}, label="body")
    model = case.model(dtype, dynamic=True, opset=18)
    (key,) = model.functions
    model.functions[key] = rms_body()
    inputs = case.inputs(dtype)
    (actual,) = run_model(model, inputs)
    assert_close(actual, case.expected(inputs))


def test_inputs_behind_the_last_one_are_left_out() -> None:
    x, p = Example(torch.float32, ("A1", "D")), Example(torch.float32, ("D",))
    builder = BodyBuilder(Variant(COMPOSITES["layer_norm"], (x, None, p), {}), 18)
    assert [v.name for v in builder.inputs] == ["input", "scale", "bias"]
    builder = BodyBuilder(Variant(COMPOSITES["layer_norm"], (x, None, None), {}), 18)
    function = builder.finish([builder.inputs[0]])
    assert [v.name for v in function.inputs] == ["input"]
    assert [n.op_type for n in function] == ["Identity"]
    assert function.outputs[0].name == "output"
