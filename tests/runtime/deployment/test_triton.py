"""Model repositories of Triton; `tools/bench/servers.py` parses one by Triton's own definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from coreai_onnx.errors import SaveError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.scale import package
from tests.support.small_models import add_model, echo_model, linear_model, parse

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def configuration(tmp_path: Path, model: ir.Model | str, **options: Any) -> list[str]:
    program = OnnxProgram({"main": parse(model) if isinstance(model, str) else model})
    program.save(tmp_path / "m.onnx", external_data=True)
    options = {"kernels": False, "served_from": "/models"} | options
    folder = package(tmp_path / "m.onnx", tmp_path / "out", "triton", **options)
    assert (folder / "m" / "1" / "model.onnx").is_file()
    return (folder / "m" / "config.pbtxt").read_text().splitlines()


def test_rows_are_joined_where_all_begin_with_one_dim(tmp_path: Path) -> None:
    assert configuration(tmp_path, linear_model()) == [
        'name: "m"',
        'backend: "onnxruntime"',
        "max_batch_size: 64",
        'input [ { name: "x" data_type: TYPE_FP32 dims: [8] } ]',
        'output [ { name: "y" data_type: TYPE_FP32 dims: [64] } ]',
        "dynamic_batching { }",
        "instance_group [ { count: 1 kind: KIND_CPU } ]",
    ]
    assert (tmp_path / "out" / "m" / "1" / "m.onnx.data").is_file()


def test_dims_of_any_size(tmp_path: Path) -> None:
    lines = configuration(tmp_path, add_model(), batch_size=8, threads=2)
    assert lines[2:5] == [
        "max_batch_size: 8",
        'input [ { name: "ids" data_type: TYPE_INT64 dims: [-1] } ]',
        'input [ { name: "mask" data_type: TYPE_FP32 dims: [-1] } ]',
    ]
    assert lines[-1] == ('parameters { key: "intra_op_thread_count" value: { string_value: "2" } }')


@pytest.mark.parametrize(
    "dims", [("n", "m"), ("4", "4"), ("n", "4")], ids=["two names", "fixed", "one is fixed"]
)
def test_rows_are_not_joined(tmp_path: Path, dims: tuple[str, str]) -> None:
    text = f"{HEADER} agraph (float[{dims[0]}, 2] x) => (float[{dims[1]}, 2] y) {{ y = Neg(x) }}"
    lines = configuration(tmp_path, text)
    assert lines[2] == "max_batch_size: 0"
    assert "dynamic_batching { }" not in lines
    first = dims[0] if dims[0].isdecimal() else -1
    assert f"dims: [{first}, 2] }} ]" in lines[3]


def test_two_names_are_joined_on_request(tmp_path: Path) -> None:
    text = f"{HEADER} agraph (string[n] text) => (string[rows] y) {{ y = Identity(text) }}"
    lines = configuration(tmp_path, text, batch_size=3)
    assert lines[2:4] == [
        "max_batch_size: 3",
        'input [ { name: "text" data_type: TYPE_STRING dims: [1] reshape: { shape: [ ] } } ]',
    ]


def test_one_number(tmp_path: Path) -> None:
    lines = configuration(tmp_path, f"{HEADER} agraph (int64 x) => (int64 y) {{ y = Neg(x) }}")
    assert lines[3] == (
        'input [ { name: "x" data_type: TYPE_INT64 dims: [1] reshape: { shape: [ ] } } ]'
    )


def test_the_library_is_where_the_server_sees_it(tmp_path: Path) -> None:
    last = configuration(tmp_path, linear_model(), kernels=True)[-1]
    place = "/models/m/1/libcoreai_onnx_ops.so"
    assert last == f'model_operations {{ op_library_filename: "{place}" }}'
    assert (tmp_path / "out" / "m" / "1" / "libcoreai_onnx_ops.so").stat().st_size > 1 << 20


@pytest.mark.parametrize(
    ("provider", "device", "more"),
    [
        ("cuda", "KIND_GPU", None),
        ("tensorrt", "KIND_GPU", 'gpu_execution_accelerator [ { name: "tensorrt" } ]'),
        ("openvino", "KIND_CPU", 'cpu_execution_accelerator [ { name: "openvino" } ]'),
    ],
)
def test_providers(tmp_path: Path, provider: str, device: str, more: str | None) -> None:
    lines = configuration(tmp_path, linear_model(), provider=provider)
    assert lines[6] == f"instance_group [ {{ count: 1 kind: {device} }} ]"
    wanted = [f"optimization {{ execution_accelerators {{ {more} }} }}"] if more else []
    assert lines[7:] == wanted


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (echo_model("float8e4m3fn"), {}, "Triton has no type for input x: float8_e4m3fn"),
        (linear_model(), {"provider": "webgpu"}, "has no provider 'webgpu'; providers: cpu, "),
        (linear_model(), {"low_memory": True}, "has no setting for 'low_memory'"),
        (echo_model("float", "4, 4"), {"batch_size": 2}, "requests cannot be joined"),
        (linear_model(), {"name": "a b"}, "'a b' cannot be the name of a package"),
    ],
)
def test_what_triton_cannot_serve(
    tmp_path: Path, model: ir.Model, options: Any, message: str
) -> None:
    with pytest.raises(SaveError, match=message):
        configuration(tmp_path, model, **options)
    assert not (tmp_path / "out").exists()
