"""Builds with the kernels of some composites only (custom_ops/cmake/SelectOps.cmake)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import coreai_onnx
from tests.conftest import REPO
from tests.support.own_process import with_library
from tests.support.tolerances import assert_close

pytestmark = pytest.mark.slow
SOURCES = REPO / "custom_ops"
OBJECT = re.compile(r"-o (CMakeFiles/coreai_(?:onnx_ops|kernels)\.dir/\S+\.o)")


def headers() -> Path:
    """Return the folder of the headers that the kernels are built with, or skip the test."""
    found = next(iter(sorted(REPO.glob("build/*/debian-headers/usr/include"))), None)
    if found is None or shutil.which("cmake") is None:
        pytest.skip("no CMake, or no onnxruntime headers: make build")
    return found


def configured(folder: Path, *definitions: str) -> tuple[str, str]:
    """Configure a build; return the selection, empty for none, and what CMake said."""
    include = (
        f"-DONNXRUNTIME_INCLUDE_DIR={headers()}/onnxruntime",
        f"-DHIGHWAY_INCLUDE_DIR={headers()}",
    )
    done = subprocess.run(
        ["cmake", "-S", str(SOURCES), "-B", str(folder), *include, *definitions],
        capture_output=True,
        text=True,
        check=False,
    )
    selection = folder / "selected" / "selected_ops.h"
    said = " ".join((done.stdout + done.stderr).split())
    return selection.read_text() if selection.is_file() else "", said


def test_ops_are_selected_by_name_or_by_a_file(tmp_path: Path) -> None:
    assert configured(tmp_path / "all")[0] == ""
    text, said = configured(tmp_path / "names", "-DCOREAI_OPS_ONLY=rms_norm;gather_mm")
    assert text == "#define COREAI_EACH_OP(V) V(kRmsNormOp) V(kGatherMmOp)\n"
    assert "kernels of rms_norm, gather_mm" in said
    config = tmp_path / "required_operators.config"
    config.write_text(
        "# Generated\nai.coreai;1;rope.interleaved,scaled_dot_product_attention\n"
        'ai.onnx;13;Gemm{"inputs": {"0": ["float"]}},MatMul\ncom.microsoft;1;FusedGemm\n'
    )
    text, _ = configured(tmp_path / "file", f"-DCOREAI_OPS_CONFIG={config}")
    assert text == "#define COREAI_EACH_OP(V) V(kRopeOp) V(kScaledDotProductAttentionOp)\n"


def test_an_unknown_op_is_an_error(tmp_path: Path) -> None:
    _, said = configured(tmp_path / "a", "-DCOREAI_OPS_ONLY=rms_nrom")
    assert "There is no kernel of rms_nrom; there are add_bias, add_low_rank, all_gather" in said
    config = tmp_path / "required_operators.config"
    config.write_text("ai.onnx;13;Gemm\n")
    _, said = configured(tmp_path / "b", f"-DCOREAI_OPS_CONFIG={config}")
    assert "names no operator of ai.coreai" in said
    _, said = configured(tmp_path / "c", f"-DCOREAI_OPS_CONFIG={tmp_path / 'nowhere'}")
    assert "there is no file" in said


def objects() -> list[Path]:
    """Return the object files of the library; the folder may have others of earlier builds."""
    build = REPO / "build" / "ops"
    commands = build / "compile_commands.json"
    made = json.loads(commands.read_text()) if commands.is_file() else []
    found = (OBJECT.search(one["command"]) for one in made)
    paths = (build / one[1] for one in found if one is not None)
    return [path for path in paths if path.is_file()]


def linked(folder: Path) -> Path:
    """Link the objects of the full build with a selection, as CMake does."""
    used = [str(path) for path in objects() if path.name != "op_list.cc.o"]
    if not used:
        pytest.skip("the objects of the kernels are not here: make build")
    compiler, own = os.environ.get("CXX", "c++"), str(folder / "op_list.o")
    library = folder / "libcoreai_onnx_ops.so"
    include = [f"-I{SOURCES}", f"-I{folder / 'selected'}", f"-I{headers()}/onnxruntime"]
    flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-DCOREAI_SELECTED_OPS"]
    source = str(SOURCES / "ops" / "op_list.cc")
    subprocess.run([compiler, *flags, *include, "-c", source, "-o", own], check=True)
    link = [f"-Wl,--version-script={SOURCES / 'cmake' / 'exports.map'}", "-Wl,--gc-sections"]
    subprocess.run([compiler, "-shared", own, *used, *link, "-o", str(library)], check=True)
    return library


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other = torch.nn.RMSNorm(8), torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(torch.sin(self.norm(x)))


def run_with_kernels() -> str:
    """Run the model on the library of this process; return the operators that it needs."""
    model, x = Model().eval(), torch.randn(2, 8)
    program = coreai_onnx.convert(model, (x,)).optimize()
    assert set(program.composites()) == {"ai.coreai::rms_norm", "ai.coreai::layer_norm"}
    opened = coreai_onnx.session(program, kernels=True)
    assert opened.kernels
    assert_close(opened.run(x)[0], model(x))
    return coreai_onnx.required_operators([program], types=False)


def test_a_library_with_one_op_is_small_and_runs_it(kernels: Path, tmp_path: Path) -> None:
    assert configured(tmp_path, "-DCOREAI_OPS_ONLY=rms_norm")[0]
    library = linked(tmp_path)
    assert library.stat().st_size < kernels.stat().st_size / 4
    text = with_library(library, run_with_kernels)
    assert "\nai.coreai;1;rms_norm\n" in text
    assert "LayerNormalization" in text, "the body of the op that is left out"
