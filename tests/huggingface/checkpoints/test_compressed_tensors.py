"""compressed-tensors, packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from coreai_onnx.composites.few_bit_weights import numbers_of
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import compressed_tensors as reader
from coreai_onnx.huggingface.checkpoints.byte_linear import multiplies_integers
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear
from coreai_onnx.huggingface.checkpoints.settings import Checkpoint
from coreai_onnx.model.weight_formats import E2M1
from tests.huggingface.checkpoints.formats import FORMATS, GROUP, compressed, read_back, values_of
from tests.support.tolerances import assert_close


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("compressed")])
def test_every_code_has_its_value(name: str, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, reader, FORMATS[name])
    assert torch.equal(values, wanted)


ACTIVATIONS = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}


def read_layer(
    folder: Path,
    tensors: dict[str, torch.Tensor],
    *,
    form: str = "int-quantized",
    activations: dict[str, Any] | None = None,
    bits: int = 8,
    weights: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Write the tensors of one layer, 64 × 96, and read its weight."""
    save_file({f"fc.{name}": x for name, x in tensors.items()}, folder / "model.safetensors")
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": bits, **(weights or {})},
        "input_activations": activations,
    }
    described = {"format": form, "config_groups": {"group_0": group}, **settings}
    reader.check(described)
    return reader.read(Checkpoint.of(folder), "fc", described, (64, 96))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "groups"), [(8, 1), (8, 3), (4, 3), (4, 1)])
def test_weights_in_bytes(bits: int, groups: int, zeros: bool, tmp_path: Path) -> None:
    low, high = -(1 << (bits - 1)), 1 << (bits - 1)
    codes = torch.randint(low, high, (64, 96)).to(torch.int8)
    tensors = {"weight": codes, "weight_scale": torch.rand(64, groups)}
    if zeros:
        tensors["weight_zero_point"] = torch.randint(low, high, (64, groups)).to(torch.int8)
    weight = read_layer(tmp_path, tensors, form="naive-quantized", bits=bits)
    values = values_of(weight.matrix)
    centered = codes.float().unflatten(1, (groups, -1))
    if zeros:
        centered = centered - tensors["weight_zero_point"].float().unsqueeze(-1)
    expected = (centered * tensors["weight_scale"].unsqueeze(-1)).flatten(1)
    assert torch.equal(values, expected)
    assert weight.matrix.bits == bits


@pytest.mark.parametrize(
    ("change", "integers"),
    [
        ({}, True),
        ({"strategy": "tensor"}, True),
        ({"dynamic": False, "strategy": "tensor"}, True),
        ({"strategy": "group", "group_size": 32}, False),
    ],
)
def test_rounded_inputs(change: dict[str, Any], integers: bool, tmp_path: Path) -> None:
    codes = torch.randint(-128, 128, (64, 96)).to(torch.int8)
    tensors = {"weight": codes, "weight_scale": torch.rand(64, 1) / 512}
    tensors["input_scale"] = torch.tensor([0.0625])
    matrix, rounding = read_layer(tmp_path, tensors, activations={**ACTIVATIONS, **change})
    assert multiplies_integers(matrix, rounding) == integers
    assert torch.equal(values_of(matrix), codes * tensors["weight_scale"])


def test_groups_of_weights_with_rounded_inputs(tmp_path: Path) -> None:
    codes = torch.randint(-128, 128, (64, 96)).to(torch.int8)
    scales = torch.rand(64, 3) / 512
    tensors = {"weight": codes, "weight_scale": scales}
    matrix, rounding = read_layer(tmp_path, tensors, activations=ACTIVATIONS)
    assert not multiplies_integers(matrix, rounding)
    x = torch.randn(3, 96)
    expected = rounding(x) @ (codes * scales.repeat_interleave(32, 1)).T
    assert_close(PackedLinear(matrix, rounding=rounding)(x), expected)


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_number_of_bits_is_that_of_the_settings(bits: int, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, reader, compressed(bits, symmetric=False))
    assert torch.equal(values, wanted)


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
def test_words_with_whole_codes_of_earlier_releases(bits: int, tmp_path: Path) -> None:
    settings, write = compressed(bits, symmetric=True)
    per = 32 // bits

    def written(shape: tuple[int, int]) -> Any:
        tensors, weight = write(shape)
        codes = (weight / tensors["weight_scale"].float().repeat_interleave(GROUP, 1)).round()
        stored = torch.nn.functional.pad(codes.long() + (1 << (bits - 1)), (0, -shape[1] % per))
        places = torch.arange(per) * bits
        words = (stored.unflatten(1, (-1, per)) << places).sum(-1)
        return {**tensors, "weight_packed": words.to(torch.int32)}, weight

    values, wanted = read_back(tmp_path, reader, (settings, written))
    assert torch.equal(values, wanted)


@pytest.mark.parametrize(
    ("scales", "weights"),
    [
        ((64, 1), {"strategy": "channel"}),
        ((1,), {"strategy": "tensor"}),
        ((2, 3), {"strategy": "block", "block_structure": [32, 32]}),
        ((3, 2), {"strategy": "block", "block_structure": [24, 64]}),
    ],
)
def test_float8(scales: tuple[int, ...], weights: dict[str, Any], tmp_path: Path) -> None:
    stored = torch.rand(scales).bfloat16()
    tensors = {"weight": torch.randn(64, 96).to(torch.float8_e4m3fn), "weight_scale": stored}
    activations = {**ACTIVATIONS, "type": "float"}
    kind = {"type": "float", **weights}
    matrix, rounding = read_layer(
        tmp_path, tensors, form="float-quantized", activations=activations, weights=kind
    )
    rows, columns = weights.get("block_structure", (64 // scales[0], 96))
    wide = stored.float().reshape(scales[0], -1).repeat_interleave(rows, 0)
    wide = wide.repeat_interleave(columns, 1)[:64, :96]
    assert torch.equal(values_of(matrix), tensors["weight"].float() * wide)
    assert rounding.scheme.is_float


def test_float8_with_powers_of_2(tmp_path: Path) -> None:
    exponents = torch.randint(110, 130, (64, 3)).to(torch.uint8)
    values = torch.randn(64, 96).to(torch.float8_e4m3fn)
    matrix, _ = read_layer(
        tmp_path,
        {"weight": values, "weight_scale": exponents},
        form="mxfp8-quantized",
        weights={"type": "float", "strategy": "group", "group_size": 32},
    )
    wide = (2.0 ** (exponents.float() - 127)).repeat_interleave(32, 1)
    assert torch.equal(values_of(matrix), values.float() * wide)


@pytest.mark.parametrize("form", ["nvfp4-pack-quantized", "mxfp4-pack-quantized"])
def test_float4(form: str, tmp_path: Path) -> None:
    codes = torch.randint(0, 16, (64, 96))
    tensors = {"weight_packed": (codes[:, ::2] + 16 * codes[:, 1::2]).to(torch.uint8)}
    if form == "nvfp4-pack-quantized":
        size, total = 16, torch.tensor([1234.5])
        stored = (torch.rand(64, 6) * 448).to(torch.float8_e4m3fn)
        scales = stored.float() / total
        tensors["weight_global_scale"] = total
    else:
        size, stored = 32, torch.randint(110, 130, (64, 3)).to(torch.uint8)
        scales = 2.0 ** (stored.float() - 127)
    tensors["weight_scale"] = stored
    weights = {"type": "float", "strategy": "tensor_group", "group_size": size}
    matrix, rounding = read_layer(tmp_path, tensors, form=form, bits=4, weights=weights)
    assert rounding is None
    wanted = numbers_of(E2M1)[codes] * scales.repeat_interleave(size, 1)
    assert torch.equal(values_of(matrix), wanted)


def test_settings_of_a_path_precede_those_of_the_class(tmp_path: Path) -> None:
    tensors = {"weight": torch.zeros(64, 96).to(torch.int8), "weight_scale": torch.rand(64, 1)}
    own = {"targets": ["re:.*c$"], "weights": {"num_bits": 8}, "input_activations": ACTIVATIONS}
    others = {"targets": ["Linear"], "weights": {"num_bits": 8}}
    for groups in ({"a": own, "b": others}, {"a": others, "b": own}):
        assert read_layer(tmp_path, tensors, config_groups=groups).rounding is not None
    assert read_layer(tmp_path, tensors, config_groups={"a": own}, ignore=["re:f"]) is None


def test_other_formats(tmp_path: Path) -> None:
    tensors = {"weight": torch.zeros(64, 96).to(torch.int8), "weight_scale": torch.rand(64, 1)}
    with pytest.raises(ModelSourceError, match=r"one of pack-quantized, .*, got 'marlin-24'"):
        read_layer(tmp_path, tensors, form="marlin-24")
    with pytest.raises(ModelSourceError, match="sparsity 'sparse-24-bitmask'"):
        read_layer(tmp_path, tensors, sparsity_config={"format": "sparse-24-bitmask"})
    with pytest.raises(ModelSourceError, match="inputs rounded to int of 5 bits"):
        read_layer(tmp_path, tensors, activations={**ACTIVATIONS, "num_bits": 5})
    with pytest.raises(ModelSourceError, match=r"int8 or torch\.float8_e4m3fn, got torch\.float32"):
        read_layer(tmp_path, {**tensors, "weight": torch.zeros(64, 96)})
    with pytest.raises(ModelSourceError, match="values that do not fit in 4 bits"):
        read_layer(tmp_path, {**tensors, "weight": torch.full((64, 96), 9).to(torch.int8)}, bits=4)
    with pytest.raises(ModelSourceError, match=r"in groups of 19, got \[64, 5\]"):
        read_layer(tmp_path, {**tensors, "weight_scale": torch.rand(64, 5)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_cache_scheme": {"num_bits": 8}}, "setting kv_cache_scheme = {'num_bits': 8}"),
        ({"transform_config": {"config_groups": {}}}, "setting transform_config = "),
        ({"moe_sparsity_config": {"method": "prune"}}, "setting moe_sparsity_config"),
        ({"config_groups": {"W8A8": ["Linear"]}}, "config_groups.W8A8 has no settings"),
        (
            {"config_groups": {"a": {"output_activations": {"num_bits": 8}}}},
            "config_groups.a: the setting output_activations",
        ),
        (
            {"config_groups": {"a": {"weights": {"dynamic": True}}}},
            "config_groups.a.weights: the setting dynamic = True",
        ),
        ({"config_groups": {"a": {"format": "dense"}}}, "the format must be .*, got 'dense'"),
    ],
)
def test_settings_that_would_be_ignored(change: Any, message: str) -> None:
    settings, _ = compressed(4, symmetric=True)
    reader.check({**settings, "kv_cache_scheme": None, "transform_config": {}})
    with pytest.raises(ModelSourceError, match=message):
        reader.check({**settings, **change})


def test_rounded_inputs_of_a_weight_in_floating_point(tmp_path: Path) -> None:
    group = {"targets": ["Linear"], "input_activations": ACTIVATIONS}
    with pytest.raises(ModelSourceError, match="rounded inputs of a layer with a float weight"):
        read_layer(tmp_path, {"weight": torch.zeros(64, 96)}, config_groups={"a": group})
