"""The values of a whole run beside torch's."""

from __future__ import annotations

import numpy as np
import torch
from torch._higher_order_ops import scan, while_loop

import coreai_onnx
from coreai_onnx.debugging.difference import difference
from coreai_onnx.debugging.reference.references import TorchReference
from coreai_onnx.debugging.reference.watched_values import ValuePair, value_pairs
from coreai_onnx.program import OnnxProgram
from tests.debugging.small_reference import Small, converted
from tests.support.tolerances import assert_close

BODIES = {"bodies": {"kernels": False}}


def test_every_value_of_every_call_has_its_counterpart() -> None:
    program = converted()
    calls = [((torch.randn(3, 8),), {}), ((torch.randn(3, 8),), {})]
    before = [value.name for value in program.model.graph.outputs]
    pairs = list(
        value_pairs(program.model, program.record(), calls, TorchReference(Small()), BODIES)
    )
    names = [pair.name for pair in pairs if pair.call == 0]
    assert {"layer_norm", "linear", "tanh", "add"} <= set(names)
    assert names == [pair.name for pair in pairs if pair.call == 1]
    assert all(difference(p.actual, p.expected, p.ideal).ok for p in pairs)
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
        BODIES,
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
        value_pairs(program.model, program.record(), calls, TorchReference(Counter()), BODIES)
    )
    products = [p for p in pairs if p.name == "mul"]
    assert len(products) == 3
    for count, pair in enumerate(products):
        assert_close(pair.actual, x * (count + 2))
        assert np.array_equal(pair.actual, pair.expected)


class Steps(torch.nn.Module):
    """A branch, and a loop with a branch inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the shape of x."""

        def body(i: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            w = torch.cond(
                i % 2 == 0, lambda z: (z * 1.5).cos(), lambda z: (z.abs() + 2).log(), (z,)
            )
            return i + 1, w.sinh()

        y = torch.cond(x.sum() > 0, lambda x: torch.tanh(x * 2) + 1, lambda x: x.sin() * 3, (x,))
        _, z = while_loop(lambda i, _: i < 3, body, (torch.tensor(0), y * 2))
        total, rows = scan(lambda c, v: ((c + v).tanh(), c * v), z[0], z)
        return rows - total


def steps_of(program: OnnxProgram, *inputs: torch.Tensor) -> list[ValuePair]:
    record = program.record()
    calls = [((one,), {}) for one in inputs]
    reference = TorchReference(record.program)
    return list(value_pairs(program.model, record, calls, reference, BODIES))


def test_every_step_inside_of_control_flow_is_compared() -> None:
    x = torch.rand(3, 4)
    program = coreai_onnx.convert(Steps(), (x,))
    pairs = steps_of(program, x, -x)
    assert all(difference(p.actual, p.expected, p.ideal).ok for p in pairs)
    ops = {v.name: n.op_type for n in program.model.graph.all_nodes() for v in n.outputs}
    found = [(p.call, ops[p.name], p.step) for p in pairs]
    for call, branch in enumerate(["Tanh", "Sin"]):
        assert (call, branch, None) in found
        for op, steps in (("Sinh", [0, 1, 2]), ("Cos", [0, 2]), ("Log", [1])):
            assert [s for c, o, s in found if (c, o) == (call, op)] == steps
    assert (0, "Sin", None) not in found


def test_a_wrong_node_in_a_loop_is_seen_from_its_first_step_on() -> None:
    x = torch.rand(3, 4)
    program = coreai_onnx.convert(Steps(), (x,))
    wrong = next(n for n in program.model.graph.all_nodes() if n.op_type == "Sinh")
    wrong.op_type = "Sin"
    bad = [
        (p.name, p.step)
        for p in steps_of(program, x)
        if p.step is not None and not difference(p.actual, p.expected, p.ideal).ok
    ]
    assert {(wrong.outputs[0].name, step) for step in range(3)} <= set(bad)
    cos = next(n for n in program.model.graph.all_nodes() if n.op_type == "Cos")
    assert [step for name, step in bad if name == cos.outputs[0].name] == [2]


def test_dynamic_sizes_in_a_loop() -> None:
    x = torch.rand(3, 4)
    batch = torch.export.Dim("batch", min=2)
    program = coreai_onnx.convert(Steps(), (x,), dynamic_shapes=({0: batch},))
    found = {p.step for p in steps_of(program, torch.rand(5, 4))}
    assert {0, 1, 2, 3, 4} <= found
