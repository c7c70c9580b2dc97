"""Messages of errors: what, where in the user's model, what to do."""

from __future__ import annotations

import pytest

from coreai_onnx.errors import (
    ConversionError,
    CoreaiError,
    LoweringError,
    SaveError,
    UnsupportedOp,
    UnsupportedOpsError,
    Where,
    failures_as,
    reason_of,
)

PLACE = Where("model.layers.0.mlp", "Experts", "moe.py:41", "out[idx] += y")


def test_a_conversion_error_has_three_lines() -> None:
    error = LoweringError("aten.index_put.default: no lowering", PLACE, "decompose it first")
    assert str(error).splitlines() == [
        "aten.index_put.default: no lowering",
        "  at model.layers.0.mlp (Experts)   moe.py:41   out[idx] += y",
        "  decompose it first",
    ]


def test_unknown_parts_of_a_place_are_left_out() -> None:
    assert str(Where()) == "(root)"
    assert str(Where(source="a.py:1")) == "(root)   a.py:1"
    assert str(ConversionError("what")) == "what"


def test_unsupported_ops_come_as_a_table_most_frequent_first() -> None:
    other = Where("head", "Linear", "head.py:7", "y")
    error = UnsupportedOpsError(
        [
            UnsupportedOp("lib.once.default", (other,)),
            UnsupportedOp("lib.twice.default", (PLACE, other), inner="prims.svd.default"),
        ]
    )
    lines = str(error).splitlines()
    assert lines[0] == "unsupported ATen ops: 2 op(s) have no lowering"
    assert lines[1].startswith("  lib.twice.default (its decomposition uses prims.svd.default)  2x")
    assert lines[1].endswith("(+1 more places)")
    assert lines[2].split() == ["lib.once.default", "1x", "at", *str(other).split()]
    assert '@converter.register_torch_lowering("lib::twice.default")' in lines[3]


@pytest.mark.parametrize(
    ("error", "builtin"), [(ConversionError, ValueError), (SaveError, OSError)]
)
def test_errors_are_also_the_builtin_kind(error: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(error, CoreaiError)
    assert issubclass(error, builtin)


def test_the_reason_is_what_an_error_goes_back_to() -> None:
    inner = ValueError("the reason\nand more")
    outer = RuntimeError("while reading")
    outer.__cause__ = inner
    assert reason_of(outer) == "the reason"
    assert reason_of(KeyError()) == "KeyError"


def test_failures_of_libraries_become_errors_of_this_package() -> None:
    message = "cannot write: KeyError: 'x'"
    with pytest.raises(SaveError, match=message) as caught, failures_as(SaveError, "cannot write"):
        raise KeyError("x")
    assert isinstance(caught.value.__cause__, KeyError)
    own = ConversionError("mine")
    with pytest.raises(ConversionError) as kept, failures_as(SaveError, "cannot write"):
        raise own
    assert kept.value is own


def test_messages_control_no_terminal_and_end() -> None:
    error = ConversionError("node \x1b[2J\x9b" + "x" * 10**6, advice="rename it")
    text = str(error)
    assert "\x1b" not in text
    assert r"\x1b[2J\x9b" in text
    assert len(text) < 2000
    assert text.endswith("rename it")
    assert len(error.args[0]) > 10**6
