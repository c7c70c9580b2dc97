"""Model packages, read by onnxruntime's own C API."""

from __future__ import annotations

import ctypes
import json
from ctypes import POINTER, byref, c_char_p, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from coreai_onnx.errors import SaveError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.scale import package
from tests.support.small_models import linear_model, linear_weights
from tests.support.tolerances import assert_close

VERSION = 31
"""The first version of the C API with model packages."""
GET_MESSAGE, CREATE_ENV, RUN, CREATE_OPTIONS = 2, 3, 9, 10
CREATE_TENSOR, GET_DATA, CREATE_MEMORY_INFO, GET_PACKAGES = 49, 51, 69, 427
"""Places in OrtApi, which never change."""
FROM_OPTIONS, OPEN, GET_COMPONENTS, GET_VARIANTS, GET_PROVIDER = 0, 2, 6, 8, 9
SELECT, SELECTED_NAME, CREATE_SESSION = 11, 13, 15
"""Places in OrtModelPackageApi."""


class Library:
    """The C API, as far as packages need it."""

    def __init__(self) -> None:
        (file,) = Path(ort.__file__).parent.glob("capi/libonnxruntime.so*")
        self.exports = ctypes.CDLL(str(file))
        self.exports.OrtGetApiBase.restype = c_void_p
        base = self.exports.OrtGetApiBase()
        self.api = self.function(base, 0, c_void_p)(VERSION)
        self.packages = self.function(self.api, GET_PACKAGES, c_void_p)()

    @staticmethod
    def function(table: int, place: int, result: Any = c_void_p) -> Any:
        address = ctypes.cast(table, POINTER(c_void_p))[place]
        return ctypes.cast(address, ctypes.CFUNCTYPE(result))

    def call(self, table: int, place: int, *arguments: Any) -> None:
        status = self.function(table, place)(*arguments)
        if status:
            raise RuntimeError(self.function(self.api, GET_MESSAGE, c_char_p)(c_void_p(status)))

    def made(self, table: int, place: int, *arguments: Any) -> c_void_p:
        made = c_void_p()
        self.call(table, place, *arguments, byref(made))
        return made

    def names(self, place: int, *arguments: Any) -> list[str]:
        names, count = POINTER(c_char_p)(), c_size_t()
        self.call(self.packages, place, *arguments, byref(names), byref(count))
        return [names[i].decode() for i in range(count.value)]

    def ran(self, session: c_void_p, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        memory = self.made(self.api, CREATE_MEMORY_INFO, 0, 0)
        dims = (ctypes.c_int64 * x.ndim)(*x.shape)
        data, size, rank = x.ctypes.data_as(c_void_p), c_size_t(x.nbytes), c_size_t(x.ndim)
        value = self.made(self.api, CREATE_TENSOR, memory, data, size, dims, rank, 1)
        feeds, outputs = (c_void_p * 1)(value), (c_void_p * 1)()
        names = [(c_char_p * 1)(name) for name in (b"x", b"y")]
        one = c_size_t(1)
        self.call(self.api, RUN, session, None, names[0], feeds, one, names[1], one, outputs)
        result = self.made(self.api, GET_DATA, c_void_p(outputs[0]))
        floats = ctypes.cast(result, POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(floats, shape).copy()


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


def packaged(tmp_path: Path, **options: Any) -> Path:
    OnnxProgram({"main": linear_model()}).save(tmp_path / "m.onnx", external_data=True)
    return package(tmp_path / "m.onnx", tmp_path / "package", "onnxruntime", **options)


@pytest.mark.parametrize("variants", [None, ["kernels", "stock"]], ids=["default", "kernels first"])
def test_onnxruntime_selects_the_stock_variant_and_runs_it(
    library: Library, tmp_path: Path, variants: list[str] | None
) -> None:
    folder = packaged(tmp_path, variants=variants, threads=1)
    context = library.made(library.packages, OPEN, str(folder).encode())
    assert library.names(GET_COMPONENTS, context) == ["m"]
    names = library.names(GET_VARIANTS, context, b"m")
    assert sorted(names) == sorted(variants or ["stock", "kernels", "webgpu"])
    provider = library.made(library.packages, GET_PROVIDER, context, b"m", b"stock")
    assert c_char_p(provider.value).value == b"CPUExecutionProvider"

    env = library.made(library.api, CREATE_ENV, 2, b"test")
    options = library.made(library.api, CREATE_OPTIONS)
    library.exports.OrtSessionOptionsAppendExecutionProvider_CPU(options, 1)
    intent = library.made(library.packages, FROM_OPTIONS, env, options)
    component = library.made(library.packages, SELECT, context, b"m", intent)
    name = library.made(library.packages, SELECTED_NAME, component)
    assert c_char_p(name.value).value == b"stock"
    session = library.made(library.packages, CREATE_SESSION, env, component, None)
    x, weights = np.ones((3, 8), np.float32), linear_weights()
    wanted = x @ weights["weight"] + weights["bias"]
    assert_close(library.ran(session, x, wanted.shape), wanted)


def test_onnxruntime_refuses_a_field_that_the_format_has_not(
    library: Library, tmp_path: Path
) -> None:
    manifest = packaged(tmp_path, variants=["stock"]) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"producer": "x"}))
    with pytest.raises(RuntimeError, match="unknown field 'producer'"):
        library.made(library.packages, OPEN, str(manifest.parent).encode())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variants": ["tpu"]}, "there is no variant 'tpu'; variants: stock, kernels"),
        ({"variants": []}, "at least one variant, and each once"),
        ({"variants": ["stock", "stock"]}, "at least one variant, and each once"),
        ({"low_memory": True}, "no setting for 'low_memory'"),
    ],
)
def test_what_a_package_cannot_have(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(SaveError, match=message):
        packaged(tmp_path, **options)
    assert not (tmp_path / "package").exists()
