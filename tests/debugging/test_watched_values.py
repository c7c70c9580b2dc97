"""The values of a whole run beside torch's."""

from __future__ import annotations

import numpy as np
import torch

import coreai_onnx
from coreai_onnx.debugging.references import TorchReference
from coreai_onnx.debugging.watched_values import value_pairs
from coreai_onnx.debugging.yardstick import judge
from tests.debugging.small_reference import Small, converted
from tests.tolerances import assert_close


def test_every_value_of_every_call_has_its_counterpart() -> None:
    program = converted()
    calls = [((torch.randn(3, 8),), {}), ((torch.randn(3, 8),), {})]
    before = [value.name for value in program.model.graph.outputs]
    pairs = list(
        value_pairs(
            program.model, program.record(), calls, TorchReference(Small()), {"bodies": False}
        )
    )
    names = [pair.name for pair in pairs if pair.call == 0]
    assert {"layer_norm", "linear", "tanh", "add"} <= set(names)
    assert names == [pair.name for pair in pairs if pair.call == 1]
    assert all(judge(p.actual, p.expected, p.ideal).ok for p in pairs)
    assert {p.module for p in pairs} == {"norm", "first", "second", ""}
    assert {p.module_class for p in pairs if p.module == "first"} == {"Linear"}
    assert [value.name for value in program.model.graph.outputs] == before


def test_errors_accumulate_and_are_measured_from_the_start() -> None:
    program = converted(torch.float16)
    (args, kwargs) = program.record().example or ((), {})
    pairs = value_pairs(
        program.model,
        program.record(),
        [(args, kwargs)],
        TorchReference(Small().half()),
        {"bodies": False},
    )
    found = {p.name: p for p in pairs}
    wanted = Small().eval().half().double()
    with torch.no_grad():
        hidden = wanted.first(wanted.norm(args[0].double()))
    assert_close(found["linear"].ideal, hidden)


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return (x * self.count).sin()


def test_states_are_carried() -> None:
    x = torch.randn(4)
    program = coreai_onnx.convert(Counter(), (x,))
    calls = [((x,), {})] * 3
    pairs = list(
        value_pairs(
            program.model, program.record(), calls, TorchReference(Counter()), {"bodies": False}
        )
    )
    products = [p for p in pairs if p.name == "mul"]
    assert len(products) == 3
    for count, pair in enumerate(products):
        assert_close(pair.actual, x * (count + 2))
        assert np.array_equal(pair.actual, pair.expected)
