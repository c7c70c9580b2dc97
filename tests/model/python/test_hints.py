"""Names from the user's code."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from coreai_onnx.model.python.hints import Hints


def named(code: str, *, nodes: int = 1) -> str:
    made = [ir.node("Neg", [None]) for _ in range(nodes)]
    for node in made:
        node.metadata_props["coreai.source"] = "m.py:3"
        node.outputs[0].name = "neg_7"
    graph = ir.Graph([], [], nodes=made, name="g")
    return Hints({"m.py:3": code}, graph).stem(made[0].outputs[0])


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("hidden = self.act(x)", "hidden"),
        ("hidden: Tensor = act(x)", "hidden"),
        ("hidden += x", "hidden"),
        ("attnOutput = f(x)", "attn_output"),
        ("return self.act(x)", "neg"),
        ("if x == y:", "neg"),
        ("a, b = f(x)", "neg"),
        ("self.x = f(x)", "neg"),
        ("", "neg"),
        ("class = f(x)", "class_"),
        ("é = f(x)", "neg"),
        ("aé = f(x)", "a"),
    ],
)
def test_a_value_has_the_name_that_the_user_gives_it(code: str, name: str) -> None:
    assert named(code) == name


def test_only_the_last_value_of_a_line_has_it() -> None:
    assert named("hidden = f(x)", nodes=2) == "neg"
