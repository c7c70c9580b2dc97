"""Which models may be deterministic, and what their files promise."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

import coreai_onnx
from coreai_onnx.errors import SessionError, TargetError
from coreai_onnx.model.metadata import DETERMINISM
from coreai_onnx.program import OnnxProgram
from coreai_onnx.targets.determinism import (
    EXACT,
    MEASURED,
    measured_ops,
    outside_ops,
    write_promise,
)
from tests.support.small_models import parse

MODEL = """<ir_version: 10, opset_import: ["": 21{domain}]>
agraph (float[rows, 3] x) => (float[rows, 3] y) {{ {nodes} }} {function}"""


def model(nodes: str, domain: str = "", function: str = "") -> ir.Model:
    return parse(MODEL.format(nodes=nodes, domain=domain, function=function))


def test_the_lists_are_disjoint() -> None:
    assert not EXACT & MEASURED


def test_operators_outside_the_lists_are_counted() -> None:
    one = model("a = Log(x) b = Elu(a) c = Log(b) y = Neg(c)")
    assert outside_ops(one) == {"Log": 2, "Elu": 1}
    write_promise(one)
    assert DETERMINISM not in one.metadata_props


def test_sums_of_integers_have_no_rounding() -> None:
    one = model("i = Cast <to = 7>(x) s = Einsum(i, axis) y = Cast <to = 1>(s) ")
    assert outside_ops(one) == {"Einsum": 1}
    one.graph.node(1).outputs[0].dtype = ir.DataType.INT64
    assert outside_ops(one) == {}


def test_bodies_of_kernels_do_not_run_and_others_do() -> None:
    body = """<domain: "ai.coreai", opset_import: ["": 21]> {name} (a) => (b) { b = Log(a) }"""
    for name, expected in {"swiglu": {}, "linear_nbits": {}, "gelu": {"Log": 1}}.items():
        one = model(f"y = ai.coreai.{name}(x)", ', "ai.coreai": 1', body.replace("{name}", name))
        assert outside_ops(one) == expected


def test_a_promise_names_what_was_measured() -> None:
    one = model("a = Exp(x) y = Neg(a)")
    write_promise(one)
    promise = json.loads(one.metadata_props[DETERMINISM])
    assert promise["measured"] == ["Exp"]
    assert "batch" in promise["axes"]
    assert "targets" not in promise["axes"]
    one = model("y = Neg(x)")
    write_promise(one)
    assert json.loads(one.metadata_props[DETERMINISM])["axes"][-1] == "targets"
    one = model("i = Cast <to = 7>(x) s = CumSum(i, axis) y = Cast <to = 1>(s) ")
    one.graph.node(1).outputs[0].dtype = ir.DataType.INT64
    write_promise(one)
    assert json.loads(one.metadata_props[DETERMINISM])["measured"] == []


@pytest.mark.parametrize(("depth", "promised"), [("3", True), ("tokens", False)])
def test_sums_over_tokens_promise_nothing_about_chunks(depth: str, promised: bool) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21, "ai.coreai": 1]>
    main (float[n, {depth}] x, float[{depth}, 2] w) => (float[n, 2] y)
    {{ y = ai.coreai.gather_mm(x, w) }}
    <domain: "ai.coreai", opset_import: ["": 21]> gather_mm (a, b) => (c) {{ c = MatMul(a, b) }}"""
    one = parse(text)
    write_promise(one)
    axes = json.loads(one.metadata_props[DETERMINISM])["axes"]
    assert ("chunks" in axes, "cache" in axes) == (promised, promised)
    assert "batch" in axes


@pytest.mark.parametrize(
    ("attributes", "measured"),
    [
        ('coordinate_transformation_mode = "asymmetric"', {}),
        ('mode = "linear", coordinate_transformation_mode = "asymmetric"', {"Resize": 1}),
        ('coordinate_transformation_mode = "half_pixel"', {"Resize": 1}),
    ],
)
def test_nearest_elements_are_copies(attributes: str, measured: dict[str, int]) -> None:
    one = model(f"s = Shape(x) y = Resize <{attributes}> (x, , , s)")
    assert measured_ops(one) == measured


def test_a_model_outside_the_promise_is_refused() -> None:
    with pytest.raises(SessionError, match="cannot be deterministic: the bits of 1 Log, 1 MatMul"):
        coreai_onnx.session(
            model("a = Log(x) t = Transpose(a) m = MatMul(a, t) y = Max(m, x)"), deterministic=True
        )
    with pytest.raises(SessionError, match="deterministic=True needs the kernels"):
        coreai_onnx.session(model("y = Neg(x)"), kernels=False, deterministic=True)
    with pytest.raises(TargetError, match="needs the target kernels"):
        OnnxProgram({"main": model("y = Neg(x)")}).optimize(deterministic=True)


@pytest.mark.parametrize("option", ["deterministic", "float32_tiles"])
def test_products_of_constants_are_products_of_the_kernels(option: str) -> None:
    # Without the option, calls that depend on constants only are inlined.
    text = """<ir_version: 10, opset_import: ["": 23]> main (float[n, 2] x) => (float[n, 2] y)
    <float[2, 2] a = {1, 2, 3, 4}, float[2, 2] t> { t = Tanh(a) m = MatMul(t, a) y = Add(x, m) }"""
    program = OnnxProgram({"main": parse(text)})
    program.optimize(target="kernels", **{option: True})
    kinds = [node.op_type.split(".")[0] for node in program.model.graph]
    assert "gather_mm" in kinds
    assert "MatMul" not in kinds


@pytest.mark.parametrize("op", ["Sqrt", "Reciprocal"])
def test_an_exact_operator_gives_the_nearest_number(op: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 1 << 20, dtype=np.uint64)
    x = np.concatenate([bits.astype(np.uint32), np.arange(1 << 16, dtype=np.uint32)])
    x = x.view(np.float32).reshape(-1, 1).repeat(3, 1)  # with subnormal numbers
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        exact = (np.sqrt(wide) if op == "Sqrt" else 1 / wide).astype(np.float32)
    session = coreai_onnx.session(model(f"y = {op}(x)"), kernels=False)
    np.testing.assert_array_equal(session.run(x)[0], exact)
