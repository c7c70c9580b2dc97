"""Which check of passes is chosen."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

from coreai_onnx.errors import ComparisonError
from coreai_onnx.model.checks.verifier import check_of
from tests.support.small_models import linear_model


class Named:
    """A verifier that reports its own name."""

    def __init__(self, name: object) -> None:
        self.name = name

    def check(self, model: ir.Model) -> Callable[[ir.Model], str]:
        del model
        return lambda _: str(self.name)


def said(verify: object) -> str:
    model = linear_model()
    check = check_of(verify, model, Named)
    assert check is not None
    return check(model)


def test_inputs_verifiers_and_examples() -> None:
    assert said(Named("own")) == "own"
    assert said((1, 2)) == "(1, 2)"
    assert said(True) == "None"


def test_no_check() -> None:
    assert check_of(None, linear_model(), Named) is None
    assert check_of(False, linear_model(), Named) is None


def test_no_record() -> None:
    with pytest.raises(ComparisonError, match="there is no record"):
        check_of(True, linear_model(), None)
