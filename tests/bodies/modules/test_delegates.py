"""Delegated parts become functions: equal ones are one, and hold what the backend made."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch
from torch.export import export

from coreai_onnx import TorchConverter
from coreai_onnx.bodies.modules.delegates import BACKEND, COMPILE_SPECS, PROCESSED
from coreai_onnx.delegation import LoweredModule
from coreai_onnx.export.externalize.delegate_call import Delegate
from tests.support.tolerances import assert_close

X = torch.randn(2, 2)


class Calls(torch.nn.Module):
    """Calls lowered modules one after the other."""

    def __init__(self, *parts: torch.nn.Module) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, x):
        for part in self.parts:
            (x,) = part(x)
        return x


def lowered(name: str, content: bytes, change=lambda x: x, **specs: bytes) -> LoweredModule:
    """A module with the input of a name, processed to the content."""

    class Module(torch.nn.Module):
        def forward(self, x):
            return (change(torch.where(x > 0, x.sin(), x * 2)),)

    program = export(Module(), (X,))
    node = next(n for n in program.graph.nodes if n.op == "call_function")
    node.name = name
    return LoweredModule(Delegate("tests.parts", program, content, tuple(specs.items())))


def converted(*parts: LoweredModule):
    module = Calls(*parts)
    program = TorchConverter().add_exported_program(export(module, (X,))).to_onnx()
    assert_close(program.run(X)[0], module(X))
    return program.model


def functions(model: ir.Model) -> list[ir.Function]:
    return [f for f in model.functions.values() if f.domain == "tests.parts"]


def test_equal_parts_with_other_names_share_function_and_bytes() -> None:
    model = converted(lowered("first", b"abc"), lowered("second", b"abc"))
    (function,) = functions(model)
    calls = [node for node in model.graph if node.domain == function.domain]
    assert [node.op_type for node in calls] == [function.name] * 2
    assert calls[0].inputs[-1] is calls[1].inputs[-1]
    assert calls[0].inputs[-1].const_value.tobytes() == b"abc"
    assert not function.inputs[-1].uses(), "the body does not read the bytes"


@pytest.mark.parametrize(
    "other",
    [
        lambda: lowered("first", b"xyz"),
        lambda: lowered("first", b"abc", level=b"1"),
        lambda: lowered("first", b"abc", torch.cos),
    ],
)
def test_parts_that_differ_have_functions_of_their_own(other) -> None:
    model = converted(lowered("first", b"abc"), other())
    assert [f.name for f in functions(model)] == ["part_0", "part_1"]


def test_the_function_says_what_it_was_made_from() -> None:
    (function,) = functions(converted(lowered("first", b"abc", level=b"1")))
    assert function.metadata_props[BACKEND] == "tests.parts"
    assert function.metadata_props[COMPILE_SPECS] == '{"level": "31"}'
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert function.metadata_props[PROCESSED] == digest
