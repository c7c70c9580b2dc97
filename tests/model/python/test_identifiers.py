"""Python names from any text."""

from __future__ import annotations

import keyword

from hypothesis import given
from hypothesis import strategies as st

from coreai_onnx.model.python.identifiers import IdentifierScope, identifier, is_plain, stem


@given(st.text())
def test_it_is_always_a_name(text: str) -> None:
    name = identifier(text)
    assert name.isascii()
    assert name.isidentifier()
    assert not keyword.iskeyword(name)


def test_names_read_well() -> None:
    assert identifier("LlamaMLP") == "llama_mlp"
    assert identifier("T5LayerNorm") == "t5_layer_norm"
    assert identifier("class") == "class_"
    assert identifier("1st") == "value_1st"
    assert stem("add_4_expand_1") == "add_expand"
    assert stem("Attention_transpose_2", "Transpose") == "transpose"


def test_a_scope_gives_each_value_its_own_name() -> None:
    scope = IdentifierScope({"layer_norm", "gelu"})
    assert [scope.new(n) for n in ("x", "x", "layer_norm", "gelu")] == [
        "x",
        "x_2",
        "norm",
        "gelu_output",
    ]
    scope.release("x")
    assert scope.new("x") == "x"
    assert scope.inner().new("x") == "x_3"
    assert scope.new("op") != "op"


def test_plain_names() -> None:
    assert is_plain("x_1")
    assert not any(map(is_plain, ("é", "class", "1x", "a b", "")))


def test_a_new_name_does_not_try_all_others() -> None:
    class Counting(set):
        tried = 0

        def __contains__(self, name: object) -> bool:
            Counting.tried += 1
            return super().__contains__(name)

    scope = IdentifierScope()
    scope._mine = Counting()
    names = [scope.new("relu") for _ in range(500)]
    assert names[:2] + names[-1:] == ["relu", "relu_2", "relu_500"]
    assert scope.inner().new("relu") == "relu_501"
    assert Counting.tried < 1100
    for name in ("relu_7", "relu"):
        scope.release(name)
    assert [scope.new("relu") for _ in range(3)] == ["relu", "relu_7", "relu_501"]
