"""Tensors and dims on the command line."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from coreai_onnx.cli.options.tensors import (
    DynamicDim,
    describe,
    fill_dims,
    parse_dynamic,
    random_tensor,
    read_tensor,
    restore_dtype,
    split_assignments,
)
from coreai_onnx.errors import CommandError
from coreai_onnx.model.interface import TensorInfo


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_assignments() -> None:
    assert split_assignments(["a=1", "b=x=y"], "--input") == {"a": "1", "b": "x=y"}
    for bad in ("a", "=1", "a="):
        with pytest.raises(CommandError, match=f"--input {bad}: expected NAME=VALUE"):
            split_assignments([bad], "--input")
    with pytest.raises(CommandError, match="'a' is given twice"):
        split_assignments(["a=1", "a=2"], "--input")


def test_files(tmp_path: Path, rng: np.random.Generator) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    assert read_tensor(str(tmp_path / "x.npy"), rng).tolist() == [0, 1, 2]
    with pytest.raises(CommandError, match=r"cannot read .*nowhere.npy"):
        read_tensor(str(tmp_path / "nowhere.npy"), rng)
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(CommandError, match=r"pipe\.npy: is not a regular file"):
        read_tensor(str(tmp_path / "pipe.npy"), rng)
    with pytest.raises(CommandError, match="File name too long"):
        read_tensor("x" * 5000 + ".npy", rng)
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object))
    with pytest.raises(CommandError, match="cannot read"):
        read_tensor(str(tmp_path / "object.npy"), rng)


def test_bfloat16_files_get_their_dtype_back(tmp_path: Path, rng: np.random.Generator) -> None:
    array = np.ones(3, ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", array)
    loaded = read_tensor(str(tmp_path / "x.npy"), rng)
    restored = restore_dtype(loaded, TensorInfo("x", "bfloat16", (3,)))
    assert restored.dtype == ml_dtypes.bfloat16
    assert np.array_equal(restored, array)
    floats = np.ones(3, np.float32)
    assert restore_dtype(floats, TensorInfo("x", "bfloat16", (3,))) is floats


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [("float32[2,8]", "float32", (2, 8)), ("bfloat16[3]", "bfloat16", (3,)),
     ("int64[]", "int64", ()), ("bool[2, 2]", "bool", (2, 2))],
)  # fmt: skip
def test_types(text: str, dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    array = read_tensor(text, rng)
    assert (array.dtype.name, array.shape) == (dtype, shape)


@pytest.mark.parametrize("text", ["float32", "float32[batch]", "x.txt", "float99[2]"])
def test_what_is_no_tensor(text: str, rng: np.random.Generator) -> None:
    with pytest.raises(CommandError):
        read_tensor(text, rng)


def test_random_integers_are_zero_or_one_and_floats_are_normal(rng: np.random.Generator) -> None:
    assert set(random_tensor("int64", (100,), rng).tolist()) == {0, 1}
    floats = random_tensor("float32", (1000,), rng)
    assert abs(float(floats.mean())) < 0.2
    assert 0.8 < float(floats.std()) < 1.2


@pytest.mark.parametrize("dtype", ["complex32", "complex64", "complex128"])
def test_random_complex_numbers_have_two_parts(dtype: str, rng: np.random.Generator) -> None:
    array = random_tensor(dtype, (50, 2), rng)
    assert array.dtype.name == TensorInfo("x", dtype, ()).numpy_dtype
    assert min(array.real.std(), array.imag.std()) > 0.5
    assert random_tensor(dtype, (), rng).shape == ()


@pytest.mark.parametrize("text", ["float32[99999999999999]", "float32[" + "1," * 70 + "1]"])
def test_tensors_that_cannot_be_made(text: str, rng: np.random.Generator) -> None:
    with pytest.raises(CommandError, match="cannot be made"):
        read_tensor(text, rng)


def test_dims_are_filled() -> None:
    info = TensorInfo("x", "int64", ("batch", 3, "seq"))
    assert fill_dims(info, {"batch": 2, "seq": 5}) == (2, 3, 5)
    with pytest.raises(
        CommandError, match=r"input 'x' is int64\[batch, 3, seq\](.|\n)*--dim seq=SIZE"
    ):
        fill_dims(info, {"batch": 2})


def test_dynamic_dims() -> None:
    assert parse_dynamic(["ids:0=batch,1=seq[1..512]", "mask:0=batch", "mask:1=seq[..8]"]) == {
        "ids": (DynamicDim(0, "batch"), DynamicDim(1, "seq", 1, 512)),
        "mask": (DynamicDim(0, "batch"), DynamicDim(1, "seq", None, 8)),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x:0=n[5..3]", "n is from 5 to 3"),
        ("x:0=n[3..3]", "n is from 3 to 3"),
        ("x:0=n[..1]", "n is from 0 to 1"),
        ("x:0=n,0=m", "axis 0 is given twice"),
    ],
)
def test_dims_without_a_choice(text: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        parse_dynamic([text])


@pytest.mark.parametrize(
    "text", ["ids", "ids:", ":0=batch", "ids:batch", "ids:0=2x", "ids:0=b[1-2]"]
)
def test_dynamic_dims_of_another_form(text: str) -> None:
    with pytest.raises(CommandError, match="expected INPUT:AXIS=NAME"):
        parse_dynamic([text])


def test_descriptions() -> None:
    assert describe(np.array([1, 2, 6])) == ("int64[3]", "1", "3", "6")
    assert describe(np.zeros((0, 2), np.float32)) == ("float32[0, 2]", "-", "-", "-")
    assert describe(np.array([3 + 4j], np.complex64)) == ("complex64[1]", "5", "5", "5")
