"""Writes a Llama of transformers as GGUF: python generation_gguf.py FOLDER FILE F32|Q4_0.

Runs in the environment of llama.cpp, with the package ``gguf``. The names of tensors and the order
of the lanes of queries and keys, which llama.cpp rotates in pairs, are those of its converter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def main(folder: Path, file: str, quantization: str) -> None:
    """Write the file, its matrices in the type of that name."""
    matrices = gguf.GGMLQuantizationType[quantization]
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "llama")
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(0)
    for name, tensor in read_safetensors(folder / "model.safetensors"):
        if "q_proj" in name or "k_proj" in name:
            tensor = paired(tensor, heads if "q_proj" in name else key_heads)
        if tensor.ndim == 2 and matrices != gguf.GGMLQuantizationType.F32:
            packed = gguf.quants.quantize(tensor, matrices)
            writer.add_tensor(new_name(name), packed, raw_dtype=matrices)
        else:
            writer.add_tensor(new_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_safetensors(file: Path) -> Any:
    """Yield names and float32 arrays."""
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    for name, info in json.loads(raw[8 : 8 + size]).items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in info["data_offsets"])
            yield name, np.frombuffer(raw[start:end], np.float32).reshape(info["shape"])


def new_name(name: str) -> str:
    """Return llama.cpp's name of a tensor."""
    parts = name.removesuffix(".weight").split(".")
    if parts[:2] == ["model", "layers"]:
        return f"blk.{parts[2]}.{NAMES['.'.join(parts[3:])]}.weight"
    return f"{NAMES['.'.join(parts)]}.weight"


def paired(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Return a projection whose lanes are rotated in neighboring pairs instead of halves."""
    rows, columns = tensor.shape
    halves = tensor.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
