"""Plans of real runs, compared with onnxruntime's arena."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coreai_onnx import TorchConverter, convert
from coreai_onnx.errors import InputError, PassError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.libraries.library import kernels_built
from coreai_onnx.runtime.memory import MemoryPlan, memory_plan, naive
from coreai_onnx.runtime.memory.plan import chart
from tests.models.zoo import named
from tests.support.small_models import add_model, counter_model


class Wide(torch.nn.Module):
    """Two branches whose middle is wide."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 256), torch.nn.Linear(256, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down(torch.sin(self.up(x)))
        return first + self.down(torch.cos(self.up(first)))


@pytest.fixture(scope="module")
def wide() -> OnnxProgram:
    return convert(Wide().eval(), (torch.randn(4, 16),), dynamic_shapes=({0: "rows"},))


def test_the_plan_is_what_onnxruntime_uses(wide: OnnxProgram) -> None:
    for low_memory in (False, True):
        plan = memory_plan(wide, sizes={"rows": 64}, kernels=False, low_memory=low_memory)
        assert plan.sizes == {"rows": 64}
        assert plan.peak == plan.peak_used >= 2 * 64 * 256 * 4
        assert plan.live == plan.used or not low_memory
        assert plan.inputs == plan.outputs == 64 * 16 * 4
        assert plan.weights >= (16 * 256 * 2 + 256 + 16) * 4
        assert plan.arena >= plan.peak


def test_the_values_at_the_peak_have_their_lines(wide: OnnxProgram) -> None:
    plan = memory_plan(wide, sizes={"rows": 64}, kernels=False, low_memory=True)
    largest = plan.at_peak[0]
    assert largest.bytes == 64 * 256 * 4
    assert "self.up(" in largest.where.code
    assert sum(value.bytes for value in plan.at_peak) == plan.peak
    text = str(plan)
    assert text.startswith(f"{len(plan.nodes)} nodes on function bodies at rows=64\n")
    assert "1.00 of the plan" in text
    assert largest.where.code in text


def test_memory_grows_with_the_sizes(wide: OnnxProgram) -> None:
    one, eight = (memory_plan(wide, sizes={"rows": rows}, kernels=False) for rows in (8, 64))
    assert eight.peak == 8 * one.peak
    assert memory_plan(wide, kernels=False).sizes == {"rows": 1}


def test_inputs_of_the_caller(wide: OnnxProgram) -> None:
    x = torch.randn(5, 16)
    by_position, by_name = memory_plan(wide, [x]), memory_plan(wide, {"x": x.numpy()})
    assert by_position == by_name
    assert by_position.sizes == {"rows": 5}


def test_memory_of_the_caller_is_left_out_on_request(wide: OnnxProgram) -> None:
    size = {"rows": 64}
    ordinary = memory_plan(wide, sizes=size, kernels=False)
    without = memory_plan(wide, sizes=size, kernels=False, with_outputs=False)
    assert without.outputs == 0
    assert without.peak == without.peak_used
    assert ordinary.live[-1] - without.live[-1] == ordinary.outputs
    with_inputs = memory_plan(wide, sizes=size, kernels=False, with_inputs=True)
    assert with_inputs.peak == with_inputs.peak_used == ordinary.peak + ordinary.inputs


def test_buffers_have_offsets_in_one_block(wide: OnnxProgram) -> None:
    size = {"rows": 64}
    plan = memory_plan(wide, sizes=size, kernels=False)
    assert plan.peak_of_lifetimes <= plan.total < sum(buffer.bytes for buffer in plan.buffers)
    own = memory_plan(wide, sizes=size, kernels=False, algorithm=naive, alignment=64)
    assert own.total == sum(-(-buffer.bytes // 64) * 64 for buffer in own.buffers)
    assert [buffer.names for buffer in own.buffers] == [buffer.names for buffer in plan.buffers]
    with_inputs = memory_plan(wide, sizes=size, kernels=False, with_inputs=True)
    (x,) = (buffer for buffer in with_inputs.buffers if buffer.names == ("x",))
    assert (x.bytes, x.first, x.last) == (64 * 16 * 4, 0, len(plan.nodes) - 1)
    with pytest.raises(PassError, match="overlaps"):
        memory_plan(wide, kernels=False, algorithm=lambda buffers, alignment: [0] * len(buffers))


@pytest.mark.parametrize("name", ["bert", "llama", "whisper", "resnet", "segformer"])
def test_architectures(name: str) -> None:
    architecture = named(name)
    exported = architecture.export(architecture.module())
    program = TorchConverter().add_exported_program(exported).to_onnx()
    program.optimize()
    inputs = architecture.arguments(*architecture.sizes[-1])
    for kernels in sorted({False, kernels_built()}):
        for low_memory in (False, True):
            plan = memory_plan(program, inputs, kernels=kernels, low_memory=low_memory)
            assert plan.kernels == kernels
            assert 0.9 <= plan.peak_used / plan.peak <= 1.1
        assert plan.peak <= memory_plan(program, inputs, kernels=kernels).peak


def test_states_and_several_entrypoints() -> None:
    program = OnnxProgram({"main": counter_model(), "add": add_model()})
    assert len(memory_plan(program, kernels=False).nodes) >= 1
    plan = memory_plan(program, sizes={"batch": 3}, entrypoint="add", kernels=False)
    assert plan.sizes == {"batch": 3, "seq": 1}


def test_wrong_inputs(wide: OnnxProgram) -> None:
    with pytest.raises(InputError, match="no dim 'row'; there are rows"):
        memory_plan(wide, sizes={"row": 3})
    with pytest.raises(InputError, match="2 inputs given, 1 expected"):
        memory_plan(wide, [np.zeros(1), np.zeros(1)])
    with pytest.raises(InputError, match="dtype is float64"):
        memory_plan(wide, [np.zeros((2, 16))])


def test_an_onnxruntime_that_counts_nothing() -> None:
    plan = MemoryPlan(
        sizes={}, kernels=False, low_memory=False, nodes=("n",), live=(4,), lifetimes=(4,),
        used=(), arena=0, inputs=4, outputs=4, weights=0, at_peak=(),
    )  # fmt: skip
    assert plan.peak_used == 0
    assert "not counted" in str(plan)


def test_bars_and_labels() -> None:
    assert chart([0, 512, 1024], rows=2).splitlines() == ["1.0 KiB │  █", "    0 B │ ██"]


def test_a_bar_is_the_maximum_of_its_steps() -> None:
    lines = chart([1, 8, 2, 4], columns=2, rows=1).splitlines()
    assert lines == ["8 B │█▄"]


def test_no_steps() -> None:
    assert chart([], rows=1) == "0 B │"
