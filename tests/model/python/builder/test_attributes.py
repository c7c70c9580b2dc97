"""Attributes of functions and operators."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from coreai_onnx.errors import LoadError
from tests.model.python.packages import built

FUNCTION = """
@model.function("test")
def leaky(x, *, alpha, axes=[0], kind="a"):
    return op.LeakyRelu(x, alpha=alpha)

@model.graph(outputs={"y": FLOAT["n"]})
def main(x: FLOAT["n"]):
    return CALL
"""


def call(text: str, folder: Path) -> ir.Node:
    return built(FUNCTION.replace("CALL", text), folder).graph.node(0)


def test_defaults_are_written_out(tmp_path: Path) -> None:
    node = call("leaky(x, alpha=0.5)", tmp_path)
    values = {name: item.value for name, item in node.attributes.items()}
    assert values == {"alpha": 0.5, "axes": (0,), "kind": "a"}


def test_references_have_the_type_of_the_operator(tmp_path: Path) -> None:
    model = built(FUNCTION.replace("CALL", "leaky(x, alpha=0.5)"), tmp_path)
    attribute = model.functions["test", "leaky", ""].graph.node(0).attributes["alpha"]
    assert attribute.is_ref()
    assert attribute.type == ir.AttributeType.FLOAT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("leaky(x)", "leaky needs the attribute 'alpha'"),
        ("leaky(x, alpha=0.5, beta=1)", "leaky has no attribute 'beta'; it has alpha, axes, kind"),
        ("leaky(x, x, alpha=0.5)", "leaky takes 1 inputs, not 2"),
        ("leaky(x, alpha=0.5, kind=1)", "kind=1: STRING is expected"),
    ],
)
def test_wrong_attributes(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=message):
        call(text, tmp_path)
