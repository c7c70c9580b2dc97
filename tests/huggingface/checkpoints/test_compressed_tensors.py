"""compressed-tensors, packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from coreai_onnx.composite_ops.linear_nbits import dequantized
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.byte_linear import Float8Linear, IntegerLinear
from coreai_onnx.huggingface.checkpoints.compressed_tensors import read
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear
from coreai_onnx.huggingface.checkpoints.tensors import Checkpoint
from tests.huggingface.checkpoints.formats import FORMATS, compressed, read_back
from tests.tolerances import assert_close


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("compressed")])
def test_every_code_has_its_value(name: str, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, read, FORMATS[name])
    assert_close(values.numpy(), wanted.numpy())


ACTIVATIONS = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}


def read_layer(
    folder: Path,
    tensors: dict[str, torch.Tensor],
    *,
    form: str = "int-quantized",
    activations: dict[str, Any] | None = None,
    bits: int = 8,
    **settings: Any,
) -> Any:
    """Write the tensors of one layer, 64 × 96, and read it."""
    save_file({f"fc.{name}": x for name, x in tensors.items()}, folder / "model.safetensors")
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": bits},
        "input_activations": activations,
    }
    described = {"format": form, "config_groups": {"group_0": group}, **settings}
    return read(Checkpoint.of(folder), "fc", described, (64, 96))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "groups"), [(8, 1), (8, 3), (4, 3), (4, 1)])
def test_weights_in_bytes(bits: int, groups: int, zeros: bool, tmp_path: Path) -> None:
    low, high = -(1 << (bits - 1)), 1 << (bits - 1)
    codes = torch.randint(low, high, (64, 96)).to(torch.int8)
    tensors = {"weight": codes, "weight_scale": torch.rand(64, groups)}
    if zeros:
        tensors["weight_zero_point"] = torch.randint(low, high, (64, groups)).to(torch.int8)
    weight = read_layer(tmp_path, tensors, form="naive-quantized", bits=bits)
    parts = (weight.codes, weight.scales, weight.zero_points, weight.palette)
    values = dequantized(*parts, weight.bits, torch.float32).flatten(1)
    centered = codes.float().unflatten(1, (groups, -1))
    if zeros:
        centered = centered - tensors["weight_zero_point"].float().unsqueeze(-1)
    expected = (centered * tensors["weight_scale"].unsqueeze(-1)).flatten(1)
    assert_close(values.numpy(), expected.numpy())
    assert weight.bits == bits


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, IntegerLinear),
        ({"strategy": "tensor"}, IntegerLinear),
        ({"dynamic": False, "strategy": "tensor"}, IntegerLinear),
        ({"strategy": "group", "group_size": 32}, PackedLinear),
    ],
)
def test_rounded_inputs(change: dict[str, Any], kind: type, tmp_path: Path) -> None:
    codes = torch.randint(-128, 128, (64, 96)).to(torch.int8)
    tensors = {"weight": codes, "weight_scale": torch.rand(64, 1) / 512}
    tensors["input_scale"] = torch.tensor([0.0625])
    layer = read_layer(tmp_path, tensors, activations={**ACTIVATIONS, **change})
    assert type(layer) is kind
    x = torch.randn(3, 96)
    expected = layer.rounding(x) @ (codes * tensors["weight_scale"]).T
    assert_close(layer(x), expected)


def test_groups_of_weights_with_rounded_inputs(tmp_path: Path) -> None:
    codes = torch.randint(-128, 128, (64, 96)).to(torch.int8)
    scales = torch.rand(64, 3) / 512
    tensors = {"weight": codes, "weight_scale": scales}
    layer = read_layer(tmp_path, tensors, activations=ACTIVATIONS)
    assert type(layer) is PackedLinear
    x = torch.randn(3, 96)
    expected = layer.rounding(x) @ (codes * scales.repeat_interleave(32, 1)).T
    assert_close(layer(x), expected)


def test_float8(tmp_path: Path) -> None:
    weight, scales = torch.randn(64, 96).to(torch.float8_e4m3fn), torch.rand(64, 1)
    activations = {**ACTIVATIONS, "type": "float"}
    layer = read_layer(
        tmp_path,
        {"weight": weight, "weight_scale": scales},
        form="float-quantized",
        activations=activations,
    )
    assert type(layer) is Float8Linear
    x = torch.randn(3, 96)
    assert_close(layer(x), layer.rounding(x) @ (weight.float() * scales).T)


def test_settings_of_a_path_precede_those_of_the_class(tmp_path: Path) -> None:
    tensors = {"weight": torch.zeros(64, 96).to(torch.int8), "weight_scale": torch.rand(64, 1)}
    own = {"targets": ["re:.*c$"], "weights": {"num_bits": 8}, "input_activations": ACTIVATIONS}
    others = {"targets": ["Linear"], "weights": {"num_bits": 8}}
    for groups in ({"a": own, "b": others}, {"a": others, "b": own}):
        layer = read_layer(tmp_path, tensors, config_groups=groups)
        assert type(layer) is IntegerLinear


def test_other_formats(tmp_path: Path) -> None:
    tensors = {"weight": torch.zeros(64, 96).to(torch.int8), "weight_scale": torch.rand(64, 1)}
    with pytest.raises(ModelSourceError, match="in the format 'marlin-24', not 'pack-quantized'"):
        read_layer(tmp_path, tensors, form="marlin-24")
    with pytest.raises(ModelSourceError, match="with sparsity 'sparse-24-bitmask'"):
        read_layer(tmp_path, tensors, sparsity_config={"format": "sparse-24-bitmask"})
    groups = {"a": {"targets": ["Linear"], "output_activations": {"num_bits": 8}}}
    with pytest.raises(ModelSourceError, match="with rounded outputs"):
        read_layer(tmp_path, tensors, config_groups=groups)
    with pytest.raises(ModelSourceError, match="inputs rounded to int of 4 bits"):
        read_layer(tmp_path, tensors, activations={**ACTIVATIONS, "num_bits": 4})
    with pytest.raises(ModelSourceError, match=r"the weight is torch\.float32"):
        read_layer(tmp_path, {**tensors, "weight": torch.zeros(64, 96)})
    with pytest.raises(ModelSourceError, match="values that do not fit in 4 bits"):
        read_layer(tmp_path, {**tensors, "weight": torch.full((64, 96), 9).to(torch.int8)}, bits=4)
    with pytest.raises(ModelSourceError, match=r"scales \[64, 5\] do not divide"):
        read_layer(tmp_path, {**tensors, "weight_scale": torch.rand(64, 5)})


def test_words_that_do_not_fit(tmp_path: Path) -> None:
    settings, write = compressed(3, symmetric=True)
    with pytest.raises(ModelSourceError, match="9 words for 96 inputs are not of 8, 4 or 2 bits"):
        read_back(tmp_path, read, (settings, write))
