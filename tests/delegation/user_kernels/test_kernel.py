"""Kernels of a user's own, from their sources to a model that runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx import ExternalizeSpec, Kernel, OnnxProgram, TorchConverter, kernel, session
from coreai_onnx.composites import COMPOSITES, Composite, Input
from coreai_onnx.errors import (
    DeclarationError,
    ExternalizationError,
    KernelError,
    SessionError,
)
from tests.delegation.user_kernels.declared import (
    CLIPPED_SWIGLU,
    GATHERED,
    HERE,
    SCALED,
    ClippedSwiGLU,
    Gathered,
    made,
    toolchain,
)
from tests.support.tolerances import assert_close

__all__ = ["toolchain"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toolchain")]
SPEC = ExternalizeSpec(ClippedSwiGLU, composite=CLIPPED_SWIGLU)


class FeedForward(torch.nn.Module):
    """Two gated activations with different limits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(8, 32), torch.nn.Linear(8, 32)
        self.down = torch.nn.Linear(16, 8)
        self.near, self.far = ClippedSwiGLU(0.25), ClippedSwiGLU(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.inner(x).chunk(2, -1)
        x = self.down(self.near(gate, up))
        gate, up = self.outer(x).chunk(2, -1)
        return self.down(self.far(gate, up))


def converted(model: torch.nn.Module, x: torch.Tensor, spec: Any = SPEC) -> OnnxProgram:
    return coreai_onnx.convert(
        model.eval(),
        (x,),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        externalize_modules=[spec],
    ).optimize()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_module_runs_on_its_kernel(dtype: torch.dtype, tmp_path: Path) -> None:
    model, x = FeedForward().to(dtype), torch.randn(3, 8).to(dtype)
    program = converted(model, x)
    assert program.composites() == {"ai.coreai.user::clipped_swiglu": 2}
    program.save(tmp_path / "m.onnx")
    own = made(CLIPPED_SWIGLU)
    for source in (program, tmp_path / "m.onnx"):
        on_kernel, on_body = session(source, custom_ops=[own]), session(source)
        for rows in (3, 0, 1, 17):
            x = torch.randn(rows, 8).to(dtype)
            wanted = model(x)
            assert_close(on_kernel.run(x)[0], wanted, exception="half_model")
            assert_close(on_body.run(x)[0], wanted, exception="half_model")


class Scaled(torch.nn.Module):
    """The module of the composite ``scaled``."""

    factor = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SCALED.reference(x, factor=self.factor)


def test_the_kernel_runs_and_not_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 8, dtype=torch.float16)
    program = converted(Scaled(), x, ExternalizeSpec(Scaled, composite=SCALED))
    own = made(SCALED)
    monkeypatch.setenv("FAULT", "half")  # the kernel then negates results of 16 bits
    assert_close(session(program, custom_ops=[own]).run(x)[0], -0.5 * x)
    assert_close(session(program).run(x)[0], 0.5 * x)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_weights_indices_optional_inputs_and_several_outputs(
    bias: bool, index: torch.dtype
) -> None:
    model, rows = Gathered(bias=bias).eval(), torch.tensor([5, 0, 2], dtype=index)
    program = converted(model, rows, ExternalizeSpec(Gathered, composite=GATHERED))
    own = made(GATHERED)
    opened = session(program, custom_ops=[own])
    for given in (rows, rows[:0], rows[1:2]):
        for got, wanted in zip(opened.run(given), model(given), strict=True):
            assert_close(got, wanted)


def test_several_kernels_beside_ours(kernels: Path) -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = Scaled(), torch.nn.RMSNorm(8)
            self.second = ClippedSwiGLU(1.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.first(x))
            return self.second(y, x)

    model, x = Both().eval(), torch.randn(2, 8)
    specs = [ExternalizeSpec(Scaled, composite=SCALED), SPEC]
    program = coreai_onnx.convert(model, (x,), externalize_modules=specs).optimize()
    libraries = [made(SCALED), made(CLIPPED_SWIGLU).library]
    opened = session(program, kernels=True, custom_ops=libraries)
    assert_close(opened.run(x)[0], model(x))


def test_a_lowering_can_call_a_composite() -> None:
    converter = TorchConverter()

    @converter.register_torch_lowering("aten::softsign.default")
    def softsign(op, self):
        return op.composite(SCALED, [self], factor=3.0)

    @converter.register_torch_lowering("aten::relu.default", allow_override=True)
    def relu(op, self):
        return op.composite(SCALED, [self], factor=-1.5)

    x = torch.randn(2, 3)
    exported = torch.export.export(torch.nn.ReLU(), (x,))
    program = converter.add_exported_program(exported).to_onnx().optimize()
    assert_close(session(program, custom_ops=[made(SCALED)]).run(x)[0], -1.5 * x)


def test_a_saved_library_is_loaded_by_plain_onnxruntime(tmp_path: Path) -> None:
    import onnxruntime

    x = torch.randn(2, 8)
    converted(Scaled(), x, ExternalizeSpec(Scaled, composite=SCALED)).save(tmp_path / "m.onnx")
    made(SCALED).save(tmp_path / "libscaled.so")
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(tmp_path / "libscaled.so"))
    plain = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), options)
    assert_close(plain.run(None, {plain.get_inputs()[0].name: x.numpy()})[0], 0.5 * x)
    with pytest.raises(KernelError, match="cannot write"):
        made(SCALED).save(tmp_path / "no folder" / "lib.so")


def test_a_module_that_differs_from_the_declaration_is_refused() -> None:
    class Other(ClippedSwiGLU):
        def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            return super().forward(gate, up) * 1.01

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = Other()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(x, x)

    spec = ExternalizeSpec(Other, composite=CLIPPED_SWIGLU)
    with pytest.raises(ExternalizationError, match=r"act .Other. is not the composite clipped"):
        converted(Model(), torch.randn(2, 8), spec)


def test_a_function_without_the_declaration_is_refused() -> None:
    x = torch.randn(2, 8)
    undeclared = converted(FeedForward(), x, ExternalizeSpec(ClippedSwiGLU, "clipped_swiglu"))
    with pytest.raises(SessionError, match=r"clipped_swiglu of the model was not made with the"):
        session(undeclared, custom_ops=[made(CLIPPED_SWIGLU)])
    assert_close(session(undeclared).run(x)[0].shape[0], 2)


def test_what_is_no_kernel() -> None:
    with pytest.raises(DeclarationError, match="rms_norm is a standard composite"):
        kernel(COMPOSITES["rms_norm"], "x.cc")
    with pytest.raises(KernelError, match="there are no sources"):
        kernel(SCALED, [])


def test_a_kernel_from_text() -> None:
    own = kernel(SCALED, (HERE / "scaled.cc").read_text())
    assert isinstance(own, Kernel)
    assert repr(own).startswith("Kernel(ai.coreai.user::scaled, ")
    assert own.checked >= 4 * 9


def test_the_exponential_of_the_kit() -> None:
    source = """
#include "kit/kernel.h"
template <class T>
struct Exponential {
  explicit Exponential(const coreai::Attributes&) {}
  void Compute(const coreai::Context& context) const {
    const auto x = context.Input<T>(0);
    T* out = context.Output<T>(0, x.shape);
    for (std::int64_t i = 0; i < x.size; ++i) out[i] = coreai::Exp(x[i]);
  }
};
COREAI_KERNEL(Exponential)
"""
    declared = Composite(
        "exponential",
        (Input("x"),),
        ("output",),
        torch.exp,
        "exp(x)",
        dtypes=("float32", "float64"),
    )
    converter = TorchConverter()

    @converter.register_torch_lowering("aten::exp.default", allow_override=True)
    def exp(op, self):
        return op.composite(declared, [self])

    class Exp(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(x)

    special = torch.tensor([0.0, float("nan"), float("inf"), -float("inf"), 88.8, -103.9, 1e-8])
    x = torch.cat([torch.linspace(-110, 100, 200_000), special])
    program = converter.add_exported_program(torch.export.export(Exp(), (x,))).to_onnx()
    got = session(program, custom_ops=[kernel(declared, source)]).run(x)[0]
    wanted = np.exp(x.double().numpy())
    with np.errstate(over="ignore"):
        narrow = wanted.astype(np.float32)
    steps = np.spacing(np.abs(narrow))
    usual = np.isfinite(steps)
    assert np.max(np.abs(got[usual] - wanted[usual]) / steps[usual]) < 2
    assert_close(got[~usual], narrow[~usual])


def test_the_document_shows_the_source() -> None:
    document = (HERE.parents[2] / "docs" / "kernels_of_your_own.md").read_text()
    assert (HERE / "clipped_swiglu.cc").read_text() in document
