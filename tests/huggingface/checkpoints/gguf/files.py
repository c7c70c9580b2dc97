"""Small GGUF files of language models with random weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from gguf import GGML_QUANT_SIZES, GGUFWriter, RopeScalingType, TokenType
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize

from coreai_onnx.huggingface.checkpoints.gguf.codebooks import CODEBOOKS
from coreai_onnx.huggingface.transformers_names import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)
from tests.huggingface.checkpoints.gguf.random_blocks import random_blocks

WIDTH, HEADS, GROUPS, HEAD, LAYERS = 256, 4, 2, 64, 2
TOKENS = [*(chr(c) for c in range(97, 123)), *("ab", "cd", "ef"), "<s>", "</s>", "<pad>"]
CONFIGS = {
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma3": transformers.Gemma3TextConfig,
}
"""The configurations of architectures by their names in GGUF."""
MIXTURES = {
    "qwen2moe": transformers.Qwen2MoeConfig,
    "qwen3moe": transformers.Qwen3MoeConfig,
    "llama": transformers.MixtralConfig,
}
"""Those of mixtures of experts."""
EXPERTS, CHOSEN, INNER = 4, 2, 256


def write_model(
    path: Path,
    architecture: str,
    kinds: tuple[Type, ...] = (Type.Q4_K, Type.Q6_K, Type.Q8_0),
    rope_factor: float | None = None,
    *,
    experts: bool = False,
) -> None:
    """Write a language model whose matrices have these types, one after the other.

    Positions are divided by a factor, if there is one; with experts, it is a mixture of them.
    """
    settings = {
        "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
        "head_dim": HEAD, "num_hidden_layers": LAYERS, "intermediate_size": 2 * WIDTH,
        "vocab_size": len(TOKENS), "tie_word_embeddings": architecture in ("gemma3", "qwen3"),
    }  # fmt: skip
    if experts:
        settings |= {"moe_intermediate_size": INNER, "shared_expert_intermediate_size": 2 * INNER}
        settings["num_experts" if architecture == "qwen2moe" else "num_local_experts"] = EXPERTS
    config = (MIXTURES if experts else CONFIGS)[architecture](**settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    writer = GGUFWriter(path, architecture)
    _metadata(writer)
    if experts:
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(CHOSEN)
        writer.add_expert_feed_forward_length(INNER)
        writer.add_expert_shared_feed_forward_length(2 * INNER)
    if rope_factor is not None:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope_factor)
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
    weights = dict(model.named_parameters())
    kind = "llama" if architecture == "llama" else None
    names = get_gguf_hf_weights_map(model, processor, kind)
    shapes = {n: tuple(weights[target].shape) for n, target in names.items() if target in weights}
    shapes = {name: shape for name, shape in shapes.items() if "_exps" not in name}
    for layer in range(LAYERS) if experts else ():
        down = model.model.layers[layer].mlp.experts.down_proj.shape
        for part in ("down", "gate", "up"):
            shape = down if part == "down" else (down[0], down[2], down[1])
            shapes[f"blk.{layer}.ffn_{part}_exps.weight"] = tuple(shape)
    matrices = 0
    for name, shape in shapes.items():
        random = np.random.default_rng(len(name))
        if ".ffn_gate_inp" in name:  # never of few bits; the gate of a shared expert is a vector
            writer.add_tensor(name, random.normal(0, 0.5, shape).astype(np.float32).squeeze())
        elif len(shape) == 1:
            writer.add_tensor(name, random.normal(1, 0.1, shape).astype(np.float32))
        else:
            kind = kinds[matrices % len(kinds)]
            writer.add_tensor(name, _matrix(kind, shape, matrices), raw_dtype=kind)
            matrices += 1
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _matrix(kind: Type, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return random blocks whose values are weights of a usual size."""
    if kind not in (Type.Q4_K, Type.Q6_K, *CODEBOOKS):
        values = np.random.default_rng(seed).normal(0, 0.05, shape).astype(np.float32)
        return quantize(values, kind)
    data, _ = random_blocks(kind, math.prod(shape[:-1]), shape[-1], seed=seed)
    blocks = data.reshape(-1, GGML_QUANT_SIZES[kind][1])
    if kind in CODEBOOKS:
        if kind != Type.IQ1_M:  # its scale is among other numbers
            blocks[:, CODEBOOKS[kind]] = np.array([5e-4], np.float16).view(np.uint8)
    elif kind == Type.Q4_K:
        blocks[:, :4] = np.array([2e-4, 1e-3], np.float16).view(np.uint8)
    else:
        blocks[:, 208:] = np.array([4e-5], np.float16).view(np.uint8)
    return data.reshape(*shape[:-1], -1)


def _metadata(writer: GGUFWriter) -> None:
    values: dict[str, Any] = {
        "block_count": LAYERS,
        "context_length": 512,
        "embedding_length": WIDTH,
        "feed_forward_length": 2 * WIDTH,
        "head_count": HEADS,
        "head_count_kv": GROUPS,
        "key_length": HEAD,
        "value_length": HEAD,
        "vocab_size": len(TOKENS),
    }
    for name, value in values.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(HEAD)
    writer.add_sliding_window(64)
    writer.add_name("tiny")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    special = {"<s>", "</s>", "<pad>"}
    writer.add_token_types(
        [TokenType.CONTROL if t in special else TokenType.NORMAL for t in TOKENS]
    )
    writer.add_token_merges(["a b", "c d", "e f"])
    writer.add_bos_token_id(TOKENS.index("<s>"))
    writer.add_eos_token_id(TOKENS.index("</s>"))
    writer.add_pad_token_id(TOKENS.index("<pad>"))
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
