"""The suite's faster exports give the programs, the code and the traces that torch gives."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.graph_module import GraphModule
from torch.utils._traceback import CapturedTraceback

from tests.lower.checking import Wrapped
from tests.support import quick_exports
from tests.support.test_quick_decompositions import CASES, X


@pytest.fixture
def as_torch_has_it() -> Iterator[None]:
    """For the length of a test, torch's own functions."""
    quick_exports.remove()
    yield
    quick_exports.install()


def exported(case: str) -> list[Any]:
    """All that an export of a case writes down."""
    program = torch.export.export(Wrapped(CASES[case]), (X,))
    traces = [node.stack_trace for node in program.graph.nodes]
    return [str(program), program.graph_module.code, traces]


def stacks() -> list[list[str]]:
    """What torch's two kinds of stack traces print, without the lines of this function."""
    mode = FakeTensorMode()
    captured = CapturedTraceback.extract().format()
    return [captured[:-1], mode.stack.partition(__file__)[0].splitlines()]


@pytest.mark.parametrize("case", CASES)
def test_the_programs_are_those_of_torch(case: str, request: pytest.FixtureRequest) -> None:
    quick = exported(case)
    request.getfixturevalue("as_torch_has_it")
    assert quick == exported(case)


def test_the_stacks_are_those_of_torch(request: pytest.FixtureRequest) -> None:
    found = []
    for fixture in ("tmp_path", "as_torch_has_it"):
        request.getfixturevalue(fixture)
        found.append(stacks())
    assert found[0] == found[1]
    assert all(found[0])


@pytest.fixture
def doubling() -> GraphModule:
    """A graph module that multiplied by 3, and now by 2."""
    module = torch.fx.symbolic_trace(lambda factor: factor * 3.0)
    assert "3.0" in module.code
    (product,) = (node for node in module.graph.nodes if node.op == "call_function")
    product.args = (product.args[0], 2.0)
    module.recompile()
    return module


def test_changed_code_is_generated_when_it_runs(doubling: GraphModule) -> None:
    assert "_code" not in vars(doubling)
    assert doubling(X).equal(X * 2)
    assert "2.0" in vars(doubling)["_code"]


def test_changed_code_is_generated_when_it_is_read(doubling: GraphModule) -> None:
    assert "factor * 2.0" in doubling.code
    assert list(inspect.signature(doubling.forward).parameters) == ["factor"]


def test_the_signature_and_the_class_have_the_new_code(doubling: GraphModule) -> None:
    assert list(inspect.signature(type(doubling).forward).parameters) == ["self", "factor"]
    assert type(doubling).forward(doubling, X).equal(X * 2)


def test_recompile_returns_the_new_code(doubling: GraphModule) -> None:
    assert "factor * 2.0" in doubling.recompile().src


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_have_the_new_code(copied: Any, doubling: GraphModule) -> None:
    assert copied(doubling)(X).equal(X * 2)


def test_forgotten_operators_are_found_again() -> None:
    before = exported("views")
    assert torch._ops.cached_ops
    quick_exports.forget_operators()
    assert not torch._ops.cached_ops
    assert before == exported("views")
