"""Tests of programs in 16-bit floats, and the report of what stayed in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM
from transformers.models.bert.modeling_bert import BertLayer

import coreai_onnx
from coreai_onnx.errors import QuantizationError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.quantization.half.precision import DtypeReport, KeptNode
from tests.support.tolerances import assert_close

HALF = torch.float16


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8)
        self.inner, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.nn.functional.max_pool2d(x + torch.relu(self.inner(x)), 2)
        x = torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")
        return self.head(x.mean((2, 3)))


class Loud(nn.Module):
    """Activations of 1e5 between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x) * 300.0
        x = (x * 300.0) / 1000.0
        return self.down(torch.tanh(x / 100.0))


def bert() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        vocab_size=99,
    )  # fmt: skip
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 7:] = 0
    return BertModel(config, add_pooling_layer=False).eval(), (torch.randint(99, (2, 12)), mask)


def llama() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=64, vocab_size=99, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), (torch.randint(99, (2, 12)),)


def vision() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Vision().eval(), (torch.randn(2, 3, 20, 20),)


def speech() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
    front = nn.Sequential(nn.Conv1d(4, 16, 3, padding=1), nn.GELU(), nn.Flatten(2))
    return nn.Sequential(front, Turn(), layer).eval(), (torch.randn(2, 4, 10),)


class Turn(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def first(outputs: Any) -> np.ndarray:
    tensor = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
    return np.asarray(tensor.detach().numpy())


def checked(program: OnnxProgram) -> None:
    onnx.checker.check_model(program.to_proto(), full_check=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("make", [bert, llama, vision, speech])
def test_models(make: Any, dtype: str, optimize: bool) -> None:
    model, args = make()
    program = coreai_onnx.convert(model, args, optimize=optimize)
    size = len(program.to_proto().SerializeToString())
    program.convert_dtype(dtype)
    checked(program)
    report = program.dtype_reports["main"]
    assert report.bytes_after < 0.6 * report.bytes_before
    assert len(program.to_proto().SerializeToString()) < size
    half = getattr(torch, dtype)
    given = [x.to(half) if x.is_floating_point() else x for x in args]
    expected = torch.from_numpy(first(model(*args))).to(half)
    assert_close(program.run(*given, kernels=False)[0], expected, exception="half_model")


@pytest.mark.parametrize("make", [bert, llama])
def test_ops_of_onnxruntime_are_converted(make: Any) -> None:
    model, args = make()
    program = coreai_onnx.convert(model, args).optimize(target="contrib")
    program.convert_dtype("float16")
    checked(program)
    contrib = {node.op_type for node in program.model.graph if node.domain == "com.microsoft"}
    assert contrib
    kept = {row.op.rpartition("::")[2] for row in program.dtype_reports["main"].kept}
    assert not contrib & kept
    given = [x.half() if x.is_floating_point() else x for x in args]
    expected = torch.from_numpy(first(model(*args))).half()
    assert_close(program.run(*given, kernels=False)[0], expected, exception="half_model")


def test_functions_of_modules_are_converted() -> None:
    model, args = bert()
    program = coreai_onnx.convert(model, args, externalize_modules=[BertLayer])
    program.convert_dtype(keep_io=True, keep=["encoder.layer.1"], calibration=[args])
    checked(program)
    kept = [kept.op for kept in program.dtype_reports["main"].kept]
    assert any("BertLayer.float32" in op for op in kept)
    y = program.run(*args)[0]
    assert y.dtype == np.float32
    expected = first(model(*args)).astype(np.float16)
    assert_close(y.astype(np.float16), expected, exception="half_model")


def test_what_overflows_keeps_float32() -> None:
    torch.manual_seed(0)
    model, x = Loud().eval(), torch.randn(4, 8) * 1e2
    expected = model(x).detach().to(HALF)
    program = coreai_onnx.convert(model, (x,)).convert_dtype(calibration=[(x,)])
    report = program.dtype_reports["main"]
    assert any("above float16's 65504" in kept.reason for kept in report.kept)
    assert {kept.op for kept in report.kept}.isdisjoint({"Gemm", "MatMul", "Tanh"})
    assert_close(program.run(x.to(HALF))[0], expected, exception="half_model")


class Recurrent(nn.Module):
    """A cell in a scan, refined by a loop, and a head in one of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.inner = nn.Linear(24, 16), nn.Linear(16, 16)
        self.head, self.other = Loud(), nn.Linear(16, 8)
        self.wide = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def step(h: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = torch.tanh(self.cell(torch.cat([h, row], 1)))
            return h, torch.relu(self.inner(h))

        last, rows = scan(step, x.new_zeros(2, 16), x, dim=0)

        def refine(i: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, torch.tanh(self.inner(h)) + h

        _, last = while_loop(lambda i, _: i < 4, refine, (torch.tensor(0), last))
        y = torch.cond(
            x.sum() > 0,
            lambda h: self.head(self.wide(h)),
            lambda h: self.other(h) + 0.5,
            (last,),
        )
        return y, rows


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_loops_and_branches_are_converted(dtype: str) -> None:
    torch.manual_seed(0)
    model, x = Recurrent().eval(), torch.randn(5, 2, 8)
    program = coreai_onnx.convert(model, (x,))
    program.convert_dtype(dtype)
    checked(program)
    report = program.dtype_reports["main"]
    assert not {kept.op for kept in report.kept} & {"If", "Loop", "Scan", "MatMul", "Concat"}
    assert report.bytes_after < 0.6 * report.bytes_before
    half = getattr(torch, dtype)
    for given in (x, -x):
        results = program.run(given.to(half), kernels=False).values()
        with torch.no_grad():
            right = model(given)
        for made, expected in zip(results, right, strict=True):
            assert_close(made, expected.to(half), exception="half_model")


def test_what_overflows_in_a_branch_keeps_float32() -> None:
    torch.manual_seed(0)
    model, x = Recurrent().eval(), torch.randn(5, 2, 8).abs()
    with torch.no_grad():
        model.wide.weight *= 1e2
    program = coreai_onnx.convert(model, (x,)).convert_dtype(calibration=[(x,)], keep=["Gemm_1"])
    reasons = {kept.op: kept.reason for kept in program.dtype_reports["main"].kept}
    assert any("above float16's 65504" in reason for reason in reasons.values())
    assert any(reason == "matches 'Gemm_1'" for reason in reasons.values())
    with torch.no_grad():
        expected = model(x)[0].to(HALF)
    assert_close(program.run(x.to(HALF), kernels=False)[0], expected, exception="half_model")


def test_an_overflow_in_a_function() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Loud(), Loud()).eval(), torch.randn(4, 8) * 1e2
    program = coreai_onnx.convert(model, (x,), externalize_modules=[Loud])
    program.convert_dtype(keep_io=True, calibration=[(x,)])
    reasons = [kept.reason for kept in program.dtype_reports["main"].kept]
    assert any("above float16's 65504" in reason for reason in reasons)
    expected = model(x).detach().to(HALF)
    assert_close(program.run(x)[0].astype(np.float16), expected, exception="half_model")


def test_errors_leave_the_program_unchanged() -> None:
    model, args = vision()
    program = coreai_onnx.convert(model, args)
    before = program.to_proto().SerializeToString(deterministic=True)
    for dtype, options, message in (
        ("int8", {}, "dtype='int8'; choose from float16, bfloat16"),
        ("float16", {"keep": ["nothing"]}, "the pattern 'nothing' matches no"),
        ("float16", {"keep": "head"}, "keep must be a list of patterns, got 'head'"),
        ("float16", {"keep": ["*"], "keep_io": True}, "there is nothing to convert"),
        ("float16", {"calibration": []}, "there is no calibration data"),
        ("float16", {"calibration": [(np.ones((1, 1), np.float32),)]}, "calibration call 1"),
        ("float16", {"other": 1}, "there is no option 'other'"),
    ):
        with pytest.raises(QuantizationError, match=message):
            program.convert_dtype(dtype, **options)  # type: ignore[arg-type]
        assert program.to_proto().SerializeToString(deterministic=True) == before


def test_a_second_conversion_has_names_of_its_own() -> None:
    x, layers = torch.randn(3, 4), [nn.Linear(4, 4) for _ in range(3)]
    program = coreai_onnx.convert(nn.Sequential(*layers).eval(), (x,))
    for keep in (["0", "1"], ["0"], []):
        program.convert_dtype("float16", keep_io=True, keep=keep)
        names = [node.name for node in program.model.graph]
        assert len(set(names)) == len(names)
    onnx.checker.check_model(program.to_proto(), full_check=True)
    assert program.run(x)[0].dtype == np.float32


@pytest.mark.parametrize("keep_io", [False, True])
@pytest.mark.parametrize("first", ["float16", "bfloat16"])
@pytest.mark.parametrize("second", ["float16", "bfloat16"])
def test_a_model_in_16_bits_is_not_converted_again(first: str, second: str, keep_io: bool) -> None:
    x = torch.randn(3, 64)
    program = coreai_onnx.convert(nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval(), (x,))
    program.convert_dtype(first, keep_io=keep_io)
    before = program.to_proto().SerializeToString(deterministic=True)
    message = f"'.*' is {first} already\n  convert the float32 model to {second}"
    if first == second or (keep_io and first == "float16"):
        message = "there is nothing to convert"
    with pytest.raises(QuantizationError, match=message):
        program.convert_dtype(second, keep_io=keep_io)
    assert program.to_proto().SerializeToString(deterministic=True) == before
    assert len(program.run(x.to(torch.float32 if keep_io else getattr(torch, first)))) == 1


def test_inputs_and_outputs_alone_are_converted() -> None:
    x = torch.randn(3, 4)
    program = coreai_onnx.convert(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), (x,))
    program.convert_dtype("float16", keep_io=True).convert_dtype("float16")
    assert program.run(x.to(HALF))[0].dtype == np.float16


def test_nodes_are_counted_by_op_and_reason() -> None:
    kept = (KeptNode("a", "Pow", "why"), KeptNode("b", "Pow", "why"), KeptNode("c", "If", "other"))
    lines = str(DtypeReport("float16", 3, kept, 2048, 1024)).splitlines()
    assert lines[0] == "float16: 3 nodes, weights 2.0 KiB → 1.0 KiB"
    assert lines[-2].split() == ["2", "Pow", "why", "a"]
    assert lines[-1].split() == ["1", "If", "other", "c"]
    assert str(DtypeReport("float16", 3, (), 2, 1)) == "float16: 3 nodes, weights 2 B → 1 B"
