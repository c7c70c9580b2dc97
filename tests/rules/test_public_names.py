"""What is public is there, documented, and listed; the names of the contract are among it."""

from __future__ import annotations

import inspect

import coreai_onnx
from coreai_onnx import composites as composite_ops

CONTRACT = {
    "ExternalizeSpec",
    "OnnxProgram",
    "TorchConverter",
    "__version__",
    "compare",
    "convert",
    "get_decomp_table",
    "ops_library_path",
    "session",
}


def test_the_contract_is_public() -> None:
    assert set(coreai_onnx.__all__) >= CONTRACT, CONTRACT - set(coreai_onnx.__all__)


def test_every_public_name_resolves_and_says_what_it_is() -> None:
    for name in coreai_onnx.__all__:
        value = getattr(coreai_onnx, name)
        if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
            assert inspect.getdoc(value), f"{name} has no docstring"


def test_public_methods_say_what_they_do() -> None:
    for name in coreai_onnx.__all__:
        value = getattr(coreai_onnx, name)
        if inspect.isclass(value):
            for method_name, method in inspect.getmembers(value, inspect.isfunction):
                if not method_name.startswith("_"):
                    assert inspect.getdoc(method), f"{name}.{method_name} has no docstring"


def test_composite_modules_are_public() -> None:
    assert {"GatedDeltaUpdate", "GatherMM", "RMSNorm", "RMSNormImpl", "RoPE", "SDPA"} <= set(
        composite_ops.__all__
    )
