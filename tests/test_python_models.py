"""``export_python``: functions and modules as Python source."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx.errors import InputError, LoadError
from coreai_onnx.model.python.single_file import with_weights
from tests.model.python.packages import imported_file
from tests.support.tolerances import assert_close

SHAPES = {"x": {0: Dim("B"), 1: Dim("T")}, "weight": {}}
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8,
          torch.int16, torch.int32, torch.int64, torch.bool, torch.uint16, torch.uint32,
          torch.uint64, torch.complex64, torch.complex128]  # fmt: skip


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@pytest.fixture(scope="module")
def kernel() -> coreai_onnx.ExportedModel:
    args = (torch.randn(2, 64, 256), torch.randn(256))
    return coreai_onnx.export_python(rms_norm, args, dynamic_shapes=SHAPES)


def test_the_rms_norm_of_the_documentation_is_one_composite(kernel) -> None:
    assert kernel.program.composites() == {"ai.coreai::rms_norm": 1}
    assert "        return rms_norm(x, weight, eps=1e-6)\n" in kernel.source
    assert 'def main(x: FLOAT["B", "T", 256], weight: FLOAT[256]):' in kernel.source
    assert kernel.dynamic_shape_names == ["B", "T"]
    assert kernel.tensor_arg_count == 2


def test_run_and_boxed_run(kernel) -> None:
    args = (torch.randn(3, 5, 256), torch.randn(256))
    expected = rms_norm(*args)
    assert_close(kernel.run(*args), expected)
    assert_close(kernel.run(weight=args[1], x=args[0].requires_grad_()), expected)
    boxed = list(args)
    assert_close(kernel.boxed_run(boxed), expected)
    assert boxed == []
    assert isinstance(kernel.run(*(item.detach().numpy() for item in args)), type(args[1].numpy()))


def test_a_failed_boxed_run_keeps_the_list(kernel) -> None:
    boxed = [torch.ones(3)]
    with pytest.raises(InputError, match="missing arguments: weight; the model takes x, weight"):
        kernel.boxed_run(boxed)
    assert len(boxed) == 1
    with pytest.raises(InputError, match="boxed_run takes a list, which it empties, not a tuple"):
        kernel.boxed_run((torch.ones(1, 1, 256), torch.ones(256)))


def test_the_source_is_a_module_with_call(kernel, tmp_path: Path) -> None:
    (tmp_path / "my_kernel.py").write_text(kernel.source)
    code = """import sys, numpy as np
from my_kernel import call
y = call(np.ones((2, 3, 256), np.float32), np.ones(256, np.float32))
assert y.shape == (2, 3, 256) and abs(y - 1).max() < 1e-5
assert not {"torch", "coreai_onnx"} & set(sys.modules)"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


@pytest.mark.parametrize("function", [lambda x: x + 1, torch.nn.Linear(4, 4).eval(), torch.relu])
def test_functions_and_modules(function, tmp_path: Path) -> None:
    exported = coreai_onnx.export_python(function, (torch.ones(2, 4),))
    with torch.no_grad():
        assert_close(exported.run(torch.ones(2, 4)), function(torch.ones(2, 4)))
    exported.save(tmp_path / "model.py")
    saved = (tmp_path / "model.py").read_text()
    assert exported.source.startswith(
        saved.removesuffix("model = declared()\ncall = Runner(model)\n")
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_keep_their_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 3.0]).to(dtype)
    exported = coreai_onnx.export_python(lambda x: (x.reshape(2, 2), x != 0), (x,))
    exported.save(tmp_path / "model.py")
    for call in (exported.run, imported_file(tmp_path / "model.py").call):
        same, is_set = call(x)
        assert (same.dtype, is_set.dtype) == (dtype, torch.bool)
        assert same.tolist() == x.reshape(2, 2).tolist()


# -------------------------------------------------------------------- structured arguments
@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor
    extra: torch.Tensor | None = None


torch.export.register_dataclass(Batch)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def structured(a: dict[str, Any], pair: Pair, n: int, batch: Batch, scale=None, how="sum") -> Any:
    total = a["x"] * n + pair.left - pair.right
    total = total if how == "sum" else -total
    return {"total": total if scale is None else total * scale, "masked": batch.ids * batch.mask}


def arguments(n: int = 3) -> tuple[Any, ...]:
    tensors = [torch.randn(4) for _ in range(5)]
    batch = Batch(tensors[3], tensors[4])
    return {"x": tensors[0]}, Pair(*tensors[1:3]), n, batch, None, "other"


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    exported = coreai_onnx.export_python(structured, arguments())
    path = tmp_path_factory.mktemp("structured") / "model.py"
    exported.save(path)
    return {"run": exported.run, "call": imported_file(path).call}


@pytest.mark.parametrize("name", ["run", "call"])
def test_arguments_are_those_of_the_function(name: str, calls) -> None:
    args = arguments()
    expected = tuple(structured(*args).values())
    a, pair, n, batch, *_ = args
    assert_close(calls[name](*args), expected)
    assert_close(calls[name](a, batch=batch, pair=tuple(pair), n=n, how="other"), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"n": 4}, "n is 4, but the model was exported for 3; export it again"),
     ({"how": "sum"}, "how is 'sum', but the model was exported for 'other'"),
     ({"scale": torch.ones(4)}, "scale is tensor.*, but the model was exported for None"),
     ({"a": {}}, "a is a dict of nothing, but the model takes a dict of 'x'"),
     ({"more": 1}, "the model takes no argument 'more'")],
)  # fmt: skip
@pytest.mark.parametrize("name", ["run", "call"])
def test_other_arguments_are_refused(name: str, calls, change, message: str) -> None:
    names = ["a", "pair", "n", "batch", "scale", "how"]
    with pytest.raises(ValueError, match=message):
        calls[name](**dict(zip(names, arguments(), strict=True)) | change)


def test_parameters_may_have_names_of_our_own_arguments() -> None:
    exported = coreai_onnx.export_python(lambda kernels, entrypoint: kernels - entrypoint,
                                         (torch.ones(2), torch.zeros(2)))  # fmt: skip
    assert exported.run(torch.ones(2), entrypoint=torch.ones(2)).tolist() == [0.0, 0.0]


# -------------------------------------------------------------------- the names of the seed
def test_the_two_stages() -> None:
    args = (torch.randn(2, 64, 256), torch.randn(256))
    raw = coreai_onnx.export_and_codegen(rms_norm, args, dynamic_shapes=SHAPES)
    assert "rms_norm(" not in raw
    kernel = coreai_onnx.postprocess(raw, dynamic_shape_names=["B", "T"], tensor_arg_count=2)
    assert isinstance(kernel, coreai_onnx.ExportedKernel)
    assert kernel.program.composites() == {"ai.coreai::rms_norm": 1}
    assert_close(kernel.run(*args), rms_norm(*args))
    with pytest.raises(LoadError, match=r"has the dims \['B', 'T'\], not \['B'\]"):
        coreai_onnx.postprocess(raw, dynamic_shape_names=["B"])
    with pytest.raises(LoadError, match="takes 2 tensors, not 3"):
        coreai_onnx.postprocess(raw, tensor_arg_count=3)


def test_structured_arguments_pass_both_stages() -> None:
    args = arguments()
    kernel = coreai_onnx.postprocess(coreai_onnx.export_and_codegen(structured, args))
    assert_close(kernel.run(*args), tuple(structured(*args).values()))


def test_the_alias_is_the_function() -> None:
    assert coreai_onnx.torch_export_python is coreai_onnx.export_python
    assert coreai_onnx.ExportedKernel is coreai_onnx.ExportedModel


class Codes(torch.nn.Module):
    """Weights of several types, one of them shared."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.factors = torch.nn.Parameter(torch.randn(8).half())
        self.register_buffer("steps", torch.arange(64.0, dtype=torch.float64).reshape(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(self.linear(x)) * self.factors.float()
        return y + (x.double() @ self.steps).float()


def test_a_source_with_weights_is_complete(tmp_path: Path) -> None:
    x = torch.randn(3, 8)
    for number in range(2):
        model = Codes()
        kernel = coreai_onnx.export_python(model, (x,))
        path = tmp_path / f"kernel{number}.py"
        path.write_text(kernel.source)
        assert_close(imported_file(path).call(x), model(x))
        assert list(tmp_path.glob("*.safetensors")) == []
        assert_close(coreai_onnx.postprocess(kernel.source).run(x), model(x))
        kernel.save(path)
        assert "embed(" not in path.read_text().rpartition("class Runner")[2]
        assert_close(imported_file(path).call(x), model(x))
        (tmp_path / f"kernel{number}.safetensors").unlink()


def test_weights_above_a_mebibyte_are_not_in_the_source(tmp_path: Path) -> None:
    kernel = coreai_onnx.export_python(torch.nn.Linear(512, 512), (torch.randn(1, 512),))
    path = tmp_path / "kernel.py"
    path.write_text(kernel.source)
    with pytest.raises(ValueError, match=r'is missing: .* kernel.save\("kernel.py"\)'):
        imported_file(path)
    with pytest.raises(LoadError, match="its weights are not in it"):
        coreai_onnx.postprocess(kernel.source)


def test_damaged_weights_in_a_source_are_refused(tmp_path: Path) -> None:
    kernel = coreai_onnx.export_python(torch.nn.Linear(8, 8), (torch.randn(1, 8),))
    path = tmp_path / "kernel.py"
    path.write_text(kernel.source.replace('""",\n)\nmodel', 'A""",\n)\nmodel'))
    with pytest.raises(ValueError, match="the embedded weights are damaged"):
        imported_file(path)


def test_ruff_keeps_a_source_with_weights(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    program = coreai_onnx.convert(torch.nn.Linear(8, 8), (torch.randn(1, 8),))
    path.write_text(with_weights(program.model))
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
