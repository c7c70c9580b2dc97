"""Parts that an execution provider compiled replace their calls in the main graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from coreai_onnx.errors import SessionError
from coreai_onnx.model.delegated_parts import BACKEND, PROCESSED, delegated_parts, digest_of
from coreai_onnx.runtime.libraries.parts import (
    another_version,
    provider_of,
    provider_settings,
    with_compiled_parts,
)
from coreai_onnx.runtime.libraries.providers import provider_version
from coreai_onnx.targets.providers import CPU

DOMAIN = "onnxruntime." + CPU
COMPILED = """
<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>
main (float[N] part_0123456789ab_input_1, float[N] part_0123456789ab_input_0)
    => (float[N] part_0123456789ab_output_0) {
    part_0123456789ab_output_0 = com.microsoft.EPContext <ep_cache_context = "blob">
        (part_0123456789ab_input_1, part_0123456789ab_input_0)
}
"""
MODEL = """
<ir_version: 10, opset_import: ["": 23, "DOMAIN": 1]>
main (float[N] x, float[N] z, bool c) => (float[N] y)
<float[1] w = {2}, uint8[1] blob = {0}>
{
    CALLS
}
<domain: "DOMAIN", opset_import: ["": 23]>
part_0 <backend_version, weights, compile_spec_level> (weight, a, b, processed) => (output) {
    c = Mul (a, weight)
    output = Sub (c, b)
}
"""
SETTINGS = 'backend_version="VERSION", weights=1, compile_spec_level="3"'
CALL = f"DOMAIN.part_0 <{SETTINGS}> (w, x, z, blob)"
PARTS = {DOMAIN: ["part_0"]}


def model(calls: str = f"y = {CALL}", compiled: str = COMPILED) -> ir.Model:
    text = MODEL.replace("CALLS", calls).replace("VERSION", provider_version(CPU))
    proto = onnx.parser.parse_model(text.replace("DOMAIN", DOMAIN))
    content = onnx.parser.parse_model(compiled).SerializeToString()
    blob = next(i for i in proto.graph.initializer if i.name == "blob")
    array = np.frombuffer(content, np.uint8)
    blob.CopyFrom(onnx.numpy_helper.from_array(array, "blob"))
    replaced = ir.from_proto(proto)
    (function,) = replaced.functions.values()
    function.metadata_props.update({BACKEND: DOMAIN, PROCESSED: digest_of([content])})
    return replaced


def test_a_call_becomes_the_compiled_node() -> None:
    original = model()
    replaced = with_compiled_parts(original, PARTS, {CPU: {"level": "3"}})
    assert replaced is not None
    assert [n.op_type for n in replaced.graph] == ["Identity", "Identity", "EPContext", "Identity"]
    context = replaced.graph[2]
    assert [v.name for v in context.inputs] == [
        "part_0123456789ab_input_1",
        "part_0123456789ab_input_0",
    ]
    assert [v.producer().inputs[0].name for v in context.inputs] == ["z", "x"]
    assert [v.name for v in replaced.graph.outputs] == ["y"]
    assert replaced.graph.outputs[0].producer().inputs[0] is context.outputs[0]
    assert replaced.opset_imports["com.microsoft"] == 1
    onnx.checker.check_model(ir.to_proto(replaced))
    assert [n.op_type for n in original.graph] == ["part_0"], "the model is unchanged"


def test_other_parts_stay() -> None:
    assert with_compiled_parts(model(), {}, {}) is None
    assert with_compiled_parts(model(), {DOMAIN: []}, {}) is None
    plain = COMPILED.replace("EPContext", "Gelu")
    replaced = with_compiled_parts(model(compiled=plain), PARTS, {CPU: {"level": "3"}})
    assert replaced is not None
    assert [n.op_type for n in replaced.graph] == ["part_0"], "a provider that does not compile"


def test_a_part_in_a_branch_is_refused() -> None:
    then = f"then_branch = t () => (float[N] p) {{ p = {CALL} }}"
    branch = f"y = If (c) <{then}, else_branch = e () => (float[N] q) {{ q = Sin (x) }}>"
    with pytest.raises(SessionError, match=r"part_0 is called in a branch or function"):
        with_compiled_parts(model(branch), PARTS, {CPU: {"level": "3"}})


def test_settings_and_versions() -> None:
    original = model()
    (part,) = delegated_parts(original)
    assert provider_of(part) == CPU
    assert provider_settings(original, {CPU: {}, "Other": {}}) == {
        CPU: {"level": "3"},
        "Other": {},
    }
    assert provider_settings(original, {CPU: {"level": "5"}}) == {CPU: {"level": "5"}}
    assert provider_settings(None, {CPU: {}}) == {CPU: {}}
    with pytest.raises(SessionError, match="part_0 has other settings than the first part"):
        with_compiled_parts(original, PARTS, {CPU: {"level": "4"}})
    assert another_version(part) == ""
    part.calls[0].attributes.add(ir.AttrString("backend_version", "0.1"))
    assert "version 0.1 of the provider compiled it" in another_version(part)
