"""Modules quantized by torchao's ``quantize_``: raw, decomposed and exported by ``convert``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    PerAxis,
    PerGroup,
    quantize_,
)

from coreai_onnx import OnnxProgram, convert
from coreai_onnx.errors import TargetError
from coreai_onnx.targets.opsets import PROVIDER_TARGETS, Target
from tests.support.tolerances import assert_close

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
]
X = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.FLOAT8E4M3FN)
Config = Callable[[], Any]


def _intx(dtype: torch.dtype, granularity: Any, **options: Any) -> Config:
    return lambda: IntxWeightOnlyConfig(weight_dtype=dtype, granularity=granularity, **options)


CONFIGS: dict[str, Config] = {
    "int8": Int8WeightOnlyConfig,
    "int8 groups": lambda: Int8WeightOnlyConfig(granularity=PerGroup(32)),
    "int8 dynamic": Int8DynamicActivationInt8WeightConfig,
    "int8 dynamic asymmetric": lambda: Int8DynamicActivationInt8WeightConfig(
        act_mapping_type=MappingType.ASYMMETRIC
    ),
    "int4": _intx(torch.int4, PerGroup(32)),
    "int4 asymmetric": _intx(torch.int4, PerGroup(32), mapping_type=MappingType.ASYMMETRIC),
    "int3": _intx(torch.int3, PerAxis(0)),
    "int2": _intx(torch.int2, PerGroup(16)),
    "int8 dynamic int4": lambda: Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    ),
    "float8": Float8WeightOnlyConfig,
}


def quantized(config: Config) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64, bias=False)).eval()
    quantize_(model, config())
    return model


def check(program: OnnxProgram, model: nn.Module, x: torch.Tensor) -> None:
    (got,), wanted = program.run(x), model(x).detach()
    assert_close(got, wanted)


@pytest.mark.parametrize("name", CONFIGS)
def test_all_forms_of_a_program(name: str) -> None:
    model = quantized(CONFIGS[name])
    exported = torch.export.export(model, (X,), dynamic_shapes=({0: torch.export.Dim("n")},))
    programs = [convert(exported), convert(exported.run_decompositions())]
    programs.append(convert(model, X, dynamic_shapes=({0: "n"},)))
    for program in programs:
        check(program, model, X)
        check(program, model, torch.cat([X, 2 * X]))
        weights = [v.const_value for v in program.model.graph.initializers.values()]
        matrices = [w for w in weights if w is not None and w.size == 64 * 128]
        assert len(matrices) >= 2
        assert all(w.dtype in INTEGERS for w in matrices)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("target", get_args(Target))
def test_targets(name: str, target: Target) -> None:
    model = quantized(CONFIGS[name])
    if name == "float8" and target in ("portable", *PROVIDER_TARGETS):
        with pytest.raises(TargetError, match="float8"):
            convert(model, X, optimize=False).optimize(target=target)
        return
    opset = 18 if target == "portable" else None
    program = convert(model, X, optimize=False, opset_version=opset).optimize(target=target)
    check(program, model, X)
    ops = Counter(node.op_type for node in program.model.graph)
    if target == "contrib" and name.startswith("int4"):
        assert ops["MatMulNBits"] == 2
    if name.startswith("int8 dynamic") and not name.endswith("int4"):
        assert ops["MatMulInteger"] == 2


def test_a_module_that_is_used_twice() -> None:
    """One weight, two readers."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(96, 96)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.relu(self.layer(x)))

    torch.manual_seed(0)
    model = Twice().eval()
    quantize_(model, Int8WeightOnlyConfig())
    x = torch.randn(3, 96)
    program = convert(model, x)
    check(program, model, x)
    weights = [v.const_value for v in program.model.graph.initializers.values()]
    assert sum(w is not None and w.dtype == ir.DataType.INT8 for w in weights) == 1
