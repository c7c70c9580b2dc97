"""Quantized checkpoints give the logits of the dequantized model, in torch and after export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from coreai_onnx import export_model
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.loading import METHODS
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear
from coreai_onnx.huggingface.sources import load_source
from tests.huggingface.checkpoints.formats import FORMATS, gptq, save_model, write_folder
from tests.tolerances import assert_close

IDS = torch.tensor([[5, 9, 3, 17, 200]])


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_dequantized_model(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = write_folder(tmp_path, FORMATS[name])
    loaded = load_source(tmp_path)
    with torch.no_grad():
        assert_close(loaded.model(IDS).logits.numpy(), model(IDS).logits.numpy())
    packed = [m for m in loaded.model.modules() if isinstance(m, PackedLinear)]
    assert len(packed) == 14
    assert loaded.task.name == "text-generation"
    assert isinstance(loaded.model.lm_head, torch.nn.Linear)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gptq sorted", "gptq 3", "awq", "nf4", "compressed-tensors 8"])
@pytest.mark.parametrize("target", ["onnxruntime", "portable", "contrib", "kernels"])
def test_exported_folders_keep_packed_matrices(name: str, target: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = write_folder(tmp_path / "model", FORMATS[name])
    made = export_model(tmp_path / "model", tmp_path / "onnx", target=target)
    program = made.program
    weights = [v.const_value for v in program.model.graph.initializers.values()]
    sizes = [w.size for w in weights if w is not None and w.dtype == ir.DataType.FLOAT]
    assert max(sizes) == 260 * 128  # the embedding and the head
    assert sum(size >= 64 * 128 for size in sizes) <= 2
    past = [torch.zeros(1, 2, 0, 32)] * 4
    mask, places = torch.ones_like(IDS), torch.arange(IDS.shape[1])[None]
    inputs = {"input_ids": IDS, "attention_mask": mask, "position_ids": places}
    names = [f"past_key_values.{i}.{k}" for i in (0, 1) for k in ("key", "value")]
    inputs |= dict(zip(names, past, strict=True))
    logits = program.run(**inputs)[0]
    with torch.no_grad():
        wanted = model(IDS).logits.numpy()
    assert_close(logits, wanted)


def gpt_oss() -> Any:
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        layer_types=["full_attention"],
    )
    return transformers.GptOssForCausalLM(config).eval()


def mxfp4_folder(folder: Path) -> Any:
    """Write experts in MXFP4; return the model with the numbers that their bits mean."""
    model = gpt_oss()
    tensors = dict(model.state_dict())
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat([numbers, -numbers])
    path = "model.layers.0.mlp.experts"
    experts = model.model.layers[0].mlp.experts
    for name in ("gate_up_proj", "down_proj"):
        weight = getattr(experts, name)
        count, inputs, outputs = weight.shape
        codes = torch.randint(0, 16, (count, outputs, inputs))
        exponents = torch.randint(120, 126, (count, outputs, inputs // 32))
        low, high = codes.unflatten(-1, (-1, 2)).unbind(-1)
        blocks = (low + 16 * high).to(torch.uint8).unflatten(-1, (-1, 16))
        del tensors[f"{path}.{name}"]
        tensors[f"{path}.{name}_blocks"] = blocks
        tensors[f"{path}.{name}_scales"] = exponents.to(torch.uint8)
        grouped = numbers[codes].unflatten(-1, (-1, 32)) * 2.0 ** (exponents[..., None] - 127)
        weight.data.copy_(grouped.flatten(-2).transpose(1, 2))
    save_model(folder, model, {"quant_method": "mxfp4"}, tensors)
    return model


@pytest.mark.slow
def test_experts_of_gpt_oss(tmp_path: Path) -> None:
    model = mxfp4_folder(tmp_path / "model")
    loaded = load_source(tmp_path / "model").model
    with torch.no_grad():
        wanted = model(IDS).logits
        assert_close(loaded(IDS).logits.numpy(), wanted.numpy())
    made = export_model(tmp_path / "model", tmp_path / "onnx")
    weights = [v.const_value for v in made.program.model.graph.initializers.values()]
    floats = [w.size for w in weights if w is not None and w.dtype == ir.DataType.FLOAT]
    assert 4 * 64 * 64 not in floats
    assert made.program.composites()["ai.coreai::gather_mm_nbits"] == 2
    codes = [w.size for w in weights if w is not None and w.dtype == ir.DataType.UINT8]
    assert sorted(codes) == [4 * 64 * 32 // 2, 4 * 64 * 64 // 2]


def edited(folder: Path, change: Any) -> None:
    """Change the tensors of a folder."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, FORMATS["gptq 4"])
    edited(tmp_path, lambda t: t.pop("model.layers.1.mlp.up_proj.scales"))
    with pytest.raises(ModelSourceError, match=r"layers\.1\.mlp\.up_proj: .*up_proj\.scales"):
        load_source(tmp_path)
    write_folder(tmp_path, FORMATS["gptq 4"])
    edited(tmp_path, lambda t: t.pop("model.layers.1.mlp.up_proj.qweight"))
    with pytest.raises(ModelSourceError, match=r"has no model\.layers\.1\.mlp\.up_proj\.weight"):
        load_source(tmp_path)


def test_unsupported_settings(tmp_path: Path) -> None:
    settings, write = gptq(4)
    for change, message in [
        ({"quant_method": "hqq"}, "'hqq' in quantization_config is none of compressed-tensors"),
        ({"bits": 5}, "weights of 5 bits are not supported"),
        ({"checkpoint_format": "marlin"}, "GPTQ in the format 'marlin'"),
    ]:
        write_folder(tmp_path, ({**settings, **change}, write))
        with pytest.raises(ModelSourceError, match=message):
            load_source(tmp_path)
    assert set(METHODS) == {"compressed-tensors", "gptq", "awq", "bitsandbytes", "mxfp4"}


def test_a_weight_of_another_shape(tmp_path: Path) -> None:
    write_folder(tmp_path, FORMATS["gptq 4"])

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = torch.ones(63)

    edited(tmp_path, change)
    with pytest.raises(ModelSourceError, match=r"model\.norm\.weight is \[63\] in the checkpoint"):
        load_source(tmp_path)


def test_a_checkpoint_of_the_model_inside(tmp_path: Path) -> None:
    """The body of a decoder alone, from the files of the decoder."""
    torch.manual_seed(1)
    model = write_folder(tmp_path, FORMATS["awq"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaModel"]}))
    loaded = load_source(tmp_path, "feature-extraction").model
    with torch.no_grad():
        wanted = model.model(IDS).last_hidden_state
        assert_close(loaded(IDS).last_hidden_state.numpy(), wanted.numpy())


def test_an_exported_folder_with_rounded_inputs_multiplies_integers(tmp_path: Path) -> None:
    torch.manual_seed(1)

    def write(shape: tuple[int, int]) -> Any:
        codes, scales = torch.randint(-127, 128, shape), torch.rand(shape[0], 1) / 1024
        return {"weight": codes.to(torch.int8), "weight_scale": scales}, codes * scales

    inputs = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
    group = {"targets": ["Linear"], "weights": {"num_bits": 8}, "input_activations": inputs}
    settings = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    model = write_folder(tmp_path / "model", ({**settings, "config_groups": {"a": group}}, write))
    program = export_model(tmp_path / "model", tmp_path / "onnx", check=False).program
    ops = [node.op_type for node in program.model.graph]
    assert ops.count("MatMulInteger") == 14
    weights = [v.const_value for v in program.model.graph.initializers.values()]
    floats = [w.size for w in weights if w is not None and w.dtype == ir.DataType.FLOAT]
    assert max(floats) == 260 * 128  # the embedding and the head
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    inputs["position_ids"] = torch.arange(IDS.shape[1])[None]
    names = [f"past_key_values.{i}.{k}" for i in (0, 1) for k in ("key", "value")]
    past = dict.fromkeys(names, torch.zeros(1, 2, 0, 32))
    logits = torch.tensor(program.run(**inputs, **past)[0])
    with torch.no_grad():
        wanted = model(IDS).logits
    assert torch.nn.functional.cosine_similarity(logits.flatten(), wanted.flatten(), 0) > 0.99
