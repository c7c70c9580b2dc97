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
from transformers.pytorch_utils import Conv1D

from coreai_onnx import export_model
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.experts import PackedExperts
from coreai_onnx.huggingface.checkpoints.loading import METHODS
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear
from coreai_onnx.huggingface.sources import load_source
from tests.huggingface.checkpoints.formats import FORMATS, gptq, save_model, write_folder
from tests.support.tolerances import assert_close

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


def mixture(folder: Path, form: Any, *, some: bool = False) -> Any:
    """Write a Mixtral with quantized experts, under the names of its checkpoints."""
    settings, write = form
    config = transformers.MixtralConfig(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    model = transformers.MixtralForCausalLM(config).eval()
    tensors = dict(model.state_dict())
    experts = model.model.layers[0].mlp.experts
    for name in ("gate_up_proj", "down_proj"):
        del tensors[f"model.layers.0.mlp.experts.{name}"]
    tensors["model.layers.0.block_sparse_moe.gate.weight"] = tensors.pop(
        "model.layers.0.mlp.gate.weight"
    )
    for expert in range(4):
        gate, up = experts.gate_up_proj.data[expert].chunk(2)
        parts = {"w1": gate, "w3": up, "w2": experts.down_proj.data[expert]}
        for name, part in parts.items():
            if some and name == "w2":
                made = {"weight": part}
            else:
                torch.manual_seed(expert)  # sorted groups are the same for w1 and w3
                made, weight = write(tuple(part.shape))
                part.copy_(weight)
            path = f"model.layers.0.block_sparse_moe.experts.{expert}.{name}"
            tensors |= {f"{path}.{key}": tensor for key, tensor in made.items()}
    save_model(folder, model, settings, tensors)
    return model


@pytest.mark.parametrize(
    "name", ["gptq 4", "gptq sorted", "awq", "nf4", "bitsandbytes 8", "fp8", "compressed-tensors 4"]
)
def test_experts_of_a_mixture(name: str, tmp_path: Path) -> None:
    for some in (False, True):
        model = mixture(tmp_path, FORMATS[name], some=some)
        loaded = load_source(tmp_path).model
        with torch.no_grad():
            assert_close(loaded(IDS).logits, model(IDS).logits)
        (experts,) = [m for m in loaded.modules() if isinstance(m, PackedExperts)]
        assert set(experts.matrices) == {"gate_up_proj"} | (set() if some else {"down_proj"})


@pytest.mark.slow
def test_an_exported_mixture_keeps_its_codes(tmp_path: Path) -> None:
    mixture(tmp_path / "model", FORMATS["gptq sorted"])
    program = export_model(tmp_path / "model", tmp_path / "onnx").program
    assert program.composites()["ai.coreai::gather_mm_nbits"] == 2


def test_experts_that_differ(tmp_path: Path) -> None:
    mixture(tmp_path, FORMATS["gptq 4"])
    path = "model.layers.0.block_sparse_moe.experts.2.w1"
    edited(tmp_path, lambda t: [t.pop(name) for name in list(t) if name.startswith(path)])
    with pytest.raises(ModelSourceError, match="the checkpoint has only some of 4 experts"):
        load_source(tmp_path)
    edited(tmp_path, lambda t: t.update({f"{path}.weight": torch.ones(96, 64)}))
    with pytest.raises(ModelSourceError, match="only some of 4 experts have quantized weights"):
        load_source(tmp_path)
    settings, _ = gptq(4)
    dynamic = {r"+:.*experts\.2\.w1": {"bits": 8}}
    mixture(tmp_path, ({**settings, "dynamic": dynamic}, gptq(4)[1]))
    made, _ = gptq(8)[1]((96, 64))
    edited(tmp_path, lambda t: t.update({f"{path}.{name}": x for name, x in made.items()}))
    with pytest.raises(ModelSourceError, match=r"gate_up_proj: .* different sizes of codes"):
        load_source(tmp_path)


@pytest.mark.parametrize("name", ["gptq 4", "nf4", "bitsandbytes 8"])
def test_layers_of_gpt2(name: str, tmp_path: Path) -> None:
    """Its linear layers are ``Conv1D``, with transposed weights."""
    settings, write = FORMATS[name]
    config = transformers.GPT2Config(vocab_size=260, n_embd=64, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    tensors = dict(model.state_dict())
    for path, module in model.named_modules():
        if isinstance(module, Conv1D):
            made, weight = write(tuple(module.weight.T.shape))
            del tensors[f"{path}.weight"]
            tensors |= {f"{path}.{key}": tensor for key, tensor in made.items()}
            module.weight.data.copy_(weight.T)
    save_model(tmp_path, model, settings, tensors)
    loaded = load_source(tmp_path).model
    with torch.no_grad():
        assert_close(loaded(IDS).logits, model(IDS).logits)
    assert sum(isinstance(m, PackedLinear) for m in loaded.modules()) == 4


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
        (
            {"quant_method": "aqlm"},
            "'aqlm' in quantization_config must be one of compressed-tensors",
        ),
        ({"bits": 9}, "weights of 9 bits are not supported"),
        (
            {"checkpoint_format": "marlin"},
            "GPTQ: the format must be one of gptq, gptq_v2, got 'marlin'",
        ),
    ]:
        write_folder(tmp_path, ({**settings, **change}, write))
        with pytest.raises(ModelSourceError, match=message):
            load_source(tmp_path)
    methods = {form[0]["quant_method"] for form in FORMATS.values()}
    # These two have folders of their own kinds: `mxfp4_folder`, and test_quanto.py.
    assert set(METHODS) == methods | {"mxfp4", "quanto"}


def test_layers_with_settings_of_their_own(tmp_path: Path) -> None:
    """GPTQModel's ``dynamic``: more bits for some layers, none for others."""
    torch.manual_seed(1)
    settings, usual = gptq(4)
    _, wide = gptq(8, group=64)

    def write(shape: tuple[int, int]) -> Any:
        return (wide if shape[0] == 160 else usual)(shape)  # gate_proj and up_proj

    dynamic = {r"+:.*\.mlp\.(gate|up)_proj": {"bits": 8, "group_size": 64}, "-:lm_head": {}}
    model = write_folder(tmp_path, ({**settings, "dynamic": dynamic}, write))
    with torch.no_grad():
        assert_close(load_source(tmp_path).model(IDS).logits, model(IDS).logits)
    write_folder(tmp_path, (settings, write))
    with pytest.raises(ModelSourceError, match=r"mlp\.gate_proj: 40 words do not hold 160 codes"):
        load_source(tmp_path)


@pytest.mark.parametrize("name", ["self_attn.k_scale", "self_attn.q_proj.weight_scale_2"])
def test_a_tensor_that_nothing_reads(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path, FORMATS["gptq 4"])
    edited(tmp_path, lambda t: t.update({f"model.layers.0.{name}": torch.ones(1)}))
    with pytest.raises(ModelSourceError, match=rf"layers\.0\.{name}, which is not supported"):
        load_source(tmp_path)


def test_codes_of_other_modules(tmp_path: Path) -> None:
    write_folder(tmp_path, FORMATS["gptq 4"])

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.embed_tokens.weight"] = torch.ones(260, 128, dtype=torch.int8)

    edited(tmp_path, change)
    with pytest.raises(ModelSourceError, match=r"embed_tokens\.weight is torch\.int8 in the check"):
        load_source(tmp_path)


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
