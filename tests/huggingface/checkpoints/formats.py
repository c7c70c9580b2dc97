"""Writes small quantized checkpoints by hand, as the documentation of their formats says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from coreai_onnx.composites.few_bit_weights import dequantized
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedMatrix
from coreai_onnx.huggingface.checkpoints.settings import Checkpoint
from coreai_onnx.model.weight_formats import NAMES
from tests.support.huggingface_folders import llama

GROUP = 32
Written = tuple[dict[str, torch.Tensor], torch.Tensor]
"""The tensors of one layer by the ends of their names, and the weight in floating point."""


def stream(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack the last axis as a little-endian bit stream in int32 words, bit by bit."""
    places = (codes.long().unsqueeze(-1) >> torch.arange(bits)) & 1
    flat = places.flatten(-2).numpy().astype(np.uint8)
    padded = np.pad(flat, [(0, 0), (0, -flat.shape[-1] % 32)])
    return torch.from_numpy(np.packbits(padded, axis=-1, bitorder="little").view(np.int32))


def random_codes(shape: tuple[int, int], bits: int, groups: int) -> tuple[torch.Tensor, ...]:
    """Return codes, scales in float16 and zero points of a weight."""
    codes = torch.randint(0, 1 << bits, shape)
    scales = ((torch.rand(shape[0], groups) + 0.5) / (8 << bits)).half()
    zeros = torch.randint(1, (1 << bits), (shape[0], groups))
    return codes, scales, zeros


def values(
    codes: torch.Tensor, scales: torch.Tensor, zeros: Any, of: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the weight; ``of`` is the group of each column."""
    groups = torch.arange(codes.shape[1]) // (codes.shape[1] // scales.shape[1])
    groups = groups if of is None else of
    zero = zeros[:, groups] if isinstance(zeros, torch.Tensor) else zeros
    return (codes - zero) * scales.float()[:, groups]


def compressed(bits: int, *, symmetric: bool, channel: bool = False, sort: bool = False) -> Any:
    def write(shape: tuple[int, int]) -> Written:
        groups = 1 if channel else shape[1] // GROUP
        codes, scales, zeros = random_codes(shape, bits, groups)
        tensors = {"weight_packed": stream(codes, bits), "weight_scale": scales}
        tensors["weight_shape"] = torch.tensor(shape)
        if not symmetric:
            tensors["weight_zero_point"] = stream(zeros.T, bits).T.contiguous()
        of = torch.randperm(shape[1]) // (shape[1] // groups) if sort else None
        if of is not None:
            tensors["weight_g_idx"] = of.int()
        return tensors, values(codes, scales, 1 << (bits - 1) if symmetric else zeros, of)

    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
        },
        write,
    )


def gptq(bits: int, *, version: str = "gptq", sort: bool = False, group: int = GROUP) -> Any:
    def write(shape: tuple[int, int]) -> Written:
        codes, scales, zeros = random_codes(shape, bits, -(-shape[1] // group))
        of = (torch.randperm(shape[1]) if sort else torch.arange(shape[1])) // group
        stored = zeros - (1 if version == "gptq" else 0)
        tensors = {
            "qweight": stream(codes, bits).T.contiguous(),
            "qzeros": stream(stored.T, bits),
            "scales": scales.T.contiguous(),
            "g_idx": of.int(),
        }
        return tensors, values(codes, scales, zeros, of)

    settings = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": sort}
    return {**settings, "checkpoint_format": version}, write


def awq() -> Any:
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def packed(columns: torch.Tensor) -> torch.Tensor:
        return stream(columns.unflatten(-1, (-1, 8))[..., order].flatten(-2), 4)

    def write(shape: tuple[int, int]) -> Written:
        codes, scales, zeros = random_codes(shape, 4, shape[1] // GROUP)
        tensors = {"qweight": packed(codes.T), "qzeros": packed(zeros.T)}
        tensors["scales"] = scales.T.contiguous()
        return tensors, values(codes, scales, zeros)

    settings = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
    return {**settings, "zero_point": True}, write


def nf4(block: int, *, nested: bool = False, kind: str = "nf4") -> Any:
    palette = torch.linspace(-1, 1, 16) ** 3

    def write(shape: tuple[int, int]) -> Written:
        codes = torch.randint(0, 16, shape)
        pairs = codes.view(-1, 2)
        scales = torch.rand(codes.numel() // block) / 8
        state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "shape": list(shape)}
        tensors = {
            "weight": (pairs[:, :1] * 16 + pairs[:, 1:]).to(torch.uint8),
            "weight.absmax": scales,
            "weight.quant_map": palette,
        }
        if nested:
            steps = torch.randint(0, 256, scales.shape)
            outer = torch.rand(-(-len(steps) // 4)) / 8
            tensors["weight.absmax"] = steps.to(torch.uint8)
            tensors["weight.nested_absmax"] = outer
            tensors["weight.nested_quant_map"] = torch.linspace(-1, 1, 256)
            state |= {"nested_blocksize": 4, "nested_offset": 0.1}
            of = torch.arange(len(steps)) // 4
            scales = tensors["weight.nested_quant_map"][steps] * outer[of] + 0.1
        described = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        tensors[f"weight.quant_state.bitsandbytes__{kind}"] = described
        weight = palette[codes].view(-1, block) * scales.unsqueeze(1)
        return tensors, weight.view(shape)

    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    return {**settings, "bnb_4bit_quant_type": kind}, write


def bytes8() -> Any:
    def write(shape: tuple[int, int]) -> Written:
        codes = torch.randint(-127, 128, shape)
        largest = torch.rand(shape[0]) + 0.1
        return (
            {"weight": codes.to(torch.int8), "SCB": largest},
            codes * largest.unsqueeze(1) / 127,
        )

    return {"quant_method": "bitsandbytes", "load_in_8bit": True}, write


def fp8(*, blocks: tuple[int, int] | None = (48, 40), powers: bool = False) -> Any:
    """Scales of ``fp8`` for blocks, or of ``fbgemm_fp8`` for outputs."""

    def write(shape: tuple[int, int]) -> Written:
        weight = torch.randn(shape).to(torch.float8_e4m3fn)
        rows, columns = blocks or (1, shape[1])
        scales = torch.rand(-(-shape[0] // rows), -(-shape[1] // columns)) / 64
        if powers:
            scales = scales.to(torch.float8_e8m0fnu)
        wide = scales.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        name = "weight_scale" if blocks is None else "weight_scale_inv"
        values = weight.float() * wide[: shape[0], : shape[1]]
        return {"weight": weight, name: scales, "input_scale": torch.ones(1)}, values

    if blocks is None:
        return {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, write
    settings = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    return {**settings, "weight_block_size": list(blocks)}, write


def float4(*, inputs: bool = False) -> Any:
    """``NVFP4`` of ModelOpt, with codes in the order of E2M1."""
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat([numbers, -numbers])

    def write(shape: tuple[int, int]) -> Written:
        codes = torch.randint(0, 16, shape)
        scales = (torch.rand(shape[0], shape[1] // 16) * 448).to(torch.float8_e4m3fn)
        total = torch.rand(()) / 4096
        tensors = {
            "weight": (codes[:, ::2] + 16 * codes[:, 1::2]).to(torch.uint8),
            "weight_scale": scales,
            "weight_scale_2": total,
        }
        if inputs:
            tensors["input_scale"] = torch.tensor(0.25)
        return tensors, numbers[codes] * (scales.float() * total).repeat_interleave(16, 1)

    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, write


def auto_round(layout: str) -> Any:
    of = {"auto_awq": awq(), "auto_gptq": gptq(4), "auto_round": gptq(4, version="gptq_v2")}
    _, written = of[layout]

    def write(shape: tuple[int, int]) -> Written:
        tensors, weight = written(shape)
        return {name: x for name, x in tensors.items() if name != "g_idx"}, weight

    packing = layout if layout == "auto_round" else f"auto_round:{layout}"
    settings = {"quant_method": "auto-round", "packing_format": packing, "data_type": "int"}
    return {**settings, "bits": 4, "group_size": GROUP, "sym": False}, write


def hqq(bits: int, group: int = GROUP) -> Any:
    """Groups of neighbors that continue from row to row."""

    def write(shape: tuple[int, int]) -> Written:
        codes = torch.randint(0, 1 << bits, shape)
        count = codes.numel() // group
        scales, zeros = torch.rand(count, 1).half() / 16, torch.rand(count, 1).half() * 4
        per, last = (10, 27) if bits == 3 else (8 // bits, 8 - bits)
        flat = codes.view(count, group)
        flat = torch.nn.functional.pad(flat, (0, 0, 0, -count % per))
        shifts = torch.arange(last, -1, -bits)
        words = (flat.view(per, -1, group) << shifts.view(-1, 1, 1)).sum(0)
        tensors = {
            "W_q": words.to(torch.int32 if bits == 3 else torch.uint8),
            "scale": scales,
            "zero": zeros,
            "nbits": torch.tensor(bits, dtype=torch.int32),
            "axis": torch.tensor(1, dtype=torch.int32),
            "shape": torch.tensor(shape),
            "quant_scale": torch.tensor(0, dtype=torch.uint8),
        }
        values = (codes.view(count, group) - zeros.float()) * scales.float()
        return tensors, values.view(shape)

    return {"quant_method": "hqq", "quant_config": {}, "skip_modules": ["lm_head"]}, write


def quanto(bits: int, kind: str = "qint") -> Any:
    """Groups of 96 neighbors, or a scale for each row."""

    def write(shape: tuple[int, int]) -> Written:
        ones = {"input_scale": torch.tensor(1.0), "output_scale": torch.tensor(1.0)}
        if bits == 8:
            scales = torch.rand(shape[0], 1) / 99
            data = torch.randint(-128, 128, shape).to(torch.int8)
            if kind != "qint":
                data = torch.randn(shape).to(torch.float8_e4m3fn)
            return ones | {"weight._data": data, "weight._scale": scales}, data.float() * scales
        codes = torch.randint(0, 1 << bits, shape).view(-1, 32)
        scales, shifts = torch.rand(len(codes), 1) / 16, torch.rand(len(codes), 1)
        # Powers of 2, so that the shift is a zero point without a rounding.
        scales = torch.exp2(torch.log2(scales).round())
        parts = codes.view(8 // bits, -1, 32) << torch.arange(0, 8, bits).view(-1, 1, 1)
        tensors = {"weight._data._data": parts.sum(0).to(torch.uint8), "weight._scale": scales}
        values = codes * scales - shifts
        return ones | tensors | {"weight._shift": shifts}, values.view(shape)

    return {"quant_method": "quanto", "layers": {"fc": {"weights": f"{kind}{bits}"}}}, write


FORMATS: dict[str, Any] = {
    "compressed-tensors 4": compressed(4, symmetric=True),
    "compressed-tensors 8": compressed(8, symmetric=True),
    "compressed-tensors zeros": compressed(4, symmetric=False),
    "compressed-tensors channel": compressed(8, symmetric=False, channel=True),
    "compressed-tensors sorted": compressed(4, symmetric=True, sort=True),
    "gptq 4": gptq(4),
    "gptq 8": gptq(8),
    "gptq 3": gptq(3),
    "gptq 2": gptq(2),
    "gptq 5": gptq(5),
    "gptq 6": gptq(6),
    "gptq, groups that do not divide a row": gptq(4, group=40),
    "gptq, odd groups": gptq(4, group=33),
    "gptq, sorted groups that do not divide a row": gptq(3, sort=True, group=40),
    "gptq v2": gptq(4, version="gptq_v2"),
    "gptq sorted": gptq(4, sort=True),
    "awq": awq(),
    "nf4": nf4(32),
    "nf4 long blocks": nf4(64),
    "nf4 nested": nf4(32, nested=True),
    "fp4": nf4(32, kind="fp4"),
    "bitsandbytes 8": bytes8(),
    "fp8": fp8(),
    "fp8 with powers of 2": fp8(powers=True),
    "fp8 of fbgemm": fp8(blocks=None),
    "modelopt": float4(),
    "auto-round": auto_round("auto_round"),
    "auto-round gptq": auto_round("auto_gptq"),
    "auto-round awq": auto_round("auto_awq"),
    "hqq 8": hqq(8),
    "hqq 4": hqq(4, group=64),
    "hqq 3": hqq(3),
    "hqq 2": hqq(2),
}


def write_folder(
    folder: Path, form: tuple[dict[str, Any], Callable[[tuple[int, int]], Written]]
) -> Any:
    """Write a decoder with quantized linear layers, and return the model in floating point."""
    settings, write = form
    model = llama(attention_bias=True, hidden_size=128, intermediate_size=160)
    tensors = dict(model.state_dict())
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and path != "lm_head":
            made, weight = write((module.out_features, module.in_features))
            del tensors[f"{path}.weight"]
            tensors |= {f"{path}.{name}": tensor for name, tensor in made.items()}
            module.weight.data.copy_(weight)
    save_model(folder, model, settings, tensors)
    return model


def save_model(
    folder: Path, model: Any, settings: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {**model.config.to_dict(), "quantization_config": settings}
    content["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    kept = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def read_back(
    folder: Path, reader: Any, form: tuple[dict[str, Any], Any], shape: tuple[int, int] = (64, 96)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write one layer and read it; return the values that were read, and those that were meant."""
    torch.manual_seed(0)
    settings, write = form
    reader.check(settings)
    tensors, wanted = write(shape)
    save_file({f"fc.{name}": x for name, x in tensors.items()}, folder / "model.safetensors")
    return values_of(reader.read(Checkpoint.of(folder), "fc", settings, shape).matrix), wanted


def values_of(weight: PackedMatrix) -> torch.Tensor:
    """Return the weight in float32, with its columns in the order of the inputs."""
    parts = [getattr(weight, name) for name in NAMES]
    values = dequantized(parts, weight.bits, weight.scale_bits, torch.float32).flatten(1)
    if weight.order is None:
        return values
    return torch.empty_like(values).index_copy_(1, weight.order, values)
