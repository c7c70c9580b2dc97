"""Headers of GGUF files that lie: each is one error, in little memory and time."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Value

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.gguf.header import read_header

SPARSE = 1 << 36
"""Bytes of a file that are not written: every size below is in the file."""


def text(value: bytes | str) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value(name: str, kind: Value | int, data: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + data


def array(kind: Value | int, count: int, data: bytes = b"") -> bytes:
    return value("a", Value.ARRAY, struct.pack("<IQ", kind, count) + data)


def tensor(name: str, dims: tuple[int, ...], start: int = 0, kind: int = Type.F32) -> bytes:
    numbers = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, start)
    return text(name) + numbers


def header(*values: bytes, tensors: tuple[bytes, ...] = (), version: int = 3) -> bytes:
    counts = struct.pack("<IQQ", version, len(tensors), len(values))
    return b"GGUF" + counts + b"".join(values) + b"".join(tensors)


def counted(tensors: int, values: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, values)


HALF = struct.pack("<Q", SPARSE // 2)
MOST = 1 << 64
LIES = {
    "a text of half the file": (header(HALF), "34,359,738,368 bytes in a text, at most 65,536"),
    "a value of half the file": (header(value("a", Value.STRING, HALF)), "at most 16,777,216"),
    "an array of half the file": (header(array(Value.UINT8, SPARSE // 2)), "elements in an array"),
    "an array of 2^64": (header(array(Value.FLOAT64, MOST - 1)), "elements in an array"),
    "an array of empty texts": (header(array(Value.STRING, SPARSE // 16)), "elements in an array"),
    "arrays of many": (
        header(*[array(Value.UINT8, 1 << 21).replace(b"a", name, 1) + bytes(1 << 21)
                 for name in (b"a", b"b", b"c")]), "6,291,456 elements in arrays"),
    "an array of arrays": (header(array(Value.ARRAY, 1)), "arrays of arrays"),
    "an array of unknown type": (header(array(99, 1)), r"unknown type \(99\)"),
    "a value of unknown type": (header(value("a", 13, b"")), r"unknown type \(13\)"),
    "2^64 tensors": (counted(MOST - 1, 0), "tensors, at most 1,048,576"),
    "2^64 values": (counted(0, MOST - 1), "values in the metadata, at most 1,048,576"),
    "a million values": (counted(0, 1 << 20), "the metadata has '' twice"),
    "a million tensors": (counted(1 << 20, 0), "has 0 dims"),
    "version 1": (header(version=1), "GGUF version 1 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "order of another machine"),
    "another magic": (b"GGML" + bytes(20), "is not a GGUF file"),
    "a name twice": (header(*[value("a", Value.BOOL, b"\1")] * 2), "the metadata has 'a' twice"),
    "a tensor twice": (header(tensors=(tensor("t", (8,)),) * 2), "'t' occurs twice"),
    "alignment 0": (
        header(value("general.alignment", Value.UINT32, bytes(4))), "must be a power of 2, got 0"),
    "alignment 3": (
        header(value("general.alignment", Value.UINT32, b"\3\0\0\0")), "must be a power of 2"),
    "a text as alignment": (
        header(value("general.alignment", Value.STRING, text("32"))), "must be a power of 2"),
    "no dims": (header(tensors=(tensor("t", ()),)), "'t' has 0 dims"),
    "5 dims": (header(tensors=(tensor("t", (1,) * 5),)), "'t' has 5 dims"),
    "a dim of 0": (header(tensors=(tensor("t", (0, 1 << 63)),)), r"'t' is empty: \["),
    "dims of 2^63": (header(tensors=(tensor("t", (1 << 63, 1 << 63)),)), "'t' ends at byte"),
    "an offset of 2^64": (header(tensors=(tensor("t", (8,), MOST - 32),)), "'t' ends at byte"),
    "an odd offset": (header(tensors=(tensor("t", (8,), 8),)), "'t' begins at byte 8"),
    "tensors that overlap": (
        header(tensors=(tensor("t", (64,)), tensor("u", (8,), 32))), "'t' and 'u' overlap"),
    "an unknown type": (header(tensors=(tensor("t", (32,), 0, 200),)), "has the type 200"),
    "a part of a block": (header(tensors=(tensor("t", (33,), 0, Type.Q8_0),)), "33 columns in bl"),
    "a name that is not UTF-8": (header(tensors=(text(b"\xff") + bytes(24),)), "is not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_one_error_in_little_memory(name: str, tmp_path: Path) -> None:
    content, message = LIES[name]
    path = tmp_path / "lies.gguf"
    path.write_bytes(content)
    os.truncate(path, SPARSE)
    tracemalloc.start()
    with pytest.raises(ModelSourceError, match=message) as error:
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "\n" not in str(error.value)
    assert peak < 1_000_000


SMALL = header(
    value("general.name", Value.STRING, text("tiny")),
    array(Value.STRING, 2, text("a") + text("bc")),
    value("x", Value.FLOAT64, struct.pack("<d", 0.5)),
    tensors=(tensor("t", (8, 2)), tensor("u", (32, 3), 64, Type.Q8_0)),
)
COMPLETE = SMALL + bytes(-len(SMALL) % 32 + 64 + 102)


def test_a_file_that_ends_at_any_byte_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(COMPLETE)
    assert read_header(path).tensors["u"].dims == (3, 32)
    for size in range(len(COMPLETE) - 1, -1, -1):
        os.truncate(path, size)
        with pytest.raises(ModelSourceError, match=r"incomplete|not a GGUF|cannot be read"):
            read_header(path)


def test_a_damaged_byte_is_an_error_or_another_value(tmp_path: Path) -> None:
    path, draw = tmp_path / "damaged.gguf", random.Random(0)
    failures = 0
    for _ in range(300):
        content = bytearray(COMPLETE)
        for _ in range(draw.choice([1, 1, 2, 8])):
            content[draw.randrange(len(SMALL))] = draw.choice([0, 1, 127, 128, 255])
        path.write_bytes(content)
        try:
            read_header(path)
        except ModelSourceError:
            failures += 1
    assert 100 < failures < 300
