"""Registration of lowerings."""

from __future__ import annotations

import inspect

import pytest

from coreai_onnx.errors import RegistrationError
from coreai_onnx.lower.walk import registry
from coreai_onnx.lower.walk.registry import (
    CallsFunctions,
    builtin_lowering,
    builtin_names,
    higher_order_lowering,
    is_whole,
    lowers,
    lowers_higher_order,
)


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registries of this test's own."""
    for table in ("_REAL", "_COMPLEX", "_HIGHER_ORDER"):
        monkeypatch.setattr(registry, table, {})
    monkeypatch.setattr(registry, "_WHOLE", set())


@pytest.mark.usefixtures("empty")
def test_real_complex_and_higher_order_are_apart() -> None:
    @lowers("a.b.c", "a.b.d")
    def real() -> None: ...

    @lowers("a.b.c", complex=True)
    def pairs() -> None: ...

    @lowers_higher_order("a.b.c")
    def with_graphs() -> None: ...

    assert builtin_lowering("a.b.c") is real
    assert higher_order_lowering("a.b.c") is with_graphs
    assert higher_order_lowering("a.b.d") is None
    assert builtin_lowering("a.b.c", complex=True) is pairs
    assert builtin_lowering("a.b.d", complex=True) is None
    assert builtin_names() == ("a.b.c", "a.b.d")


@pytest.mark.usefixtures("empty")
def test_an_op_is_whole_if_its_lowering_says_so() -> None:
    lowers("a.b.c")(lambda: None)
    lowers("a.b.d", whole=True)(lambda: None)
    assert [name for name in ("a.b.c", "a.b.d", "a.b.e") if is_whole(name)] == ["a.b.d"]


@pytest.mark.usefixtures("empty")
def test_ops_with_other_names_or_a_fixed_choice_share_a_lowering() -> None:
    @lowers("a.negative.default", renamed={"x": "self"}, sign=-1)
    @lowers("a.positive.default")
    def lowering(op: object, x: int, y: int = 0, *, sign: int = 1) -> tuple[object, ...]:
        return op, sign * x, y

    negative = builtin_lowering("a.negative.default")
    assert builtin_lowering("a.positive.default") is lowering
    assert negative is not None
    assert list(inspect.signature(negative).parameters) == ["op", "self", "y"]
    assert negative("op", self=2, y=3) == negative("op", 2, 3) == ("op", -2, 3)
    with pytest.raises(TypeError, match="sign"):
        negative("op", 2, sign=1)


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("register", [lowers, lowers_higher_order])
def test_a_second_registration_is_an_error(register: object) -> None:
    assert callable(register)
    register("a.b.c")(lambda: None)
    with pytest.raises(RegistrationError, match=r"a\.b\.c already has a .*<lambda> in "):
        register("a.b.c")(lambda: None)


def test_what_calls_functions() -> None:
    class Calls:
        def functions_at(self, opset: int) -> list[object]:
            return []

    assert isinstance(Calls(), CallsFunctions)
    assert not isinstance(lambda: None, CallsFunctions)
