"""The text form: stable, exact, without weights."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import onnx_ir as ir
import pytest

from coreai_onnx import OnnxProgram, from_text
from coreai_onnx.errors import LoadError
from coreai_onnx.model.python.package import skeleton
from tests.model.python.modules import layered
from tests.support.small_models import counter_model, layers_model, linear_model, parse

DIGITS = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] x) => (float[n] y) { a = LeakyRelu <alpha = 2.4e-7>(x)  y = Mul(a, c)
 c = Constant <value = float {1.00000012}>() }"""


@pytest.mark.parametrize(
    "model", [layered(3), layers_model(), linear_model(), counter_model()], ids=range(4)
)
def test_it_comes_back_as_it_was(model: ir.Model) -> None:
    program = OnnxProgram({"main": model})
    text = program.to_text()
    again = from_text(text)
    assert again.to_text() == text
    assert skeleton(again.model) == skeleton(model)


def test_digits_are_exact() -> None:
    nodes = DIGITS.replace("y = Mul(a, c)\n c = Constant", "c = Constant").replace(
        "() }", "() y = Mul(a, c) }"
    )
    text = OnnxProgram({"main": parse(nodes)}).to_text()
    assert "alpha=2.4e-7" in text
    assert "1.0000001" in text


def test_weights_have_no_data() -> None:
    program = OnnxProgram({"main": linear_model(256, 256)})
    text = program.to_text()
    assert len(text) < 8000
    (weight,) = [v for n, v in from_text(text).model.graph.initializers.items() if n == "weight"]
    assert weight.shape == ir.Shape([256, 256])
    with pytest.raises(LoadError, match="has no data"):
        weight.const_value.numpy()


@pytest.mark.parametrize("damage", ["no model", "mark", "names"])
def test_other_texts_are_refused(damage: str) -> None:
    text = OnnxProgram({"main": linear_model()}).to_text()
    if damage == "no model":
        text = "hello"
    elif damage == "mark":
        text = text.replace("from_text", "nothing")
    else:
        text = text[:-20]
    with pytest.raises(LoadError, match="the text is not a model"):
        from_text(text)


def test_a_fault_names_its_line() -> None:
    text = OnnxProgram({"main": linear_model()}).to_text().replace("op.MatMul", "op.MatMull")
    with pytest.raises(LoadError, match=r"model.py:\d+: there is no operator 'MatMull'.*MatMul\?"):
        from_text(text)


def test_texts_in_several_threads() -> None:
    program = OnnxProgram({"main": linear_model()})
    text = program.to_text()

    def again(_: int) -> str:
        return from_text(program.to_text()).to_text()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(again, range(24))) == {text}
    finally:
        sys.setswitchinterval(interval)
