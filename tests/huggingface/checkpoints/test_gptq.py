"""GPTQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import gptq as reader
from coreai_onnx.huggingface.checkpoints.packed_matrices import unpacked_rows
from tests.huggingface.checkpoints.formats import (
    FORMATS,
    GROUP,
    Written,
    gptq,
    read_back,
    stream,
    values,
)


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("gptq")])
def test_every_code_has_its_value(name: str, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, reader, FORMATS[name])
    assert torch.equal(values, wanted)


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
@pytest.mark.parametrize("writer", ["gptqmodel:5.0.0", "auto_gptq", None])
def test_zero_points_of_0(writer: str | None, bits: int, tmp_path: Path) -> None:
    """GPTQModel subtracts 1 from all zero points of a word at once, except with 3 bits."""
    settings, write = gptq(bits, version="gptq_v2")

    def written(shape: tuple[int, int]) -> Written:
        tensors, _ = write(shape)
        zeros = torch.randint(0, 1 << bits, (shape[0], shape[1] // GROUP))
        zeros[::3] = 0
        words = stream(zeros.T, bits)
        if writer and "gptqmodel" in writer and bits != 3:
            words = words - sum(1 << place for place in range(0, 32, bits))
        else:
            words = stream((zeros.T - 1) % (1 << bits), bits)
        codes = unpacked_rows(tensors["qweight"].T, bits, shape[1]).long()
        tensors["qzeros"] = words
        return tensors, values(codes, tensors["scales"].T, zeros)

    described = {**settings, "checkpoint_format": "gptq", "meta": {"quantizer": [writer]}}
    read, wanted = read_back(tmp_path, reader, (described, written))
    assert torch.equal(read, wanted)


def test_words_of_another_size(tmp_path: Path) -> None:
    settings, write = gptq(4)

    def written(shape: tuple[int, int]) -> Written:
        tensors, weight = write(shape)
        tensors["qweight"] = tensors["qweight"].T.contiguous().view(torch.int16).T.contiguous()
        tensors["qzeros"] = tensors["qzeros"].view(torch.int16)
        return tensors, weight

    read, wanted = read_back(tmp_path, reader, ({**settings, "pack_dtype": "int16"}, written))
    assert torch.equal(read, wanted)


@pytest.mark.parametrize("pattern", ["+:.*c$", "fc", r"(a|f)\w"])
def test_settings_of_a_layer(pattern: str, tmp_path: Path) -> None:
    _, write = gptq(8, version="gptq_v2", sort=True, group=48)
    settings, _ = gptq(4, version="gptq_v2")
    own = {"bits": 8, "group_size": 48, "desc_act": True, "damp_percent": 0.1}
    dynamic = {"-:.*lm_head": {}, pattern: own, ".*": {"bits": 2}}
    read, wanted = read_back(tmp_path, reader, ({**settings, "dynamic": dynamic}, write))
    assert torch.equal(read, wanted)


def test_the_format_under_its_later_name(tmp_path: Path) -> None:
    settings, write = gptq(4, version="gptq_v2")
    settings["format"] = settings.pop("checkpoint_format")
    read, wanted = read_back(tmp_path, reader, (settings, write))
    assert torch.equal(read, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checkpoint_format": "marlin"}, "the format must be one of gptq, gptq_v2, got 'marlin'"),
        ({"bits": 9}, "weights of 9 bits"),
        ({"bits": 8}, "words do not hold 64 codes of 8 bits"),
        ({"bits": 2}, "words do not hold 64 codes of 2 bits"),
        ({"group_size": 48}, r"\[64, 2\] for 96 inputs in groups of 48, got \[64, 3\]"),
        ({"dynamic": {"-:fc": {}}}, "excludes the layer, but it has codes"),
        ({"dynamic": {"fc": {"bits": 8}}}, "words do not hold 64 codes of 8 bits"),
        ({"dynamic": {"fc": {"rotation": "hadamard"}}}, "setting rotation = 'hadamard' is not"),
        ({"dynamic": {"(": {"bits": 8}}}, r"the pattern '\(' of layers is not valid"),
        ({"adapter": {"rank": 8}}, "setting adapter = {'rank': 8} is not supported"),
        ({"activation": {"mode": "w4afp8"}}, "GPTQ: the setting activation"),
    ],
)
def test_unsupported_settings(change: dict[str, object], message: str, tmp_path: Path) -> None:
    settings, write = gptq(4)
    with pytest.raises(ModelSourceError, match=message):
        read_back(tmp_path, reader, ({**settings, **change}, write))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("qweight", torch.Tensor.float, r"be a matrix of integers, got torch.float32 \[64, 12\]"),
        ("qzeros", torch.Tensor.half, "matrix of integers, got torch.float16"),
        ("scales", torch.Tensor.int, "floating-point matrix, got torch.int32"),
        ("g_idx", lambda x: x + 1, r"groups of columns \(g_idx\) must be 96 numbers below 3"),
    ],
)
def test_tensors_of_another_dtype(name: str, change: Any, message: str, tmp_path: Path) -> None:
    settings, write = gptq(4)

    def written(shape: tuple[int, int]) -> Written:
        tensors, weight = write(shape)
        return {**tensors, name: change(tensors[name])}, weight

    with pytest.raises(ModelSourceError, match=message):
        read_back(tmp_path, reader, (settings, written))


def test_sorted_groups_without_their_order(tmp_path: Path) -> None:
    settings, write = gptq(4, sort=True)

    def written(shape: tuple[int, int]) -> Written:
        tensors, weight = write(shape)
        return {name: x for name, x in tensors.items() if name != "g_idx"}, weight

    with pytest.raises(ModelSourceError, match=r"desc_act needs the tensor fc\.g_idx"):
        read_back(tmp_path, reader, (settings, written))
