"""The dtypes of states, outputs and branches after a conversion to 16 bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.violations import violations
from coreai_onnx.program import OnnxProgram
from tests.small_models import parse
from tests.tolerances import assert_close


def test_states_are_converted_and_branches_keep_float32() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[2] x, bool c, float[2] s) => (float[2] y, float[2] s_out) {
        s_out = Add(s, x)
        y = If<then_branch = a () => (float[2] t) { t = Neg(s_out) },
               else_branch = b () => (float[2] e) { e = Abs(s_out) }>(c)
    }""", {"coreai.states": [{"input": "s", "output": "s_out"}]})  # fmt: skip
    program = OnnxProgram({"main": model}).convert_dtype(keep_io=True)
    assert violations(program.model) == []
    types = {v.name: v.dtype for v in (*program.model.graph.inputs, *program.model.graph.outputs)}
    wide, half = ir.DataType.FLOAT, ir.DataType.FLOAT16
    assert types == {"x": wide, "c": ir.DataType.BOOL, "s": half, "y": wide, "s_out": half}
    state = np.zeros(2, np.float16)
    y = program.run(x=np.ones(2, np.float32), c=np.array(True), s=state)
    assert_close(y[0], -np.ones(2, np.float32))
