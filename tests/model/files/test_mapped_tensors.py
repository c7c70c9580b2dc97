"""Arrays in scratch files, and tensors that are converted when they are read."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx_ir.tensor_adapters import TorchTensor

from coreai_onnx.errors import SaveError
from coreai_onnx.model.files.mapped_tensors import (
    LARGE,
    MappedTensor,
    WidenedTensor,
    memory_bytes,
    on_disk,
    scratch_in,
)
from coreai_onnx.model.files.saving import save_models


def test_large_arrays_are_mapped_from_a_file_without_a_name(tmp_path: Path) -> None:
    large = np.arange(LARGE, dtype=np.float16).reshape(4, -1)
    small = np.arange(5)
    assert on_disk(large) is large
    with scratch_in(tmp_path):
        kept = [on_disk(large), on_disk(large.T), on_disk(large.astype(ml_dtypes.bfloat16))]
        assert on_disk(small) is small
    assert not list(tmp_path.iterdir())
    expected = [large, large.T, large.astype(ml_dtypes.bfloat16)]
    for array, values in zip(kept, expected, strict=True):
        assert isinstance(array, np.memmap)
        assert array.dtype == values.dtype
        assert np.array_equal(array, values)


def nameless(folder: Path) -> Path:
    """Return an open file in a folder that has no name."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself
            target = str(descriptor.readlink())
            if target.startswith(str(folder)) and target.endswith("(deleted)"):
                return descriptor
    raise AssertionError("all files have names")


def model_of(**tensors: ir.TensorProtocol) -> ir.Model:
    initializers = [ir.val(name, const_value=tensor) for name, tensor in tensors.items()]
    return ir.Model(ir.Graph([], [], nodes=[], initializers=initializers), ir_version=10)


def test_the_disk_holds_each_tensor_once(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 255, (4, LARGE), np.uint8)
    arrays = {"a": values[:1], "b": values[1:3].view(np.float16), "half": values[1:2]}

    def save(folder: Path, tensors: dict[str, ir.TensorProtocol]) -> ir.Model:
        folder.mkdir()
        model = model_of(**tensors)
        # One data file of two models, which merges what is equal.
        paths = {folder / f"{i}.onnx": model for i in range(2)}
        save_models(paths, folder / "data", external_data=True)
        save_models({folder / "alone.onnx": model}, folder / "alone", external_data=True)
        return model

    plain = save(tmp_path / "plain", {name: ir.tensor(a) for name, a in arrays.items()})
    with scratch_in(tmp_path):
        a, b = on_disk(arrays["a"]), on_disk(arrays["b"])
        half = b.view(np.uint8)[:1]
        scratch = nameless(tmp_path)
        assert scratch.stat().st_blocks * 512 >= 3 * LARGE
        tensors = [ir.tensor(a), TorchTensor(torch.from_numpy(b)), ir.tensor(half)]
        model = save(tmp_path / "moved", dict(zip(arrays, tensors, strict=True)))
        assert scratch.stat().st_blocks == 0
    for file in (tmp_path / "plain").iterdir():
        assert (tmp_path / "moved" / file.name).read_bytes() == file.read_bytes()
    for name, value in plain.graph.initializers.items():
        moved = model.graph.initializers[name].const_value
        assert moved.dtype == value.const_value.dtype
        assert moved.tobytes() == value.const_value.tobytes()  # of NaN as well


def test_a_transpose_stays_in_the_scratch_file(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 255, (1024, LARGE // 1024), np.uint8)
    with scratch_in(tmp_path):
        kept = on_disk(values)
        model = model_of(t=ir.tensor(kept.T), w=ir.tensor(kept))
        save_models({tmp_path / "m.onnx": model}, tmp_path / "data", external_data=True)
        found = {name: v.const_value.numpy() for name, v in model.graph.initializers.items()}
    assert np.array_equal(found["t"], values.T)
    assert np.array_equal(found["w"], values)
    assert (tmp_path / "data").read_bytes() == values.T.tobytes() + values.tobytes()


def test_a_full_disk(tmp_path: Path) -> None:
    limit, array = resource.getrlimit(resource.RLIMIT_FSIZE), np.ones(LARGE, np.uint8)
    with scratch_in(tmp_path):
        on_disk(array)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE + 100, limit[1]))
        try:
            with pytest.raises(SaveError, match=r"cannot write to .*: File too"):
                on_disk(array)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not list(tmp_path.iterdir())


def test_tensors_are_converted_when_they_are_read() -> None:
    values = np.random.default_rng(0).normal(size=(3, 5)).astype(ml_dtypes.bfloat16)
    stored = MappedTensor(ir.Tensor(values, name="w"), "key", transposed=False)
    wide = WidenedTensor(stored, ir.DataType.FLOAT, "w")
    turned = wide.transpose("w.T")
    assert (wide.dtype, turned.name, list(turned.shape)) == (ir.DataType.FLOAT, "w.T", [5, 3])
    assert np.array_equal(wide.numpy(), values.astype(np.float32))
    assert np.array_equal(turned.numpy(), values.T.astype(np.float32))
    assert turned.stored.key == stored.key
    assert turned.stored.tobytes() == np.ascontiguousarray(values.T).tobytes()
    assert np.shares_memory(turned.stored.numpy(), values)


def test_the_memory_is_that_of_the_machine_or_less() -> None:
    total = next(x for x in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in x)
    assert 0 < memory_bytes() <= int(total.split()[1]) << 10
