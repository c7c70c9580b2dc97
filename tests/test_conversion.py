"""Export, conversion and optimization in one call."""

from __future__ import annotations

import onnx
import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import StagingError
from tests.support.tolerances import assert_close


class Scaled(torch.nn.Module):
    """x @ w.T + b, times two."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * 2


def test_convert_is_the_whole_road() -> None:
    module, x = Scaled().eval(), torch.randn(2, 4)
    program = coreai_onnx.convert(
        module, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}}
    )
    proto = program.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    made_by = proto.producer_name, proto.producer_version
    assert made_by == ("coreai_onnx", coreai_onnx.__version__)
    for batch in (1, 7):
        x = torch.randn(batch, 4)
        (actual,) = program.run(x, kernels=False)
        assert_close(actual, module(x).detach())


def test_passes_run_unless_told_otherwise() -> None:
    module, x = Scaled().eval(), torch.randn(2, 4)
    assert coreai_onnx.convert(module, (x,)).pass_report is not None
    assert coreai_onnx.convert(module, (x,), optimize=False).pass_report is None


def test_an_exported_program_takes_no_options_of_an_export() -> None:
    module, x = Scaled().eval(), torch.randn(2, 4)
    program = torch.export.export(module, (x,))
    (actual,) = coreai_onnx.convert(program).run(x, kernels=False)
    assert_close(actual, module(x).detach())
    with pytest.raises(StagingError, match="strict"):
        coreai_onnx.convert(program, strict=True)


def test_a_module_that_changes_its_input_has_that_input() -> None:
    """A first layer that works in place, as torchvision's do."""
    module = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 2))
    session = coreai_onnx.convert(module, (torch.randn(3, 4),)).session()
    assert [str(info) for info in session.inputs] == ["input: float32[3, 4]"]
    assert session.states == ()
    assert session.mutated_inputs == {"input_out": "input"}
    x = torch.randn(3, 4)
    for _ in range(2):
        result, written = session.run(x)
        assert_close(written, x.relu())
        assert_close(result, module[1](x.relu()))
